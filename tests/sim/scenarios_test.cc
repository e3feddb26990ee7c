// Named lives: the edges of "Life of a request" and "Migration", each forced.
#include <algorithm>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/sim/bodies.h"
#include "tests/sim/world.h"

namespace penstock::simulated {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kPrefill = 0;
constexpr std::size_t kDecode = 1;

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Two prefill and two decode workers; every request takes two legs, the first one on 0 and 1.
WorldOptions pools() {
  WorldOptions options;
  options.places.resize(4);
  for (std::size_t i = 0; i < 4; ++i) {
    options.places[i].role = i % 2 == 0 ? WorkerRole::kPrefill : WorkerRole::kDecode;
    options.places[i].profile.chunk_tokens = 16;
  }
  options.limits.placement.local_prefill_max = {};
  return options;
}

std::string long_answer(std::string extra = R"(,"temperature":0)") {
  return body(BodyOptions{60, 60, true, R"(,"ignore_eos":true)" + std::move(extra)});
}

const char* const kKinds[] = {
    R"(,"temperature":0)",
    R"(,"temperature":0.9,"seed":7)",
    R"(,"temperature":0,"logprobs":true,"top_logprobs":2)",
    R"(,"temperature":0,"frequency_penalty":1.0)",
    R"(,"temperature":0.5,"seed":9,"logit_bias":{"301":4},"reasoning_effort":"none")",
    R"(,"temperature":0,"stop":["zzz"],"reasoning_effort":"none")",
};

// The first place that runs a leg.
std::optional<std::size_t> runner(World& world) {
  for (std::size_t place = 0; place < world.places(); ++place)
    if (world.is_up(place) && world.worker(place).open(0) > 0) return place;
  return std::nullopt;
}
void kill_runner(World& world) {
  const auto place = runner(world);
  REQUIRE(place);
  world.kill(*place);
  world.start(*place);
}
void until(World& world, const std::function<bool()>& done) {
  REQUIRE(world.advance_until(done, seconds(60), microseconds(100)));
}
void right_and_clean(World& world) {
  REQUIRE(world.finish());
  for (const auto& asked : world.asked()) {
    CAPTURE(asked->record.placement);
    CAPTURE(asked->record.outcome);
    CHECK(asked->finished());
    CHECK(asked->answer().equals(alone(asked->body)));
  }
  CHECK(world.settle() == "");
  for (std::size_t i = 0; i < world.gateways(); ++i)
    CHECK(world.engines(i).violations().empty());
}

}  // namespace

TEST_CASE("life: both legs, pulled while it is computed, and nothing is left") {
  World world(pools());
  const auto asked = world.ask(0, long_answer());
  right_and_clean(world);
  CHECK(asked->record.moves == 0);
  CHECK(contains(asked->record.placement, "w0 for w1"));
  CHECK(world.worker(kDecode).handoffs().pulls_done == 1);
  CHECK(world.worker(kPrefill).handoffs().owner.released == 1);
}

TEST_CASE("the yardstick: one wrong bit of pulled KV gives another answer") {
  World world(pools());
  const auto asked = world.ask(0, long_answer());
  until(world, [&] { return asked->client->writes > 3; });
  auto& engine = dynamic_cast<ToyEngine&>(world.worker(kDecode).engine(0));
  const service::RankMemory memory = engine.memory();
  // Blocks are taken from the lowest: the first of the pool holds the prompt's beginning.
  memory.payloads[2] ^= std::byte{1};
  REQUIRE(world.finish());
  CHECK(asked->answer().done);
  CHECK(!asked->answer().begins(alone(asked->body)));
}

TEST_CASE("migration: prefill dies before the first token, and it is placed again") {
  World world(pools());
  const auto asked = world.ask(0, long_answer());
  until(world, [&] { return world.worker(kPrefill).steps(0) == 3; });
  CHECK(asked->client->writes == 0);
  world.kill(kPrefill);
  right_and_clean(world);
  CHECK(asked->record.moves == 1);
  CHECK(contains(asked->record.placement, "w2 for"));
}

TEST_CASE("migration: prefill dies after the first token, before all is pulled: no move") {
  World world(pools());
  world.network.latency = [] { return milliseconds(20); };
  const auto asked = world.ask(0, long_answer());
  until(world, [&] { return asked->client->writes > 0; });
  CHECK(world.worker(kDecode).handoffs().pulls_running == 1);
  world.kill(kPrefill);
  right_and_clean(world);
  CHECK(asked->record.moves == 0);
  const auto failed = world.worker(kDecode).handoffs().pulls_failed;
  CHECK(std::ranges::count_if(failed, [](std::uint64_t n) { return n > 0; }) == 1);
}

