// The tier against a naive map: random writes, reads, touches, time and crashes.
#include <doctest/doctest.h>
#include <unordered_map>

#include "io/disk/disk_tier_testing.h"

namespace penstock::disk {
namespace {

TEST_CASE("a block comes back, from this process and from the next") {
  TierHarness h(1);
  const TestBlock block = test_block(1, 0, 1);
  CHECK(h.read(block) == MissReason::kNeverStored);
  CHECK(h.write(block) == MissReason::kNone);
  CHECK(h.tier->contains(block.info.name));
  CHECK(h.tier->size_of(block.info.name) == block.info.bytes());
  CHECK(h.read(block) == MissReason::kNone);
  h.crash();
  CHECK(h.tier->contains(block.info.name));
  CHECK(h.read(block) == MissReason::kNone);
  CHECK(h.tier->stats().blocks == 1);
  CHECK(h.write(block) == MissReason::kNone);  // it is there already
  CHECK(h.tier->stats().writes == 0);
}

// What is acknowledged and not reported as removed.
struct Model {
  struct Stored {
    std::int64_t at = 0;
    TtlClass ttl_class = 0;
  };
  std::unordered_map<BlockName, Stored> blocks;

  void take(const std::vector<TierRemoval>& removals, UnixSeconds now) {
    for (const TierRemoval& removal : removals) {
      const auto known = blocks.find(removal.name);
      if (known == blocks.end()) continue;
      if (removal.reason == MissReason::kExpired) {
        REQUIRE(now.value >= known->second.at + ttl(known->second.ttl_class));
      }
      blocks.erase(known);
    }
  }
  static std::int64_t ttl(TtlClass ttl_class) { return ttl_class == 0 ? 86'400 : 3 * 86'400; }
};

void run_model(std::uint64_t seed, bool encrypted) {
  CAPTURE(seed);
  TierHarness h(seed, 10);
  if (encrypted) {
    REQUIRE(RecordCipher::initialise().has_value());
    h.options.key = RecordCipher::Key{1, 2, 3};
    h.crash();
  }
  Rng rng(seed * 77);
  Model model;
  struct Writing {
    TestBlock block;
    std::int64_t at = 0;
    bool over = false;
  };
  struct Reading {
    TestBlock block;
    AlignedBuffer memory;
    bool over = false;
  };
  std::vector<std::unique_ptr<Writing>> writes;
  std::vector<std::unique_ptr<Reading>> reads;
  std::uint64_t hits = 0;
  const auto random_block = [&] {
    const auto chain = rng.below(12);
    return test_block(chain, static_cast<std::uint32_t>(rng.below(8)),
                      static_cast<TtlClass>(chain % 2));
  };
  for (int step = 0; step < 2500; ++step) {
    const std::uint64_t what = rng.below(100);
    if (what < 40) {
      auto writing = std::make_unique<Writing>(Writing{random_block(), h.now.wall.value});
      Writing* it = writing.get();
      writes.push_back(std::move(writing));
      h.tier->write({it->block.info, it->block.payload.span(), [&, it](MissReason r) {
                       REQUIRE_FALSE(it->over);
                       it->over = true;
                       if (r != MissReason::kNone) return;
                       model.blocks.try_emplace(it->block.info.name,
                                                Model::Stored{it->at, it->block.info.ttl_class});
                     }});
    } else if (what < 70) {
      auto reading = std::make_unique<Reading>(Reading{random_block(), {}});
      reading->memory = AlignedBuffer(reading->block.payload.span().size());
      Reading* it = reading.get();
      reads.push_back(std::move(reading));
      h.tier->read(
          {it->block.info.name, it->memory.span(), [&, it](MissReason r, const BlockInfo& info) {
             REQUIRE_FALSE(it->over);
             it->over = true;
             REQUIRE((r == MissReason::kNone || r == MissReason::kNeverStored));
             if (r != MissReason::kNone) return;
             ++hits;
             TierHarness::check_equal(it->block, it->memory, info);
           }});
    } else if (what < 80) {
      const auto chain = rng.below(12);
      std::vector<BlockName> path;
      for (std::uint32_t depth = 0; depth <= rng.below(8); ++depth)
        path.push_back(test_name(chain, depth));
      h.tier->touch(path, static_cast<TtlClass>(rng.below(2)), h.now);
    } else if (what < 83) {
      h.tier->remove(random_block().info.name, MissReason::kRemoved);
    } else if (what < 90) {
      h.now.wall += UnixSeconds(static_cast<std::int64_t>(rng.below(4 * 3600)));
    } else if (what == 90 && rng.below(2) == 0) {
      h.poll();
      model.take(h.removals, h.now.wall);
      h.crash();
      writes.clear();
      reads.clear();
      for (auto it = model.blocks.begin(); it != model.blocks.end();) {
        const bool there = h.tier->contains(it->first);
        const bool may_go = h.now.wall.value >= it->second.at + Model::ttl(it->second.ttl_class);
        REQUIRE((there || may_go));
        it = there ? std::next(it) : model.blocks.erase(it);
      }
      // Blocks removed before may be back; their bytes are right all the same.
      h.tier->for_each([&](const BlockName& name, std::uint32_t) {
        model.blocks.try_emplace(name, Model::Stored{h.now.wall.value - 4 * 86'400, 0});
        return true;
      });
    }
    h.now.now += std::chrono::milliseconds(1);
    h.poll();
    model.take(h.removals, h.now.wall);
    if (step % 50 == 0) {
      REQUIRE(h.tier->stats().blocks == model.blocks.size());
      for (const auto& [name, stored] : model.blocks)
        REQUIRE(h.tier->contains(name));
    }
    std::erase_if(writes, [](const auto& w) { return w->over; });
    std::erase_if(reads, [](const auto& r) { return r->over; });
  }
  h.until([&] {
    return std::ranges::all_of(writes, [](const auto& w) { return w->over; }) &&
           std::ranges::all_of(reads, [](const auto& r) { return r->over; });
  });
  CHECK(hits > 50);
  CHECK(h.tier->stats().corrupt == 0);
  CHECK(h.tier->stats().io_errors == 0);
  CHECK(h.alarms() == 0);
}

TEST_CASE("model: a naive map, with crashes") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed)
    run_model(seed, false);
}

TEST_CASE("model: the same, encrypted") {
  for (std::uint64_t seed = 101; seed <= 103; ++seed)
    run_model(seed, true);
}

}  // namespace
}  // namespace penstock::disk
