// Every edge of the reader's side, forced, with what it must say, read and answer.
#include "core/handoff/reader.h"

#include <functional>
#include <utility>

#include <doctest/doctest.h>

namespace penstock::handoff {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const HandoffId kId{1, 2};
const Layout kLayout{2, 4, 32, "test"};
constexpr std::uint32_t kTokens = 10;  // three blocks, the last with two rows in use

std::vector<std::uint64_t> forced(edges().size());

struct Bench {
  explicit Bench(ReaderOptions o = {}) : options(o) {}
  ~Bench() {
    for (std::size_t i = 0; i < forced.size(); ++i)
      forced[i] += hits.of(i);
  }

  void open() { reader.opened(now, fx); }
  void attach() { reader.attached({5, 3, seconds(10)}, fx); }
  static Part part_of(std::uint32_t first, std::uint32_t n) {
    Part part{5, first, std::min(kTokens, (first + n) * kLayout.block_tokens), kLayout.layers, {}};
    for (std::uint32_t i = first; i < first + n; ++i)
      part.blocks.push_back({40 + i, 7, {i * 10, i * 10 + 1}});
    return part;
  }
  void part(std::uint32_t first, std::uint32_t n) { reader.part(part_of(first, n), fx); }
  void close(std::uint32_t tokens = kTokens) { reader.closed({5, tokens, EngineOutput{}}, fx); }
  std::vector<SliceRead> reads() {
    std::vector<SliceRead> reads;
    while (auto read = reader.next_read(now))
      reads.push_back(*read);
    return reads;
  }
  void read_all() {
    for (auto batch = reads(); !batch.empty(); batch = reads())
      for (const SliceRead& read : batch)
        reader.read_ended(read.slice, SliceEnd::kDone, fx);
  }
  void to(State state) {
    if (state >= State::kAttaching) open();
    if (state >= State::kWaiting) attach();
    if (state == State::kPulling) part(0, 2);
    if (state == State::kClosing) {
      part(0, 3);
      read_all();
    }
    CHECK(reader.state() == state);
    fx = {};
  }
  // The connection ends, after its reads.
  void lose() {
    for (const std::uint64_t slice : std::exchange(under_way, {}))
      reader.read_ended(slice, SliceEnd::kGone, fx);
    reader.lost(now, "cut", fx);
  }
  void tick(Duration duration) {
    now += duration;
    reader.tick(now, fx);
  }
  template <typename M>
  std::vector<M> sent() const {
    std::vector<M> found;
    for (const Message& message : fx.send)
      if (const auto* m = std::get_if<M>(&message)) found.push_back(*m);
    return found;
  }
  bool failed(Reason reason) const {
    return reader.state() == State::kFailed && reader.reason() == reason && fx.over &&
           !reader.why().empty();
  }
  // The owner is told, for it may think that this one still reads.
  bool told(Reason reason) const {
    return sent<Release>() == std::vector<Release>{{kId, 5, reason}};
  }

