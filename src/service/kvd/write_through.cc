#include "service/kvd/write_through.h"

#include "base/check.h"

namespace penstock::service {

void WriteThrough::offer(HostBlock block, Admission admission) {
  if (holdings_.disk() == nullptr) return;
  queue_.emplace_back(block, admission);
  if (queue_.size() <= kQueuedMax) return;
  queue_.pop_front();
  ++statistics_.writes_dropped;
}

void WriteThrough::start() {
  HostTier& host = holdings_.host();
  while (!queue_.empty() && may_start()) {
    const auto [block, admission] = queue_.front();
    queue_.pop_front();
    if (!host.valid(block) || !host.sealed(block)) {
      ++statistics_.writes_dropped;
      continue;
    }
    const BlockInfo& info = host.at(block).info;
    if (in_flight_.contains(block) || holdings_.on_disk(info.name)) continue;
    host.hold(block);
    in_flight_.insert(block);
    held_bytes_ += host.at(block).bytes;
    holdings_.disk()->write(
        {info, holdings_.bytes(block),
         [reports = reports_, block](MissReason reason) { reports->emplace_back(block, reason); },
         admission == Admission::kAlways});
  }
}

bool WriteThrough::may_start() const {
  return in_flight_.size() < kWritesInFlightMax &&
         held_bytes_ < holdings_.host().usage().arena_bytes / 8;
}

void WriteThrough::finish() {
  HostTier& host = holdings_.host();
  for (const auto& [block, reason] : std::exchange(*reports_, {})) {
    ENSURE(in_flight_.erase(block) == 1);
    held_bytes_ -= host.at(block).bytes;
    ++at(statistics_.writes_ended, reason);
    const BlockName name = host.at(block).info.name;
    host.set_refused(block, reason);
    if (reason == MissReason::kNone) {
      holdings_.written_to_disk(name);
      const BlockInfo& info = host.at(block).info;
      TenantUse& use = statistics_.of(info.ttl_class, info.tenant);
      ++use.written_blocks;
      use.written_bytes += host.at(block).bytes;
      // It was found to be corrupt while it was written: so is what was written.
      if (host.at(block).corrupt) holdings_.disk()->remove(name, MissReason::kCorrupt);
    }
    host.unhold(block);
  }
}

}  // namespace penstock::service
