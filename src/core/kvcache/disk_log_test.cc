#include "core/kvcache/disk_log.h"

#include <doctest/doctest.h>
#include <algorithm>
#include <string>

namespace penstock::kvcache {
namespace {

constexpr UnixSeconds kStart{1'000'000};
constexpr std::int64_t kDay = 86'400;

BlockInfo block(std::uint64_t number, std::uint64_t parent = 0, TtlClass ttl_class = 0,
                std::uint64_t tenant = 1) {
  const auto key = [](std::uint64_t n) {
    BlockKey k;
    const std::uint64_t words[2] = {n * 0x9E3779B97F4A7C15U, n};
    std::memcpy(k.bytes.data(), words, sizeof words);
    return k;
  };
  BlockInfo info;
  info.name.key = key(number);
  info.parent = key(parent);
  info.depth = parent == 0 ? 0 : 1;
  info.ttl_class = ttl_class;
  info.tenant = tenant;
  info.slices = {{4096, 0}};
  return info;
}

struct Harness {
  DiskLogOptions options;
  DiskLog log;
  explicit Harness(std::uint32_t segments = 8, double share = 1)
      : options(make(segments, share)), log(options) {}
  static DiskLogOptions make(std::uint32_t segments, double share) {
    DiskLogOptions o;
    o.segment_units = 24;  // 10 records of two units, a directory of one, header, trailer
    o.segments = segments;
    o.classes = {{{"default", std::chrono::days(1)}, false},
                 {{"chat", std::chrono::days(7)}, false},
                 {{"agent", std::chrono::days(3)}, true}};
    o.seen_names = 4096;
    o.tenant_share_max = share;
    return o;
  }
  // Places and publishes as the driver would; the segments it fills are sealed at once.
  bool write(const BlockInfo& info, UnixSeconds now = kStart) {
    const auto placed = log.place(info.ttl_class, 2, now, DiskLog::Purpose::kWrite);
    if (!placed) return false;
    log.publish(info, 1, placed->place);
    seal(now);
    return true;
  }
  void seal(UnixSeconds now) {
    for (const std::uint32_t segment : log.take_seals(now))
      log.sealed(segment);
  }
  // Takes one segment apart, moving what is kept; nullopt: none.
  std::optional<DiskReclaim> reclaim(UnixSeconds now) {
    auto plan = log.reclaim(now);
    if (!plan) return plan;
    for (const DiskReinsert& item : plan->keep) {
      const auto placed =
          log.place(item.ttl_class, item.record_units, now, DiskLog::Purpose::kReinsert);
      if (placed) {
        REQUIRE(log.move(item.name, item.from, placed->place));
      } else {
        log.drop(item.name, item.from, plan->reason);
      }
    }
    log.cleaned(plan->segment);
    seal(now);
    return plan;
  }
  std::size_t removed(MissReason reason) {
    const auto removals = log.take_removals();
    return static_cast<std::size_t>(std::ranges::count(removals, reason, &DiskRemoval::reason));
  }
};

TEST_CASE("admission: second use, a parent that was hit, or a class that always is") {
  Harness h;
  CHECK(h.log.admit(block(1)) == MissReason::kNotAdmitted);
  CHECK(h.log.admit(block(1)) == MissReason::kNone);
  CHECK(h.log.admit(block(2, 0, 2)) == MissReason::kNone);
  // A hit in memory counts as a use.
  const BlockName used = block(3).name;
  h.log.touch(std::span(&used, 1), 0, kStart);
  CHECK(h.log.admit(block(3)) == MissReason::kNone);
  // Extending what is on disk is not enough; it must have been hit.
  h.write(block(4));
  CHECK(h.log.admit(block(5, 4)) == MissReason::kNotAdmitted);
  const BlockName parent = block(4).name;
  h.log.touch(std::span(&parent, 1), 0, kStart);
  CHECK(h.log.admit(block(6, 4)) == MissReason::kNone);
  // A window's state follows its history.
  BlockInfo window = block(4);
  window.name.group = KvGroup::kWindow;
  CHECK(h.log.admit(window) == MissReason::kNone);
  window.name = block(9).name;
  window.name.group = KvGroup::kWindow;
  CHECK(h.log.admit(window) == MissReason::kNotAdmitted);
}

TEST_CASE("one open segment per class and slice") {
  Harness h;
  for (std::uint64_t i = 1; i <= 3; ++i)
    CHECK(h.write(block(i, 0, static_cast<TtlClass>(i - 1))));
  CHECK(h.log.clean_segments() == 5);
  const std::uint32_t first = h.log.find(block(1).name)->place().segment;
  CHECK(h.log.state_of(first) == SegmentState::kOpen);
  // The slice of the default class is three hours.
  CHECK(h.write(block(4), kStart + UnixSeconds(3 * 3600)));
  CHECK(h.log.state_of(first) == SegmentState::kSealed);
  CHECK(h.log.find(block(4).name)->place().segment != first);
  // An unknown class is the default one.
  CHECK(h.write(block(5, 0, 200), kStart + UnixSeconds(3 * 3600)));
  CHECK(h.log.find(block(5).name)->place().segment == h.log.find(block(4).name)->place().segment);
}

TEST_CASE("a segment expires whole; marked blocks live on in the class that used them") {
  Harness h;
  for (std::uint64_t i = 1; i <= 10; ++i)
    h.write(block(i, i - 1));
  // Used within its own slice: lifetime counts from the slice's end anyway, no mark.
  const BlockName early = block(1).name;
  h.log.touch(std::span(&early, 1), 0, kStart);
  CHECK(h.log.find(early)->mark() == 0);
  // Used half a day later, by the chat class.
  const BlockName path[2] = {block(2).name, block(3).name};
  h.log.touch(path, 1, kStart + UnixSeconds(kDay / 2));
  CHECK(h.log.find(path[0])->mark() == 2);
  h.log.touch(path, 0, kStart + UnixSeconds(kDay / 2));  // a shorter class does not shorten
  CHECK(h.log.find(path[0])->mark() == 2);
  const UnixSeconds before = kStart + UnixSeconds(kDay);
  h.seal(before);
  const UnixSeconds after = kStart + UnixSeconds(kDay + 4 * 3600);
  const auto plan = h.reclaim(after);
  REQUIRE(plan.has_value());
  CHECK(plan->reason == MissReason::kExpired);
  REQUIRE(plan->keep.size() == 2);
  CHECK(plan->keep[0].name == path[0]);  // ancestors first
  CHECK(h.removed(MissReason::kExpired) == 8);
  REQUIRE(h.log.find(path[0]) != nullptr);
  CHECK(h.log.find(path[0])->mark() == 0);
  CHECK(h.log.header_of(h.log.find(path[0])->place().segment).class_id ==
        checksum64(std::string_view("chat")));
  CHECK_FALSE(h.reclaim(after).has_value());
}

TEST_CASE("used blocks that do not fit under the cap were evicted, not expired") {
  Harness h;
  std::vector<BlockName> path;
  for (std::uint64_t i = 1; i <= 10; ++i) {
    h.write(block(i, i - 1));
    if (i <= 5) path.push_back(block(i).name);
  }
  h.log.touch(path, 1, kStart + UnixSeconds(kDay / 2));
  h.seal(kStart + UnixSeconds(kDay));
  const auto plan = h.reclaim(kStart + UnixSeconds(kDay + 4 * 3600));
  REQUIRE(plan.has_value());
  CHECK(plan->reason == MissReason::kExpired);
  CHECK(plan->keep.size() == 2);
  std::size_t by_reason[kMissReasons] = {};
  for (const DiskRemoval& removal : h.log.take_removals())
    ++by_reason[static_cast<std::size_t>(removal.reason)];
  CHECK(by_reason[static_cast<std::size_t>(MissReason::kEvictedDisk)] == 3);
  CHECK(by_reason[static_cast<std::size_t>(MissReason::kExpired)] == 5);
}

TEST_CASE("the segment worth least goes; what was hit is kept up to a fifth of a segment") {
  Harness h(6);
  h.write(block(1));
  std::uint64_t number = 1;
  // Sealed segments until only the reserve is clean.
  while (h.write(block(++number, 1))) {
  }
  CHECK(h.log.clean_segments() == 1);
  // All blocks of all segments but the second were hit.
  const std::uint32_t cold = h.log.find(block(11).name)->place().segment;
  std::vector<BlockName> hot;
  for (std::uint64_t i = 1; i < number; ++i) {
    if (h.log.find(block(i).name)->place().segment != cold) hot.push_back(block(i).name);
  }
  h.log.touch(hot, 0, kStart);
  auto plan = h.reclaim(kStart);
  REQUIRE(plan.has_value());
  CHECK(plan->segment == cold);
  CHECK(plan->keep.empty());
  CHECK(h.removed(MissReason::kEvictedDisk) == 10);
  // Room again, until the next one must go: it is hot, so two records of ten are kept.
  while (h.write(block(++number, 1))) {
  }
  plan = h.reclaim(kStart);
  REQUIRE(plan.has_value());
  CHECK(plan->keep.size() == 2);
  CHECK(plan->keep[0].name == block(1).name);
  CHECK(h.log.find(block(1).name)->heat() == 0);
}

TEST_CASE("a tenant above its share loses first, then is refused; alone it is not") {
  Harness h(8, 0.5);
  std::uint64_t number = 0;
  const auto flood = [&](std::uint64_t tenant, int blocks) {
    for (int i = 0; i < blocks; ++i) {
      ++number;
      if (h.write(block(number, 0, 0, tenant))) continue;
      h.reclaim(kStart);
      REQUIRE(h.write(block(number, 0, 0, tenant)));
    }
  };
  flood(1, 200);
  CHECK(h.log.admit(block(9999, 0, 2, 1)) == MissReason::kNone);
  CHECK(h.removed(MissReason::kEvictedShare) == 0);
  const std::uint64_t small = number + 1;
  flood(2, 10);
  flood(1, 200);
  // The small tenant's ten blocks are all there still.
  for (std::uint64_t i = small; i < small + 10; ++i)
    CHECK(h.log.find(block(i).name) != nullptr);
  CHECK(h.removed(MissReason::kEvictedShare) > 100);
}

TEST_CASE("a bad segment loses its blocks and comes back when told") {
  Harness h;
  h.write(block(1));
  const std::uint32_t segment = h.log.find(block(1).name)->place().segment;
  h.log.mark_bad(segment, MissReason::kIoError);
  CHECK(h.log.find(block(1).name) == nullptr);
  CHECK(h.removed(MissReason::kIoError) == 1);
  CHECK(h.write(block(2)));
  CHECK(h.log.find(block(2).name)->place().segment != segment);
  h.log.revive(segment);
  CHECK(h.log.state_of(segment) == SegmentState::kClean);
}

TEST_CASE("recovery keeps the later of two copies and forgets what expired") {
  Harness h;
  SegmentHeader header;
  header.sequence = 9;
  header.epoch = 1;
  header.class_id = checksum64(std::string_view("chat"));
  header.slice_end = kStart.value;
  DirectoryEntry entry;
  entry.name = block(1).name;
  entry.unit = 1;
  entry.bytes = 4096;
  REQUIRE(h.log.restore_segment(3, header, kStart));
  header.sequence = 5;
  REQUIRE(h.log.restore_segment(4, header, kStart));
  h.log.restore(3, entry, kStart);
  h.log.restore(4, entry, kStart);
  CHECK(h.log.find(entry.name)->place().segment == 3);
  CHECK(h.log.restored(3, 3, true, kStart) == SegmentState::kSealed);
  CHECK(h.log.restored(4, 3, true, kStart) == SegmentState::kSealed);
  header.slice_end = kStart.value - 14 * kDay;  // no mark lasts longer than a week
  CHECK_FALSE(h.log.restore_segment(5, header, kStart));
  CHECK(h.log.state_of(5) == SegmentState::kClean);
  // New uses get later sequences and other epochs.
  h.write(block(2));
  const std::uint32_t fresh = h.log.find(block(2).name)->place().segment;
  CHECK(h.log.header_of(fresh).sequence == 10);
  CHECK(h.log.epoch_of(fresh) != 1);
}

TEST_CASE("a footer tells marks and heat; it is old a minute after new ones") {
  Harness h;
  for (std::uint64_t i = 1; i <= 20; ++i)
    h.write(block(i, i - 1));
  const std::uint32_t segment = h.log.find(block(1).name)->place().segment;
  REQUIRE(h.log.state_of(segment) == SegmentState::kSealed);
  CHECK(h.log.directory_of(segment).size() == 10);
  const BlockName path[2] = {block(1).name, block(2).name};
  const UnixSeconds later = kStart + UnixSeconds(kDay / 2);
  h.log.touch(path, 1, later);
  CHECK_FALSE(h.log.take_old_footer(later + UnixSeconds(59)).has_value());
  CHECK(h.log.take_old_footer(later + UnixSeconds(60)) == segment);
  CHECK_FALSE(h.log.take_old_footer(later + UnixSeconds(600)).has_value());
  // At a stop all are taken, but those whose first footer is still being written.
  for (std::uint64_t i = 21;
       h.log.state_of(h.log.find(block(11).name)->place().segment) != SegmentState::kSealing; ++i) {
    const auto placed = h.log.place(0, 2, kStart, DiskLog::Purpose::kWrite);
    REQUIRE(placed.has_value());
    h.log.publish(block(i), 1, placed->place);
  }
  const BlockName sealing = block(11).name;
  h.log.touch(std::span(&sealing, 1), 1, later);
  CHECK_FALSE(h.log.take_old_footer(UnixSeconds(INT64_MAX)).has_value());
  h.seal(later);
  // More hits of the same kind are not worth a writing.
  h.log.touch(path, 1, later);
  CHECK_FALSE(h.log.take_old_footer(later + UnixSeconds(600)).has_value());
  h.log.remove(block(5).name, MissReason::kRemoved);
  const auto directory = h.log.directory_of(segment);
  REQUIRE(directory.size() == 9);
  CHECK(directory[0].name == path[0]);
  CHECK(directory[0].tenant == 1);
  CHECK(directory[0].mark == 2);
  CHECK(directory[0].heat == 2);
  CHECK(directory[2].mark == 0);
  CHECK(directory[2].heat == 0);
  const Trailer trailer = h.log.trailer_of(segment, directory.size());
  CHECK(trailer.classes[1] == checksum64(std::string_view("chat")));

  // The next process, whose classes stand in another order, a class fewer.
  DiskLogOptions options = Harness::make(8, 1);
  options.classes = {{{"chat", std::chrono::days(7)}, false},
                     {{"default", std::chrono::days(1)}, false}};
  DiskLog next(options);
  const UnixSeconds start = kStart + UnixSeconds(2 * kDay);  // it has expired meanwhile
  REQUIRE(next.restore_segment(segment, h.log.header_of(segment), start));
  CHECK(next.expired(segment, start));
  for (const DirectoryEntry& entry : directory)
    next.restore(segment, entry, start, trailer.classes);
  CHECK(next.restored(segment, trailer.used_units, true, start) == SegmentState::kSealed);
  CHECK(next.blocks() == 2);
  REQUIRE(next.find(path[0]) != nullptr);
  CHECK(next.find(path[0])->mark() == 1);
  CHECK(next.find(path[0])->heat() == 2);
  const auto plan = next.reclaim(start);
  REQUIRE(plan.has_value());
  CHECK(plan->reason == MissReason::kExpired);
  REQUIRE(plan->keep.size() == 2);
  CHECK(plan->keep[0].ttl_class == 0);
}

TEST_CASE("what is held is told by class and tenant, with ages; removals say whose it was") {
  Harness h;
  for (std::uint64_t i = 1; i <= 3; ++i)
    h.write(block(i, 0, 0, 7));
  h.write(block(4, 0, 0, 5));
  for (std::uint64_t i = 5; i <= 9; ++i)
    h.write(block(i, 0, 1, 7), kStart + UnixSeconds(100));
  DiskUse use = h.log.use(kStart + UnixSeconds(160));
  REQUIRE(use.classes.size() == 3);
  CHECK(use.classes[0].blocks == 4);
  CHECK(use.classes[0].bytes == 4 * 4096);
  CHECK(use.classes[1].bytes == 5 * 4096);
  CHECK(use.classes[2].segments == 0);
  REQUIRE(use.tenants.size() == 3);
  CHECK(use.tenants[0].tenant == 5);
  CHECK(use.tenants[0].blocks == 1);
  CHECK(use.tenants[1].tenant == 7);
  CHECK(use.tenants[1].bytes == 3 * 4096);
  CHECK(use.tenants[2].ttl_class == 1);
  CHECK(use.tenants[2].bytes == 5 * 4096);
  CHECK(use.oldest_idle == 160);
  CHECK(use.median_idle == 60);
  const BlockName used = block(1).name;
  h.log.touch(std::span(&used, 1), 0, kStart + UnixSeconds(150));
  use = h.log.use(kStart + UnixSeconds(160));
  CHECK(use.oldest_idle == 60);
  h.log.remove(block(4).name, MissReason::kCorrupt);
  h.log.remove(block(9).name, MissReason::kRemoved);
  const std::vector<DiskRemoval> gone = h.log.take_removals();
  REQUIRE(gone.size() == 2);
  CHECK(gone[0].tenant == 5);
  CHECK(gone[0].ttl_class == 0);
  CHECK(gone[1].tenant == 7);
  CHECK(gone[1].ttl_class == 1);
  use = h.log.use(kStart + UnixSeconds(160));
  REQUIRE(use.tenants.size() == 2);
  CHECK(use.tenants[0].tenant == 7);
  CHECK(use.tenants[1].bytes == 4 * 4096);
}

TEST_CASE("names seen: a bounded table") {
  SeenNames seen(1024);
  std::size_t again = 0;
  for (std::uint64_t i = 1; i <= 600; ++i)
    CHECK_FALSE(seen.see(block(i).name));
  for (std::uint64_t i = 1; i <= 600; ++i)
    again += seen.see(block(i).name) ? 1 : 0;
  CHECK(again > 500);
  CHECK(seen.memory_bytes() == 4096);
}

}  // namespace
}  // namespace penstock::kvcache
