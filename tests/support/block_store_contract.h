// What every BlockStore must do, as test cases that an implementation runs on itself.
//
//   TEST_CASE("the contract") { testing::check_block_store([&] { return open_another_host(); }); }
//
// `open` gives one more host's view of one store, which holds nothing of earlier tests. Objects are
// up to 4 MiB. Time is real: the store has threads of its own.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "port/block_store.h"

#include <doctest/doctest.h>

namespace penstock::testing {

inline Instant store_now() {
  return Instant(
      std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

inline StoreBuffer store_buffer(std::size_t bytes) {
  StoreBuffer buffer{std::make_shared<std::byte[]>(bytes), {}};
  buffer.bytes = {buffer.owner.get(), bytes};
  return buffer;
}

inline StoreBuffer random_payload(std::uint64_t seed, std::size_t bytes) {
  StoreBuffer buffer = store_buffer(bytes);
  Rng rng(seed);
  for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = rng.next_u64();
    std::memcpy(buffer.bytes.data() + at, &word, std::min(bytes - at, sizeof word));
  }
  return buffer;
}

// A store's operations, one at a time, waited for.
class StoreUser {
 public:
  explicit StoreUser(std::unique_ptr<BlockStore> store) : store_(std::move(store)) {}
  BlockStore& store() { return *store_; }

  MissReason put(const StoreName& name, const StoreBuffer& payload, TimeSlice slice = 1) {
    return wait([&](Instant deadline, auto done) {
      store_->put({name, payload, slice, deadline, std::move(done)});
    });
  }
  // The bytes that are there, of at most `bytes` from `offset`.
  std::pair<MissReason, std::vector<std::byte>> get(const StoreName& name, std::size_t bytes,
                                                    std::uint64_t offset = 0) {
    const StoreBuffer to = store_buffer(bytes);
    std::size_t got = 0;
    const MissReason reason = wait([&](Instant deadline, auto done) {
      store_->get({name, offset, to, deadline, [&got, done](MissReason why, std::size_t n) {
                     got = n;
                     done(why);
                   }});
    });
    return {reason, {to.bytes.begin(), to.bytes.begin() + static_cast<std::ptrdiff_t>(got)}};
  }
  std::vector<StoreFound> look_up(const std::vector<StoreName>& names) {
    std::vector<StoreFound> found;
    CHECK(wait([&](Instant deadline, auto done) {
            store_->look_up({names, deadline, [&found, done](MissReason why, auto answer) {
                               found = std::move(answer);
                               done(why);
                             }});
          }) == MissReason::kNone);
    return found;
  }
  MissReason touch(const StoreName& name, TimeSlice slice) {
    return wait([&](Instant deadline, auto done) {
      store_->touch(name, slice, deadline, std::move(done));
    });
  }
  // nullopt: it was not there.
  std::optional<bool> remove(const StoreName& name, TimeSlice slice_max) {
    bool removed = false;
    const MissReason reason = wait([&](Instant deadline, auto done) {
      store_->remove(name, slice_max, deadline,
                     [&removed, done](MissReason why, bool is_removed, std::uint64_t) {
                       removed = is_removed;
                       done(why);
                     });
    });
    if (reason == MissReason::kNeverStored) return std::nullopt;
    CHECK(reason == MissReason::kNone);
    return removed;
  }
  MissReason add_to_manifest(ManifestId id, const std::vector<StoreName>& names) {
    return wait([&](Instant deadline, auto done) {
      store_->add_to_manifest(id, names, deadline, std::move(done));
    });
  }
  // All of it, in pages.
  std::vector<StoreName> read_manifest(ManifestId id, std::size_t names_max) {
    std::vector<StoreName> names;
    std::string from;
    do {
      ManifestPage page;
      REQUIRE(wait([&](Instant deadline, auto done) {
                store_->read_manifest(id, from, names_max, deadline,
                                      [&page, done](MissReason why, ManifestPage answer) {
                                        page = std::move(answer);
                                        done(why);
                                      });
              }) == MissReason::kNone);
      CHECK(page.names.size() <= names_max);
      names.insert(names.end(), page.names.begin(), page.names.end());
      from = page.next;
    } while (!from.empty());
    return names;
  }
  std::vector<ManifestId> list_manifests() {
    std::vector<ManifestId> ids;
    CHECK(wait([&](Instant deadline, auto done) {
            store_->list_manifests(deadline, [&ids, done](MissReason why, auto answer) {
              ids = std::move(answer);
              done(why);
            });
          }) == MissReason::kNone);
    return ids;
  }
  MissReason drop_manifest(ManifestId id) {
    return wait(
        [&](Instant deadline, auto done) { store_->drop_manifest(id, deadline, std::move(done)); });
  }
  bool take_lease(const std::string& what, const std::string& owner, Duration duration) {
    bool taken = false;
    CHECK(wait([&](Instant deadline, auto done) {
            store_->take_lease(what, owner, duration, deadline,
                               [&taken, done](MissReason why, bool is_taken) {
                                 taken = is_taken;
                                 done(why);
                               });
          }) == MissReason::kNone);
    return taken;
  }
  MissReason give_back_lease(const std::string& what, const std::string& owner) {
    return wait([&](Instant deadline, auto done) {
      store_->give_back_lease(what, owner, deadline, std::move(done));
    });
  }
  StoreUse use() {
    StoreUse use;
    CHECK(wait([&](Instant deadline, auto done) {
            store_->use(deadline, [&use, done](MissReason why, StoreUse answer) {
              use = answer;
              done(why);
            });
          }) == MissReason::kNone);
    return use;
  }
  // Starts an operation and polls until its `done`; fails the test when it comes twice or too late.
  MissReason wait(const std::function<void(Instant, BlockStore::Done)>& start) {
    constexpr Duration kLimit = std::chrono::seconds(20);
    const auto ended = std::make_shared<std::vector<MissReason>>();
    const Instant until = store_now() + kLimit;
    start(until, [ended](MissReason reason) { ended->push_back(reason); });
    CHECK(ended->empty());  // inside poll() only
    while (ended->empty() && store_now() < until + std::chrono::seconds(2)) {
      store_->poll(store_now());
      if (ended->empty()) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    REQUIRE(ended->size() == 1);
    return ended->front();
  }

 private:
  std::unique_ptr<BlockStore> store_;
};

using OpenStore = std::function<std::unique_ptr<BlockStore>()>;

inline void check_store_objects(const OpenStore& open) {
  StoreUser a(open());
  StoreUser b(open());
  for (const StorePool pool : {StorePool::kExtents, StorePool::kSmall}) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{5000}, std::size_t{4} << 20}) {
      CAPTURE(bytes);
      const StoreName name{pool, "object-" + std::to_string(bytes)};
      const StoreBuffer payload = random_payload(bytes, bytes);
      CHECK(b.get(name, bytes).first == MissReason::kNeverStored);
      CHECK(a.put(name, payload) == MissReason::kNone);
      const auto [reason, got] = b.get(name, bytes);
      CHECK(reason == MissReason::kNone);
      CHECK(std::ranges::equal(got, payload.bytes));
      // Asked for more, it gives what there is; from the middle, the rest; behind the end, nothing.
      CHECK(a.get(name, bytes + 100).second.size() == bytes);
      CHECK(std::ranges::equal(a.get(name, bytes, bytes / 2).second,
                               payload.bytes.subspan(bytes / 2)));
      CHECK(a.get(name, 10, bytes).second.empty());
      // Another write of the name replaces it as a whole.
      const StoreBuffer longer = random_payload(bytes + 1, bytes + 7);
      CHECK(b.put(name, longer) == MissReason::kNone);
      CHECK(std::ranges::equal(a.get(name, bytes + 7).second, longer.bytes));
      CHECK(a.put(name, payload) == MissReason::kNone);
      CHECK(std::ranges::equal(b.get(name, bytes + 7).second, payload.bytes));
    }
  }
  // The pools have names of their own.
  CHECK(a.put({StorePool::kSmall, "one"}, random_payload(1, 10)) == MissReason::kNone);
  CHECK(a.get({StorePool::kExtents, "one"}, 10).first == MissReason::kNeverStored);
  CHECK(a.store().stats().puts > 0);
  CHECK(a.store().stats().put_bytes > (4U << 20));
  CHECK(b.store().stats().get_bytes > 0);
  CHECK(a.store().stats().stranded_bytes == 0);
  CHECK(a.store().stats().state == "ok");
  CHECK(a.use().bytes_total > 0);
}

