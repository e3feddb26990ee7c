#include "core/kvcache/prefix_index.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "base/rng.h"
#include "core/kvcache/resume_point.h"

#include <doctest/doctest.h>

namespace penstock::kvcache {
namespace {

constexpr KvTier kTiers[] = {KvTier::kDevice, KvTier::kHost, KvTier::kDisk, KvTier::kCluster};

// `crowded`: all in one small table, with homes that collide.
BlockKey key_of(std::uint64_t number, bool crowded = false) {
  BlockKey key;
  std::uint64_t word = Rng(number).next_u64();
  if (crowded) word = (word & 0xFFFFF) | (word & 0x3) << 50;
  std::memcpy(key.bytes.data(), &word, sizeof word);
  return key;
}

kv::Event event(BlockKey key, KvTier tier = KvTier::kHost, bool stored = true,
                KvGroup group = KvGroup::kHistory) {
  return {{key, group}, tier, stored, stored ? MissReason::kNone : MissReason::kEvictedHost};
}

kv::Events snapshot(std::uint64_t epoch, std::uint64_t first, std::vector<kv::Event> events,
                    bool end = true) {
  return {epoch, first, true, end, std::move(events)};
}

kv::Events changes(std::uint64_t epoch, std::uint64_t first, std::vector<kv::Event> events) {
  return {epoch, first, false, false, std::move(events)};
}

// The plain way: a set of (tier, name) for each host.
struct Model {
  using Held = std::set<std::pair<KvTier, BlockName>>;
  std::map<KvHostId, Held> hosts;

  static std::optional<KvTier> fastest(const Held& held, BlockKey key, KvGroup group) {
    for (const KvTier tier : kTiers) {
      if (held.contains({tier, {key, group}})) return tier;
    }
    return std::nullopt;
  }

  KvMatch match(std::span<const BlockKey> keys) const {
    KvMatch result;
    for (const auto& [host, held] : hosts) {
      HostMatch m{.host = host};
      for (const BlockKey& key : keys) {
        const auto tier = fastest(held, key, KvGroup::kHistory);
        if (!tier) break;
        if (fastest(held, key, KvGroup::kWindow)) m.windows.push_back(m.history);
        for (std::size_t t = std::to_underlying(*tier); t < kKvTiers; ++t)
          m.leading[t] += m.leading[t] == m.history ? 1 : 0;
        ++m.history;
        ++m.fastest[std::to_underlying(*tier)];
      }
      if (m.history > 0) result.hosts.push_back(m);
    }
    for (const BlockKey& key : keys) {
      const auto held_by = [&](KvGroup group) {
        return std::ranges::any_of(
            hosts, [&](const auto& host) { return fastest(host.second, key, group).has_value(); });
      };
      if (!held_by(KvGroup::kHistory)) break;
      if (held_by(KvGroup::kWindow)) result.windows.push_back(result.anywhere);
      ++result.anywhere;
    }
    return result;
  }

  std::size_t blocks() const {
    std::set<BlockKey> keys;
    for (const auto& [host, held] : hosts) {
      for (const auto& [tier, name] : held)
        keys.insert(name.key);
    }
    return keys.size();
  }
};

void check_equal(const KvMatch& found, const KvMatch& expected) {
  CHECK(found.anywhere == expected.anywhere);
  CHECK(found.windows == expected.windows);
  REQUIRE(found.hosts.size() == expected.hosts.size());
  for (std::size_t i = 0; i < found.hosts.size(); ++i) {
    CHECK(found.hosts[i].host == expected.hosts[i].host);
    CHECK(found.hosts[i].history == expected.hosts[i].history);
    CHECK(found.hosts[i].leading == expected.hosts[i].leading);
    CHECK(found.hosts[i].fastest == expected.hosts[i].fastest);
    CHECK(found.hosts[i].windows == expected.hosts[i].windows);
  }
}

// A daemon that changes at random, and what it would send.
struct Daemon {
  std::uint64_t epoch = 1;
  std::uint64_t last = 0;  // number of its last event

