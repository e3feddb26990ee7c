// What a DiskLog holds, for people: by class and tenant, and how long unused.
#include <algorithm>
#include <map>
#include <utility>

#include "core/kvcache/disk_log.h"

namespace penstock::kvcache {

DiskUse DiskLog::use(UnixSeconds now) const {
  DiskUse use;
  use.classes.resize(options_.classes.size());
  std::map<std::pair<TtlClass, std::uint64_t>, DiskUse::Tenant> tenants;
  std::vector<std::pair<std::int64_t, std::uint64_t>> idle;  // seconds, blocks
  for (const Segment& segment : segments_) {
    if (segment.state == SegmentState::kClean || segment.state == SegmentState::kBad) continue;
    DiskUse::Class& its = use.classes[segment.ttl_class];
    its.blocks += segment.blocks;
    ++its.segments;
    for (const TenantPart& part : segment.parts) {
      its.bytes += part.bytes;
      if (part.blocks == 0) continue;
      const std::uint64_t name = tenants_[part.tenant].name;
      DiskUse::Tenant& tenant = tenants[{segment.ttl_class, name}];
      tenant.ttl_class = segment.ttl_class;
      tenant.tenant = name;
      tenant.blocks += part.blocks;
      tenant.bytes += part.bytes;
    }
    if (segment.blocks > 0)
      idle.emplace_back(std::max(now.value - segment.last_use, std::int64_t{0}), segment.blocks);
  }
  for (const auto& [who, tenant] : tenants)
    use.tenants.push_back(tenant);
  std::ranges::sort(idle);
  if (!idle.empty()) use.oldest_idle = idle.back().first;
  std::uint64_t younger = 0;
  for (const auto& [seconds, blocks] : idle) {
    use.median_idle = seconds;
    younger += blocks;
    if (2 * younger >= this->blocks()) break;
  }
  return use;
}

std::size_t DiskLog::memory_bytes() const {
  std::size_t bytes = index_.memory_bytes() + seen_.memory_bytes() +
                      segments_.capacity() * sizeof(Segment) +
                      tenants_.capacity() * sizeof(Tenant) + tenant_slots_.size() * 48;
  for (const Segment& segment : segments_) {
    bytes += segment.hashes.capacity() * sizeof(std::uint32_t) +
             segment.parts.capacity() * sizeof(TenantPart);
  }
  return bytes;
}

}  // namespace penstock::kvcache
