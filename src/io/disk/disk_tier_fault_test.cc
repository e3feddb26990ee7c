// The tier under faults: the nth operation fails, bits flip, files are cut, stale, foreign or full.
#include <doctest/doctest.h>
#include <set>

#include "core/kvcache/segment_format.h"
#include "io/disk/disk_tier_testing.h"

namespace penstock::disk {
namespace {

using kvcache::kUnitBytes;

// A fixed course: fills segments of two classes, seals, hits, evicts, expires, reads.
// Returns what was acknowledged and not reported as removed.
std::set<std::uint32_t> run_course(TierHarness& h) {
  std::set<std::uint32_t> stored;
  const auto blocks = [](std::uint32_t i) { return test_block(5, i, 1, 1, 8'000); };
  std::vector<TierRemoval> gone;
  for (std::uint32_t i = 0; i < 60; ++i) {
    const TestBlock block = blocks(i);
    if (h.write(block) == MissReason::kNone) stored.insert(i);
    gone.insert(gone.end(), h.removals.begin(), h.removals.end());
    if (i % 7 == 0) {
      std::vector<BlockName> path;
      for (std::uint32_t depth = 0; depth <= 3; ++depth)
        path.push_back(test_name(5, depth));
      h.tier->touch(path, 1, h.now);
      h.now.wall += UnixSeconds(3600);
    }
    const TestBlock older = blocks(i / 2);
    h.read(older);  // checks the bytes when they are served
    gone.insert(gone.end(), h.removals.begin(), h.removals.end());
  }
  h.now.wall += UnixSeconds(13 * 3600);
  h.settle();
  gone.insert(gone.end(), h.removals.begin(), h.removals.end());
  for (std::uint32_t i = 0; i < 60; ++i) {
    const bool removed = std::ranges::any_of(
        gone, [&](const TierRemoval& removal) { return removal.name == test_name(5, i); });
    if (removed) stored.erase(i);
  }
  return stored;
}

// All are served, but for those evicted meanwhile.
void require_served(TierHarness& h, std::set<std::uint32_t>& stored) {
  h.settle();
  std::vector<TierRemoval> gone = h.removals;
  for (const std::uint32_t i : std::set<std::uint32_t>(stored)) {
    const TestBlock block = test_block(5, i, 1, 1, 8'000);
    const MissReason reason = h.read(block);
    gone.insert(gone.end(), h.removals.begin(), h.removals.end());
    const bool evicted = std::ranges::any_of(gone, [&](const TierRemoval& removal) {
      // What was hit is kept, but not without the block before it, whose write may have failed.
      return removal.name == block.info.name && (removal.reason == MissReason::kEvictedDisk ||
                                                 removal.reason == MissReason::kParentGone);
    });
    CAPTURE(i);
    REQUIRE(reason == (evicted ? MissReason::kNeverStored : MissReason::kNone));
    if (evicted) stored.erase(i);
  }
}

TEST_CASE("the nth operation fails, for every n and kind of failure") {
  for (const DiskFault fault :
       {DiskFault::kEio, DiskFault::kNoSpace, DiskFault::kShort, DiskFault::kTorn}) {
    for (std::uint64_t n = 1;; ++n) {
      CAPTURE(static_cast<int>(fault));
      CAPTURE(n);
      TierHarness h(n, 8, 20);
      h.disk->random_order = false;
      h.disk->fault = fault;
      h.disk->fault_at = n;
      auto stored = run_course(h);
      if (h.disk->operations < n) break;
      REQUIRE(h.tier->stats().in_service);
      REQUIRE(h.tier->stats().corrupt == 0);
      require_served(h, stored);
      // What was acknowledged is there after a kill, too.
      h.crash();
      require_served(h, stored);
      REQUIRE(h.tier->stats().corrupt == 0);
    }
  }
}

// A store with one sealed and one open segment.
std::vector<TestBlock> fill(TierHarness& h) {
  std::vector<TestBlock> blocks;
  for (std::uint32_t i = 0; i < 30; ++i) {
    blocks.push_back(test_block(9, i, 1, 1, 24'000));
    REQUIRE(h.write(blocks.back()) == MissReason::kNone);
  }
  h.settle();
  REQUIRE(h.disk->files.size() >= 2);
  return blocks;
}

TEST_CASE("any flipped bit is a miss, never wrong bytes") {
  for (const bool encrypted : {false, true}) {
    for (const bool restart : {false, true}) {
      for (std::uint64_t seed = 1; seed <= 120; ++seed) {
        CAPTURE(seed);
        TierHarness h(seed, 8);
        if (encrypted) {
          REQUIRE(RecordCipher::initialise().has_value());
          h.options.key = RecordCipher::Key{9};
          h.crash();
        }
        const auto blocks = fill(h);
        Rng rng(seed);
        auto& file = h.disk->files.at(static_cast<std::uint32_t>(rng.below(2)));
        file[rng.below(file.size())] ^= static_cast<std::byte>(1U << rng.below(8));
        if (restart) h.crash();
        std::size_t served = 0;
        for (const TestBlock& block : blocks) {
          const bool there = h.tier->contains(block.info.name);
          const MissReason reason = h.read(block);
          REQUIRE((reason == MissReason::kNone ||
                   reason == (there ? MissReason::kCorrupt : MissReason::kNeverStored)));
          served += reason == MissReason::kNone ? 1 : 0;
          if (reason != MissReason::kCorrupt) continue;
          // Told once, counted, reported as gone, and gone.
          REQUIRE(h.tier->stats().corrupt == 1);
          REQUIRE(h.alarms() == 1);
          REQUIRE_FALSE(h.tier->contains(block.info.name));
        }
        // One record at most is lost, unless the bit was in a segment's header.
        if (served < blocks.size() - 1) REQUIRE(h.noticed("damaged"));
      }
    }
  }
}

TEST_CASE("a torn tail loses only what was not acknowledged") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    TierHarness h(seed, 8);
    std::vector<TestBlock> blocks;
    std::vector<int> acknowledged;
    for (std::uint32_t i = 0; i < 20; ++i)
      blocks.push_back(test_block(9, i, 1));
    for (std::uint32_t i = 0; i < 20; ++i) {
      const TestBlock& block = blocks[i];
      h.tier->write({block.info, block.payload.span(), [&acknowledged, i](MissReason reason) {
                       if (reason == MissReason::kNone) acknowledged.push_back(static_cast<int>(i));
                     }});
      h.poll();
    }
    h.crash();
    for (const int i : acknowledged)
      REQUIRE(h.read(blocks[static_cast<std::size_t>(i)]) == MissReason::kNone);
    for (const TestBlock& block : blocks)
      h.read(block);
    CHECK(h.tier->stats().corrupt == 0);
    // And it goes on.
    const TestBlock next = test_block(9, 30, 1);
    CHECK(h.write(next) == MissReason::kNone);
    h.crash();
    CHECK(h.read(next) == MissReason::kNone);
  }
}

TEST_CASE("records of a former use of the space do not come back") {
  TierHarness h(4, 8);
  const auto blocks = fill(h);
  const std::vector<std::byte> before = h.disk->files.at(0);
  // The segment is used anew: same place, another epoch; then the old bytes return behind the
  // header, as a device might give them back.
  auto unit = std::span(h.disk->files.at(0)).first(kUnitBytes);
  auto header = kvcache::parse_segment_header(unit);
  REQUIRE(header.has_value());
  ++header->epoch;
  kvcache::write_segment_header(*header, unit);
  REQUIRE(std::ranges::equal(std::span(before).subspan(kUnitBytes),
                             std::span(h.disk->files.at(0)).subspan(kUnitBytes)));
  h.crash();
  for (const TestBlock& block : blocks) {
    const auto reason = h.read(block);
    REQUIRE((reason == MissReason::kNone || reason == MissReason::kNeverStored));
  }
  CHECK(h.tier->stats().blocks < blocks.size());
  CHECK(h.tier->stats().corrupt == 0);
}

TEST_CASE("truncated, foreign, other version, other store, other size") {
  struct Case {
    const char* name;
    void (*damage)(TierHarness&, std::vector<std::byte>&);
    const char* message;
    bool left_alone;
  };
  const Case cases[] = {
      {"truncated", [](TierHarness&, std::vector<std::byte>& file) { file.resize(100 * 1024); },
       "truncated", false},
      {"truncated to nothing", [](TierHarness&, std::vector<std::byte>& file) { file.resize(512); },
       "", false},
      {"foreign",
       [](TierHarness&, std::vector<std::byte>& file) { std::ranges::fill(file, std::byte{'x'}); },
       "left alone", true},
      {"another version",
       [](TierHarness&, std::vector<std::byte>& file) { file[4] = std::byte{9}; },
       "another format version", false},
      {"another store", [](TierHarness& h, std::vector<std::byte>&) { h.disk->store.bytes[9] = 1; },
       "another store", false},
      {"zeros",
       [](TierHarness&, std::vector<std::byte>& file) { std::ranges::fill(file, std::byte{0}); },
       "", false},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    TierHarness h(6, 8);
    const auto blocks = fill(h);
    c.damage(h, h.disk->files.at(0));
    const auto damaged = h.disk->files.at(0);
    h.notices.clear();
    h.crash();
    for (const TestBlock& block : blocks) {
      const auto reason = h.read(block);
      REQUIRE((reason == MissReason::kNone || reason == MissReason::kNeverStored));
    }
    CHECK(h.tier->stats().blocks < blocks.size());
    if (*c.message != 0) CHECK(h.noticed(c.message));
    CHECK(h.alarms() == 0);
    // The tier works on; what is not ours stays as it is.
    for (std::uint32_t i = 100; i < 200; ++i)
      REQUIRE(h.write(test_block(9, i, 1)) == MissReason::kNone);
    CHECK((h.disk->files.at(0) == damaged) == c.left_alone);
  }
}

TEST_CASE("what was used lives on after its segment's time, across a restart of any kind") {
  enum class End { kKill, kKillTorn, kStop, kStopOverExpiry };
  for (const End end : {End::kKill, End::kKillTorn, End::kStop, End::kStopOverExpiry}) {
    CAPTURE(static_cast<int>(end));
    TierHarness h(7, 12);
    const auto blocks = fill(h);  // of 72 hours
    const std::vector<BlockName> path = {blocks[0].info.name, blocks[1].info.name};
    // Their segment is sealed.
    const TierStats before = h.tier->stats();
    h.now.wall += UnixSeconds(60 * 3600);
    h.settle();
    h.tier->touch(path, 1, h.now);
    if (end == End::kKill || end == End::kKillTorn) {
      h.now.wall += UnixSeconds(61);
      if (end == End::kKillTorn) {
        h.disk->fault = DiskFault::kTorn;
        h.disk->fault_at = h.disk->operations + 1;
      }
      h.settle();
      h.crash();
    } else {
      h.tier.reset();
      if (end == End::kStopOverExpiry) h.now.wall += UnixSeconds(40 * 3600);
      h.start();
    }
    CHECK(h.tier->stats().blocks == (end == End::kStopOverExpiry ? 2 : before.blocks));
    CHECK(h.alarms() == 0);
    if (end != End::kStopOverExpiry) h.now.wall += UnixSeconds(24 * 3600);
    h.settle();
    // A torn footer costs the marks, nothing else.
    const bool kept = end != End::kKillTorn;
    for (const TestBlock& block : blocks) {
      const bool used = block.info.name == path[0] || block.info.name == path[1];
      CHECK(h.read(block) == (used && kept ? MissReason::kNone : MissReason::kNeverStored));
    }
    CHECK(h.tier->stats().reinserted == (kept ? 2 : 0));
    CHECK(h.tier->stats().corrupt == 0);
  }
}

TEST_CASE("files beyond the limit are left alone") {
  TierHarness h(6, 12);
  fill(h);
  h.disk->files[11] = h.disk->files.at(0);
  h.options.log.segments = 8;
  h.crash();
  CHECK(h.noticed("beyond the disk tier's limit"));
}

TEST_CASE("a full file system: the tier goes on with the segments it has, then drops writes") {
  TierHarness h(3, 12);
  h.disk->files_max = 5;
  std::size_t stored = 0;
  for (std::uint32_t i = 0; i < 300; ++i)
    stored += h.write(test_block(1, i, 1)) == MissReason::kNone ? 1 : 0;
  CHECK(stored > 290);
  CHECK(h.disk->files.size() == 5);
  CHECK(h.noticed("full"));
  CHECK(h.alarms() == 0);
  CHECK(h.tier->stats().in_service);
  // Space comes back: after a minute more segments are used.
  h.disk->files_max = 12;
  h.now.wall += UnixSeconds(61);
  for (std::uint32_t i = 300; i < 500; ++i)
    h.write(test_block(1, i, 1));
  CHECK(h.disk->files.size() > 5);
  // No room at all: writes are dropped, nothing hangs.
  TierHarness none(3, 12);
  none.disk->files_max = 0;
  CHECK(none.write(test_block(1, 0, 1)) != MissReason::kNone);
  CHECK(none.write(test_block(1, 1, 1)) != MissReason::kNone);
  CHECK(none.tier->stats().in_service);
}

TEST_CASE("a read-only file system takes the tier out with one alarm; blocks are reported gone") {
  TierHarness h(3, 12);
  REQUIRE(h.write(test_block(1, 0, 1)) == MissReason::kNone);
  h.disk->write_error = EROFS;
  CHECK(h.write(test_block(1, 1, 1)) == MissReason::kTierOff);
  CHECK(h.write(test_block(1, 2, 1)) == MissReason::kTierOff);
  CHECK(h.read(test_block(1, 0, 1)) == MissReason::kTierOff);
  CHECK_FALSE(h.tier->contains(test_name(1, 0)));
  CHECK(h.alarms() == 1);
  CHECK(h.tier->stats().state.find("Read-only") != std::string::npos);
  h.until([&] { return h.tier->stats().blocks == 0; });
  CHECK(h.tier->stats().removals[static_cast<std::size_t>(MissReason::kTierOff)] == 1);
}

TEST_CASE("read errors: a miss, then the segment goes, then the tier; never a storm") {
  TierHarness h(3, 12);
  const auto blocks = fill(h);
  h.disk->read_error = EIO;
  std::size_t misses = 0;
  for (int round = 0; round < 20; ++round) {
    for (const TestBlock& block : blocks) {
      const MissReason reason = h.read(block);
      REQUIRE(reason != MissReason::kNone);
      misses += reason == MissReason::kIoError ? 1 : 0;
    }
  }
  CHECK(misses >= 3);
  CHECK(h.tier->stats().io_errors == misses);
  CHECK(h.alarms() <= 1);
  CHECK(h.notices.size() <= 8);
}

TEST_CASE("sixteen faults within an hour end the service; spread out they do not") {
  for (const bool spread : {false, true}) {
    CAPTURE(spread);
    TierHarness h(3, 40);
    h.options.segment_errors_max = 1000;
    h.crash();
    REQUIRE(h.write(test_block(1, 0, 1)) == MissReason::kNone);
    h.disk->read_error = EIO;
    for (int i = 0; i < 16; ++i) {
      if (spread) h.now.wall += UnixSeconds(1200);
      h.read(test_block(1, 0, 1));
    }
    CHECK(h.tier->stats().in_service == spread);
    CHECK(h.alarms() == (spread ? 0 : 1));
  }
}

TEST_CASE("limits that are out of range are errors that say what to give") {
  struct Case {
    std::uint32_t segments;
    std::size_t classes;
    const char* message;
  };
  const Case cases[] = {
      {3, 2, "at least 5 segments"},
      {12, 0, "1 to 7 TTL classes and 0 are given"},
      {12, 8, "1 to 7 TTL classes and 8 are given"},
      {(1U << 18) + 1, 2, "at most 16384 GiB"},  // of 64 MiB each
      {UINT32_MAX, 2, "smaller kv-disk-size"},
  };
  TierHarness h(3, 12);
  for (const Case& c : cases) {
    CAPTURE(c.message);
    DiskTierOptions options = h.options;
    options.log.segment_units = kvcache::kSegmentUnitsMax;
    options.log.segments = c.segments;
    options.log.classes.resize(c.classes);
    const auto refused = DiskTier::open(options, std::make_unique<MemorySegmentIo>(h.disk), h.now);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == ErrorCode::kInvalidArgument);
    CHECK(refused.error().message.find(c.message) != std::string::npos);
  }
}

TEST_CASE("what must be kept is, in a class that waits for a second use") {
  TierHarness h(5, 12);
  const TestBlock first = test_block(2, 0, 0);
  const TestBlock second = test_block(2, 1, 0);
  CHECK(h.write(first) == MissReason::kNotAdmitted);
  std::optional<MissReason> result;
  h.tier->write(
      {second.info, second.payload.span(), [&](MissReason reason) { result = reason; }, true});
  h.until([&] { return result.has_value(); });
  CHECK(result == MissReason::kNone);
  CHECK(h.read(second) == MissReason::kNone);
  CHECK(!h.tier->contains(first.info.name));
}

TEST_CASE("too large blocks, too many writes at once") {
  TierHarness h(3, 12);
  h.options.writes_max = 4;
  h.crash();
  TestBlock large = test_block(2, 0, 1);
  large.payload = AlignedBuffer(512 * 1024);
  large.info.slices = {{500 * 1024, 0}};
  CHECK(h.write(large) == MissReason::kNotAdmitted);
  std::vector<TestBlock> blocks;
  std::vector<MissReason> results;
  for (std::uint32_t i = 0; i < 6; ++i)
    blocks.push_back(test_block(3, i, 1));
  for (const TestBlock& block : blocks) {
    h.tier->write(
        {block.info, block.payload.span(), [&](MissReason reason) { results.push_back(reason); }});
  }
  h.until([&] { return results.size() == 6; });
  CHECK(std::ranges::count(results, MissReason::kNone) == 4);
  CHECK(std::ranges::count(results, MissReason::kNotAdmitted) == 2);
}

}  // namespace
}  // namespace penstock::disk
