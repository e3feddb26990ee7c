// What engines of several ranks rely on (facts 7d, rule 8).
#include "service/kvd/leases.h"

#include <boost/json.hpp>

#include "tests/support/kvd_fixture.h"

#include <doctest/doctest.h>

namespace penstock::service {

TEST_CASE(
    "rule 8: one decider: ranks that ask alike are told alike, whatever the tier does, once") {
  for (std::uint32_t broken = 0; broken < 6; ++broken) {
    for (const MissReason reason :
         {MissReason::kIoError, MissReason::kCorrupt, MissReason::kTierOff}) {
      CAPTURE(broken);
      DaemonFixture f;
      f.put_on_disk(5, 0, 6);
      int next = 0;
      f.disk.latency = [&](auto) { return (next++ * 3) % 4; };  // out of order
      f.disk.verdict = [&](auto operation, const BlockName& name) {
        const bool is_read = operation == testing::FakeBlockTier::Operation::kRead;
        return is_read && name == history(5, broken) ? reason : MissReason::kNone;
      };
      for (std::uint64_t rank = 1; rank <= 4; ++rank)
        f.connect(rank);
      for (std::uint64_t rank = 1; rank <= 4; ++rank)
        f.acquire(rank, 1, 5, 6, std::chrono::seconds(10));
      f.settle();
      const LeaseView& first = f.sessions[1].leases[1];
      CHECK(first.history.size() == broken);
      CHECK(first.missing == reason);
      for (std::uint64_t rank = 1; rank <= 4; ++rank) {
        const LeaseView& lease = f.sessions[rank].leases[1];
        CHECK(lease.finals == 1);
        CHECK(lease.missing == first.missing);
        REQUIRE(lease.history.size() == first.history.size());
        for (std::size_t i = 0; i < lease.history.size(); ++i) {
          CHECK(lease.history[i].offset == first.history[i].offset);
          CHECK(lease.history[i].generation == first.history[i].generation);
        }
      }
      // A rank that comes later is told what holds then; those before are not told again.
      f.disk.verdict = [](auto, const BlockName&) { return MissReason::kNone; };
      f.connect(9);
      CHECK(f.acquire(9, 1, 5, 6, std::chrono::seconds(10)).finals <= 1);
      f.settle();
      CHECK(f.sessions[9].leases[1].history.size() >= broken);
      CHECK(f.sessions[1].leases[1].finals == 1);
    }
  }
}

}  // namespace penstock::service