TEST_CASE("migration: prefill dies when all is pulled, and nobody notices") {
  World world(pools());
  const auto asked = world.ask(0, long_answer());
  until(world, [&] { return asked->client->writes > 5; });
  world.kill(kPrefill);
  right_and_clean(world);
  CHECK(asked->record.moves == 0);
}

TEST_CASE("migration: decode dies in mid-stream and the very same text goes on, of every kind") {
  for (const char* kind : kKinds) {
    for (const std::size_t writes : {1U, 7U, 30U}) {
      CAPTURE(kind);
      CAPTURE(writes);
      World world(pools());
      const auto asked = world.ask(0, long_answer(kind));
      until(world, [&] { return asked->client->writes >= writes; });
      world.kill(kDecode);
      right_and_clean(world);
      CHECK(asked->record.moves == 1);
    }
  }
}

TEST_CASE("migration: both legs die at once, in prefill and in mid-stream") {
  for (const std::size_t writes : {0U, 10U}) {
    CAPTURE(writes);
    World world(pools());
    const auto asked = world.ask(0, long_answer());
    until(world, [&] {
      return writes == 0 ? world.worker(kPrefill).steps(0) == 2 : asked->client->writes == writes;
    });
    world.kill(kPrefill);
    world.kill(kDecode);
    right_and_clean(world);
    // Their deaths are noticed one after the other.
    CHECK(asked->record.moves >= 1);
    CHECK(asked->record.moves <= 2);
    CHECK(contains(asked->record.placement, "w2 for w3"));
  }
}

TEST_CASE("migration: three moves, then a clean error in the stream") {
  World world(pools());
  const auto asked = world.ask(0, long_answer());
  for (std::size_t kill = 0; kill < 4; ++kill) {
    const std::size_t said = asked->client->writes;
    until(world, [&] { return asked->client->writes > said + 3; });
    kill_runner(world);
  }
  REQUIRE(world.finish());
  CHECK(asked->record.moves == 3);
  CHECK(asked->record.outcome == "unavailable");
  const Answer answer = asked->answer();
  CHECK(!answer.done);
  CHECK(contains(answer.error, "failed; try again"));
  CHECK(!contains(answer.error, "w1"));
  CHECK(answer.begins(alone(asked->body)));
  CHECK(asked->finished());
  CHECK(world.settle() == "");
}

TEST_CASE("migration: three moves before the first token, then 503") {
  World world(pools());
  const auto asked = world.ask(0, long_answer());
  for (std::size_t kill = 0; kill < 4; ++kill) {
    until(world, [&] { return runner(world).has_value(); });
    kill_runner(world);
    world.advance(milliseconds(2));
  }
  REQUIRE(world.finish());
  CHECK(asked->client->status == 503);
  CHECK(asked->record.moves == 3);
  CHECK(asked->client->writes == 1);
  CHECK(world.settle() == "");
}

TEST_CASE(
    "migration: several choices move before the first token; after it the stream ends cleanly") {
  const std::string wanted = long_answer(R"(,"temperature":0.7,"seed":3,"n":3)");
  {
    World world(pools());
    const auto asked = world.ask(0, wanted);
    until(world, [&] { return world.worker(kPrefill).steps(0) == 2; });
    world.kill(kDecode);
    right_and_clean(world);
    CHECK(asked->record.moves == 1);
  }
  World world(pools());
  const auto asked = world.ask(0, wanted);
  until(world, [&] { return asked->client->writes > 5; });
  world.kill(kDecode);
  REQUIRE(world.finish());
  CHECK(asked->record.outcome == "unavailable");
  CHECK(!asked->answer().error.empty());
  CHECK(asked->answer().begins(alone(wanted)));
  CHECK(world.settle() == "");
}

