// Random lives of handoffs between three workers, with every fault that the fake transport knows:
// processes that stop, die and come back, cut connections, lost and refused messages, flipped,
// stale, refused and stuck reads, and calls of the engines in any order.
//
// What must hold, always: a pull that is done has the right bytes; every block comes back once;
// nothing is written into a block that came back, and nobody may read one; in a world without
// cuts and deaths nobody is even reading it. In the end nothing is open. Each seed runs twice and
// must do the same. HANDOFF_SEEDS=n runs that many, HANDOFF_FIRST=n begins there.
#include <array>
#include <cstdlib>
#include <functional>
#include <string>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "base/rng.h"
#include "tests/support/effort.h"
#include "tests/support/handoff_worker.h"

namespace penstock::service {
namespace {

using handoff::kReasons;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using testing::ReadFault;
using testing::SendFault;

constexpr std::size_t kWorkers = 3;
constexpr std::uint32_t kBlocks = 24;

HandoffOptions fast(Rng& rng) {
  HandoffOptions options;
  options.owner.lease = milliseconds(2000);
  options.owner.unclaimed = milliseconds(1500);
  options.owner.quarantine = milliseconds(500);
  options.owner.parked = milliseconds(800);
  options.owner.heartbeat = milliseconds(250);
  options.owner.remembered = milliseconds(3000);
  options.owner.handoffs_max = rng.below(5) == 0 ? 2 : 12;
  options.owner.parked_max = 4;
  if (rng.below(4) == 0) options.owner.quarantine_lost = milliseconds(300);
  options.owner.part_bytes_max = 80;  // two blocks
  options.owner.parts_in_flight_max = 2;
  options.reader.connect = milliseconds(700);
  options.reader.attach = milliseconds(1200);
  options.reader.read = milliseconds(600);
  options.reader.whole = milliseconds(rng.below(5) == 0 ? 700 : 6000);
  options.reader.silent = milliseconds(900);
  options.reader.margin = milliseconds(400);
  options.reader.reads_max = rng.below(3) == 0 ? 1 : 5;
  options.pulls_max = 6;
  options.link_reads_max = 8;
  options.link_idle = milliseconds(900);
  options.sum_bytes_max = 3 * kTestBlockBytes;
  return options;
}

struct Sum {
  std::uint64_t value = 0xcbf29ce484222325U;
  void add(std::string_view text) {
    for (const char c : text)
      value = (value ^ static_cast<std::uint8_t>(c)) * 0x100000001b3U;
  }
  void add(std::uint64_t number) { add(fmt::format("{},", number)); }
};

class World {
 public:
  World(std::uint64_t seed, std::vector<std::uint64_t>& hits)
      : rng_(seed), hits_(hits), options_(fast(rng_)), peaceful_(rng_.below(3) == 0) {
    const std::uint64_t slow_per_thousand = rng_.below(5) == 0 ? 900 : 50;
    network_.owner_serves = rng_.below(2) == 0;
    network_.death_noticed = milliseconds(rng_.below(900));
    network_.latency = [this, slow_per_thousand] {
      return !peaceful_ && chance(slow_per_thousand)
                 ? Duration(milliseconds(rng_.below(300)))
                 : Duration(microseconds(50 + rng_.below(8000)));
    };
    faults_per_thousand_ = std::array<std::uint64_t, 4>{0, 4, 4, 150}[rng_.below(4)];
    network_.read_fault = [this](const RemoteSlice&) {
      if (!chance(faults_per_thousand_)) return ReadFault::kNone;
      if (chance(600)) return ReadFault::kFlip;
      return static_cast<ReadFault>(2 + rng_.below(peaceful_ ? 2 : 4));
    };
    network_.send_fault = [this](std::string_view) {
      if (chance(20)) return SendFault::kOverloaded;
      return chance(peaceful_ ? 0 : faults_per_thousand_ / 8) ? SendFault::kDropped
                                                              : SendFault::kNone;
    };
    network_.on_write = [this](testing::FakeTransport& at, std::byte* into, std::size_t n) {
      check_write(at, into, n);
    };
    for (std::size_t i = 0; i < kWorkers; ++i)
      start(i);
  }
  ~World() {
    // The workers' services stop their pulls, which is no business of the checks.
    network_.on_write = [](testing::FakeTransport&, std::byte*, std::size_t) {};
  }

