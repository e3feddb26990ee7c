#include "core/kvcache/host_tier.h"

#include <algorithm>
#include <map>
#include <string>

#include "base/hash.h"
#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock::kvcache {
namespace {

BlockKey key(std::uint64_t number) {
  BlockKey made;
  for (std::size_t i = 0; i < 8; ++i)
    made.bytes[i] = static_cast<std::uint8_t>(number >> (8 * i));
  return made;
}

BlockInfo block(std::uint64_t number, std::uint64_t parent, std::uint32_t depth,
                KvGroup group = KvGroup::kHistory, std::uint64_t tenant = 0) {
  BlockInfo info;
  info.name = {key(number), group};
  info.parent = key(parent);
  info.root = key(1'000'000);
  info.depth = depth;
  info.tenant = tenant;
  return info;
}

Instant at_second(std::int64_t second) {
  return Instant{} + std::chrono::seconds(second);
}

struct Fixture {
  HostTier tier{8 * kArenaUnit};
  HostRemovals removals;

  HostBlock stored(const BlockInfo& info, std::uint64_t bytes = kArenaUnit) {
    REQUIRE(tier.make_room(bytes, at_second(0), removals));
    const auto filling = tier.begin_fill(info, bytes);
    REQUIRE(filling);
    tier.seal(*filling, {{static_cast<std::uint32_t>(bytes), 7}}, at_second(0));
    return *filling;
  }
  std::vector<BlockKey> removed() {
    std::vector<BlockKey> keys;
    for (const HostRemoval& removal : removals)
      keys.push_back(removal.name.key);
    removals.clear();
    return keys;
  }
};

}  // namespace

TEST_CASE(
    "rule 1: a block goes absent, filling, sealed, retiring, absent, and only sealed is served") {
  Fixture f;
  const BlockInfo info = block(1, 0, 0);
  CHECK(!f.tier.find(info.name));
  const HostBlock filling = *f.tier.begin_fill(info, 100);
  CHECK(f.tier.at(filling).state == HostState::kFilling);
  CHECK(!f.tier.sealed_in_slot(filling.slot));
  f.tier.seal(filling, {{100, 5}}, at_second(1));
  CHECK(f.tier.sealed(filling));
  CHECK(f.tier.at(filling).info.slices == std::vector<SliceSum>{{100, 5}});
  f.tier.pin(filling);
  f.tier.retire(filling, MissReason::kRemoved, at_second(2), f.removals);
  CHECK(f.tier.at(filling).state == HostState::kRetiring);
  CHECK(!f.tier.find(info.name));
  CHECK(f.tier.usage().free_bytes == 7 * kArenaUnit);
  f.tier.unpin(filling);
  CHECK(!f.tier.valid(filling));
  CHECK(f.tier.usage().free_bytes == 8 * kArenaUnit);
  REQUIRE(f.removals.size() == 1);
  CHECK(f.removals[0].reason == MissReason::kRemoved);
  CHECK(f.removals[0].idle == std::chrono::seconds(1));
}

TEST_CASE("rule 2: what was filling when its filler died is discarded and was never visible") {
  Fixture f;
  const HostBlock filling = *f.tier.begin_fill(block(1, 0, 0), kArenaUnit);
  f.tier.hold(filling);  // the device may still write there
  f.tier.retire(filling, MissReason::kIoError, at_second(0), f.removals);
  CHECK(f.removed().empty());  // nobody was told of it, so nobody is told that it went
  CHECK(f.tier.usage().free_bytes == 7 * kArenaUnit);
  const HostBlock again = f.stored(block(1, 0, 0));  // the name is free at once, in another place
  CHECK(f.tier.at(again).offset != f.tier.at(filling).offset);
  f.tier.unhold(filling);
  CHECK(!f.tier.valid(filling));
  f.tier.check();
}

