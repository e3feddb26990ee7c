#include "service/kvd/kv_daemon.h"

#include "tests/support/kvd_fixture.h"

#include <doctest/doctest.h>

namespace penstock::service {
namespace {
using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr MissReason kNone = MissReason::kNone;
}  // namespace

TEST_CASE("what one worker stores another is granted, byte for byte") {
  DaemonFixture f;
  f.connect(1);
  f.connect(2);
  CHECK(f.sessions[1].welcomes == 1);
  CHECK(f.store(1, 5, 0, 4, {3}) == std::vector(5, kNone));
  const LeaseView& lease = f.acquire(2, 9, 5, 6, seconds(1), {1, 3, 5});
  CHECK(lease.history.size() == 4);
  CHECK(lease.windows.size() == 1);
  CHECK(lease.windows.contains(3));
  CHECK(lease.finals == 1);
  CHECK(lease.missing == MissReason::kNeverStored);
  f.tell(2, kv::Release{9});
  CHECK(f.sessions[2].goodbye.empty());
}

}  // namespace penstock::service