  ReaderOptions options;
  Hits hits;
  Instant now{seconds(100)};
  Reader reader{now, {kId, 5, Epoch(9), kTokens, "nano", kLayout}, options, hits};
  ReaderEffects fx;
  std::vector<std::uint64_t> under_way;
};

// What can happen in every state where the owner knows this reader.
void ends_of(State state) {
  CAPTURE(name(state));
  struct Case {
    Event event;
    Reason reason;
    std::function<void(Bench&)> force;
    bool tells = true;
  };
  const std::vector<Case> cases = {
      {Event::kEnded, Reason::kWithdrawn,
       [](Bench& b) { b.reader.ended({5, Reason::kWithdrawn, "cancelled"}, b.fx); }},
      {Event::kSilent, Reason::kSilent, [](Bench& b) { b.reader.silent(b.fx); }},
      {Event::kProtocol, Reason::kProtocol, [](Bench& b) { b.reader.broken("x", b.fx); }},
      {Event::kStop, Reason::kStopped, [](Bench& b) { b.reader.stop(b.fx); }},
      {Event::kDeadline, Reason::kDeadline, [](Bench& b) { b.tick(seconds(120)); }},
      {Event::kLease, Reason::kLease, [](Bench& b) { b.tick(milliseconds(9500)); }},
  };
  for (const Case& row : cases) {
    if (row.event == Event::kLease && state == State::kAttaching) continue;
    CAPTURE(name(row.event));
    Bench b;
    b.to(state);
    const auto reads = b.reads();
    row.force(b);
    CHECK(b.hits.of(state, row.event) == 1);
    CHECK(b.fx.over);
    CHECK(b.reader.reason() == row.reason);
    CHECK(b.reader.state() == (row.event == Event::kStop ? State::kStopped : State::kFailed));
    CHECK(b.told(row.reason));
    CHECK(!b.reader.output().has_value());
    // Over is over: nothing more is said, read or counted.
    b.fx = {};
    CHECK(!b.reader.next_read(b.now).has_value());
    b.reader.stop(b.fx);
    b.reader.ended({5, Reason::kExpired, ""}, b.fx);
    b.reader.silent(b.fx);
    b.reader.lost(b.now, "late", b.fx);
    b.part(2, 1);
    b.close();
    b.attach();
    b.open();
    b.tick(seconds(300));
    CHECK((b.fx.send.empty() && !b.fx.over && !b.fx.connect));
  }
  {
    Bench b;  // once it connects again; the second time it gives up
    b.to(state);
    for (const SliceRead& read : b.reads())
      b.under_way.push_back(read.slice);
    b.lose();
    CHECK(b.hits.of(state, Event::kLostOnce) == 1);
    CHECK(b.fx.connect);
    CHECK(!b.fx.over);
    b.to(State::kAttaching);
    b.lose();
    CHECK(b.hits.of(State::kAttaching, Event::kLost) == 1);
    CHECK(b.failed(Reason::kLost));
    CHECK(b.sent<Release>().empty());  // to whom
  }
  {
    ReaderOptions options;
    options.reconnects_max = 0;
    Bench b(options);
    b.to(state);
    b.lose();
    CHECK(b.hits.of(state, Event::kLost) == 1);
    CHECK(b.failed(Reason::kLost));
  }
}

// What the owner can't say.
void nonsense_of(State state) {
  CAPTURE(name(state));
  const std::vector<std::pair<const char*, std::function<void(Bench&)>>> cases = {
      {"attached twice", [](Bench& b) { b.attach(); }},
      {"a gap", [](Bench& b) { b.part(2, 1); }},
      {"the same part again",
       [](Bench& b) {
         b.part(0, 1);
         b.part(0, 1);
       }},
      {"an empty part", [](Bench& b) { b.part(0, 0); }},
      {"more blocks than asked for", [](Bench& b) { b.part(0, 4); }},
      {"other layers",
       [](Bench& b) {
         Part part = Bench::part_of(0, 1);
         part.layers = 3;
         b.reader.part(part, b.fx);
       }},
      {"another count of tokens",
       [](Bench& b) {
         Part part = Bench::part_of(0, 3);
         part.tokens = 11;
         b.reader.part(part, b.fx);
       }},
      {"closed too early", [](Bench& b) { b.close(); }},
      {"closed with other tokens",
       [](Bench& b) {
         b.part(0, 3);
         b.close(9);
       }},
      {"a part after the close",
       [](Bench& b) {
         b.part(0, 3);
         b.close();
         b.part(3, 1);
       }},
      {"closed twice",
       [](Bench& b) {
         b.part(0, 3);
         b.close();
         b.close();
       }},
  };
  for (const auto& [what, force] : cases) {
    CAPTURE(what);
    Bench b;
    b.to(state);
    force(b);
    // In `attaching` an Attached is right, and so is what follows it.
    if (state == State::kAttaching && std::string_view(what) == "attached twice") b.attach();
    CHECK(b.failed(Reason::kProtocol));
  }
}

}  // namespace