TEST_CASE("eviction takes the longest unused leaf: a block goes after its descendants") {
  Fixture f;
  for (std::uint32_t depth = 0; depth < 4; ++depth)
    f.stored(block(10 + depth, 9 + depth, depth));
  for (std::uint32_t depth = 0; depth < 4; ++depth)
    f.stored(block(20 + depth, 19 + depth, depth));
  // The first chain was used last, its root first of all.
  const std::uint64_t tick = f.tier.next_tick();
  for (std::uint64_t number = 10; number < 14; ++number)
    f.tier.touch(*f.tier.find({key(number), KvGroup::kHistory}), tick, at_second(1));
  CHECK(f.tier.make_room(3 * kArenaUnit, at_second(2), f.removals));
  CHECK(f.removed() == std::vector{key(23), key(22), key(21)});
  CHECK(f.tier.make_room(5 * kArenaUnit, at_second(2), f.removals));
  CHECK(f.removed() == std::vector{key(20), key(13)});
  f.tier.check();
}

TEST_CASE("a tenant above its share of memory loses first; alone it may use everything") {
  Fixture f;
  const auto flood = [&](std::uint64_t tenant, std::uint64_t first, std::uint64_t blocks) {
    for (std::uint64_t number = first; number < first + blocks; ++number)
      f.stored(block(number, 0, 0, KvGroup::kHistory, tenant));
  };
  const auto reasons = [&] {
    std::vector<MissReason> all;
    for (const HostRemoval& removal : std::exchange(f.removals, {}))
      all.push_back(removal.reason);
    return all;
  };
  flood(1, 100, 12);  // of 8 places
  CHECK(f.tier.usage().blocks == 8);
  CHECK(reasons() == std::vector(4, MissReason::kEvictedHost));
  flood(2, 200, 2);
  CHECK(reasons() == std::vector{MissReason::kEvictedHost, MissReason::kEvictedShare});
  flood(1, 300, 50);
  CHECK(reasons() == std::vector(50, MissReason::kEvictedShare));
  for (const std::uint64_t number : {200, 201})  // used longest ago, and there still
    CHECK(f.tier.find({key(number), KvGroup::kHistory}));
  flood(2, 400, 2);
  CHECK(reasons() == std::vector(2, MissReason::kEvictedShare));
  flood(3, 500, 1);  // nobody is above: the oldest goes
  REQUIRE(f.removals.size() == 1);
  CHECK(f.removals[0].name.key == key(200));
  CHECK(reasons() == std::vector{MissReason::kEvictedHost});
  // What may not go keeps its place; then others have to give theirs.
  for (std::uint64_t number = 346; number < 350; ++number)
    f.tier.pin(*f.tier.find({key(number), KvGroup::kHistory}));
  flood(1, 600, 1);
  CHECK(reasons() == std::vector{MissReason::kEvictedHost});
  f.tier.check();
}

TEST_CASE("ages: the oldest that may go, and the median of all") {
  Fixture f;
  CHECK(f.tier.ages(at_second(9)).oldest == Duration{});
  CHECK(f.tier.ages(at_second(9)).median == Duration{});
  for (std::uint64_t number = 1; number <= 3; ++number) {
    const HostBlock stored = f.stored(block(number, 0, 0, KvGroup::kHistory, number));
    f.tier.touch(stored, f.tier.next_tick(), at_second(static_cast<std::int64_t>(number)));
  }
  CHECK(f.tier.ages(at_second(11)).oldest == std::chrono::seconds(10));
  CHECK(f.tier.ages(at_second(11)).median == std::chrono::seconds(9));
  f.tier.pin(*f.tier.find({key(1), KvGroup::kHistory}));
  CHECK(f.tier.ages(at_second(11)).oldest == std::chrono::seconds(9));
}

TEST_CASE("readers and I/O keep a block and, through it, its ancestors") {
  Fixture f;
  for (std::uint32_t depth = 0; depth < 8; ++depth)
    f.stored(block(10 + depth, 9 + depth, depth));
  const HostBlock leaf = *f.tier.find({key(17), KvGroup::kHistory});
  f.tier.pin(leaf);
  CHECK(!f.tier.make_room(1, at_second(0), f.removals));
  f.tier.hold(leaf);
  f.tier.unpin(leaf);
  CHECK(!f.tier.make_room(1, at_second(0), f.removals));
  CHECK(f.removed().empty());
  f.tier.unhold(leaf);
  CHECK(f.tier.make_room(1, at_second(0), f.removals));
  CHECK(f.removed() == std::vector{key(17)});
  CHECK(!f.tier.make_room(9 * kArenaUnit, at_second(0), f.removals));
  CHECK(f.removed().empty());  // nothing is thrown away for what can never fit
}

