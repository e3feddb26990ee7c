// Blocks and a driver for tests of the disk tier: every payload follows from the block's name.
// Concurrency: one thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "io/disk/disk_tier.h"
#include "io/disk/memory_segment_io_testing.h"

namespace penstock::disk {

struct TestBlock {
  BlockInfo info;
  AlignedBuffer payload;
};

inline BlockName test_name(std::uint64_t chain, std::uint32_t depth) {
  BlockName name;
  const std::uint64_t words[2] = {(chain * 1000 + depth + 1) * 0x9E3779B97F4A7C15U, chain};
  std::memcpy(name.key.bytes.data(), words, sizeof words);
  return name;
}

inline TestBlock test_block(std::uint64_t chain, std::uint32_t depth, TtlClass ttl_class = 0,
                            std::uint64_t tenant = 1, std::uint64_t bytes_max = 20'000) {
  TestBlock block;
  BlockInfo& info = block.info;
  info.name = test_name(chain, depth);
  if (depth > 0) info.parent = test_name(chain, depth - 1).key;
  info.depth = depth;
  info.ttl_class = ttl_class;
  info.tenant = tenant;
  Rng rng(chain * 1000 + depth);
  const std::uint64_t bytes = 1 + rng.below(bytes_max);
  block.payload = AlignedBuffer((bytes + 4095) / 4096 * 4096);
  const auto memory = block.payload.span();
  for (std::size_t word = 0; word < memory.size(); word += 8) {
    const std::uint64_t random = rng.next_u64();
    std::memcpy(memory.data() + word, &random, 8);
  }
  const std::uint64_t slices = 1 + rng.below(std::min<std::uint64_t>(bytes, 5));
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < slices; ++i) {
    const std::size_t size = i + 1 == slices ? bytes - at : bytes / slices;
    info.slices.push_back({static_cast<std::uint32_t>(size),
                           checksum64(std::span<const std::byte>(memory).subspan(at, size))});
    at += size;
  }
  return block;
}

// A tier over a MemoryDisk, its time, and what it reported.
struct TierHarness {
  std::shared_ptr<MemoryDisk> disk;
  DiskTierOptions options;
  TierNow now{Instant(Duration(1)), UnixSeconds(1'000'000)};
  MemorySegmentIo* io = nullptr;
  std::unique_ptr<DiskTier> tier;
  std::vector<TierRemoval> removals;  // of the last poll
  std::vector<std::pair<DiskNotice, std::string>> notices;

  explicit TierHarness(std::uint64_t seed, std::uint32_t segments = 12, std::uint32_t units = 64)
      : disk(std::make_shared<MemoryDisk>(seed)) {
    disk->segment_bytes = std::uint64_t{units} * 4096;
    options.log.segments = segments;
    options.log.segment_units = units;
    options.log.classes = {{{"default", std::chrono::hours(24)}, false},
                           {{"agent", std::chrono::hours(72)}, true}};
    options.log.seen_names = 4096;
    options.log.tenant_share_max = 1;
    options.notice = [this](DiskNotice level, const std::string& text) {
      notices.emplace_back(level, text);
    };
    start();
  }
  void start() {
    auto memory = std::make_unique<MemorySegmentIo>(disk);
    io = memory.get();
    options.log.epoch_seed = disk->rng.next_u64();
    auto opened = DiskTier::open(options, std::move(memory), now);
    ENSURE(opened.has_value());
    tier = std::move(*opened);
  }
  // kill -9 and a new start.
  void crash() {
    io->crash();
    tier.reset();
    start();
  }
  void poll() {
    removals.clear();
    tier->poll(now, removals);
  }
  // Polls until `done`; fails when that does not come.
  template <typename Done>
  void until(Done&& done) {
    std::vector<TierRemoval> all;
    for (int i = 0; i < 5000 && !done(); ++i) {
      poll();
      all.insert(all.end(), removals.begin(), removals.end());
    }
    removals = std::move(all);
    ENSURE(done());
  }
  void settle() {
    int idle = 0;
    until([&] { return io->in_flight() == 0 ? ++idle > 3 : (idle = 0) > 0; });
  }

  MissReason write(const TestBlock& block) {
    std::optional<MissReason> result;
    tier->write({block.info, block.payload.span(), [&](MissReason reason) {
                   ENSURE(!result.has_value());
                   result = reason;
                 }});
    until([&] { return result.has_value(); });
    return *result;
  }
  // Reads and compares: kNone only with the right bytes.
  MissReason read(const TestBlock& block) {
    AlignedBuffer memory(block.payload.span().size());
    std::optional<MissReason> result;
    BlockInfo info;
    tier->read({block.info.name, memory.span(), [&](MissReason reason, const BlockInfo& got) {
                  ENSURE(!result.has_value());
                  result = reason;
                  info = got;
                }});
    until([&] { return result.has_value(); });
    if (*result == MissReason::kNone) check_equal(block, memory, info);
    return *result;
  }
  static void check_equal(const TestBlock& block, const AlignedBuffer& memory,
                          const BlockInfo& info) {
    const std::size_t bytes = block.info.bytes();
    ENSURE(std::memcmp(memory.span().data(), block.payload.span().data(), bytes) == 0);
    ENSURE(info.name == block.info.name);
    ENSURE(info.parent == block.info.parent);
    ENSURE(info.depth == block.info.depth);
    ENSURE(info.slices == block.info.slices);
  }
  std::size_t alarms() const {
    return static_cast<std::size_t>(std::ranges::count(notices, DiskNotice::kAlarm,
                                                       &std::pair<DiskNotice, std::string>::first));
  }
  bool noticed(const std::string& part) const {
    return std::ranges::any_of(
        notices, [&](const auto& n) { return n.second.find(part) != std::string::npos; });
  }
};

}  // namespace penstock::disk