inline void check_store_look_ups(const OpenStore& open) {
  StoreUser a(open());
  std::vector<StoreName> names;
  for (std::uint64_t i = 0; i < 100; ++i) {
    names.push_back(
        {i % 2 == 0 ? StorePool::kExtents : StorePool::kSmall, "found-" + std::to_string(i)});
    if (i % 3 == 0)
      CHECK(a.put(names.back(), random_payload(i, 100 + i), 7 + i) == MissReason::kNone);
  }
  const std::vector<StoreFound> found = StoreUser(open()).look_up(names);
  REQUIRE(found.size() == names.size());
  for (std::uint64_t i = 0; i < 100; ++i) {
    CHECK(found[i].bytes == (i % 3 == 0 ? 100 + i : 0));
    if (i % 3 == 0) CHECK(found[i].slice == 7 + i);
  }
  CHECK(a.look_up({}).empty());
}

inline void check_store_life(const OpenStore& open) {
  StoreUser a(open());
  StoreUser b(open());
  const StoreName name{StorePool::kExtents, "alive"};
  CHECK(a.touch(name, 5) == MissReason::kNeverStored);
  CHECK(a.remove(name, 5) == std::nullopt);
  CHECK(a.put(name, random_payload(1, 1000), 10) == MissReason::kNone);
  CHECK(b.remove(name, 9) == false);
  CHECK(b.touch(name, 12) == MissReason::kNone);
  CHECK(b.touch(name, 11) == MissReason::kNone);  // changes nothing
  CHECK(a.look_up({name})[0].slice == 12);
  CHECK(a.put(name, random_payload(1, 1000), 11) == MissReason::kNone);  // nor does this
  CHECK(a.look_up({name})[0].slice == 12);
  CHECK(a.remove(name, 11) == false);
  CHECK(a.get(name, 1000).first == MissReason::kNone);
  CHECK(a.remove(name, 12) == true);
  CHECK(b.get(name, 1000).first == MissReason::kNeverStored);
  CHECK(b.remove(name, 12) == std::nullopt);
}