  std::vector<kv::Event> change(Model::Held& held, Rng& rng, std::uint64_t universe, bool crowded) {
    std::vector<kv::Event> events;
    for (std::uint64_t n = rng.below(12); n > 0; --n) {
      const auto group = rng.below(4) == 0 ? KvGroup::kWindow : KvGroup::kHistory;
      events.push_back(event(key_of(rng.below(universe), crowded), kTiers[rng.below(4)],
                             rng.below(5) < 3, group));
      const std::pair at{events.back().tier, events.back().name};
      if (events.back().stored) {
        held.insert(at);
      } else {
        held.erase(at);
      }
      ++last;
    }
    return events;
  }
};

void send_snapshot(PrefixIndex& index, KvHostId host, const Daemon& daemon,
                   const Model::Held& held) {
  std::vector<kv::Event> part;
  for (const auto& [tier, name] : held) {
    part.push_back({name, tier, true, MissReason::kNone});
    if (part.size() < 7) continue;
    CHECK(index.apply(host, snapshot(daemon.epoch, daemon.last + 1, std::move(part), false)) ==
          PrefixIndex::Feed::kApplied);
    part.clear();
  }
  CHECK(index.apply(host, snapshot(daemon.epoch, daemon.last + 1, std::move(part))) ==
        PrefixIndex::Feed::kApplied);
}

void run_model(std::uint64_t seed, bool crowded, std::uint64_t hosts, std::uint64_t universe) {
  Rng rng(seed);
  PrefixIndex index;
  Model model;
  std::map<KvHostId, Daemon> daemons;
  for (int step = 0; step < 1500; ++step) {
    const KvHostId host(rng.below(hosts));
    Daemon& daemon = daemons[host];
    const bool known = model.hosts.contains(host);
    const auto dice = rng.below(40);
    if (!known || dice == 0) {  // comes, comes again, or starts anew
      if (dice == 0 && rng.below(2) == 0) daemon = {daemon.epoch + 1, 0};
      send_snapshot(index, host, daemon, model.hosts[host]);
    } else if (dice == 1) {
      index.forget(host);
      model.hosts.erase(host);
    } else if (dice == 2) {  // an event is lost
      daemon.last += 3;
      CHECK(index.apply(host, changes(daemon.epoch, daemon.last, {event(key_of(1))})) ==
            PrefixIndex::Feed::kResubscribe);
      CHECK(index.subscribe(host).after == 0);
      model.hosts.erase(host);
    } else {
      const std::uint64_t first = daemon.last + 1;
      auto events = daemon.change(model.hosts[host], rng, universe, crowded);
      CHECK(index.apply(host, changes(daemon.epoch, first, events)) == PrefixIndex::Feed::kApplied);
      if (rng.below(4) == 0) {  // a replay of what is known changes nothing
        CHECK(index.apply(host, changes(daemon.epoch, first, events)) ==
              PrefixIndex::Feed::kApplied);
      }
      CHECK(index.subscribe(host).after == daemon.last);
    }
    std::vector<BlockKey> chain;
    for (std::uint64_t n = 1 + rng.below(20), at = rng.below(universe); n > 0; --n)
      chain.push_back(key_of(at++ % universe, crowded));
    check_equal(index.match(chain), model.match(chain));
  }
  CHECK(index.hosts() == model.hosts.size());
  // Enough calls for two sweeps, then no dead entry is left.
  const KvHostId fresh(hosts);
  index.apply(fresh, snapshot(1, 1, {}));
  for (int i = 0; i < 2 * 4096 + 2; ++i)
    index.apply(fresh, changes(1, 1, {}));
  CHECK(index.blocks() == model.blocks());
}

}  // namespace

TEST_CASE("random events of many daemons match like a plain map") {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    run_model(seed, false, 3, 40);
    run_model(seed, true, 3, 200);   // long probes that wrap, erased from their middle
    run_model(seed, false, 20, 12);  // more hosts than an entry holds
    run_model(seed, true, 20, 60);
  }
}