TEST_CASE("reader: every edge, forced") {
  for (const State state : {State::kAttaching, State::kWaiting, State::kPulling, State::kClosing})
    ends_of(state);
  for (const State state : {State::kAttaching, State::kWaiting})
    nonsense_of(state);
  {
    Bench b;  // the way it should go
    CHECK(b.hits.of(State::kNone, Event::kPull) == 1);
    b.open();
    CHECK(b.sent<Attach>() ==
          std::vector<Attach>{{kProtocolVersion, kId, 5, Epoch(9), 0, kTokens, "nano", kLayout}});
    b.attach();
    b.part(0, 2);
    CHECK(b.hits.of(State::kWaiting, Event::kPart) == 1);
    CHECK(b.sent<Ack>() == std::vector<Ack>{{kId, 5, 2}});
    const auto reads = b.reads();
    REQUIRE(reads.size() == 4);
    CHECK(reads[3].index == 1);
    CHECK(reads[3].layer == 1);
    CHECK(reads[3].pool == 3);
    CHECK(reads[3].ticket->block == 41);
    CHECK(reads[3].ticket->checksums[reads[3].layer] == 11);
    CHECK(reads[3].length == 32);
    for (const SliceRead& read : reads)
      b.reader.read_ended(read.slice, SliceEnd::kDone, b.fx);
    CHECK(b.hits.of(State::kPulling, Event::kDrained) == 1);
    b.part(2, 1);
    const auto rest = b.reads();
    REQUIRE(rest.size() == 2);
    CHECK(rest[0].length == 16);  // two rows of eight bytes
    b.reader.read_ended(rest[0].slice, SliceEnd::kDone, b.fx);
    b.reader.read_ended(rest[1].slice, SliceEnd::kDone, b.fx);
    CHECK(b.hits.of(State::kPulling, Event::kAllRead) == 1);
    CHECK(!b.fx.over);
    b.close();
    CHECK(b.hits.of(State::kClosing, Event::kClosed) == 1);
    CHECK(b.reader.state() == State::kDone);
    CHECK(b.fx.over);
    CHECK(b.told(Reason::kDone));
    CHECK(b.reader.output().has_value());
  }
  {
    Bench b;  // closed before the last byte is here
    b.to(State::kPulling);
    b.part(2, 1);
    CHECK(b.hits.of(State::kPulling, Event::kPart) == 1);
    b.close();
    CHECK(b.reader.state() == State::kPulling);
    b.read_all();
    CHECK(b.hits.of(State::kPulling, Event::kFinish) == 1);
    CHECK(b.reader.state() == State::kDone);
  }
  {
    Bench b;
    b.reader.lost(b.now, "refused", b.fx);
    CHECK(b.hits.of(State::kConnecting, Event::kUnreachable) == 1);
    CHECK(b.failed(Reason::kUnreachable));
    CHECK(b.fx.send.empty());
  }
  {
    Bench b;
    b.tick(milliseconds(2950));
    CHECK(!b.fx.over);
    b.tick(milliseconds(50));
    CHECK(b.hits.of(State::kConnecting, Event::kDeadline) == 1);
    CHECK(b.failed(Reason::kDeadline));
  }
  {
    Bench b;
    b.to(State::kAttaching);
    b.tick(milliseconds(7950));
    CHECK(!b.fx.over);
    b.tick(milliseconds(50));
    CHECK(b.failed(Reason::kDeadline));
  }
  {
    Bench b;
    b.reader.stop(b.fx);
    CHECK(b.hits.of(State::kConnecting, Event::kStop) == 1);
    CHECK(b.fx.over);
    CHECK(b.fx.send.empty());
  }
  const std::tuple<SliceEnd, Event, Reason> ends[] = {
      {SliceEnd::kStale, Event::kStale, Reason::kStale},
      {SliceEnd::kRefused, Event::kForbidden, Reason::kForbidden},
      {SliceEnd::kDeadline, Event::kSlowRead, Reason::kSlowRead},
  };
  for (const auto& [end, event, reason] : ends) {
    Bench b;
    b.to(State::kPulling);
    const auto reads = b.reads();
    b.reader.read_ended(reads[1].slice, end, b.fx);
    CHECK(b.hits.of(State::kPulling, event) == 1);
    CHECK(b.failed(reason));
    CHECK(b.told(reason));
    CHECK(b.reader.why().find("layer 1 of block 0") != std::string::npos);
  }
  {
    Bench b;  // corrupt: once more, then no more
    b.to(State::kPulling);
    const auto reads = b.reads();
    b.reader.read_ended(reads[2].slice, SliceEnd::kCorrupt, b.fx);
    CHECK(b.hits.of(State::kPulling, Event::kRetry) == 1);
    CHECK(!b.fx.over);
    const auto again = b.reads();
    REQUIRE(again.size() == 1);
    CHECK(again[0].slice == reads[2].slice);
    b.reader.read_ended(again[0].slice, SliceEnd::kCorrupt, b.fx);
    CHECK(b.hits.of(State::kPulling, Event::kCorrupt) == 1);
    CHECK(b.failed(Reason::kCorrupt));
    CHECK(b.reader.corrupt() == 2);
  }
  {
    Bench b;  // the connection goes in the middle of it; what is here stays
    b.to(State::kPulling);
    const auto reads = b.reads();
    b.reader.read_ended(reads[0].slice, SliceEnd::kDone, b.fx);
    b.under_way = {reads[1].slice, reads[2].slice, reads[3].slice};
    b.lose();
    CHECK(!b.reader.next_read(b.now).has_value());
    b.fx = {};
    b.open();
    CHECK(b.sent<Attach>().at(0).received == 2);
    b.attach();
    CHECK(b.hits.of(State::kAttaching, Event::kAttachedPulling) == 1);
    CHECK(b.reads().size() == 3);
  }
  {
    Bench b;
    b.to(State::kClosing);
    b.lose();
    b.open();
    b.attach();
    CHECK(b.hits.of(State::kAttaching, Event::kAttachedClosing) == 1);
    b.close();
    CHECK(b.reader.state() == State::kDone);
  }
  Hits hits;  // the driver's: before there is a machine
  CHECK(hits.take(State::kNone, Event::kRefusePull) == State::kFailed);
  for (std::size_t i = 0; i < forced.size(); ++i)
    forced[i] += hits.of(i);
  for (std::size_t i = 0; i < forced.size(); ++i) {
    const std::string edge = name(edges()[i]);
    CAPTURE(edge);
    if (side(edges()[i].event) == Side::kReader) CHECK(forced[i] > 0);
  }
}

