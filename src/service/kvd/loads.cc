#include "service/kvd/loads.h"

#include "base/check.h"

namespace penstock::service {

std::expected<HostBlock, MissReason> Loads::load(const BlockInfo& info, TierNow now) {
  ENSURE(!full());
  HostTier& host = holdings_.host();
  const auto from = holdings_.below(info.name);
  if (!from) return std::unexpected(holdings_.why_missing(info.name));
  const auto bytes = holdings_.tier(*from)->size_of(info.name);
  if (!bytes || *bytes == 0) return std::unexpected(holdings_.why_missing(info.name));
  if (!host.consistent(info)) return std::unexpected(MissReason::kNeverStored);
  if (!holdings_.make_room(*bytes, now)) return std::unexpected(MissReason::kEvictedHost);
  const auto block = host.begin_fill(info, *bytes);
  ENSURE(block);
  host.hold(*block);
  if (flows_[*from].loads++ == 0) flows_[*from].busy_since = now.now;
  flows_[*from].under_way += *bytes;
  loads_.emplace(*block, Load{*from, {}});
  unsubmitted_.push_back(*block);
  ++statistics_.loads;
  return *block;
}

void Loads::wait(HostBlock block, LoadWaiter waiter) {
  const auto found = loads_.find(block);
  ENSURE(found != loads_.end());
  found->second.waiters.push_back(waiter);
}

KvTier Loads::from(HostBlock block) const {
  const auto found = loads_.find(block);
  ENSURE(found != loads_.end());
  return found->second.from;
}

kvcache::TierBytes Loads::bytes_under_way() const {
  kvcache::TierBytes bytes{};
  for (const auto& [tier, flow] : flows_)
    bytes[static_cast<std::size_t>(tier)] = flow.under_way;
  return bytes;
}

void Loads::submit() {
  for (const HostBlock block : std::exchange(unsubmitted_, {})) {
    const HostEntry& entry = holdings_.host().at(block);
    holdings_.tier(from(block))
        ->read({entry.info.name, holdings_.place(block),
                [reports = reports_, block](MissReason reason, const BlockInfo& info) {
                  reports->push_back({block, reason, info});
                },
                entry.info});
  }
}

std::vector<LoadEnded> Loads::finish(TierNow now) {
  HostTier& host = holdings_.host();
  std::vector<LoadEnded> ended;
  for (Report& report : std::exchange(*reports_, {})) {
    const auto load = loads_.find(report.block);
    ENSURE(load != loads_.end());
    const BlockName name = host.at(report.block).info.name;
    MissReason reason = judge(report);
    if (reason == MissReason::kCorrupt || reason == MissReason::kIoError)
      holdings_.tier(load->second.from)->remove(name, reason);
    Flow& flow = flows_[load->second.from];
    --flow.loads;
    flow.under_way -= host.at(report.block).bytes;
    if (host.at(report.block).state == kvcache::HostState::kRetiring) {
      reason = MissReason::kParentGone;  // discarded with its ancestors while it was read
    } else if (reason == MissReason::kNone) {
      flow.bytes += report.info.bytes();
      holdings_.seal(report.block, std::move(report.info.slices), now);
    } else {
      holdings_.retire(report.block, reason, now);
    }
    host.unhold(report.block);
    ++at(statistics_.loads_ended, reason);
    ended.push_back({report.block, reason, std::move(load->second.waiters)});
    loads_.erase(load);
  }
  for (auto& [tier, flow] : flows_) {
    if (flow.bytes == 0) continue;
    statistics_.load_bytes += flow.bytes;
    model_.observe_load(tier, flow.bytes, now.now - flow.busy_since, now.now);
    flow.busy_since = now.now;
    flow.bytes = 0;
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