TEST_CASE("a feed starts with a snapshot, and a gap or another run asks for one") {
  PrefixIndex index;
  const KvHostId host(7);
  const std::vector chain = {key_of(1), key_of(2), key_of(3)};
  const auto history = [&] {
    const auto match = index.match(chain);
    return match.hosts.empty() ? 0 : match.hosts[0].history;
  };
  CHECK(index.apply(host, changes(5, 1, {event(chain[0])})) == PrefixIndex::Feed::kResubscribe);
  CHECK(history() == 0);
  // The daemon's events 1 to 9 are in the snapshot.
  CHECK(index.apply(host, snapshot(5, 10, {event(chain[0])}, false)) ==
        PrefixIndex::Feed::kApplied);
  CHECK(index.subscribe(host).after == 0);
  CHECK(index.apply(host, snapshot(5, 10, {event(chain[1])})) == PrefixIndex::Feed::kApplied);
  CHECK(history() == 2);
  CHECK(index.subscribe(host).epoch == 5);
  CHECK(index.subscribe(host).after == 9);
  CHECK(index.apply(host, changes(5, 10, {event(chain[2])})) == PrefixIndex::Feed::kApplied);
  CHECK(history() == 3);
  // Half old, half new.
  CHECK(index.apply(host, changes(5, 9,
                                  {event(chain[0], KvTier::kHost, false), event(chain[2]),
                                   event(chain[1], KvTier::kHost, false)})) ==
        PrefixIndex::Feed::kApplied);
  CHECK(history() == 1);
  CHECK(index.apply(host, changes(5, 13, {})) == PrefixIndex::Feed::kResubscribe);
  CHECK(history() == 0);
  CHECK(index.apply(host, snapshot(5, 1, {event(chain[0])})) == PrefixIndex::Feed::kApplied);
  CHECK(index.apply(host, changes(6, 1, {event(chain[1])})) == PrefixIndex::Feed::kResubscribe);
  CHECK(history() == 0);
  // In the middle of a snapshot other events make no sense.
  CHECK(index.apply(host, snapshot(6, 1, {event(chain[0])}, false)) == PrefixIndex::Feed::kApplied);
  CHECK(index.apply(host, changes(6, 1, {})) == PrefixIndex::Feed::kResubscribe);
  CHECK(index.hosts() == 0);
}

TEST_CASE("a match tells tiers apart, and what all hosts hold together") {
  PrefixIndex index;
  std::vector<BlockKey> chain;
  for (std::uint64_t i = 0; i < 6; ++i)
    chain.push_back(key_of(i));
  const KvHostId a(1);
  const KvHostId b(2);
  index.apply(a, snapshot(1, 1,
                          {event(chain[0]), event(chain[1]), event(chain[1], KvTier::kDisk),
                           event(chain[2], KvTier::kDisk), event(chain[3]),
                           event(chain[3], KvTier::kHost, true, KvGroup::kWindow),
                           event(chain[5], KvTier::kHost, true, KvGroup::kWindow)}));
  index.apply(b, snapshot(1, 1, {event(chain[4]), event(chain[0], KvTier::kPeer)}));
  const auto match = index.match(chain);
  REQUIRE(match.hosts.size() == 1);  // b does not hold block 0
  const HostMatch& m = match.hosts[0];
  CHECK(m.host == a);
  CHECK(m.history == 4);
  CHECK(m.leading[std::to_underlying(KvTier::kDevice)] == 0);
  CHECK(m.leading[std::to_underlying(KvTier::kHost)] == 2);
  CHECK(m.leading[std::to_underlying(KvTier::kDisk)] == 4);
  CHECK(m.fastest[std::to_underlying(KvTier::kHost)] == 3);
  CHECK(m.fastest[std::to_underlying(KvTier::kDisk)] == 1);
  CHECK(m.windows == std::vector<std::uint32_t>{3});
  CHECK(match.anywhere == 5);
  CHECK(match.windows == std::vector<std::uint32_t>{3});
  CHECK(index.match({}).hosts.empty());
}

