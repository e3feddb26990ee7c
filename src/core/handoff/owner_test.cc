// Every edge of the owner's side, forced, with what it must do to blocks, readers and messages.
#include "core/handoff/owner.h"

#include <functional>
#include <utility>

#include <doctest/doctest.h>

namespace penstock::handoff {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const HandoffId kId{1, 2};
const Layout kLayout{2, 4, 32, "test"};
constexpr PeerId kAnn{11};
constexpr PeerId kBob{12};

std::vector<std::uint64_t> forced(edges().size());

struct Bench {
  explicit Bench(OwnerOptions o = {}) : options(o) { owner.add_pool(0, kLayout, 64); }
  ~Bench() {
    for (std::size_t i = 0; i < forced.size(); ++i)
      forced[i] += hits.of(i);
  }

  void announce(HandoffId id = kId) { owner.announce(now, 0, id, "nano", fx); }
  // Two blocks; `tokens` of the sequence up to them.
  void publish(std::uint32_t first, std::uint32_t tokens, HandoffId id = kId) {
    const GivenBlock blocks[] = {{first + 10, 5}, {first + 11, 6}};
    owner.publish(now, 0, id, first, blocks, tokens, fx);
    sum();
  }
  void sum() {
    while (const auto task = owner.next_sum())
      owner.summed(std::vector<std::uint64_t>(kLayout.layers, task->block * 100 + task->rows));
    owner.pump(fx);
  }
  void close(HandoffId id = kId) {
    owner.close(now, 0, id, std::nullopt, fx);
    owner.pump(fx);
  }
  void withdraw() { owner.withdraw(now, 0, kId, "why not", fx); }
  // To that state, with nobody attached.
  void to(State state) {
    announce();
    if (state >= State::kOpen) publish(0, 8);
    if (state >= State::kComplete) close();
    fx = {};
  }
  Attach attach_message(std::uint64_t pull) const {
    return {kProtocolVersion, kId, pull, Epoch(1), 0, 8, "nano", kLayout};
  }
  void attach(PeerId peer, std::uint64_t pull) { attach(peer, attach_message(pull)); }
  void attach(PeerId peer, const Attach& message) {
    owner.attach(now, peer, message, fx);
    owner.pump(fx);
  }
  void release(PeerId peer, std::uint64_t pull) {
    owner.release(now, peer, {kId, pull, Reason::kDone}, fx);
  }
  void advance(Duration duration) {
    for (const Instant end = now + duration; now < end;) {
      now += milliseconds(50);
      owner.tick(now, fx);
    }
  }
  std::uint64_t hit(State state, Event event) const { return hits.of(state, event); }
  bool freed_all(State state) const {
    return fx.freed.size() == (state == State::kAnnounced ? 0U : 2U) &&
           owner.counters().open == 0 && owner.counters().blocks_held == 0;
  }
  bool freed_none() const { return fx.freed.empty() && owner.counters().open == 1; }
  bool readable(PeerId peer) const { return owner.readable(now, peer, 0, 10, 5); }
  // The messages of one kind sent to `peer`, since `fx` was emptied.
  template <typename M>
  std::vector<M> sent(PeerId peer) const {
    std::vector<M> found;
    for (const auto& [to, message] : fx.send)
      if (const auto* m = std::get_if<M>(&message); m != nullptr && to == peer) found.push_back(*m);
    return found;
  }

