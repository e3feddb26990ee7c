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
                ClusterTierOptions options = tier_options(), std::uint64_t disk_bytes = 0)
      : store(shared), tier(shared, std::move(options)), f(units, false) {
    KvDaemonOptions wanted;
    wanted.epoch = 77;
    wanted.loads_in_flight_max = 32;
    f.disk.bytes_total = disk_bytes;
    f.disk.by_use = true;
    f.daemon = std::make_unique<KvDaemon>(wanted, f.memory, disk_bytes > 0 ? &f.disk : nullptr,
                                          nullptr, &tier);
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
  REQUIRE(store.look_ups.back().size() == 2);  // the probe: both pools are to answer
  CHECK(store.look_ups.back()[0].pool != store.look_ups.back()[1].pool);
  CHECK(b.acquire(5, kE).history.size() == kE);
}

TEST_CASE("what left memory is missed for the store's silence, not for having left") {
  testing::MemoryStore store;
  Host a(store, kE + 16);
  a.store_chain(5, kE);
  a.write_out();
  a.store_chain(6, kE);  // in place of it
  a.write_out();
  store.hangs = true;
  CHECK(a.acquire(5, kE).missing == MissReason::kTooSlow);
  store.hangs = false;
  CHECK(a.acquire(5, kE).history.size() == kE);
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

TEST_CASE("gateways are told what is known to be in the store, also those that come later") {
  testing::MemoryStore store;
  Host a(store);
  a.f.connect(20, "gateway");
  a.f.tell(20, kv::Subscribe{});
  // What a gateway's events say is there, in which tier.
  const auto told = [](Host& host, std::uint64_t gateway, KvTier tier) {
    host.f.work();
    std::set<BlockName> names;
    for (const kv::Events& events : host.f.sessions[gateway].events)
      for (const kv::Event& event : events.events)
        if (event.tier == tier && event.stored) {
          names.insert(event.name);
        } else if (event.tier == tier) {
          names.erase(event.name);
        }
    return names.size();
  };
  a.store_chain(5, kE + 3, {kE + 2});
  CHECK(told(a, 20, KvTier::kCluster) == 0);
  a.write_out();
  CHECK(told(a, 20, KvTier::kCluster) == kE + 4);
  a.f.connect(21, "gateway");
  a.f.tell(21, kv::Subscribe{});
  CHECK(told(a, 21, KvTier::kCluster) == kE + 4);  // by the snapshot

  // A host that finds it there knows it; one that finds it damaged, or gone, says so.
  Host b(store);
  b.f.connect(20, "gateway");
  b.f.tell(20, kv::Subscribe{});
  CHECK(b.acquire(5, kE + 3).history.size() == kE + 3);
  CHECK(told(b, 20, KvTier::kCluster) == kE + 3);
  Host c(store);
  c.f.connect(20, "gateway");
  c.f.tell(20, kv::Subscribe{});
  store.objects.at(ClusterTier::extent_object(history(5, kE - 1), kE)).bytes.back() ^= std::byte{1};
  c.acquire(5, kE + 3);
  CHECK(told(c, 20, KvTier::kCluster) == 3);
  // What nobody used for its lifetime is not counted on.
  b.f.advance(std::chrono::hours(31));
  for (int turns = 0; turns < 10; ++turns) {
    b.f.tell(1, kv::Alive{});
    b.poll();
  }
  CHECK(told(b, 20, KvTier::kCluster) == 0);
}

TEST_CASE("what is known to be in the store is bounded: the oldest goes first, and is told") {
  ClusterKnown known(3);
  const auto name = [](std::uint64_t i) { return history(1, static_cast<std::uint32_t>(i)); };
  const Instant far = Instant() + seconds(100);
  for (std::uint64_t i = 0; i < 5; ++i)
    known.there(name(i), 10, far);
  known.there(name(4), 10, far + seconds(1));
  CHECK(known.size() == 3);
  std::vector<std::pair<BlockName, bool>> news;
  for (const ClusterKnown::News& one : known.take_news())
    news.emplace_back(one.name, one.is_there);
  const std::vector<std::pair<BlockName, bool>> expected = {
      {name(0), true}, {name(1), true},  {name(2), true}, {name(0), false},
      {name(3), true}, {name(1), false}, {name(4), true}};
  CHECK(news == expected);
  known.gone(name(3));
  known.gone(name(9));
  known.expire(far);
  CHECK(known.size() == 1);
  CHECK(known.contains(name(4)));
  CHECK(known.parts() == 1);
  known.expire(far + seconds(1));
  CHECK(known.size() == 0);
}

TEST_CASE("a store that is not connected yet is no failing one, and is there as soon as it is") {
  testing::MemoryStore store;
  {
    Host a(store);
    a.store_chain(5, kE);
    a.write_out();
  }
  store.verdict = MissReason::kTierOff;
  Host b(store);
  b.f.connect(20, "gateway");
  b.f.tell(20, kv::Subscribe{});
  // What the gateway was told last.
  const auto cluster_is_off = [&] {
    return b.f.sessions[20].events.back().tiers_off == 1U << std::to_underlying(KvTier::kCluster);
  };
  b.f.work();
  CHECK(!cluster_is_off());  // nobody has asked the store
  for (int i = 0; i < 10; ++i)
    CHECK(b.acquire(5, kE).missing == MissReason::kTierOff);
  CHECK(cluster_is_off());
  CHECK(!b.stat("cluster", "in_service").as_bool());
  CHECK(b.stat("cluster", "breaker_openings").to_number<int>() == 0);
  b.store_chain(6, kE);                        // waits for it
  for (int turns = 0; turns < 300; ++turns) {  // in all of which it is not connected
    b.f.advance(milliseconds(100));
    b.f.tell(1, kv::Alive{});
    b.f.work();
    b.poll();
  }
  store.verdict = MissReason::kNone;
  for (int turns = 0; turns < 7; ++turns) {
    b.f.advance(milliseconds(100));
    b.poll();
  }
  CHECK(b.stat("cluster", "in_service").as_bool());
  CHECK(!cluster_is_off());
  CHECK(b.acquire(5, kE).history.size() == kE);
  b.write_out();
  CHECK(store.objects.contains(ClusterTier::extent_object(history(6, kE - 1), kE)));
}

TEST_CASE("a prefix shorter than an extent that prompts share is there on its own") {
  testing::MemoryStore store;
  // Two prompts of which only the first blocks are the same: chain 5's, and those under its
  // block 9.
  const auto fork = [](Host& host, kv::Acquire& request) {
    for (std::uint32_t depth = 10; depth < request.keys.size(); ++depth)
      request.keys[depth] = key_of(6, depth);
    host.f.asked.clear();
  };
  Host a(store);
  a.store_chain(5, kE + 3);
  a.write_out();
  CHECK(count_in(store, StorePool::kSmall) == 3);  // the tail
  const auto hit = [&](Host& host) {
    host.register_root(5);
    kv::Acquire request = host.f.acquire_message(++host.last, 5, kE, seconds(10));
    fork(host, request);
    host.f.tell(1, request);
    for (int turns = 0; turns < 1000 && host.f.sessions[1].leases[host.last].finals == 0; ++turns) {
      host.f.work();
      host.poll();
      host.f.advance(milliseconds(1));
    }
    return host.f.sessions[1].leases[host.last].history.size();
  };
  {
    Host b(store);
    CHECK(hit(b) == 0);
  }
  CHECK(hit(a) == 10);
  a.write_out();
  CHECK(count_in(store, StorePool::kSmall) == 3 + 10);
  Host c(store);
  CHECK(hit(c) == 10);
  CHECK(c.stat("acquires", "hit_blocks_cluster").to_number<int>() == 10);
  // An answer that goes on where its prompt ended shares nothing yet.
  Host d(store);
  CHECK(d.acquire(5, kE + 20).history.size() == kE + 3);
  d.write_out();
  CHECK(count_in(store, StorePool::kSmall) == 3 + 10);
}

TEST_CASE("what the store does not take waits on disk, as far as that has room, and comes there") {
  testing::MemoryStore store;
  store.verdict = MissReason::kTierOff;
  // A memory of one chain, and an eighth of the disk: two extents and a tail.
  Host a(store, kE + 16, tier_options(), 8 * (2 * kE + 8) * 4000);
  a.acquire(9, 1);  // finds that it is off
  const auto turn = [&](int turns) {
    for (int i = 0; i < turns; ++i) {
      a.f.advance(milliseconds(100));
      a.f.tell(1, kv::Alive{});
      a.f.work();
      a.poll();
    }
  };
  for (const std::uint64_t chain : {5, 6, 7}) {
    a.store_chain(chain, kE + (chain == 6 ? 3 : 0));
    turn(80);  // the ends of chains have waited long enough
  }
  const auto spill = [&](const char* key) {
    return a.stat("cluster", "spill").at(key).to_number<int>();
  };
  CHECK(spill("added") == 2 + 3);
  CHECK(a.f.disk.size() == 2 * kE + 3);  // of chain 7 nothing: there was no room
  CHECK(a.f.daemon->stat_json().find("\"lost\":0") != std::string::npos);
  CHECK(store.objects.empty());
  store.verdict = MissReason::kNone;
  turn(20);
  a.write_out();
  CHECK(spill("written") == 2 + 3);
  CHECK(spill("waiting") == 0);
  CHECK(spill("bytes") == 0);
  CHECK(spill("lost") == 0);
  Host b(store);
  CHECK(b.acquire(5, kE).history.size() == kE);
  CHECK(b.acquire(6, kE + 3).history.size() == kE + 3);
  CHECK(b.acquire(7, kE).history.size() == kE);  // memory had it when the store was back
}

TEST_CASE("kv gc sweeps the store when it is told to, and a dry run says what would go") {
  testing::MemoryStore store;
  ClusterTierOptions options = tier_options();
  options.gc_owner = "a";
  Host a(store, 512, options);
  a.f.connect(9, "tool");
  const auto ask = [&](const char* arguments) {
    a.f.tell(9, kv::Admin{++a.last, "gc", arguments});
    const std::size_t before = a.f.sessions[9].admin.size();
    for (int turns = 0; turns < 1000 && a.f.sessions[9].admin.size() == before; ++turns) {
      a.f.advance(milliseconds(10));
      a.f.tell(1, kv::Alive{});
      a.poll();
    }
    REQUIRE(a.f.sessions[9].admin.size() > before);
    const kv::AdminAnswer& answer = a.f.sessions[9].admin.back();
    REQUIRE(!answer.error);
    return boost::json::parse(answer.json).at("cluster").as_object();
  };
  const auto number = [](const boost::json::value& value) { return value.to_number<int>(); };
  a.store_chain(5, 2 * kE);
  a.write_out();
  a.f.advance(std::chrono::hours(31));  // a day, what was begun of a slice, and a minute less
  Host b(store);
  b.f.advance(std::chrono::hours(31));
  b.store_chain(6, kE);
  b.write_out();
  REQUIRE(store.objects.size() == 3);
  // The sweep that comes by itself finds another at work.
  for (const auto& [id, names] : store.manifests)
    store.leases["sweep-0-" + std::to_string(id.slice)] = "b";
  const boost::json::object dry = ask(R"({"dry_run":true})");
  CHECK(number(dry.at("removed")) == 2);
  CHECK(dry.at("whole").as_bool());
  CHECK(store.objects.size() == 3);
  // A second one is refused while one is under way, also when who asked has gone.
  a.f.connect(10, "tool");
  a.f.tell(10, kv::Admin{1, "gc", R"({"dry_run":true})"});
  a.f.close(10);
  a.f.tell(9, kv::Admin{++a.last, "gc", "{}"});
  REQUIRE(a.f.sessions[9].admin.back().error);
  CHECK(a.f.sessions[9].admin.back().error->code == ErrorCode::kConflict);
  for (int turns = 0; turns < 100; ++turns) {
    a.f.advance(milliseconds(10));
    a.poll();
  }
  store.leases.clear();
  const boost::json::object done = ask("{}");
  CHECK(number(done.at("removed")) == 2);
  CHECK(store.objects.size() == 1);
  CHECK(number(ask("{}").at("removed")) == 0);
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
  for (int i = 0; i < 10; ++i) {
    breaker.off(now);
    CHECK(breaker.is_off());
    CHECK(!breaker.take_probe(now + seconds(1) - Duration(1)));
    now += seconds(1);
    CHECK(breaker.take_probe(now));
  }
  breaker.failed(now);  // there, and failing
  CHECK(!breaker.is_off());
  CHECK(breaker.openings() == 6);
}

}  // namespace penstock::service