TEST_CASE("descendants of a corrupt block are garbage at once, its place stays out of use") {
  HostTier tier{128 * kArenaUnit};
  HostRemovals removals;
  for (std::uint32_t depth = 0; depth < 3; ++depth)
    tier.seal(*tier.begin_fill(block(10 + depth, 9 + depth, depth), kArenaUnit), {}, at_second(0));
  tier.seal(*tier.begin_fill(block(12, 0, 2, KvGroup::kWindow), kArenaUnit), {}, at_second(0));
  tier.retire(*tier.find({key(11), KvGroup::kHistory}), MissReason::kCorrupt, at_second(0),
              removals);
  REQUIRE(removals.size() == 3);
  CHECK(removals[0].name.key == key(12));
  CHECK(removals[0].reason == MissReason::kParentGone);
  CHECK(removals[1].name.key == key(12));
  CHECK(removals[2].name.key == key(11));
  CHECK(removals[2].reason == MissReason::kCorrupt);
  CHECK(tier.usage().blocks == 1);
  CHECK(tier.usage().corrupt_bytes == kArenaUnit);
  CHECK(tier.usage().free_bytes == 126 * kArenaUnit);
  tier.retire(*tier.find({key(10), KvGroup::kHistory}), MissReason::kCorrupt, at_second(0),
              removals);
  CHECK(tier.usage().corrupt_bytes == 2 * kArenaUnit);  // 1/64 of the arena is the most
  tier.seal(*tier.begin_fill(block(30, 0, 0), kArenaUnit), {}, at_second(0));
  tier.retire(*tier.find({key(30), KvGroup::kHistory}), MissReason::kCorrupt, at_second(0),
              removals);
  CHECK(tier.usage().corrupt_bytes == 2 * kArenaUnit);
  CHECK(tier.release_corrupt() == 2 * kArenaUnit);
  CHECK(tier.usage().free_bytes == 128 * kArenaUnit);
  tier.check();
}

TEST_CASE("a block may hang under a parent of a lower tier, and is an orphan when that goes") {
  Fixture f;
  f.stored(block(5, 4, 5));
  CHECK(f.tier.absent_parents() == std::vector{BlockName{key(4), KvGroup::kHistory}});
  f.stored(block(4, 3, 4));  // the parent arrives: now they are linked
  CHECK(f.tier.absent_parents() == std::vector{BlockName{key(3), KvGroup::kHistory}});
  CHECK(f.tier.at(*f.tier.find({key(4), KvGroup::kHistory})).children == 1);
  f.tier.retire_orphans({key(4), KvGroup::kHistory}, at_second(0), f.removals);  // it is here
  CHECK(f.removed().empty());
  f.tier.retire_orphans({key(3), KvGroup::kHistory}, at_second(0), f.removals);
  CHECK(f.removed() == std::vector{key(5), key(4)});
  CHECK(f.tier.absent_parents().empty());
  f.tier.check();
}

TEST_CASE("claims that would bend a chain are not consistent") {
  Fixture f;
  f.stored(block(5, 4, 5));
  CHECK(!f.tier.consistent(block(6, 6, 3)));  // its own parent
  CHECK(!f.tier.consistent(block(4, 3, 9)));  // its child says depth 4
  CHECK(!f.tier.consistent(block(6, 5, 5)));  // its parent is at depth 5
  CHECK(!f.tier.consistent(block(4, 5, 6)));  // a circle
  CHECK(!f.tier.consistent(block(5, 0, 6, KvGroup::kWindow)));
  CHECK(f.tier.consistent(block(5, 0, 5, KvGroup::kWindow)));
  CHECK(f.tier.consistent(block(6, 5, 6)));
  BlockInfo foreign = block(6, 5, 6);
  foreign.root = key(2);
  CHECK(!f.tier.consistent(foreign));
}

