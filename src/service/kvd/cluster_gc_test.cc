#include "service/kvd/cluster_gc.h"

#include "tests/support/memory_store.h"

#include <doctest/doctest.h>

namespace penstock::service {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

StoreName name_of(int number) {
  return {number % 2 == 0 ? StorePool::kExtents : StorePool::kSmall,
          "object-" + std::to_string(number)};
}

struct Sweeper {
  explicit Sweeper(testing::MemoryStore& shared, ClusterGcOptions options = {})
      : store(shared), gc(shared, wanted(std::move(options))) {}
  static ClusterGcOptions wanted(ClusterGcOptions options) {
    options.classes = {{"default", hours(10)}, {"chat", hours(50)}};
    options.slice = hours(1);
    if (options.owner.empty()) options.owner = "a";
    return options;
  }
  // A run; how many polls it took.
  int run(std::int64_t slice) {
    const std::uint64_t before = gc.numbers().runs;
    now.wall = UnixSeconds(slice * 3600 + 5);
    now.now += minutes(10);
    int polls = 0;
    for (; gc.numbers().runs == before && polls < 100'000; ++polls) {
      gc.poll(now);
      store.poll(now.now);
      now.now += std::chrono::milliseconds(10);
    }
    return polls;
  }
  testing::MemoryStore& store;
  ClusterGc gc;
  TierNow now;
};

// An object used in these slices of class `ttl_class`, as a tier would note it.
void use(testing::MemoryStore& store, int number, TtlClass ttl_class, TimeSlice slice) {
  store.manifests[{ttl_class, slice}].push_back(name_of(number));
  auto& object = store.objects[name_of(number)];
  object.bytes.resize(100);
  object.slice = std::max(object.slice, slice + (ttl_class == 0 ? 10 : 50));
}

}  // namespace

TEST_CASE("what was not used for its lifetime goes, what was stays, whichever class used it") {
  testing::MemoryStore store;
  for (int i = 0; i < 100; ++i)
    use(store, i, 0, 1000);
  for (int i = 0; i < 30; ++i)
    use(store, i, 0, 1005);  // again
  for (int i = 30; i < 40; ++i)
    use(store, i, 1, 1000);  // by a class that keeps longer
  Sweeper sweeper(store);
  sweeper.run(1010);
  CHECK(store.objects.size() == 100);  // not over yet
  CHECK(sweeper.gc.numbers().names == 0);
  sweeper.run(1011);
  CHECK(store.objects.size() == 40);
  CHECK(sweeper.gc.numbers().removed == 60);
  CHECK(sweeper.gc.numbers().removed_bytes == 6000);
  CHECK(sweeper.gc.numbers().kept == 40);
  CHECK(!store.manifests.contains({0, 1000}));
  CHECK(store.leases.empty());
  sweeper.run(1016);
  CHECK(store.objects.size() == 10);
  sweeper.run(1051);
  CHECK(store.objects.empty());
  sweeper.run(1100);
  CHECK(store.manifests.empty());
}

TEST_CASE(
    "an object stands in a manifest as long as it is there, also when lifetimes were longer") {
  testing::MemoryStore store;
  use(store, 1, 0, 1000);
  store.objects[name_of(1)].slice = 1040;  // noted when the class was kept for 40 hours
  Sweeper sweeper(store);
  for (std::int64_t slice = 1011; slice <= 1040; ++slice) {
    sweeper.run(slice);
    CHECK(store.objects.size() == 1);
    CHECK(!store.manifests.empty());
  }
  for (std::int64_t slice = 1041; slice <= 1060; ++slice)
    sweeper.run(slice);
  CHECK(store.objects.empty());
  CHECK(store.manifests.empty());
}