TEST_CASE(
    "client gone at any moment: both legs stop within a step, prefill's blocks are free at once") {
  struct Stage {
    const char* name;
    std::function<bool(World&, const Asked&)> reached;
  };
  const Stage stages[] = {
      {"queued", [](World& w, const Asked&) { return w.worker(kPrefill).open(0) == 2; }},
      {"prefilling",
       [](World& w, const Asked& a) {
         return w.worker(kPrefill).open(0) == 1 &&
                w.worker(kPrefill).handoffs().owner.blocks_held > 8 && a.client->writes == 0;
       }},
      {"pulling",
       [](World& w, const Asked& a) {
         return a.client->writes > 0 && w.worker(kDecode).handoffs().pulls_running > 0;
       }},
      {"decoding", [](World&, const Asked& a) { return a.client->writes > 10; }},
  };
  for (const Stage& stage : stages) {
    CAPTURE(stage.name);
    WorldOptions options = pools();
    options.places.resize(2);
    options.limits.placement.prefill_backlog = seconds(2);  // the worker has the queue
    World world(options);
    const bool queued = std::string_view(stage.name) == "queued";
    if (queued) world.ask(0, body(BodyOptions{400, 4, true}));
    if (std::string_view(stage.name) == "pulling") {
      world.network.latency = [] { return milliseconds(8); };
    }
    world.advance(milliseconds(queued ? 20 : 0));
    const auto asked = world.ask(0, long_answer());
    until(world, [&] { return stage.reached(world, *asked); });
    const std::size_t others = queued ? 1 : 0;
    const std::uint64_t steps[] = {world.worker(0).steps(0), world.worker(1).steps(0)};
    const Instant left = world.clock().now();
    asked->client->leave();
    CHECK(asked->over);
    CHECK(world.gateway(0).in_flight() == others);
    CHECK(world.context(0).ledger.requests() == 2 * others);
    until(world, [&] {
      return world.worker(0).engine(0).open() == others &&
             world.worker(1).engine(0).open() == others;
    });
    // At most one step was begun before the cancel had arrived.
    CHECK(world.worker(0).steps(0) - steps[0] <= 1);
    CHECK(world.worker(1).steps(0) - steps[1] <= 1);
    CHECK(world.clock().now() - left < milliseconds(8));
    if (!queued) {
      until(world, [&] { return world.worker(0).engine(0).blocks_used() == 0; });
      // The message to the reader and back, and the turn that takes the blocks.
      CHECK(world.clock().now() - left < milliseconds(40));
      CHECK(world.worker(0).steps(0) - steps[0] <= 2);
    }
    REQUIRE(world.finish());
    CHECK(world.settle() == "");
  }
}

TEST_CASE("the pool is skipped when it does not pay, and the reason says so") {
  WorldOptions options = pools();
  options.limits.placement = {};
  for (PlaceOptions& place : options.places) {
    place.profile.step_base = milliseconds(1);
    place.profile.step_token = microseconds(100);
  }
  World world(options);
  const auto asked_short = world.ask(0, body(BodyOptions{4, 8, true}));
  right_and_clean(world);
  CHECK(contains(asked_short->record.placement, "its prompt too"));
  CHECK(world.worker(kPrefill).steps(0) == 0);
  const auto asked_long = world.ask(0, body(BodyOptions{300, 8, true}));
  right_and_clean(world);
  CHECK(contains(asked_long->record.placement, "w0 for"));
}

TEST_CASE("a rolling restart of every worker under load loses nothing") {
  World world(pools());
  std::uint64_t number = 0;
  for (std::size_t place = 0; place < world.places(); ++place) {
    world.roll(place, milliseconds(300));
    CHECK(world.worker(place).draining());
    // Until it was away and is there again, with requests coming all the time.
    bool away = false;
    for (int i = 0; i < 400 && !(away && world.is_up(place)); ++i) {
      away = away || !world.is_up(place);
      world.ask(0, body(number++ % kBodies));
      world.advance(milliseconds(40));
    }
    REQUIRE(world.is_up(place));
    world.advance(milliseconds(400));
  }
  CHECK(number > 20);
  right_and_clean(world);
}

TEST_CASE(
    "a stopped worker is dropped after 2 s of silence; what it held is free when it goes on") {
  for (const std::size_t place : {kPrefill, kDecode}) {
    for (const std::size_t writes : {0U, 8U}) {
      CAPTURE(place);
      CAPTURE(writes);
      World world(pools());
      const auto asked = world.ask(0, long_answer());
      until(world, [&] {
        return writes == 0 ? world.worker(kPrefill).steps(0) == 2 : asked->client->writes == writes;
      });
      world.worker(place).stop();
      REQUIRE(world.finish());
      // Prefill's end after its first token matters to nobody.
      const bool matters = place == kDecode || writes == 0;
      CHECK(asked->record.moves == (matters ? 1 : 0));
      if (matters) CHECK(asked->over_at - asked->at > seconds(2));
      CHECK(asked->over_at - asked->at < seconds(3));
      world.advance(seconds(13));
      world.worker(place).resume();
      right_and_clean(world);
    }
  }
}