namespace {

// What a map of names and a list of places would do.
struct NaiveBlock {
  HostBlock handle;
  BlockInfo info;
  std::uint64_t bytes = 0;
  HostState state = HostState::kFilling;
  std::uint32_t pins = 0;
  std::uint32_t holds = 0;
  std::uint64_t tick = 0;
};

class Model {
 public:
  explicit Model(std::uint64_t seed)
      : rng_(seed),
        units_(30 + rng_.below(40)),
        share_(rng_.uniform()),
        tier_(units_ * kArenaUnit, share_) {}

  void step() {
    switch (rng_.below(10)) {
      case 0:
      case 1:
      case 2:
        return fill();
      case 3:
        return each([&](NaiveBlock& b) { return b.state == HostState::kFilling; },
                    [&](NaiveBlock& b) {
                      tier_.seal(b.handle, {{8, b.handle.generation}}, now_);
                      b.state = HostState::kSealed;
                      b.tick = ++tick_;
                      CHECK(tier_.next_tick() == ++tick_);
                    });
      case 4:
        return each([&](NaiveBlock& b) { return b.state == HostState::kSealed; },
                    [&](NaiveBlock& b) {
                      tier_.pin(b.handle);
                      ++b.pins;
                    });
      case 5:
        return each([&](NaiveBlock& b) { return b.pins > 0; },
                    [&](NaiveBlock& b) {
                      --b.pins;
                      tier_.unpin(b.handle);
                    });
      case 6:
        return each([&](NaiveBlock& b) { return b.state != HostState::kRetiring; },
                    [&](NaiveBlock& b) {
                      tier_.hold(b.handle);
                      ++b.holds;
                    });
      case 7:
        return each([&](NaiveBlock& b) { return b.holds > 0; },
                    [&](NaiveBlock& b) {
                      --b.holds;
                      tier_.unhold(b.handle);
                    });
      case 8:
        return each([&](NaiveBlock& b) { return b.state == HostState::kSealed; },
                    [&](NaiveBlock& b) {
                      tier_.touch(b.handle, tier_.next_tick(), now_);
                      b.tick = ++tick_;
                    });
      default:
        if (rng_.below(4) == 0)
          each([&](NaiveBlock& b) { return b.state != HostState::kRetiring; },
               [&](NaiveBlock& b) { retire(b.handle); });
    }
  }

  void compare() {
    tier_.check();
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      NaiveBlock& b = blocks_[i];
      if (b.state == HostState::kRetiring && b.pins == 0 && b.holds == 0) {
        REQUIRE(!tier_.valid(b.handle));
        blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      REQUIRE(tier_.valid(b.handle));
      const HostEntry& entry = tier_.at(b.handle);
      REQUIRE(entry.state == b.state);
      REQUIRE(entry.pins == b.pins);
      REQUIRE(entry.holds == b.holds);
      REQUIRE(entry.info.name == b.info.name);
      if (b.state != HostState::kRetiring) REQUIRE(tier_.find(b.info.name) == b.handle);
    }
  }

  void end() {
    for (NaiveBlock& b : blocks_) {
      for (; b.pins > 0; --b.pins)
        tier_.unpin(b.handle);
      for (; b.holds > 0; --b.holds)
        tier_.unhold(b.handle);
      if (b.state != HostState::kRetiring) retire(b.handle);
    }
    tier_.check();
    tier_.release_corrupt();
    REQUIRE(tier_.usage().free_bytes == tier_.usage().arena_bytes);
    REQUIRE(tier_.usage().pinned == 0);
  }