  OwnerOptions options;
  Hits hits;
  Owner owner{Epoch(1), options, hits};
  OwnerEffects fx;
  Instant now{seconds(100)};
};

constexpr State kLive[] = {State::kAnnounced, State::kOpen, State::kComplete};

void readers_of(State state) {
  CAPTURE(name(state));
  const bool published = state != State::kAnnounced;
  {
    Bench b;
    b.to(state);
    CHECK(!b.readable(kAnn));
    b.attach(kAnn, 1);
    CHECK(b.hit(state, Event::kAttach) == 1);
    CHECK(b.sent<Attached>(kAnn) == std::vector<Attached>{{1, 0, seconds(10)}});
    CHECK(b.sent<Part>(kAnn).size() == (published ? 1 : 0));
    CHECK(b.sent<Closed>(kAnn).size() == (state == State::kComplete ? 1 : 0));
    CHECK(b.readable(kAnn) == published);
    CHECK(!b.readable(kBob));
    CHECK(!b.owner.readable(b.now, kAnn, 0, 10, 6));
    CHECK(!b.owner.readable(b.now, kAnn, 1, 10, 5));
    CHECK(!b.owner.readable(b.now, kAnn, 0, 12, 5));

    // Renewed, it stays; not renewed, it ends, and the reader may still be in the middle of a read.
    b.advance(seconds(9));
    b.owner.renew(b.now, kAnn, {kId, 1, 4}, b.fx);
    CHECK(b.hit(state, Event::kRenew) == 1);
    CHECK(b.sent<Renewed>(kAnn) == std::vector<Renewed>{{1, 4, seconds(10)}});
    b.advance(milliseconds(9900));
    CHECK(b.readable(kAnn) == published);
    b.now += milliseconds(100);
    CHECK(!b.readable(kAnn));  // already before tick() has seen it
    b.advance(milliseconds(50));
    CHECK(b.hit(state, Event::kExpireHeld) == 1);
    CHECK(b.sent<Ended>(kAnn).at(0).reason == Reason::kExpired);
    CHECK(b.freed_none());
    CHECK(!b.readable(kAnn));
    b.advance(milliseconds(1800));
    CHECK(b.freed_none());
    b.advance(milliseconds(200));
    CHECK(b.hit(State::kQuarantine, Event::kOver) == 1);
    CHECK(b.freed_all(state));
  }
  {
    Bench b;  // a proper release frees at once
    b.to(state);
    b.attach(kAnn, 1);
    b.release(kAnn, 9);
    b.release(kBob, 1);
    CHECK(b.fx.freed.empty());
    b.release(kAnn, 1);
    CHECK(b.hit(state, Event::kRelease) == 1);
    CHECK(b.freed_all(state));
    CHECK(!b.readable(kAnn));
    // And what the engine still gives comes straight back.
    b.fx = {};
    b.publish(2, 16);
    CHECK(b.fx.freed == std::vector<OwnerEffects::Freed>{{0, 12}, {0, 13}});
  }
  {
    Bench b;  // another reader takes over; the first may still read, so its release is waited for
    b.to(state);
    b.attach(kAnn, 1);
    b.attach(kBob, 1);
    CHECK(b.hit(state, Event::kReplace) == 1);
    CHECK(b.sent<Ended>(kAnn).at(0).reason == Reason::kReplaced);
    CHECK(!b.readable(kAnn));
    CHECK(b.readable(kBob) == published);
    b.release(kBob, 1);
    CHECK(b.hit(state, Event::kReleaseHeld) == 1);
    CHECK(b.freed_none());
    b.release(kAnn, 1);
    CHECK(b.hit(State::kQuarantine, Event::kLastReleased) == 1);
    CHECK(b.freed_all(state));
  }
  {
    Bench b;  // lost: the handoff stays for whoever comes next
    b.to(state);
    b.attach(kAnn, 1);
    b.owner.lost(b.now, kAnn, b.fx);
    CHECK(b.hit(state, Event::kReaderLost) == 1);
    CHECK(!b.readable(kAnn));
    CHECK(b.freed_none());
    b.attach(kBob, 7);
    CHECK(b.readable(kBob) == published);
    CHECK(b.hit(state, Event::kAttach) == 2);
  }
  {
    Bench b;
    b.to(state);
    b.withdraw();
    CHECK(b.hit(state, Event::kWithdraw) == 1);
    CHECK(b.freed_all(state));
    b.attach(kAnn, 1);
    CHECK(b.sent<Ended>(kAnn) == std::vector<Ended>{{1, Reason::kWithdrawn, "why not"}});
  }
  {
    Bench b;
    b.to(state);
    b.attach(kAnn, 1);
    b.withdraw();
    CHECK(b.hit(state, Event::kWithdrawHeld) == 1);
    CHECK(b.sent<Ended>(kAnn) == std::vector<Ended>{{1, Reason::kWithdrawn, "why not"}});
    CHECK(b.freed_none());
    CHECK(!b.readable(kAnn));
    b.owner.lost(b.now, kAnn, b.fx);
    CHECK(b.hit(State::kQuarantine, Event::kLastLost) == 1);
    CHECK(b.freed_all(state));
  }
}

void refusals_of(State state) {
  CAPTURE(name(state));
  Bench b;
  b.to(state);
  std::uint64_t pull = 0;
  const auto refused = [&](auto change, Reason reason, const char* says) {
    Attach message = b.attach_message(++pull);
    change(message);
    b.fx = {};
    b.attach(kAnn, message);
    const auto ended = b.sent<Ended>(kAnn);
    REQUIRE(ended.size() == 1);
    CHECK(ended[0].pull == message.pull);
    CHECK(ended[0].reason == reason);
    CAPTURE(ended[0].why);
    CHECK(ended[0].why.find(says) != std::string::npos);
    CHECK(!b.readable(kAnn));
  };
  refused([](Attach& a) { a.version = 2; }, Reason::kVersion, "version 1, the reader 2");
  refused([](Attach& a) { a.epoch = Epoch(9); }, Reason::kRestarted, "asks for 0000000000000009");
  refused([](Attach& a) { a.model = "other"; }, Reason::kMismatch, "\"nano\"");
  refused([](Attach& a) { a.layout.layers = 3; }, Reason::kMismatch, "3 layers");
  refused([](Attach& a) { a.layout.slice_bytes = 64; }, Reason::kMismatch, "of 32 bytes");
  refused([](Attach& a) { a.layout.block_tokens = 8; }, Reason::kMismatch, "8 tokens a block");
  refused([](Attach& a) { a.layout.format = "f32"; }, Reason::kMismatch, "f32");
  refused([](Attach& a) { a.received = 3; }, Reason::kProtocol, "3 tickets");
  if (state == State::kComplete)
    refused([](Attach& a) { a.tokens = 9; }, Reason::kMismatch, "8 tokens, the reader wants 9");
  CHECK(b.hit(state, Event::kRefuseAttach) == (state == State::kComplete ? 7 : 6));
}

}  // namespace