TEST_CASE("the lease counts from when it was asked for, and no read outlives it") {
  Bench b;
  b.to(State::kAttaching);
  b.now += seconds(4);  // the answer lay in the socket of a stopped process
  b.attach();
  b.part(0, 2);
  const auto first = b.reader.next_read(b.now);
  REQUIRE(first.has_value());
  CHECK(first->deadline == Instant(seconds(109)));  // five seconds a read
  b.now = Instant(milliseconds(109'400));
  const auto late = b.reader.next_read(b.now);
  REQUIRE(late.has_value());
  CHECK(late->deadline == Instant(seconds(110)));
  b.now = Instant(milliseconds(109'500));
  CHECK(!b.reader.next_read(b.now).has_value());
}

TEST_CASE("the lease is renewed at a third of it, and only by the answer to the latest question") {
  Bench b;
  b.to(State::kWaiting);
  b.tick(milliseconds(3300));
  CHECK(b.sent<Renew>().empty());
  b.tick(milliseconds(50));
  CHECK(b.sent<Renew>() == std::vector<Renew>{{kId, 5, 1}});
  b.tick(seconds(1));
  CHECK(b.sent<Renew>().size() == 1);
  b.reader.renewed({5, 2, seconds(10)});
  b.reader.renewed({5, 1, seconds(10)});
  b.reader.renewed({5, 1, seconds(1000)});
  b.tick(Instant(milliseconds(112'800)) - b.now);  // 103.35 + 10 - 0.5
  CHECK(!b.fx.over);
  b.tick(milliseconds(50));
  CHECK(b.failed(Reason::kLease));
}

TEST_CASE("at most so many reads are under way") {
  ReaderOptions options;
  options.reads_max = 3;
  Bench b(options);
  b.to(State::kPulling);
  const auto reads = b.reads();
  CHECK(reads.size() == 3);
  b.reader.read_ended(reads[1].slice, SliceEnd::kDone, b.fx);
  CHECK(b.reads().size() == 1);
}

}  // namespace penstock::handoff