inline void check_store_manifests(const OpenStore& open) {
  StoreUser a(open());
  StoreUser b(open());
  const ManifestId id{2, 1234};
  CHECK(a.list_manifests().empty());
  CHECK(a.read_manifest(id, 10).empty());
  std::set<StoreName> expected;
  for (std::uint64_t i = 0; i < 250; i += 5) {
    std::vector<StoreName> batch;
    for (std::uint64_t n = i; n < i + 5; ++n)
      batch.push_back(
          {n % 4 == 0 ? StorePool::kSmall : StorePool::kExtents, "name-" + std::to_string(n)});
    expected.insert(batch.begin(), batch.end());
    CHECK((i % 2 == 0 ? a : b).add_to_manifest(id, batch) == MissReason::kNone);
  }
  CHECK(a.add_to_manifest(id, {*expected.begin()}) == MissReason::kNone);  // twice
  CHECK(b.add_to_manifest({0, 5}, {{StorePool::kSmall, "other"}}) == MissReason::kNone);
  for (const std::size_t page : {std::size_t{1000}, std::size_t{7}}) {
    const std::vector<StoreName> names = a.read_manifest(id, page);
    CHECK(std::set<StoreName>(names.begin(), names.end()) == expected);
    CHECK(names.size() <= expected.size() + 1);
  }
  const std::vector<ManifestId> ids = a.list_manifests();
  CHECK(std::set<ManifestId>(ids.begin(), ids.end()) == std::set<ManifestId>{{0, 5}, id});
  CHECK(b.drop_manifest(id) == MissReason::kNone);
  CHECK(a.read_manifest(id, 10).empty());
  CHECK(a.list_manifests() == std::vector<ManifestId>{{0, 5}});
  CHECK(a.drop_manifest(id) == MissReason::kNone);
}

