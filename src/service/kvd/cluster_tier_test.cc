// Daemons that share a store: what one computed the other loads, whatever the store does.
#include "service/kvd/cluster_tier.h"

#include <boost/json.hpp>

#include "tests/support/kvd_fixture.h"
#include "tests/support/memory_store.h"

#include <doctest/doctest.h>

namespace penstock::service {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr std::uint32_t kE = 64;  // of 4,000-byte blocks

ClusterTierOptions tier_options() {
  ClusterTierOptions options;
  options.classes = {{"default", std::chrono::hours(24)}, {"chat", std::chrono::hours(24 * 7)}};
  options.written = {true, false};
  return options;
}

// A host: a daemon with a memory of its own, and its view of the store.
struct Host {
  explicit Host(testing::MemoryStore& shared, std::uint64_t units = 512,
                ClusterTierOptions options = tier_options())
      : store(shared), tier(shared, std::move(options)), f(units, false) {
    KvDaemonOptions wanted;
    wanted.epoch = 77;
    wanted.loads_in_flight_max = 32;
    f.daemon = std::make_unique<KvDaemon>(wanted, f.memory, nullptr, nullptr, &tier);
    poll();
    f.connect(1);
  }
  void poll() { f.poll(); }
  void register_root(std::uint64_t chain) {
    f.tell(1, kv::RegisterRoot{root_of(chain), "tenant:a", "build", f.layout});
  }
  void store_chain(std::uint64_t chain, std::uint32_t blocks,
                   std::vector<std::uint32_t> windows = {}) {
    register_root(chain);
    for (std::uint32_t first = 0; first < blocks; first += 30) {
      const std::uint32_t count = std::min(30U, blocks - first);
      std::vector<std::uint32_t> mine;
      for (const std::uint32_t depth : windows)
        if (depth >= first && depth < first + count) mine.push_back(depth);
      f.store(1, chain, first, count, mine);
    }
  }
  // Until all that can be is written; what is only noted has come to that, too.
  void write_out() {
    for (int turns = 0; turns < 5; ++turns)
      poll();
    f.daemon->hurry();
    for (int turns = 0; turns < 200 && !f.daemon->settled(); ++turns) {
      f.work();
      poll();
    }
    poll();
  }
  LeaseView& acquire(std::uint64_t chain, std::uint32_t blocks,
                     std::vector<std::uint32_t> windows = {}) {
    register_root(chain);
    LeaseView& lease = f.acquire(1, ++last, chain, blocks, seconds(10), std::move(windows));
    for (int turns = 0; turns < 1000 && lease.finals == 0; ++turns) {
      f.work();
      poll();
      f.advance(milliseconds(1));
    }
    return lease;
  }
  boost::json::value stat(std::string_view part, std::string_view key) {
    return boost::json::parse(f.daemon->stat_json()).at(part).at(key);
  }

  testing::MemoryStore& store;
  ClusterTier tier;
  DaemonFixture f;
  kv::LeaseId last = 0;
};

std::size_t count_in(const testing::MemoryStore& store, StorePool pool) {
  return static_cast<std::size_t>(std::ranges::count_if(
      store.objects, [&](const auto& entry) { return entry.first.pool == pool; }));
}

}  // namespace

TEST_CASE("what one host stored another loads, extents whole and tails singly, byte for byte") {
  testing::MemoryStore store;
  {
    Host a(store);
    a.store_chain(5, 2 * kE + 6, {100, 2 * kE + 5});
    a.write_out();
  }  // and is gone
  CHECK(count_in(store, StorePool::kExtents) == 2);
  CHECK(count_in(store, StorePool::kSmall) == 6 + 2);
  // Every object stands in a manifest, under its class and slice, and lives as long as that says.
  std::set<StoreName> noted;
  for (const auto& [id, names] : store.manifests) {
    CHECK(id.ttl_class == 0);
    noted.insert(names.begin(), names.end());
    for (const StoreName& name : names)
      CHECK(store.objects.at(name).slice == id.slice + 4);  // a day in slices of six hours
  }
  CHECK(noted.size() == store.objects.size());

  Host b(store);
  const LeaseView& lease = b.acquire(5, 2 * kE + 30, {100, 2 * kE + 5});
  CHECK(lease.history.size() == 2 * kE + 6);
  for (const kv::PinnedBlock& block : lease.history)
    CHECK(block.from == KvTier::kCluster);
  CHECK(lease.windows.size() == 1);  // the deepest
  CHECK(lease.windows.contains(2 * kE + 5));
  CHECK(lease.missing == MissReason::kNeverStored);
  // Extents were read once each, for all their blocks.
  CHECK(std::ranges::count(store.gets, StorePool::kExtents, &StoreName::pool) == 2);
  CHECK(b.stat("acquires", "hit_blocks_cluster").to_number<std::uint64_t>() == 2 * kE + 6);
  CHECK(b.stat("cluster", "in_service").as_bool());
  // It is in memory now, and nothing is asked.
  const std::size_t gets = store.gets.size();
  const std::size_t look_ups = store.look_ups.size();
  CHECK(b.acquire(5, 2 * kE + 6).history.size() == 2 * kE + 6);
  CHECK(store.gets.size() == gets);
  CHECK(store.look_ups.size() == look_ups);
}