TEST_CASE("owner: every edge, forced") {
  for (const State state : kLive) {
    readers_of(state);
    refusals_of(state);
  }
  {
    Bench b;  // complete, and nobody comes; while it was computed that did not matter
    b.to(State::kOpen);
    b.publish(2, 16);
    CHECK(b.hit(State::kOpen, Event::kPublish) == 1);
    b.advance(seconds(60));
    CHECK(b.freed_none());
    b.close();
    b.advance(milliseconds(9900));
    CHECK(b.freed_none());
    b.advance(milliseconds(100));
    CHECK(b.hit(State::kComplete, Event::kExpireUnclaimed) == 1);
    CHECK(b.fx.freed.size() == 4);
    CHECK(b.owner.counters().open == 0);
  }
  {
    Bench b;  // nobody comes back: to the end of the lost reader's lease
    b.to(State::kComplete);
    b.advance(seconds(5));
    b.attach(kAnn, 1);
    b.owner.lost(b.now, kAnn, b.fx);
    b.advance(milliseconds(9900));
    CHECK(b.freed_none());
    b.advance(milliseconds(100));
    CHECK(b.freed_all(State::kComplete));
  }
  {
    Bench b;  // of three who may read, the last one counts
    b.to(State::kOpen);
    constexpr PeerId kCat{13};
    constexpr PeerId kDan{14};
    std::uint64_t pull = 0;
    for (const PeerId peer : {kAnn, kBob, kCat, kDan})
      b.attach(peer, ++pull);
    b.withdraw();
    b.release(kBob, 2);
    CHECK(b.hit(State::kQuarantine, Event::kHolderReleased) == 1);
    b.owner.lost(b.now, kCat, b.fx);
    CHECK(b.hit(State::kQuarantine, Event::kHolderLost) == 1);
    b.release(kAnn, 1);
    CHECK(b.freed_none());
    b.release(kDan, 4);
    CHECK(b.freed_all(State::kOpen));
  }
  {
    OwnerOptions options;
    options.handoffs_max = 1;
    Bench b(options);
    b.owner.announce(b.now, 0, {8, 8}, "nano", b.fx);
    b.announce();
    CHECK(b.hit(State::kNone, Event::kRefuseAnnounce) == 1);
    b.attach(kAnn, 1);
    CHECK(b.sent<Ended>(kAnn).at(0).reason == Reason::kLimit);
    b.publish(0, 8);
    CHECK(b.fx.freed.size() == 2);
  }
  for (std::size_t i = 0; i < forced.size(); ++i) {
    const std::string edge = name(edges()[i]);
    CAPTURE(edge);
    if (side(edges()[i].event) == Side::kOwner) CHECK(forced[i] > 0);
  }
}

