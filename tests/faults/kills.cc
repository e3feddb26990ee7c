// SIGKILL of the daemon, again and again, with engines at work all the time.
#include "tests/faults/driver.h"
#include "tests/faults/engine.h"
#include "tests/faults/fault_daemon.h"
#include "tests/faults/suites.h"

namespace penstock::faults {

// Odd rounds: at the nth effect, n = 1, 2, 3, ..., counted in turn from when the daemon serves and
// from its start (recovery); half of them tear the record that is being written then. Even rounds:
// at a random moment, most of them after the engines have hits again.
SuiteResult run_kills(const SuiteOptions& options) {
  constexpr std::uint32_t kEngines = 3;
  DaemonSetup setup;
  setup.folder = options.folder;
  setup.disk_folder = options.folder + "/kv";
  Rng rng(options.seed);
  EngineTotals totals;
  FaultDaemon daemon;
  EngineOptions engine;
  engine.socket = setup.socket();
  engine.secret_file = setup.secret();
  engine.seed = options.seed;
  engine.margin = options.margin;
  std::uint32_t nth = 0, nth_died = 0, unready = 0, hits_back = 0;
  std::uint64_t verified = 0;
  {
    Crowd crowd(engine, kEngines, totals);
    for (std::uint32_t round = 0; round < options.rounds; ++round) {
      const bool at_effect = round % 2 == 1;
      setup.plan = {};
      // Most effects of a long life come after the first thousands; those are taken in leaps.
      if (at_effect) {
        // Every fifth is far off: segments fill and go only then.
        nth += round % 4 == 1 ? 1 : 0;
        setup.plan.kill_at = nth + (rng.below(5) == 0 ? rng.below(4000) : 0);
        setup.plan.from_ready = round % 4 == 1;
        setup.plan.torn = rng.below(2) == 0;
      }
      const std::uint64_t hits = totals.hits;
      daemon.start(setup);
      const bool ready = daemon.wait_ready();
      if (ready) verified += daemon.recovered();
      unready += ready ? 0 : 1;
      if (ready && at_effect) {
        const bool died = daemon.wait_end(std::chrono::seconds(2));
        nth_died += died ? 1 : 0;
        if (!died) daemon.kill();
      } else if (ready) {
        if (rng.below(4) != 0) {
          wait_until("hits after a restart", [&] { return totals.hits > hits; });
          ++hits_back;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(rng.below(120'000)));
        daemon.kill();
      }
      const std::uint64_t misses = totals.no_daemon;
      wait_until("requests to go on without the daemon",
                 [&] { return totals.no_daemon >= misses + 2; });
      if (round % 20 == 19 || round + 1 == options.rounds) {
        fmt::print(
            "round {}: {} at an effect, {} while it started, {} blocks acknowledged, {} recovered "
            "and read back, {} must be there now; {} hits ({} blocks, {} from disk), {} stores, "
            "evicted {}, expired {}; slowest call {} ms over its time\n",
            round + 1, nth_died, unready, daemon.stored(), verified, daemon.kept(),
            totals.hits.load(), totals.hit_blocks.load(), totals.disk_blocks.load(),
            totals.stores.load(), daemon.gone(MissReason::kEvictedDisk),
            daemon.gone(MissReason::kExpired), totals.longest_us / 1000);
        std::fflush(stdout);
      }
    }
  }
  require(totals.stores == totals.done, "{} stores were taken, `done` was called {} times",
          totals.stores.load(), totals.done.load());
  require(options.rounds < 20 || (verified > 0 && hits_back > 0 && totals.disk_blocks > 0),
          "nothing was recovered or hit: the rounds prove nothing");
  return {options.rounds, 0};
}

}  // namespace penstock::faults