TEST_CASE("a stalled decode worker's lease ends, and prefill's blocks are free without it") {
  WorldOptions options = pools();
  World world(options);
  world.network.latency = [] { return milliseconds(5); };
  world.ask(0, long_answer());
  until(world, [&] {
    return world.worker(kDecode).handoffs().pulls_running == 1 &&
           world.worker(kPrefill).handoffs().owner.blocks_held > 0;
  });
  world.worker(kDecode).stop();
  REQUIRE(world.finish());
  CHECK(world.worker(kPrefill).engine(0).blocks_used() > 0);
  world.advance(seconds(14));
  CHECK(world.worker(kPrefill).engine(0).blocks_used() == 0);
  world.worker(kDecode).resume();
  right_and_clean(world);
}

TEST_CASE("slices that are corrupt once are read again; twice, and the prompt is computed") {
  for (const std::uint64_t flips : {1U, 2U}) {
    CAPTURE(flips);
    World world(pools());
    RemoteSlice broken;
    std::uint64_t hits = 0;
    world.network.read_fault = [&](const RemoteSlice& slice) {
      if (hits == 0) broken = slice;
      const bool is_it = slice.block == broken.block && slice.offset == broken.offset;
      return is_it && hits++ < flips ? testing::ReadFault::kFlip : testing::ReadFault::kNone;
    };
    const auto asked = world.ask(0, long_answer());
    right_and_clean(world);
    CHECK(asked->record.moves == 0);
    const service::HandoffCounters now = world.worker(kDecode).handoffs();
    CHECK(now.slices_corrupt == flips);
    CHECK(now.pulls_done == (flips == 1 ? 1 : 0));
  }
}

TEST_CASE("a client that stops reading costs bounded memory, slows nobody, and is cut off") {
  Instant neighbour_over[2];
  for (const bool stops : {false, true}) {
    WorldOptions options = pools();
    options.places.resize(2);
    options.write_timeout = seconds(3);
    World world(options);
    ClientPlan plan;
    if (stops) {
      plan.stops_after = 4000;
      plan.read_every = milliseconds(1);
    }
    const auto stuck = world.ask(
        0, body(BodyOptions{20, 1500, true, R"(,"temperature":0,"ignore_eos":true)"}), plan);
    world.advance(milliseconds(30));
    const auto neighbour = world.ask(0, long_answer());
    REQUIRE(world.finish());
    neighbour_over[stops ? 1 : 0] = neighbour->over_at;
    CHECK(neighbour->answer().equals(alone(neighbour->body)));
    if (stops) {
      CHECK(stuck->client->end == ClientEnd::kCut);
      CHECK(stuck->record.outcome == "deadline_exceeded");
      CHECK(stuck->client->taken.size() == 4000);
      CHECK(stuck->client->socket_most < SimClient::kSocketBytes + 1000);  // and one event
      CHECK(stuck->answer().begins(alone(stuck->body)));
      CHECK(stuck->over_at - stuck->at < seconds(5));
    }
    CHECK(world.settle() == "");
  }
  CHECK(neighbour_over[1] <= neighbour_over[0]);
}

TEST_CASE("what a slow client has not read merges: one event when it reads on") {
  WorldOptions options = pools();
  options.places.resize(2);
  World world(options);
  ClientPlan plan;
  plan.read_every = seconds(2);
  const auto asked = world.ask(0, long_answer(), plan);
  right_and_clean(world);
  // 60 tokens of about 200 bytes each alone; the first fill the socket, the rest came together.
  CHECK(asked->client->writes < 20);
}

TEST_CASE("two gateways that number their requests alike do not confuse each other") {
  WorldOptions options = pools();
  options.gateways = 2;
  options.gateways_alike = true;
  World world(options);
  for (std::uint64_t i = 0; i < 12; ++i)
    world.ask(i % 2, body(i * 3));
  right_and_clean(world);
  // One of them dies in mid-stream: the other's go on, and the workers drop its own.
  const auto lost = world.ask(0, long_answer());
  const auto kept = world.ask(1, long_answer(R"(,"temperature":0.4,"seed":5)"));
  until(world, [&] { return lost->client->writes > 3 && kept->client->writes > 3; });
  world.crash_gateway(0);
  REQUIRE(world.finish());
  CHECK(lost->client->end == ClientEnd::kLeft);
  CHECK(kept->answer().equals(alone(kept->body)));
  CHECK(kept->record.moves == 0);
  CHECK(world.settle() == "");
}