TEST_CASE("tickets go out in parts, so many ahead of the acknowledgements, and then the close") {
  OwnerOptions options;
  options.part_bytes_max = 30;  // one block
  options.parts_in_flight_max = 3;
  Bench b(options);
  b.announce();
  b.attach(kAnn, 1);
  b.publish(0, 8);
  b.publish(2, 16);
  b.publish(4, 22);
  b.close();
  auto parts = b.sent<Part>(kAnn);
  REQUIRE(parts.size() == 3);
  CHECK(parts[2] == Part{1, 2, 12, 2, {{12, 5, {1204, 1204}}}});
  b.owner.ack(kAnn, {kId, 2, 3});  // of another pull
  b.owner.ack(kBob, {kId, 1, 3});
  b.owner.pump(b.fx);
  CHECK(b.sent<Part>(kAnn).size() == 3);
  b.owner.ack(kAnn, {kId, 1, 2});
  b.owner.pump(b.fx);
  CHECK(b.sent<Part>(kAnn).size() == 5);
  CHECK(b.sent<Closed>(kAnn).empty());
  b.owner.ack(kAnn, {kId, 1, 5});
  b.owner.pump(b.fx);
  parts = b.sent<Part>(kAnn);
  REQUIRE(parts.size() == 6);
  // The last block has two rows in use, and its checksum is of those.
  CHECK(parts[5] == Part{1, 5, 22, 2, {{15, 6, {1502, 1502}}}});
  CHECK(b.sent<Closed>(kAnn) == std::vector<Closed>{{1, 22, std::nullopt}});

  // Attaching again, with four tickets in hand, it gets the other two and the close.
  b.owner.lost(b.now, kAnn, b.fx);
  b.fx = {};
  Attach again = b.attach_message(1);
  again.received = 4;
  again.tokens = 22;
  b.attach(kBob, again);
  CHECK(b.sent<Part>(kBob).size() == 2);
  CHECK(b.sent<Part>(kBob).at(0).first == 4);
  CHECK(b.sent<Closed>(kBob).size() == 1);
}

TEST_CASE("an early attach waits for its announcement, for a while and up to a limit") {
  OwnerOptions options;
  options.parked_max = 2;
  Bench b(options);
  b.attach(kAnn, 1);
  b.attach(kBob, 1);
  b.attach(kBob, 2);
  CHECK(b.sent<Ended>(kBob) == std::vector<Ended>{{2, Reason::kLimit,
                                                   "2 readers wait for handoffs not announced yet, "
                                                   "the limit"}});
  CHECK(b.owner.counters().parked == 2);
  b.advance(milliseconds(2100));
  CHECK(b.sent<Alive>(kAnn).size() == 2);
  b.owner.lost(b.now, kBob, b.fx);
  CHECK(b.owner.counters().parked == 1);
  b.announce();
  CHECK(b.sent<Attached>(kAnn).size() == 1);
  CHECK(b.owner.counters().parked == 0);
  b.release(kAnn, 1);

  Bench c;
  c.attach(kAnn, 1);
  c.attach(kAnn, 2);
  c.release(kAnn, 2);
  c.advance(milliseconds(4950));
  CHECK(c.sent<Ended>(kAnn).empty());
  c.advance(milliseconds(50));
  CHECK(c.sent<Ended>(kAnn).size() == 1);
  CHECK(c.sent<Ended>(kAnn).at(0).reason == Reason::kUnknown);
  CHECK(c.owner.idle());
}