TEST_CASE("what a host has in a tier that is out of service is not matched until it is back") {
  PrefixIndex index;
  const KvHostId a(1);
  const KvHostId b(2);
  const std::vector chain = {key_of(0), key_of(1), key_of(2), key_of(3)};
  const auto in_cluster = [&](std::size_t i, KvGroup group = KvGroup::kHistory) {
    return event(chain[i], KvTier::kCluster, true, group);
  };
  const auto off = [](kv::Events events, KvTier tier) {
    events.tiers_off = static_cast<std::uint8_t>(1U << std::to_underlying(tier));
    return events;
  };
  const auto history = [&](std::size_t host) {
    const auto match = index.match(chain);
    return host < match.hosts.size() ? match.hosts[host].history : 0;
  };
  index.apply(a, snapshot(1, 1,
                          {event(chain[0]), in_cluster(0), in_cluster(1), in_cluster(2),
                           in_cluster(2, KvGroup::kWindow)}));
  index.apply(b, snapshot(1, 1, {in_cluster(0), in_cluster(1)}));
  CHECK(history(0) == 3);
  index.apply(a, off(changes(1, 1, {}), KvTier::kCluster));
  CHECK(history(0) == 1);  // of memory
  CHECK(history(1) == 2);  // b's is in service
  CHECK(index.match(chain).windows.empty());
  index.apply(a, off(changes(1, 1, {in_cluster(3)}), KvTier::kCluster));
  CHECK(history(0) == 1);
  index.apply(a, changes(1, 2, {}));
  CHECK(history(0) == 4);
  CHECK(index.match(chain).hosts[0].windows == std::vector<std::uint32_t>{2});
  // Nothing but the cluster: the host is no match at all meanwhile. A snapshot says it, too.
  index.apply(b, off(snapshot(2, 1, {in_cluster(0)}), KvTier::kCluster));
  CHECK(index.match(chain).hosts.size() == 1);
  index.apply(b, off(changes(2, 1, {}), KvTier::kDisk));
  CHECK(index.match(chain).hosts.size() == 2);
}

TEST_CASE("a host may come again any number of times") {
  PrefixIndex index;
  const KvHostId steady(1);
  index.apply(steady, snapshot(1, 1, {event(key_of(1))}));
  for (std::uint64_t epoch = 1; epoch <= 100'000; ++epoch) {
    index.apply(KvHostId(2), snapshot(epoch, 1, {event(key_of(1 + epoch % 2))}));
    if (epoch % 10'000 != 0) continue;
    CHECK(index.match({{key_of(1)}}).hosts.size() == 2);  // an even epoch
    CHECK(index.match({{key_of(2)}}).hosts.empty());
  }
  CHECK(index.blocks() <= 2);
}

TEST_CASE("the number of blocks has a limit") {
  PrefixIndex index(10);
  std::vector<kv::Event> events;
  for (std::uint64_t i = 0; i < 25; ++i)
    events.push_back(event(key_of(i)));
  index.apply(KvHostId(1), snapshot(1, 1, events));
  CHECK(index.blocks() == 10);
  CHECK(index.dropped() == 15);
  // A block that is known is taken from other hosts too.
  index.apply(KvHostId(2), snapshot(1, 1, {events[3]}));
  CHECK(index.match({{key_of(3)}}).hosts.size() == 2);
}

TEST_CASE("a hit resumes at the deepest window within its history") {
  struct Case {
    std::uint32_t history;
    std::vector<std::uint32_t> windows;
    WindowLayers layers;
    std::uint32_t blocks_max;
    std::uint32_t expected;
  };
  const Case cases[] = {
      {10, {}, WindowLayers::kNone, 20, 10},      {10, {}, WindowLayers::kNone, 9, 9},
      {10, {3}, WindowLayers::kNone, 20, 10},     {10, {}, WindowLayers::kSome, 20, 0},
      {10, {9}, WindowLayers::kSome, 20, 10},     {10, {9}, WindowLayers::kSome, 9, 0},
      {10, {10}, WindowLayers::kSome, 20, 0},     {10, {0, 4, 9, 12}, WindowLayers::kSome, 20, 10},
      {9, {0, 4, 9}, WindowLayers::kSome, 20, 5}, {0, {0}, WindowLayers::kSome, 20, 0},
      {1, {0}, WindowLayers::kSome, 20, 1},
  };
  for (const Case& c : cases)
    CHECK(resume_point(c.history, c.windows, c.layers, c.blocks_max) == c.expected);
  CHECK(blocks_before_last_token(0, 64) == 0);
  CHECK(blocks_before_last_token(64, 64) == 0);
  CHECK(blocks_before_last_token(65, 64) == 1);
  CHECK(blocks_before_last_token(129, 64) == 2);
}

}  // namespace penstock::kvcache
