// Random sessions against the daemon over a tier that is slow, fails and lies.
#include <boost/json.hpp>
#include <set>

#include "tests/support/kvd_fixture.h"

#include <doctest/doctest.h>

namespace penstock::service {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class KvModel {
 public:
  explicit KvModel(std::uint64_t seed) : rng_(seed), f_(8 + rng_.below(30), true, options(rng_)) {
    f_.disk.latency = [this](auto) { return static_cast<int>(rng_.below(5)); };
    f_.disk.verdict = [this](auto operation, const BlockName&) {
      if (rng_.below(20) != 0) return MissReason::kNone;
      if (operation == testing::FakeBlockTier::Operation::kRead)
        return rng_.below(3) == 0 ? MissReason::kTierOff : MissReason::kIoError;
      return rng_.below(2) == 0 ? MissReason::kNotAdmitted : MissReason::kIoError;
    };
    f_.disk.removes_on_failed_read = rng_.below(2) == 0;
    for (std::uint64_t chain = 0; chain < kChains; ++chain)  // what an earlier run left there
      for (std::uint32_t depth = 0; depth < rng_.below(kDepthMax); ++depth) {
        f_.put_on_disk(history(chain, depth), chain, depth);
        if (rng_.below(3) == 0) f_.put_on_disk(window(chain, depth), chain, depth);
      }
    for (std::uint64_t id = 1; id <= 4; ++id)
      f_.connect(id);
    f_.connect(kSubscriber, "gateway");
    f_.tell(kSubscriber, kv::Subscribe{});
    next_session_ = 5;
    for (std::uint64_t id = 1; id <= 4; ++id)
      live_.push_back(id);
  }

  void step() {
    f_.advance(milliseconds(rng_.below(40)));
    const std::uint64_t id = live_[rng_.below(live_.size())];
    switch (rng_.below(14)) {
      case 0:
      case 1:
      case 2:
        acquire(id);
        break;
      case 3:
      case 4:
      case 5:
        release_one();
        break;
      case 6:
      case 7:
        store(id);
        break;
      case 8:
        if (rng_.below(4) == 0) reopen(id);
        break;
      case 9:
        if (rng_.below(60) == 0) f_.advance(seconds(6));  // everybody was silent
        break;
      case 10:
        disturb_disk();
        break;
      case 11:
        report();
        break;
      case 12:
        if (rng_.below(6) == 0) f_.tell(id, kv::Admin{1, "verify", R"({"tier":"all"})"});
        if (rng_.below(6) == 0) f_.tell(id, kv::Admin{2, "gc", "{}"});
        break;
      default:
        f_.daemon->set_congested(kv::SessionId(kSubscriber), rng_.below(3) == 0);
    }
    if (rng_.below(3) != 0) f_.poll();
    for (std::uint64_t turns = rng_.below(6); turns > 0 && f_.daemon->has_work(); --turns) {
      f_.daemon->work(f_.time());
      f_.deliver();
    }
    reap();
    for (const std::uint64_t other : live_)
      if (rng_.below(3) != 0) f_.tell(other, kv::Alive{});
  }

  void end() {
    f_.daemon->set_congested(kv::SessionId(kSubscriber), false);
    f_.settle();
    f_.advance(Duration(2 * seconds(60)));
    f_.tell(kSubscriber, kv::Alive{});
    f_.poll();
    reap();
    for (const auto& [id, lease] : open_)
      CHECK(f_.sessions[id].leases[lease].finals == 1);
    check_pinned_bytes();
    while (!live_.empty())
      drop(live_.back());
    f_.settle();
    f_.tell(kSubscriber, kv::Admin{9, "gc", "{}"});
    check_numbers();
    check_events();
  }

 private:
  static constexpr std::uint64_t kSubscriber = 1000;
  static constexpr std::uint64_t kChains = 9;
  static constexpr std::uint32_t kDepthMax = 10;