TEST_CASE("calls of an engine that make no sense end the handoff, and every block comes back") {
  const GivenBlock one[] = {{10, 5}};
  const GivenBlock outside[] = {{64, 5}};
  struct Case {
    const char* what;
    std::function<void(Bench&)> call;
    std::size_t freed;
  };
  const Case cases[] = {
      {"a gap", [](Bench& b) { b.publish(4, 24); }, 4},
      {"the same again", [](Bench& b) { b.publish(0, 8); }, 4},
      {"too few tokens", [](Bench& b) { b.publish(2, 12); }, 4},
      {"none", [](Bench& b) { b.owner.publish(b.now, 0, kId, 2, {}, 12, b.fx); }, 2},
      {"a block that is not there",
       [&](Bench& b) { b.owner.publish(b.now, 0, kId, 2, outside, 12, b.fx); }, 3},
      {"more after a part of a block",
       [&](Bench& b) {
         b.publish(2, 15);
         b.owner.publish(b.now, 0, kId, 4, one, 17, b.fx);
       },
       5},
      {"more after the close",
       [](Bench& b) {
         b.close();
         b.publish(2, 16);
       },
       4},
      {"closed twice",
       [](Bench& b) {
         b.close();
         b.close();
       },
       2},
      {"an output beyond the limits",
       [](Bench& b) {
         EngineOutput output;
         output.tokens.resize(kOutputTokensMax + 1);
         b.owner.close(b.now, 0, kId, output, b.fx);
       },
       2},
      {"announced again", [](Bench& b) { b.announce(); }, 2},
  };
  for (const Case& row : cases) {
    CAPTURE(row.what);
    Bench b;
    b.to(State::kOpen);
    row.call(b);
    CHECK(b.fx.freed.size() == row.freed);
    CHECK(b.owner.counters().blocks_held == 0);
    CHECK(b.owner.counters().withdrawn == 1);
  }
  Bench b;  // another rank's engine has no say, and gets its blocks back
  b.owner.add_pool(1, kLayout, 64);
  b.to(State::kOpen);
  b.owner.publish(b.now, 1, kId, 2, one, 12, b.fx);
  b.owner.close(b.now, 1, kId, std::nullopt, b.fx);
  b.owner.withdraw(b.now, 1, kId, "no", b.fx);
  CHECK(b.fx.freed == std::vector<OwnerEffects::Freed>{{1, 10}});
  CHECK(b.owner.counters().open == 1);
}

TEST_CASE("handoffs hold a share of a pool at most; a block in two of them counts once") {
  OwnerOptions options;
  options.blocks_held_percent_max = 5;  // three of 64
  Bench b(options);
  b.to(State::kOpen);
  const HandoffId other{3, 4};
  b.announce(other);
  b.publish(0, 8, other);
  CHECK(b.owner.counters().blocks_held == 4);
  CHECK(b.fx.freed.empty());
  b.publish(2, 16, other);
  CHECK(b.fx.freed.size() == 4);
  CHECK(b.owner.counters().open == 1);
  CHECK(b.owner.counters().blocks_held == 2);
}

TEST_CASE("a lost reader's blocks wait, where it might still read") {
  OwnerOptions options;
  options.quarantine_lost = seconds(3);
  Bench b(options);
  b.to(State::kComplete);
  b.attach(kAnn, 1);
  b.owner.lost(b.now, kAnn, b.fx);
  b.withdraw();
  CHECK(b.freed_none());
  b.advance(milliseconds(2900));
  CHECK(b.freed_none());
  b.advance(milliseconds(100));
  CHECK(b.freed_all(State::kComplete));
}

TEST_CASE("what ended is remembered with its reason, for a while and up to a limit") {
  OwnerOptions options;
  options.remembered_max = 2;
  Bench b(options);
  b.to(State::kOpen);
  b.withdraw();
  for (std::uint64_t i = 10; i < 12; ++i) {
    b.owner.announce(b.now, 0, {i, i}, "nano", b.fx);
    b.owner.withdraw(b.now, 0, {i, i}, "no", b.fx);
  }
  b.attach(kAnn, 1);
  CHECK(b.sent<Ended>(kAnn).empty());  // forgotten: it waits
  Attach message = b.attach_message(2);
  message.id = {11, 11};
  b.attach(kBob, message);
  CHECK(b.sent<Ended>(kBob).at(0).reason == Reason::kWithdrawn);
  b.advance(seconds(31));
  CHECK(b.owner.idle());
}

}  // namespace penstock::handoff