  std::uint64_t done = 0;  // pulls
  std::uint64_t failed = 0;

  std::uint64_t run() {
    const std::uint64_t steps = 40 + rng_.below(60);
    for (std::uint64_t i = 0; i < steps; ++i) {
      act();
      network_.clock.advance(chance(100) ? Duration(milliseconds(rng_.below(700)))
                                         : Duration(microseconds(rng_.below(30000))));
      look();
    }
    finish();
    return sum_.value;
  }

 private:
  struct Leg {  // prefill's, or a pull
    HandoffId id;
    std::uint64_t key = 0;
    std::uint32_t tokens = 0;
    std::size_t worker = 0;
    std::uint32_t published = 0;  // blocks
    bool announced = false;
    std::size_t source = 0;  // of a pull
    Epoch epoch;
    std::vector<std::uint32_t> blocks;
    std::shared_ptr<Pull> pull;
  };

  bool chance(std::uint64_t per_thousand) { return rng_.below(1000) < per_thousand; }
  std::uint32_t blocks_of(std::uint32_t tokens) const {
    return (tokens + kTestBlockTokens - 1) / kTestBlockTokens;
  }
  static EngineOutput output_of(std::uint64_t key) {
    EngineOutput output;
    output.tokens = {{static_cast<TokenId>(key), 0.5F, {}}};
    return output;
  }
  bool runs(std::size_t worker) const { return !workers_[worker]->transport.stopped(); }

  void start(std::size_t i) {
    if (workers_.size() <= i) workers_.resize(i + 1);
    options_.epoch = Epoch(++epoch_);
    workers_[i] =
        std::make_unique<TestWorker>(network_, fmt::format("fake:{}", i), options_, kBlocks);
    epochs_[i] = epoch_;
    memories_.push_back(workers_[i]->memory);
  }
  void die(std::size_t i) {
    add_hits(*workers_[i]);
    workers_[i]->transport.kill();
    workers_[i].reset();
    std::erase_if(prefills_, [&](const Leg& leg) { return leg.worker == i; });
    std::erase_if(pulls_, [&](const Leg& leg) { return leg.worker == i; });
    start(i);
  }
  void add_hits(const TestWorker& worker) {
    const HandoffCounters counters = worker.service->counters();
    for (std::size_t edge = 0; edge < handoff::edges().size(); ++edge) {
      hits_[edge] += counters.hits.of(edge);
      sum_.add(counters.hits.of(edge));
    }
    for (std::size_t reason = 0; reason < kReasons; ++reason)
      sum_.add(counters.pulls_failed[reason]);
    sum_.add(counters.bytes_pulled);
  }

  void check_write(testing::FakeTransport& at, const std::byte* into, std::size_t n) {
    for (std::size_t i = 0; i < kWorkers; ++i) {
      TestWorker& worker = *workers_[i];
      if (&worker.transport != &at) continue;
      for (const Leg& leg : pulls_) {
        if (leg.worker != i || leg.pull->state() != Pull::State::kRunning) continue;
        for (const std::uint32_t block : leg.blocks)
          if (into >= worker.payload(block) && into + n <= worker.payload(block) + kTestBlockBytes)
            return;
      }
    }
    FAIL("a write into memory that no pull holds");
  }