inline void check_store_leases(const OpenStore& open) {
  using std::chrono::milliseconds;
  StoreUser a(open());
  StoreUser b(open());
  const Duration minute = std::chrono::seconds(60);
  CHECK(a.take_lease("sweep-1", "a", minute));
  CHECK(!b.take_lease("sweep-1", "b", minute));
  CHECK(b.take_lease("sweep-2", "b", minute));
  CHECK(a.take_lease("sweep-1", "a", minute));                    // renewed
  CHECK(b.give_back_lease("sweep-1", "b") == MissReason::kNone);  // not its own: nothing
  CHECK(!b.take_lease("sweep-1", "b", minute));
  CHECK(a.give_back_lease("sweep-1", "a") == MissReason::kNone);
  CHECK(b.take_lease("sweep-1", "b", milliseconds(1200)));
  CHECK(!a.take_lease("sweep-1", "a", minute));
  // It runs out by itself.
  const Instant until = store_now() + std::chrono::seconds(10);
  bool taken = false;
  while (!taken && store_now() < until) {
    std::this_thread::sleep_for(milliseconds(50));
    taken = a.take_lease("sweep-1", "a", minute);
  }
  CHECK(taken);
  CHECK(!b.take_lease("sweep-1", "b", minute));
}

// What was asked long ago, or is asked of a store too slow, is answered in time and not later.
inline void check_store_deadlines(const OpenStore& open) {
  StoreUser a(open());
  const StoreName name{StorePool::kExtents, "late"};
  CHECK(a.put(name, random_payload(1, 1 << 20)) == MissReason::kNone);
  std::vector<MissReason> ended;
  const Instant before = store_now() - std::chrono::milliseconds(1);
  for (int i = 0; i < 50; ++i) {
    a.store().get({name, 0, store_buffer(1 << 20), before,
                   [&](MissReason reason, std::size_t) { ended.push_back(reason); }});
    a.store().put({name, random_payload(1, 1 << 20), 1, before,
                   [&](MissReason reason) { ended.push_back(reason); }});
    a.store().touch(name, 1, before, [&](MissReason reason) { ended.push_back(reason); });
  }
  CHECK(ended.empty());
  a.store().poll(store_now());
  CHECK(ended.size() == 150);
  for (const MissReason reason : ended)
    CHECK((reason == MissReason::kTooSlow || reason == MissReason::kNone));
  // What was given up does no harm, and lets go of its buffer.
  const Instant until = store_now() + std::chrono::seconds(20);
  while (a.store().stats().stranded_bytes > 0 && store_now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    a.store().poll(store_now());
  }
  CHECK(a.store().stats().stranded_bytes == 0);
  CHECK(ended.size() == 150);
  CHECK(std::ranges::equal(a.get(name, 1 << 20).second, random_payload(1, 1 << 20).bytes));
}

// Two hosts write and read the same names at once: every read gets a whole object or none.
inline void check_store_torn_reads(const OpenStore& open) {
  StoreUser a(open());
  StoreUser b(open());
  const StoreName name{StorePool::kExtents, "both"};
  const std::size_t bytes = 300'000;
  std::set<std::byte> seen;
  int puts = 0, gets = 0;
  Rng rng(3);
  for (int round = 0; round < 60; ++round) {
    StoreBuffer payload = store_buffer(bytes);
    std::ranges::fill(payload.bytes, static_cast<std::byte>(round));
    a.store().put({name, payload, 1, store_now() + std::chrono::seconds(20),
                   [&](MissReason reason) { puts += reason == MissReason::kNone ? 1 : 0; }});
    const StoreBuffer to = store_buffer(bytes);
    b.store().get({name, 0, to, store_now() + std::chrono::seconds(20),
                   [&, to](MissReason reason, std::size_t got) {
                     ++gets;
                     if (reason == MissReason::kNeverStored) return;
                     CHECK(reason == MissReason::kNone);
                     CHECK(got == bytes);
                     CHECK(std::ranges::count(to.bytes, to.bytes[0]) ==
                           static_cast<std::ptrdiff_t>(bytes));
                     seen.insert(to.bytes[0]);
                   }});
  }
  while (puts < 60 || gets < 60) {
    a.store().poll(store_now());
    b.store().poll(store_now());
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

inline void check_block_store(const OpenStore& open) {
  check_store_manifests(open);
  check_store_objects(open);
  check_store_look_ups(open);
  check_store_life(open);
  check_store_leases(open);
  check_store_deadlines(open);
  check_store_torn_reads(open);
}

}  // namespace penstock::testing