TEST_CASE(
    "beyond the target the oldest slices go first, until it fits; what was used later stays") {
  testing::MemoryStore store;
  for (int i = 0; i < 30; ++i)
    use(store, i, 1, 1000 + static_cast<TimeSlice>(i) / 10);
  use(store, 0, 1, 1004);
  ClusterGcOptions options;
  options.bytes_max = 5000;
  Sweeper sweeper(store, options);
  store.used.bytes_used = 4000;
  sweeper.run(1005);
  CHECK(store.objects.size() == 30);
  store.used.bytes_used = 7000;  // and stays so for a while, as the store counts
  sweeper.run(1005);
  CHECK(sweeper.gc.numbers().swept == 3);
  CHECK(store.objects.size() == 1);
  CHECK(store.objects.contains(name_of(0)));
  // One that has only to make a little room leaves the younger ones, and says so before it does.
  testing::MemoryStore large;
  for (int i = 0; i < 30; ++i)
    use(large, i, 1, 1000 + static_cast<TimeSlice>(i) / 10);
  large.used.bytes_used = 5500;
  options.dry_run = true;
  Sweeper counting(large, options);
  counting.run(1005);
  CHECK(counting.gc.numbers().removed == 10);
  options.dry_run = false;
  Sweeper small(large, options);
  small.run(1005);
  CHECK(small.gc.numbers().removed == 10);
  CHECK(large.objects.size() == 20);
  CHECK(!large.objects.contains(name_of(9)));
  // A full store makes room without a target.
  testing::MemoryStore full;
  use(full, 1, 1, 1000);
  use(full, 2, 1, 1005);
  full.used.full = true;
  Sweeper other(full);
  other.run(1005);
  CHECK(full.objects.size() == 1);
  CHECK(full.objects.contains(name_of(2)));  // of the current slice
}

TEST_CASE("one sweeper a manifest: who has no lease leaves it") {
  testing::MemoryStore store;
  use(store, 1, 0, 1000);
  store.leases["sweep-0-1000"] = "b";
  Sweeper sweeper(store);
  sweeper.run(1020);
  CHECK(store.objects.size() == 1);
  store.leases.clear();
  sweeper.run(1020);
  CHECK(store.objects.empty());
}

TEST_CASE("a sweep that ended in the middle is gone on with, by another, where it was") {
  testing::MemoryStore store;
  for (int i = 0; i < 1000; ++i)
    use(store, i, 0, 1000);
  ClusterGcOptions options;
  options.names_per_page = 50;
  {
    Sweeper first(store, options);
    first.now.now += minutes(10);
    first.now.wall = UnixSeconds(1020 * 3600);
    while (store.objects.size() > 500) {
      first.gc.poll(first.now);
      store.poll(first.now.now);
      first.now.now += std::chrono::milliseconds(10);
    }
  }  // it died
  store.poll(Instant());
  store.leases.clear();  // ran out
  const std::uint64_t removes = store.removes;
  options.owner = "b";
  Sweeper second(store, options);
  second.run(1020);
  CHECK(store.objects.empty());
  CHECK(store.removes - removes <= 1000 - 400);
}

TEST_CASE("removals are limited to a rate") {
  testing::MemoryStore store;
  for (int i = 0; i < 1000; ++i)
    use(store, i, 0, 1000);
  ClusterGcOptions options;
  options.names_per_second = 100;
  Sweeper sweeper(store, options);
  CHECK(sweeper.run(1020) * 10 >= 9000);  // milliseconds
  CHECK(store.objects.empty());
}

TEST_CASE("errors end a run, with nothing lost, and the next goes on") {
  testing::MemoryStore store;
  for (int i = 0; i < 100; ++i)
    use(store, i, 0, 1000);
  Sweeper sweeper(store);
  store.verdict = MissReason::kIoError;
  sweeper.run(1020);
  CHECK(sweeper.gc.numbers().failures == 1);
  CHECK(store.objects.size() == 100);
  CHECK(store.manifests.size() == 1);
  store.verdict = MissReason::kNone;
  sweeper.run(1020);
  CHECK(store.objects.empty());
}

TEST_CASE("a dry run counts and changes nothing") {
  testing::MemoryStore store;
  for (int i = 0; i < 1000; ++i)
    use(store, i, 0, 1000);
  for (int i = 0; i < 300; ++i)
    use(store, i, 0, 1015);
  for (int i = 900; i < 1000; ++i)
    use(store, i, 0, 1001);  // stands in two manifests, and would go once
  ClusterGcOptions options;
  options.dry_run = true;
  const auto manifests = store.manifests;
  Sweeper sweeper(store, options);
  sweeper.run(1020);
  CHECK(sweeper.gc.numbers().removed == 700);
  CHECK(sweeper.gc.numbers().removed_bytes == 70'000);
  CHECK(sweeper.gc.numbers().kept == 300);
  CHECK(store.objects.size() == 1000);
  CHECK(store.manifests == manifests);
  CHECK(store.leases.empty());
  CHECK(store.removes == 0);
}

}  // namespace penstock::service