  // What came back, and what ended.
  void look() {
    for (std::size_t i = 0; i < kWorkers; ++i) {
      if (!runs(i)) continue;
      TestWorker& worker = *workers_[i];
      worker.collect([&](std::uint32_t block) {
        const std::uint64_t generation = worker.generation(block);
        for (const PeerId peer : worker.transport.peers())
          CHECK(!worker.transport.events().readable(peer, 0, block, generation));
        if (peaceful_)
          for (const auto& other : workers_)
            CHECK(!other->transport.is_reading(worker.transport, 0, block, generation));
      });
    }
    for (std::size_t i = 0; i < pulls_.size();) {
      Leg& leg = pulls_[i];
      if (leg.pull->state() == Pull::State::kRunning || !runs(leg.worker)) {
        ++i;
        continue;
      }
      TestWorker& worker = *workers_[leg.worker];
      sum_.add(leg.key);
      sum_.add(static_cast<std::uint64_t>(network_.clock.now().time_since_epoch().count()));
      if (leg.pull->state() == Pull::State::kDone) {
        CHECK(worker.has(leg.key, leg.tokens, leg.blocks));
        CHECK(leg.pull->tokens() == leg.tokens);
        if (leg.pull->first_output())
          CHECK(leg.pull->first_output()->tokens == output_of(leg.key).tokens);
        sum_.add("done");
        ++done;
      } else {
        sum_.add(leg.pull->why());
        ++failed;
      }
      // Its blocks came back: collected above, or by the next look.
      worker.collect();
      for (const std::uint32_t block : leg.blocks)
        worker.release(block);
      pulls_.erase(pulls_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void begin() {
    Leg leg;
    leg.key = ++key_;
    leg.id = {rng_.next_u64(), rng_.next_u64()};
    leg.tokens = 1 + static_cast<std::uint32_t>(rng_.below(6 * kTestBlockTokens));
    leg.worker = rng_.below(kWorkers);
    if (!chance(40)) prefills_.push_back(leg);
    if (!chance(100)) begin_pull(leg);
  }
  void begin_pull(const Leg& prefill) {
    Leg leg = prefill;
    leg.source = prefill.worker;
    leg.worker = rng_.below(kWorkers);
    if (!runs(leg.worker)) return;
    leg.epoch = Epoch(epochs_[leg.source] + (chance(20) ? 1 : 0));
    if (chance(20)) ++leg.tokens;
    TestWorker& worker = *workers_[leg.worker];
    leg.blocks.clear();
    while (leg.blocks.size() < blocks_of(leg.tokens)) {
      const auto block = worker.allocate();
      if (!block) break;
      leg.blocks.push_back(*block);
    }
    // Short of blocks, or on purpose, it asks for what can't be.
    const std::string source = fmt::format("fake:{}", chance(10) ? 77 : leg.source);
    leg.pull = worker.pull({penstock::Leg::kDecode, leg.id, source, leg.epoch}, leg.tokens,
                           leg.blocks, chance(15) ? "other" : "nano");
    pulls_.push_back(leg);
  }
  void progress(std::size_t i) {
    Leg& leg = prefills_[i];
    if (!runs(leg.worker)) return;
    TestWorker& worker = *workers_[leg.worker];
    if (!leg.announced) {
      worker.port->announce(leg.id, "nano");
      leg.announced = true;
      return;
    }
    const std::uint32_t left = blocks_of(leg.tokens) - leg.published;
    if (left == 0) {
      worker.port->close(leg.id, output_of(leg.key));
      done_.push_back(leg);
      if (done_.size() > 8) done_.erase(done_.begin());
      prefills_.erase(prefills_.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
    const auto n = std::min(left, 1 + static_cast<std::uint32_t>(rng_.below(4)));
    const auto blocks = worker.compute(leg.key, leg.published, n);
    if (!blocks.empty()) {
      const auto end = leg.published + static_cast<std::uint32_t>(blocks.size());
      const bool nonsense = chance(6);
      worker.publish(leg.id, leg.published + (nonsense ? 1 : 0), blocks,
                     std::min(leg.tokens, end * kTestBlockTokens));
      leg.published = end;
      for (const std::uint32_t block : blocks)
        worker.release(block);
      if (!nonsense) return;
    }
    withdraw(i);
  }
  void withdraw(std::size_t i) {
    const Leg leg = prefills_[i];
    if (!runs(leg.worker)) return;
    workers_[leg.worker]->port->withdraw(leg.id, "changed its mind");
    prefills_.erase(prefills_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void act() {
    const std::uint64_t die_roll = rng_.below(1000);
    const std::size_t worker = rng_.below(kWorkers);
    if (die_roll < 200) {
      begin();
    } else if (die_roll < 650) {
      if (!prefills_.empty()) progress(rng_.below(prefills_.size()));
    } else if (die_roll < 690) {
      if (!prefills_.empty()) withdraw(rng_.below(prefills_.size()));
    } else if (die_roll < 740) {
      if (!pulls_.empty()) {
        const Leg& leg = pulls_[rng_.below(pulls_.size())];
        if (runs(leg.worker)) workers_[leg.worker]->port->stop(leg.pull);
      }
    } else if (die_roll < 790) {  // a second reader of the same
      if (!pulls_.empty()) {
        Leg leg = pulls_[rng_.below(pulls_.size())];
        leg.worker = leg.source;
        begin_pull(leg);
      }
    } else if (die_roll < 810) {  // a reader, or a withdrawal, after the prefill leg
      if (!done_.empty()) {
        const Leg leg = done_[rng_.below(done_.size())];
        if (chance(500))
          begin_pull(leg);
        else if (runs(leg.worker))
          workers_[leg.worker]->port->withdraw(leg.id, "the client left");
      }
    } else if (die_roll < 815) {  // announced again
      if (!prefills_.empty()) {
        Leg& leg = prefills_[rng_.below(prefills_.size())];
        leg.announced = leg.published > 0;
      }
    } else if (peaceful_) {
      return;
    } else if (die_roll < 850) {
      workers_[worker]->transport.stop();
    } else if (die_roll < 930) {
      for (const auto& each : workers_)
        each->transport.resume();
    } else if (die_roll < 945) {
      workers_[worker]->transport.cut_all();
    } else if (die_roll < 955) {
      die(worker);
    } else if (die_roll < 958) {
      const auto peers = workers_[worker]->transport.peers();
      if (!peers.empty() && runs(worker))
        workers_[worker]->transport.say(peers[rng_.below(peers.size())], "\x15nonsense");
    }
  }

  void finish() {
    faults_per_thousand_ = 0;
    for (const auto& worker : workers_)
      worker->transport.resume();
    for (int i = 0; i < 400 && !prefills_.empty(); ++i) {
      progress(rng_.below(prefills_.size()));
      network_.clock.advance(milliseconds(5));
      look();
    }
    CHECK(prefills_.empty());
    for (int i = 0; i < 100; ++i) {
      network_.clock.advance(milliseconds(100));
      look();
    }
    CHECK(pulls_.empty());
    for (const auto& worker : workers_) {
      worker->collect();
      const HandoffCounters now = worker->service->counters();
      CHECK(now.owner.open == 0);
      CHECK(now.owner.parked == 0);
      CHECK(now.owner.blocks_held == 0);
      CHECK(now.pulls_running == 0);
      CHECK(now.reads_running == 0);
      CHECK(now.links == 0);
      CHECK(worker->held() == 0);
      CHECK(worker->free_blocks() == kBlocks);
      CHECK(worker->transport.connections() == 0);
      CHECK(worker->transport.reads_pending() == 0);
      add_hits(*worker);
    }
    CHECK(network_.clock.timers() == 0);
    sum_.add(network_.messages);
    sum_.add(network_.reads);
  }

  Rng rng_;
  std::vector<std::uint64_t>& hits_;
  HandoffOptions options_;
  bool peaceful_;  // nobody dies, stops or is cut off
  std::uint64_t faults_per_thousand_ = 0;
  std::vector<std::shared_ptr<TestMemory>> memories_;
  testing::FakeNetwork network_;
  std::vector<std::unique_ptr<TestWorker>> workers_;
  std::uint64_t epochs_[kWorkers] = {};
  std::uint64_t epoch_ = 0;
  std::uint64_t key_ = 0;
  std::vector<Leg> prefills_;  // not over
  std::vector<Leg> done_;      // closed lately
  std::vector<Leg> pulls_;     // not seen to have ended
  Sum sum_;
};

std::uint64_t number(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace

TEST_CASE("random lives: right bytes or a failure, every block back once, nothing left") {
  const std::uint64_t first = number("HANDOFF_FIRST", 1);
  const std::uint64_t seeds = number("HANDOFF_SEEDS", rounds(1500));
  std::vector<std::uint64_t> hits(handoff::edges().size());
  std::uint64_t done = 0;
  std::uint64_t failed = 0;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    CAPTURE(seed);
    World world(seed, hits);
    const std::uint64_t once = world.run();
    done += world.done;
    failed += world.failed;
    REQUIRE(World(seed, hits).run() == once);
  }
  MESSAGE(fmt::format("{} pulls were done, {} failed", done, failed));
  if (seeds < 1000) return;
  CHECK(done > 2 * seeds);
  CHECK(failed > 2 * seeds);
  for (std::size_t i = 0; i < hits.size(); ++i) {
    const std::string edge = handoff::name(handoff::edges()[i]);
    CAPTURE(edge);
    CHECK(hits[i] > 0);
  }
}

}  // namespace penstock::service
