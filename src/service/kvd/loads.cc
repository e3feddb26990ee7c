#include "service/kvd/loads.h"

#include "base/check.h"

namespace penstock::service {

std::expected<HostBlock, MissReason> Loads::load(const BlockInfo& info, TierNow now) {
  ENSURE(!full());
  HostTier& host = holdings_.host();
  const auto bytes = holdings_.disk()->size_of(info.name);
  if (!bytes || *bytes == 0) return std::unexpected(holdings_.why_missing(info.name));
  if (!host.consistent(info)) return std::unexpected(MissReason::kNeverStored);
  if (!holdings_.make_room(*bytes, now)) return std::unexpected(MissReason::kEvictedHost);
  const auto block = host.begin_fill(info, *bytes);
  ENSURE(block);
  host.hold(*block);
  if (loads_.empty()) busy_since_ = now.now;
  loads_.emplace(*block, std::vector<LoadWaiter>{});
  unsubmitted_.push_back(*block);
  ++statistics_.loads;
  return *block;
}

void Loads::wait(HostBlock block, LoadWaiter waiter) {
  const auto found = loads_.find(block);
  ENSURE(found != loads_.end());
  found->second.push_back(waiter);
}

void Loads::submit() {
  for (const HostBlock block : std::exchange(unsubmitted_, {})) {
    const HostEntry& entry = holdings_.host().at(block);
    holdings_.disk()->read({entry.info.name, holdings_.place(block),
                            [reports = reports_, block](MissReason reason, const BlockInfo& info) {
                              reports->push_back({block, reason, info});
                            }});
  }
}

std::vector<LoadEnded> Loads::finish(TierNow now) {
  HostTier& host = holdings_.host();
  std::vector<LoadEnded> ended;
  std::uint64_t bytes = 0;
  for (Report& report : std::exchange(*reports_, {})) {
    const auto load = loads_.find(report.block);
    ENSURE(load != loads_.end());
    const BlockName name = host.at(report.block).info.name;
    MissReason reason = judge(report);
    if (reason == MissReason::kCorrupt || reason == MissReason::kIoError)
      holdings_.disk()->remove(name, reason);
    if (host.at(report.block).state == kvcache::HostState::kRetiring) {
      reason = MissReason::kParentGone;  // discarded with its ancestors while it was read
    } else if (reason == MissReason::kNone) {
      bytes += report.info.bytes();
      holdings_.seal(report.block, std::move(report.info.slices), now);
    } else {
      holdings_.retire(report.block, reason, now);
    }
    host.unhold(report.block);
    ++at(statistics_.loads_ended, reason);
    ended.push_back({report.block, reason, std::move(load->second)});
    loads_.erase(load);
  }
  if (bytes > 0) {
    statistics_.load_bytes += bytes;
    model_.observe_load(KvTier::kDisk, bytes, now.now - busy_since_, now.now);
    busy_since_ = now.now;
  }
  return ended;
}

MissReason Loads::judge(const Report& report) const {
  if (report.reason != MissReason::kNone) return report.reason;
  const HostEntry& asked = holdings_.host().at(report.block);
  const BlockInfo& info = report.info;
  if (info.name != asked.info.name || info.bytes() != asked.bytes) return MissReason::kCorrupt;
  // The chain that was asked for is not the one it was stored in: not a hit, but not damage.
  if (info.root != asked.info.root || info.depth != asked.info.depth)
    return MissReason::kNeverStored;
  if (info.name.group == KvGroup::kHistory && info.parent != asked.info.parent)
    return MissReason::kNeverStored;
  return MissReason::kNone;
}

}  // namespace penstock::service