TEST_CASE("a hit in the middle of an extent: a fork of a chain gets the blocks before the fork") {
  testing::MemoryStore store;
  Host a(store);
  a.store_chain(5, kE);
  a.write_out();
  Host b(store);
  CHECK(b.acquire(5, 10).history.empty());       // the extent's name is not known from there
  CHECK(b.acquire(5, kE).history.size() == kE);  // from here it is
}

TEST_CASE("long chains are looked up from the far end, in batches, and those before are presumed") {
  testing::MemoryStore store;
  Host a(store, 64 * 100);
  a.store_chain(5, 70 * kE);
  a.write_out();
  CHECK(count_in(store, StorePool::kExtents) == 70);
  store.look_ups.clear();
  Host b(store, 64 * 100);
  store.look_ups.clear();
  CHECK(b.acquire(5, 70 * kE).history.size() == 70 * kE);
  REQUIRE(!store.look_ups.empty());
  CHECK(store.look_ups[0].size() == 64);  // and the other six were not asked for
  CHECK(store.look_ups.size() <= 2);
}

TEST_CASE("an extent that was presumed and is not there ends the prefix") {
  testing::MemoryStore store;
  Host a(store, 64 * 100);
  a.store_chain(5, 70 * kE);
  a.write_out();
  store.objects.erase(ClusterTier::extent_object(history(5, 3 * kE - 1), kE));
  Host b(store, 64 * 100);
  const LeaseView& lease = b.acquire(5, 70 * kE);
  CHECK(lease.history.size() == 2 * kE);
  CHECK(lease.missing == MissReason::kNeverStored);
}

TEST_CASE("every damaged byte is a miss, and the object is removed") {
  testing::MemoryStore pristine;
  {
    Host a(pristine);
    a.store_chain(5, kE + 1);
    a.write_out();
  }
  const StoreName extent = ClusterTier::extent_object(history(5, kE - 1), kE);
  const std::size_t size = pristine.objects.at(extent).bytes.size();
  const auto damaged = [&](const auto& damage) {
    testing::MemoryStore store;
    store.objects = pristine.objects;
    damage(store.objects.at(extent).bytes);
    Host b(store);
    const LeaseView& lease = b.acquire(5, kE);
    CHECK(lease.history.size() < kE);  // what was granted was compared byte for byte
    CHECK(lease.missing == MissReason::kCorrupt);
    b.write_out();
    CHECK(!store.objects.contains(extent));
    CHECK(b.stat("cluster", "corrupt").to_number<int>() == 1);
    CHECK(b.acquire(5, kE).history.size() < kE);  // and it is not asked for again
  };
  for (std::size_t at = 0; at < size; at += 1 + size / 40)
    damaged([&](std::vector<std::byte>& bytes) { bytes[at] ^= std::byte{4}; });
  damaged([](std::vector<std::byte>& bytes) { bytes.resize(bytes.size() - 1); });
  damaged([](std::vector<std::byte>& bytes) { bytes.push_back(std::byte{0}); });
  damaged([](std::vector<std::byte>& bytes) { bytes.resize(10); });
}

TEST_CASE("another chain's extent under a chain's name is a miss") {
  testing::MemoryStore store;
  Host a(store);
  a.store_chain(5, kE);
  a.store_chain(6, kE);
  a.write_out();
  store.objects.at(ClusterTier::extent_object(history(5, kE - 1), kE)) =
      store.objects.at(ClusterTier::extent_object(history(6, kE - 1), kE));
  Host b(store);
  CHECK(b.acquire(5, kE).history.empty());
  CHECK(b.acquire(6, kE).history.size() == kE);
}

TEST_CASE("a store that hangs is misses with a reason, then nothing is asked, then it is back") {
  testing::MemoryStore store;
  Host a(store);
  a.store_chain(5, kE);
  a.write_out();
  Host b(store);
  b.register_root(5);
  store.hangs = true;
  for (int i = 0; i < 8; ++i) {
    LeaseView& lease = b.f.acquire(1, ++b.last, 5, kE, seconds(10));
    for (int turns = 0; turns < 60 && lease.finals == 0; ++turns) {
      b.f.advance(milliseconds(10));
      b.poll();
    }
    CHECK(lease.finals == 1);
    CHECK(lease.history.empty());
    CHECK(lease.missing == MissReason::kTooSlow);
  }
  CHECK(!b.stat("cluster", "in_service").as_bool());
  CHECK(b.stat("cluster", "breaker_openings").to_number<int>() >= 1);
  const std::size_t asked = store.look_ups.size();
  CHECK(b.acquire(5, kE).missing == MissReason::kTooSlow);  // at once
  CHECK(store.look_ups.size() == asked);
  store.hangs = false;
  for (int turns = 0; turns < 400 && !b.stat("cluster", "in_service").as_bool(); ++turns) {
    b.f.advance(milliseconds(100));
    b.f.tell(1, kv::Alive{});
    b.poll();
  }
  CHECK(b.acquire(5, kE).history.size() == kE);
}

