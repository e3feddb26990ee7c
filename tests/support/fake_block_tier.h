// FakeBlockTier: a BlockTier in memory whose answers come late, fail, or lie, as the test wants.
//
// Reads and writes are queued and answered by poll(), each after as many polls as `latency` says.
// `verdict` decides what becomes of the nth operation; a read that it lets pass is still checked
// against the checksums, so bytes damaged with damage() come back as kCorrupt, as with a real tier.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "port/block_tier.h"

namespace penstock::testing {

class FakeBlockTier final : public BlockTier {
 public:
  enum class Operation { kRead, kWrite };
  std::function<int(Operation)> latency = [](Operation) { return 0; };
  std::function<MissReason(Operation, const BlockName&)> verdict = [](Operation, const BlockName&) {
    return MissReason::kNone;
  };
  std::vector<std::vector<BlockName>> touched;
  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
  mutable std::uint64_t parts_walked = 0;
  mutable std::uint64_t look_ups = 0;
  bool removes_on_failed_read = false;
  bool by_use = false;                  // admits only what is written `always`
  std::uint64_t bytes_total = 0;        // as its stats tell
  bool newest_first = false;            // what is due at once completes in reverse order
  std::function<void(BlockInfo&)> lie;  // about what a good read has read

  bool contains(const BlockName& name) const override {
    ++look_ups;
    return blocks_.contains(name);
  }
  std::optional<std::uint32_t> size_of(const BlockName& name) const override {
    ++look_ups;
    const auto found = blocks_.find(name);
    if (found == blocks_.end()) return std::nullopt;
    return static_cast<std::uint32_t>(found->second.info.bytes());
  }
  void read(TierRead read) override {
    ++reads;
    ENSURE(reinterpret_cast<std::uintptr_t>(read.destination.data()) % 4096 == 0);
    // The device scribbles on the buffer from the beginning, as a torn read would.
    std::memset(read.destination.data(), 0xA5, read.destination.size());
    pending_.push_back({latency(Operation::kRead), std::move(read), std::nullopt});
  }
  void write(TierWrite write) override {
    ++writes;
    ENSURE(reinterpret_cast<std::uintptr_t>(write.payload.data()) % 4096 == 0);
    pending_.push_back({latency(Operation::kWrite), std::nullopt, std::move(write)});
  }
  void touch(std::span<const BlockName> path, TtlClass, TierNow) override {
    touched.emplace_back(path.begin(), path.end());
  }
  void remove(const BlockName& name, MissReason reason) override {
    const auto found = blocks_.find(name);
    if (found == blocks_.end()) return;
    const BlockInfo& info = found->second.info;
    removals_.push_back({name, reason, info.ttl_class, info.tenant});
    blocks_.erase(found);
  }
  void poll(TierNow, std::vector<TierRemoval>& removals) override {
    std::vector<Pending> due;
    for (std::size_t i = 0; i < pending_.size();) {
      if (pending_[i].polls_left-- > 0) {
        ++i;
        continue;
      }
      due.push_back(std::move(pending_[i]));
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (newest_first) std::reverse(due.begin(), due.end());
    for (Pending& operation : due)
      operation.read ? finish(*operation.read) : finish(*operation.write);
    removals.insert(removals.end(), removals_.begin(), removals_.end());
    removals_.clear();
  }
  int event_fd() const override { return -1; }
  void for_each(const std::function<bool(const BlockName&, std::uint32_t)>& visit) const override {
    parts_walked += 4;
    for (const auto& [name, block] : blocks_)
      if (!visit(name, static_cast<std::uint32_t>(block.info.bytes()))) return;
  }
  std::size_t parts() const override { return 4; }
  void for_each_in(
      std::size_t part,
      const std::function<bool(const BlockName&, std::uint32_t)>& visit) const override {
    ++parts_walked;
    for (const auto& [name, block] : blocks_)
      if (std::hash<BlockName>{}(name) % 4 == part)
        if (!visit(name, static_cast<std::uint32_t>(block.info.bytes()))) return;
  }
  TierStats stats() const override {
    TierStats stats;
    stats.blocks = blocks_.size();
    stats.bytes_total = bytes_total;
    std::map<std::pair<TtlClass, std::uint64_t>, TierTenantUse> tenants;
    for (const auto& [name, block] : blocks_) {
      const BlockInfo& info = block.info;
      TierTenantUse& use = tenants[{info.ttl_class, info.tenant}];
      use = {info.ttl_class, info.tenant, use.blocks + 1, use.bytes + info.bytes()};
    }
    for (const auto& [who, use] : tenants)
      stats.tenants.push_back(use);
    stats.idle_oldest = std::chrono::seconds(90);
    stats.idle_median = std::chrono::seconds(40);
    stats.reads = reads;
    stats.writes = writes;
    stats.state = "ok";
    return stats;
  }

  void put(const BlockInfo& info, std::span<const std::byte> payload) {
    blocks_[info.name] = {info, {payload.begin(), payload.end()}};
  }
  // Flips one bit of a block's bytes.
  void damage(const BlockName& name, std::size_t byte) {
    std::vector<std::byte>& payload = blocks_.at(name).payload;
    payload[byte % payload.size()] ^= std::byte{1};
  }
  std::size_t pending() const { return pending_.size(); }
  std::size_t size() const { return blocks_.size(); }
  std::vector<BlockName> names() const {
    std::vector<BlockName> names;
    for (const auto& [name, block] : blocks_)
      names.push_back(name);
    return names;
  }

 private:
  struct Block {
    BlockInfo info;
    std::vector<std::byte> payload;
  };
  struct Pending {
    int polls_left = 0;
    std::optional<TierRead> read;
    std::optional<TierWrite> write;
  };

  void finish(const TierRead& read) {
    MissReason reason = verdict(Operation::kRead, read.name);
    const auto found = blocks_.find(read.name);
    if (reason == MissReason::kNone && found == blocks_.end()) reason = MissReason::kEvictedDisk;
    BlockInfo info;
    if (reason == MissReason::kNone) {
      info = found->second.info;
      const std::vector<std::byte>& payload = found->second.payload;
      ENSURE(read.destination.size() >= payload.size());
      std::memcpy(read.destination.data(), payload.data(), payload.size());
      std::span<const std::byte> rest(payload);
      for (const SliceSum& slice : info.slices) {
        if (checksum64(rest.first(slice.bytes)) != slice.checksum) reason = MissReason::kCorrupt;
        rest = rest.subspan(slice.bytes);
      }
      if (lie) lie(info);
    }
    if (reason != MissReason::kNone && removes_on_failed_read) remove(read.name, reason);
    read.done(reason, info);
  }
  void finish(const TierWrite& write) {
    MissReason reason = verdict(Operation::kWrite, write.info.name);
    if (by_use && !write.always) reason = MissReason::kNotAdmitted;
    if (reason == MissReason::kNone) put(write.info, write.payload);
    write.done(reason);
  }

  std::map<BlockName, Block> blocks_;
  std::deque<Pending> pending_;
  std::vector<TierRemoval> removals_;
};

}  // namespace penstock::testing