 private:
  template <typename Allowed, typename Act>
  void each(Allowed allowed, Act act) {  // one at random of those that allow it
    std::vector<NaiveBlock*> candidates;
    for (NaiveBlock& b : blocks_)
      if (allowed(b)) candidates.push_back(&b);
    if (!candidates.empty()) act(*candidates[rng_.below(candidates.size())]);
  }
  NaiveBlock* visible(const BlockName& name) {
    for (NaiveBlock& b : blocks_)
      if (b.state != HostState::kRetiring && b.info.name == name) return &b;
    return nullptr;
  }
  bool has_children(const BlockName& name) {
    return std::any_of(blocks_.begin(), blocks_.end(), [&](const NaiveBlock& b) {
      return b.state != HostState::kRetiring && HostTier::parent_of(b.info) == name;
    });
  }
  std::optional<std::pair<BlockName, MissReason>> naive_victim() {
    std::map<std::uint64_t, std::uint64_t> held;  // units by tenant
    for (const NaiveBlock& b : blocks_)
      if (b.state != HostState::kRetiring)
        held[b.info.tenant] += (b.bytes + kArenaUnit - 1) / kArenaUnit;
    const auto is_above = [&](const NaiveBlock& b) {
      return held[b.info.tenant] > static_cast<std::uint64_t>(share_ * static_cast<double>(units_));
    };
    const NaiveBlock* best = nullptr;
    for (const NaiveBlock& b : blocks_) {
      if (b.state != HostState::kSealed || b.pins > 0 || b.holds > 0 || has_children(b.info.name))
        continue;
      if (best == nullptr ||
          std::pair(!is_above(b), b.tick) < std::pair(!is_above(*best), best->tick))
        best = &b;
    }
    if (best == nullptr) return std::nullopt;
    return std::pair(best->info.name, is_above(*best) && held.size() > 1
                                          ? MissReason::kEvictedShare
                                          : MissReason::kEvictedHost);
  }
  // A name of a small forest: number n at depth d hangs under n / 3.
  BlockInfo random_block() {
    const std::uint64_t number = 1 + rng_.below(80);
    std::uint32_t depth = 0;
    for (std::uint64_t up = number; up >= 3; up /= 3)
      ++depth;
    const KvGroup group = rng_.below(6) == 0 ? KvGroup::kWindow : KvGroup::kHistory;
    return block(number, depth == 0 ? 1'000'000 : number / 3, depth, group, rng_.below(3));
  }
  void fill() {
    const BlockInfo info = random_block();
    if (visible(info.name) != nullptr) return;
    REQUIRE(tier_.consistent(info));
    const std::uint64_t bytes = 1 + rng_.below(3 * kArenaUnit);
    HostRemovals removals;
    const bool room = tier_.make_room(bytes, now_, removals);
    for (const HostRemoval& removal : removals) {
      REQUIRE(naive_victim() == std::pair(removal.name, removal.reason));
      erase(removal.name);
    }
    if (!room) {
      REQUIRE(!naive_victim());
      return;
    }
    const auto handle = tier_.begin_fill(info, bytes);
    REQUIRE(handle);
    REQUIRE(handle->generation > last_generation_);
    last_generation_ = handle->generation;
    blocks_.push_back({*handle, info, bytes});
  }
  void erase(const BlockName& name) {
    const NaiveBlock* gone = visible(name);
    blocks_.erase(blocks_.begin() + (gone - blocks_.data()));
  }
  void retire(HostBlock handle) {
    HostRemovals removals;
    const BlockName name = tier_.at(handle).info.name;
    std::vector<BlockName> expected;
    naive_retire(name, expected);
    tier_.retire(handle, rng_.below(2) == 0 ? MissReason::kCorrupt : MissReason::kRemoved, now_,
                 removals);
    std::vector<BlockName> told;
    for (const HostRemoval& removal : removals) {
      told.push_back(removal.name);
      CHECK((removal.reason == MissReason::kParentGone) == (removal.name != name));
    }
    std::sort(told.begin(), told.end());
    std::sort(expected.begin(), expected.end());
    REQUIRE(told == expected);
  }
  void naive_retire(const BlockName& name, std::vector<BlockName>& told) {
    for (NaiveBlock& b : blocks_)
      if (b.state != HostState::kRetiring && HostTier::parent_of(b.info) == name)
        naive_retire(b.info.name, told);
    NaiveBlock* b = visible(name);
    if (b->state == HostState::kSealed) told.push_back(name);
    b->state = HostState::kRetiring;
  }

  Rng rng_;
  std::uint64_t units_;
  double share_;
  HostTier tier_;
  std::vector<NaiveBlock> blocks_;
  std::uint64_t tick_ = 0;
  std::uint64_t last_generation_ = 0;
  Instant now_;
};

}  // namespace

TEST_CASE("random fills, readers, I/O and removals agree with a naive map") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    Model model(seed);
    for (int step = 0; step < 1200; ++step) {
      model.step();
      model.compare();
    }
    model.end();
  }
}

}  // namespace penstock::kvcache