TEST_CASE(
    "a store that hangs in the middle of a load: the lease ends, what is computed is stored") {
  testing::MemoryStore store;
  Host a(store);
  a.store_chain(5, kE);
  a.write_out();
  Host b(store);
  b.register_root(5);
  LeaseView& lease = b.f.acquire(1, ++b.last, 5, kE, milliseconds(800));
  while (store.gets.empty()) {
    b.f.work();
    b.poll();
  }
  store.hangs = true;
  for (int turns = 0; turns < 100; ++turns) {
    b.f.advance(milliseconds(10));
    b.poll();
  }
  CHECK(lease.finals == 1);
  CHECK(lease.history.empty());
  CHECK(lease.missing == MissReason::kTooSlow);
  CHECK(b.f.store(1, 5, 0, 4) == std::vector<MissReason>(4, MissReason::kNone));
}

TEST_CASE("errors and a full store: nothing is written, nobody waits, nothing is lost of memory") {
  for (const MissReason verdict : {MissReason::kIoError, MissReason::kEvictedShare}) {
    testing::MemoryStore store;
    store.verdict = verdict;
    Host a(store);
    a.store_chain(5, kE + 2);
    a.write_out();
    CHECK(store.objects.empty());
    CHECK(a.acquire(5, kE + 2).history.size() == kE + 2);
    // When it works again, the next use offers the extent again.
    store.verdict = MissReason::kNone;
    for (int turns = 0; turns < 50; ++turns) {
      a.f.advance(milliseconds(100));
      a.f.tell(1, kv::Alive{});
      a.poll();
    }
    CHECK(a.acquire(5, kE + 2).history.size() == kE + 2);
    a.write_out();
    CHECK(store.objects.contains(ClusterTier::extent_object(history(5, kE - 1), kE)));
  }
}

TEST_CASE("a class that is not written through is not, and is touched where it is") {
  testing::MemoryStore store;
  Host a(store);
  a.store_chain(5, kE);
  a.write_out();
  ClusterTierOptions options = tier_options();
  options.written = {false, false};
  Host b(store, 512, options);
  b.store_chain(6, kE);
  b.write_out();
  CHECK(!store.objects.contains(ClusterTier::extent_object(history(6, kE - 1), kE)));
  const StoreName extent = ClusterTier::extent_object(history(5, kE - 1), kE);
  const TimeSlice before = store.objects.at(extent).slice;
  b.f.advance(std::chrono::hours(13));
  b.f.tell(1, kv::Alive{});
  b.poll();
  CHECK(b.acquire(5, kE).history.size() == kE);
  b.write_out();
  CHECK(store.objects.at(extent).slice == before + 2);
  CHECK(store.manifests.size() == 2);
  // Once a slice, however often it is used.
  const auto noted = store.manifests.rbegin()->second.size();
  CHECK(b.acquire(5, kE).history.size() == kE);
  b.write_out();
  CHECK(store.manifests.rbegin()->second.size() == noted);
}

TEST_CASE("read buffers are bounded, and all is loaded all the same") {
  testing::MemoryStore store;
  Host a(store, 64 * 20);
  a.store_chain(5, 10 * kE);
  a.write_out();
  ClusterTierOptions options = tier_options();
  options.read_bytes_max = 600'000;  // two extents
  Host b(store, 64 * 20, options);
  CHECK(b.acquire(5, 10 * kE).history.size() == 10 * kE);
  CHECK(b.stat("cluster", "buffer_bytes").to_number<std::uint64_t>() <= options.read_bytes_max);
}

TEST_CASE("the breaker: opens after failures in a row, probes after a pause that doubles") {
  StoreBreaker breaker({.failures_max = 3, .pause_min = seconds(1), .pause_max = seconds(3)});
  Instant now;
  breaker.failed(now);
  breaker.failed(now);
  breaker.succeeded();
  breaker.failed(now);
  breaker.failed(now);
  CHECK(breaker.closed());
  breaker.failed(now);
  CHECK(!breaker.closed());
  for (const int pause : {1, 2, 3, 3}) {
    CHECK(!breaker.take_probe(now + seconds(pause) - Duration(1)));
    now += seconds(pause);
    CHECK(breaker.take_probe(now));
    CHECK(!breaker.take_probe(now));  // one at a time
    breaker.failed(now);
  }
  now += seconds(3);
  CHECK(breaker.take_probe(now));
  breaker.succeeded();
  CHECK(breaker.closed());
  CHECK(breaker.openings() == 5);
}

}  // namespace penstock::service