TEST_CASE("the deadline of a request ends both legs") {
  WorldOptions options = pools();
  options.limits.request_time_max = seconds(5);
  for (PlaceOptions& place : options.places)
    place.profile.step_base = milliseconds(1500);
  for (const bool in_stream : {false, true}) {
    CAPTURE(in_stream);
    if (in_stream) options.places[0].profile.step_base = milliseconds(1);
    World world(options);
    const auto asked = world.ask(0, long_answer());
    REQUIRE(world.finish());
    CHECK(asked->over_at - asked->at <= seconds(5));
    CHECK(asked->record.outcome == "deadline_exceeded");
    CHECK((asked->client->writes > 1) == in_stream);
    CHECK(!asked->answer().error.empty());
    CHECK(asked->answer().begins(alone(asked->body)));
    CHECK(world.settle(seconds(3)) == "");
  }
}

TEST_CASE("without any worker a request waits for one, and then for no longer") {
  WorldOptions options;
  options.places.resize(1);
  World world(options);
  world.kill(0);
  world.advance(milliseconds(10));
  const auto waits = world.ask(0, long_answer());
  world.advance(seconds(6));
  CHECK(!waits->over);
  world.start(0);
  right_and_clean(world);
  CHECK(waits->record.moves == 0);
  world.kill(0);
  world.advance(milliseconds(10));
  const auto fails = world.ask(0, long_answer());
  REQUIRE(world.finish());
  CHECK(fails->client->status == 503);
  CHECK(fails->over_at - fails->at <= milliseconds(10100));
}

TEST_CASE("a burst larger than the KV of a decode rank waits in front, and is served in turn") {
  WorldOptions options = pools();
  options.places.resize(2);
  options.places[kDecode].profile.blocks = 150;  // of 4 tokens: four requests at a time or so
  World world(options);
  for (int i = 0; i < 12; ++i)
    world.ask(0, long_answer());
  std::size_t queued = 0;
  for (int i = 0; i < 400; ++i) {
    world.advance(milliseconds(1));
    queued = std::max(queued, world.context(0).admission.queued());
  }
  CHECK(queued >= 4);
  right_and_clean(world);
}

TEST_CASE(
    "who waits and leaves is gone at once; who waits for a worker that dies is served by the "
    "next") {
  WorldOptions options = pools();
  options.limits.admission.running_max = 1;
  World world(options);
  const auto first = world.ask(0, long_answer());
  const auto second = world.ask(0, long_answer());
  const auto third = world.ask(0, long_answer());
  until(world, [&] { return first->client->writes > 3; });
  CHECK(world.context(0).admission.queued() == 2);
  second->client->leave();
  CHECK(second->over);
  CHECK(world.context(0).admission.queued() == 1);
  kill_runner(world);
  REQUIRE(world.finish());
  CHECK(first->answer().equals(alone(first->body)));
  CHECK(third->answer().equals(alone(third->body)));
  CHECK(contains(third->record.placement, "; queued "));
  CHECK(world.settle() == "");
}

TEST_CASE("one pool is gone: the other does its work") {
  for (const std::size_t gone : {kPrefill, kDecode}) {
    CAPTURE(gone);
    WorldOptions options = pools();
    options.places.resize(2);
    World world(options);
    world.kill(gone);
    world.advance(milliseconds(10));
    const auto asked = world.ask(0, long_answer());
    right_and_clean(world);
    CHECK(contains(asked->record.placement,
                   gone == kPrefill ? "no prefill worker is there" : "no decode worker is there"));
  }
}

TEST_CASE("a network that passes no control frames for 4 s: one move, and the old legs end") {
  World world(pools());
  const auto asked = world.ask(0, long_answer());
  until(world, [&] { return asked->client->writes > 6; });
  for (const auto& link : world.worker(kDecode).links())
    link->hold(seconds(4));
  right_and_clean(world);
  CHECK(asked->record.moves == 1);
}

}  // namespace penstock::simulated
