// Random lives: two gateways on the same workers, clients of every kind, and faults drawn from the
// seed. What must hold in each:
//   - a finished answer is the one computed alone; one that was cut off is how that one begins;
//   - every request is over by its deadline (and the write time-out of a client that reads
//   nothing);
//   - at most 3 moves; no frame that breaks the protocol; an answer that fails says so in its form;
//   - afterwards nothing is left: in flight, permits, legs, handoffs, pulls, reads, blocks;
//   - the same seed does the very same again.
// SIM_SEEDS=n runs that many, SIM_FIRST=n begins there.
#include <cstdlib>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/sim/bodies.h"
#include "tests/sim/world.h"
#include "tests/support/effort.h"

namespace penstock::simulated {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Of all lives together, so that a suite in which nothing happens fails.
struct Tally {
  std::uint64_t requests = 0, finished = 0, moved = 0, refused = 0, cut = 0, left = 0;
  std::uint64_t two_legs = 0, kills = 0, stops = 0, drains = 0, crashes = 0, breaks = 0;
  std::uint64_t pulls_done = 0, pulls_failed = 0, corrupt = 0;
};

class Life {
 public:
  Life(std::uint64_t seed, Tally& tally)
      : rng_(seed), tally_(tally), world_(options(seed)), end_(seconds(2 + below(5))) {
    set_faults();
  }

  std::uint64_t run() {
    plan();
    world_.advance(end_);
    calm();
    const bool over = world_.finish(seconds(60));
    CHECK_MESSAGE(over, "a request is not over long after its deadline");
    look();
    CHECK(world_.settle() == "");
    return world_.digest();
  }

 private:
  std::uint64_t below(std::uint64_t n) { return rng_.below(n); }
  bool one_in(std::uint64_t n) { return rng_.below(n) == 0; }
  Duration any(Duration most) {
    return Duration(static_cast<Duration::rep>(below(static_cast<std::uint64_t>(most.count()))));
  }