  static KvDaemonOptions options(Rng& rng) {
    KvDaemonOptions options;
    options.loads_in_flight_max = 1 + rng.below(8);
    options.event_history_max = 8 + rng.below(300);
    options.leases_max = 6;
    options.stores_pending_max = 30;
    return options;
  }

  void acquire(std::uint64_t id) {
    const kv::LeaseId lease = ++last_lease_;
    std::vector<std::uint32_t> windows;
    for (std::uint32_t depth = 0; depth < kDepthMax; ++depth)
      if (rng_.below(4) == 0) windows.push_back(depth);
    const std::uint64_t chain = rng_.below(kChains);
    const auto count = static_cast<std::uint32_t>(rng_.below(kDepthMax + 2));
    if (count == 0) windows.clear();
    std::erase_if(windows, [&](std::uint32_t depth) { return depth >= count; });
    f_.acquire(id, lease, chain, count, milliseconds(rng_.below(300)), windows);
    open_.insert({id, lease});
  }
  void store(std::uint64_t id) {
    if (!idle_pool(id)) return;  // its memory is still being copied from
    const auto first = static_cast<std::uint32_t>(rng_.below(2) == 0 ? 0 : rng_.below(kDepthMax));
    const auto count = static_cast<std::uint32_t>(1 + rng_.below(kDepthMax - first));
    std::vector<std::uint32_t> windows{first + count - 1};
    kv::Store message = f_.store_message(id, rng_.below(kChains), first, count, windows);
    if (rng_.below(10) == 0) message.blocks.back().slices[0] = UINT64_MAX - 10;
    if (rng_.below(10) == 0) message.blocks.push_back(message.blocks.front());
    expected_[message.number] = message.blocks.size();
    storing_[id] = message.number;
    f_.tell(id, std::move(message));
    if (rng_.below(10) == 0) f_.memory.asks_until_gone = static_cast<int>(1 + rng_.below(3));
  }
  bool idle_pool(std::uint64_t id) {
    if (!f_.memory.pools.contains({kv::SessionId(id), 0})) return false;
    const auto storing = storing_.find(id);
    if (storing == storing_.end()) return true;
    for (const kv::Stored& stored : f_.sessions[id].stored)
      if (stored.number == storing->second) {
        CHECK(stored.results.size() == expected_[stored.number]);
        return true;
      }
    return false;
  }
  void release_one() {
    if (open_.empty()) return;
    auto which = open_.begin();
    std::advance(which, static_cast<std::ptrdiff_t>(rng_.below(open_.size())));
    const auto [id, lease] = *which;
    check_lease(id, lease);  // nobody wrote there while it was pinned
    open_.erase(which);
    f_.tell(id, kv::Release{lease});
    CHECK(f_.sessions[id].leases[lease].finals == 1);
  }
  void check_lease(std::uint64_t id, kv::LeaseId lease) {
    const LeaseView& view = f_.sessions[id].leases[lease];
    const kv::Acquire& asked = f_.asked.at({id, lease});
    for (std::size_t depth = 0; depth < view.history.size(); ++depth)
      f_.check_bytes({asked.keys[depth], KvGroup::kHistory}, view.history[depth]);
    for (const auto& [depth, block] : view.windows)
      f_.check_bytes({asked.keys[depth], KvGroup::kWindow}, block);
  }
  void check_pinned_bytes() {
    for (const auto& [id, lease] : open_)
      check_lease(id, lease);
  }
  void reopen(std::uint64_t id) {
    drop(id);
    const std::uint64_t fresh = ++next_session_;
    f_.connect(fresh);
    live_.push_back(fresh);
  }
  void drop(std::uint64_t id) {
    std::erase(live_, id);
    std::erase_if(open_, [&](const auto& lease) { return lease.first == id; });
    f_.close(id);
  }
  // What the shell does with sessions that were told to go.
  void reap() {
    const std::vector<std::uint64_t> ids = live_;
    for (const std::uint64_t id : ids) {
      if (!f_.sessions[id].closed) continue;
      CHECK(f_.sessions[id].killed);  // these clients break no rule but silence
      reopen(id);
    }
  }
  void disturb_disk() {
    const std::vector<BlockName> names = f_.disk.names();
    if (names.empty()) return;
    const BlockName& name = names[rng_.below(names.size())];
    if (rng_.below(3) == 0) {
      f_.disk.damage(name, rng_.below(4000));
    } else {
      f_.disk.remove(name, MissReason::kEvictedDisk);
    }
  }
  void report() {
    if (open_.empty()) return;
    const auto [id, lease] = *open_.begin();
    const kv::Acquire& asked = f_.asked.at({id, lease});
    if (!asked.keys.empty())
      f_.tell(id,
              kv::Report{lease, {asked.keys[rng_.below(asked.keys.size())], KvGroup::kHistory}});
  }
  void check_numbers() {
    const auto stat = boost::json::parse(f_.daemon->stat_json()).as_object();
    const auto& host = stat.at("host").as_object();
    const auto number = [](const boost::json::object& object, const char* name) {
      return object.at(name).to_number<std::uint64_t>();
    };
    CHECK(number(host, "pinned_blocks") == 0);
    CHECK(number(host, "filling_blocks") == 0);
    CHECK(number(host, "retiring_blocks") == 0);
    CHECK(number(host, "corrupt_bytes") == 0);
    CHECK(number(host, "blocks") * kUnit + number(host, "free_bytes") ==
          number(host, "arena_bytes"));
    CHECK(number(stat.at("loads").as_object(), "in_flight") == 0);
    CHECK(number(stat.at("stores").as_object(), "pending") == 0);
    CHECK(number(stat.at("acquires").as_object(), "open_leases") == 0);
    std::uint64_t of_tenants = 0;
    for (const auto& row : stat.at("tenants").as_array())
      of_tenants += number(row.as_object(), "host_blocks");
    CHECK(of_tenants == number(host, "blocks"));
  }
  // What a subscriber has pieced together is what is held.
  void check_events() {
    std::set<std::pair<BlockName, KvTier>> held;
    std::uint64_t next = 0;
    bool in_snapshot = false;
    for (const kv::Events& message : f_.sessions[kSubscriber].events) {
      CHECK(message.epoch == 77);
      if (message.snapshot) {
        if (!in_snapshot) held.clear();
        in_snapshot = !message.snapshot_end;
        next = message.first;
      } else {
        REQUIRE(!in_snapshot);
        REQUIRE(message.first == next);
        next += message.events.size();
      }
      for (const kv::Event& event : message.events) {
        if (event.stored) {
          held.insert({event.name, event.tier});
        } else {
          held.erase({event.name, event.tier});
        }
      }
    }
    kv::Lookup lookup;
    for (std::uint64_t chain = 0; chain < kChains; ++chain)
      for (std::uint32_t depth = 0; depth <= kDepthMax; ++depth) {
        lookup.names.push_back(history(chain, depth));
        lookup.names.push_back(window(chain, depth));
      }
    f_.tell(kSubscriber, lookup);
    const auto& tiers = f_.sessions[kSubscriber].lookups.back().tiers;
    for (std::size_t i = 0; i < lookup.names.size(); ++i)
      for (const KvTier tier : {KvTier::kHost, KvTier::kDisk})
        CHECK(held.contains({lookup.names[i], tier}) ==
              ((tiers[i] >> static_cast<unsigned>(tier) & 1) != 0));
  }

  Rng rng_;
  DaemonFixture f_;
  std::vector<std::uint64_t> live_;
  std::uint64_t next_session_ = 0;
  kv::LeaseId last_lease_ = 0;
  std::set<std::pair<std::uint64_t, kv::LeaseId>> open_;
  std::map<std::uint64_t, std::size_t> expected_;   // blocks of a store
  std::map<std::uint64_t, std::uint64_t> storing_;  // the last store of a session
};

}  // namespace

TEST_CASE("random sessions over a tier that is slow, fails and lies: everything adds up") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    KvModel model(seed);
    for (int step = 0; step < 400; ++step)
      model.step();
    model.end();
  }
}

}  // namespace penstock::service