  WorldOptions options(std::uint64_t seed) {
    WorldOptions out;
    out.seed = seed;
    out.gateways = 2;
    out.limits.request_time_max = kRequestTime;
    out.limits.worker_wait_max = seconds(4);
    out.write_timeout = kWriteTimeout;
    if (one_in(3)) out.limits.placement.local_prefill_max = {};
    if (one_in(3)) {
      // Little is let through at a time, and some have to wait too long.
      out.limits.admission.running_max = 1 + static_cast<std::uint32_t>(below(4));
      out.limits.admission.queue_time_max = milliseconds(50 + below(20'000));
      if (one_in(3)) out.limits.admission.queue_max = 1 + static_cast<std::uint32_t>(below(6));
    }
    if (one_in(3)) out.limits.placement.prefill_backlog = milliseconds(1 + below(50));
    if (one_in(3)) {
      const auto any_of = [this](const std::vector<std::string_view>& names) {
        return std::string(names[below(names.size())]);
      };
      out.policies = {any_of(gateway::prefill_policy_names()),
                      any_of(gateway::decode_policy_names())};
    }
    const bool only_mixed = one_in(8);
    const std::size_t places = 2 + below(4);
    for (std::size_t i = 0; i < places; ++i) {
      PlaceOptions place;
      if (!only_mixed) {
        constexpr WorkerRole kRoles[] = {WorkerRole::kPrefill, WorkerRole::kDecode,
                                         WorkerRole::kPrefill, WorkerRole::kDecode,
                                         WorkerRole::kMixed};
        place.role = i < 2 ? kRoles[i] : kRoles[below(5)];
      }
      place.ranks = 1 + static_cast<std::uint32_t>(below(2));
      place.zone = one_in(3) ? "far" : "";
      place.profile.blocks = one_in(4) ? 320 : 1200;
      place.profile.chunk_tokens = 16U << below(3);
      place.profile.step_base = milliseconds(1 + below(12));
      place.profile.step_token = microseconds(20 + below(200));
      out.places.push_back(place);
    }
    out.handoff.owner.lease = milliseconds(one_in(3) ? 1600 : 10000);
    if (one_in(4)) out.handoff.owner.quarantine_lost = milliseconds(300);
    if (one_in(4)) out.handoff.reader.reads_max = 2;
    if (one_in(6)) out.handoff.owner.handoffs_max = 2;
    out.handoff.owner.part_bytes_max = one_in(2) ? 200 : 32768;
    slow_frames_ = one_in(4) ? 8 : 0;
    out.control_latency = [this] { return Duration(microseconds(30 + below(jitter_us_))); };
    out.frame_time = [this] {
      return slow_frames_ > 0 && one_in(slow_frames_) ? any(milliseconds(80)) : Duration::zero();
    };
    return out;
  }

  void set_faults() {
    constexpr std::uint64_t kRates[] = {0, 3, 40};
    read_faults_ = kRates[below(3)];
    jitter_us_ = one_in(3) ? 20000 : 300;
    testing::FakeNetwork& network = world_.network;
    network.owner_serves = one_in(2);
    network.death_noticed = milliseconds(below(900));
    network.latency = [this] { return Duration(microseconds(20 + below(jitter_us_))); };
    network.read_fault = [this](const RemoteSlice&) {
      if (rng_.below(1000) >= read_faults_) return testing::ReadFault::kNone;
      return one_in(2) ? testing::ReadFault::kFlip : static_cast<testing::ReadFault>(2 + below(4));
    };
    network.send_fault = [this](std::string_view) {
      if (rng_.below(2000) >= read_faults_) return testing::SendFault::kNone;
      return one_in(2) ? testing::SendFault::kOverloaded : testing::SendFault::kDropped;
    };
  }

  void at(Duration when, std::function<void()> call) {
    world_.clock().call_at(world_.clock().now() + when, std::move(call));
  }

  void plan() {
    const std::uint64_t requests = 4 + below(12);
    for (std::uint64_t i = 0; i < requests; ++i) {
      const std::size_t gateway = below(2);
      const std::uint64_t number = below(kBodies);
      at(any(end_ / 2),
         [this, gateway, number, how = client()] { world_.ask(gateway, body(number), how); });
    }
    const std::uint64_t faults = one_in(6) ? 0 : below(10);
    for (std::uint64_t i = 0; i < faults; ++i)
      at(any(end_), [this] { break_something(); });
  }

  ClientPlan client() {
    ClientPlan plan;
    const std::uint64_t kind = below(10);
    if (kind < 2) plan.leaves_after = any(milliseconds(one_in(3) ? 3000 : 300));
    if (kind == 2) plan.stops_after = below(6000);
    if (kind == 3 || kind == 2) {
      plan.read_every = milliseconds(1 + below(40));
      plan.read_bytes = 50 + below(1000);
    }
    return plan;
  }

  void break_something() {
    const std::size_t place = below(world_.places());
    if (!world_.is_up(place)) return;
    SimWorker& worker = world_.worker(place);
    switch (below(9)) {
      case 0:
      case 1:
      case 2:
        ++tally_.kills;
        world_.kill(place);
        at(any(seconds(2)), [this, place] { world_.start(place); });
        return;
      case 3:
      case 4: {
        if (worker.transport().stopped()) return;
        ++tally_.stops;
        worker.stop();
        at(any(milliseconds(one_in(2) ? 400 : 6000)), [this, place, w = &worker] {
          if (world_.is_up(place) && &world_.worker(place) == w) w->resume();
        });
        return;
      }
      case 5:
        if (worker.draining()) return;
        ++tally_.drains;
        world_.roll(place, any(milliseconds(500)));
        return;
      case 6:
        if (one_in(3)) {
          ++tally_.crashes;
          world_.crash_gateway(below(2));
        }
        return;
      case 7:
        ++tally_.breaks;
        worker.transport().cut_all();
        return;
      case 8: {
        const auto links = worker.links();
        if (links.empty()) return;
        ++tally_.breaks;
        ControlLink& link = *links[below(links.size())];
        one_in(2) ? link.cut() : link.hold(any(milliseconds(one_in(2) ? 300 : 4000)));
        return;
      }
      default:
        return;
    }
  }

  // No fault any more: stopped processes go on; those that are down come back by themselves.
  void calm() {
    read_faults_ = 0;
    for (std::size_t place = 0; place < world_.places(); ++place)
      if (world_.is_up(place)) world_.worker(place).resume();
  }

  void look() {
    for (const auto& asked : world_.asked()) {
      CAPTURE(asked->record.request_id);
      CAPTURE(asked->body);
      CAPTURE(asked->record.placement);
      look_at(*asked);
    }
    for (std::size_t i = 0; i < world_.gateways(); ++i)
      for (const std::string& violation : world_.engines(i).violations())
        FAIL_CHECK(violation);
    for (std::size_t place = 0; place < world_.places(); ++place) {
      if (!world_.is_up(place)) continue;
      const service::HandoffCounters now = world_.worker(place).handoffs();
      tally_.pulls_done += now.pulls_done;
      tally_.corrupt += now.slices_corrupt;
      for (const std::uint64_t failed : now.pulls_failed)
        tally_.pulls_failed += failed;
    }
  }

  void look_at(const Asked& asked) {
    ++tally_.requests;
    CHECK(asked.over);
    CHECK(asked.over_at - asked.at <= kRequestTime + kWriteTimeout);
    CHECK(asked.record.moves <= 3);
    tally_.moved += asked.record.moves > 0;
    tally_.two_legs += asked.record.placement.find(" for w") != std::string::npos;
    const Answer answer = asked.answer();
    CHECK(!(answer.broken && (asked.finished() || asked.client->streamed)));
    const Answer& reference = alone(asked.body);
    CHECK(answer.begins(reference));
    if (!asked.finished()) {
      ++(asked.client->end == ClientEnd::kLeft ? tally_.left : tally_.cut);
    } else if (answer.error.empty()) {
      ++tally_.finished;
      CHECK(answer.equals(reference));
    } else {
      ++tally_.refused;
      CHECK(!answer.done == asked.client->streamed);
      CHECK((asked.record.outcome == "unavailable" || asked.record.outcome == "deadline_exceeded" ||
             asked.record.outcome == "overloaded"));
    }
  }

  static constexpr Duration kRequestTime = seconds(25);
  static constexpr Duration kWriteTimeout = seconds(3);

  Rng rng_;
  Tally& tally_;
  std::uint64_t read_faults_ = 0;  // per thousand
  std::uint64_t jitter_us_ = 300;
  std::uint64_t slow_frames_ = 0;
  World world_;
  Duration end_;
};

std::uint64_t number(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace

TEST_CASE("random lives: right answers in time, nothing left, and the same again") {
  const std::uint64_t first = number("SIM_FIRST", 1);
  const std::uint64_t seeds = number("SIM_SEEDS", rounds(1500));
  Tally tally;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    const std::string replay =
        fmt::format("SIM_FIRST={} SIM_SEEDS=1 service_sim -tc='random lives*'", seed);
    CAPTURE(replay);
    Tally again;
    const std::uint64_t once = Life(seed, tally).run();
    REQUIRE(Life(seed, again).run() == once);
  }
  MESSAGE(fmt::format(
      "{} requests: {} finished right, {} moved, {} failed in their form, {} left, {} cut; {} of "
      "two legs; {} kills, {} stops, {} drains, {} crashes of gateways, {} cuts; {} pulls done, {} "
      "failed, {} corrupt slices",
      tally.requests, tally.finished, tally.moved, tally.refused, tally.left, tally.cut,
      tally.two_legs, tally.kills, tally.stops, tally.drains, tally.crashes, tally.breaks,
      tally.pulls_done, tally.pulls_failed, tally.corrupt));
  if (seeds < 200) return;
  CHECK(tally.finished > 4 * seeds);
  CHECK(tally.moved > seeds / 4);
  CHECK(tally.two_legs > seeds);
  CHECK(tally.left > seeds / 2);
  CHECK(tally.pulls_done > seeds);
  CHECK(tally.pulls_failed > seeds / 10);
}

}  // namespace penstock::simulated
