// DiskTier's space: segments are taken apart, kept blocks written again; a full file system.
#include <memory>
#include <utility>

#include "io/disk/disk_tier.h"

namespace penstock::disk {

using kvcache::DiskPlace;
using kvcache::DiskSlot;
using kvcache::SegmentState;

namespace {

constexpr std::size_t kReinsertsAtOnce = 4;
constexpr std::int64_t kReviveSeconds = 60;

}  // namespace

void DiskTier::run_reclaim() {
  while (stats_.in_service) {
    if (!reclaiming_) {
      const bool needed = log_.clean_segments() < options_.log.clean_min;
      if (!needed && expiry_checked_ == now_.wall.value) return;
      expiry_checked_ = now_.wall.value;
      auto plan = log_.reclaim(now_.wall);
      if (!plan) return;
      reclaiming_.emplace(Reclaiming{std::move(*plan), 0, 0});
      expiry_checked_ = -1;
    }
    Reclaiming& work = *reclaiming_;
    while (work.active < kReinsertsAtOnce && work.next < work.plan.keep.size()) {
      ++work.active;
      reinsert(work.plan.keep[work.next++]);
    }
    if (work.active > 0 || work.next < work.plan.keep.size()) return;
    if (readers_[work.plan.segment] > 0) return;
    if (log_.state_of(work.plan.segment) == SegmentState::kReclaiming) {
      log_.cleaned(work.plan.segment);
    }
    reclaiming_.reset();
  }
}

// Reads a kept block, verifies it and writes it into an open segment.
void DiskTier::reinsert(const kvcache::DiskReinsert& item) {
  auto kept = std::make_unique<Append>();
  kept->info.name = item.name;
  kept->from = item;
  const DiskSlot* slot = log_.find(item.name);
  if (slot == nullptr || slot->place() != item.from) {
    return finish(*kept, MissReason::kRemoved);
  }
  const std::uint32_t bytes = slot->bytes();
  const std::size_t head_bytes = offset_of(slot->header_units());
  kept->own = AlignedBuffer(offset_of(item.record_units));
  const IoVector to(kept->own.span());
  const std::uint64_t epoch = log_.epoch_of(item.from.segment);
  ++readers_[item.from.segment];
  device_read(
      item.from.segment, offset_of(item.from.unit), to,
      [this, kept = std::move(kept), bytes, head_bytes, epoch](int error, std::size_t got) mutable {
        const BlockName name = kept->info.name;
        const DiskPlace place = kept->from->from;
        --readers_[place.segment];
        const auto whole = kept->own.span();
        std::expected<BlockInfo, MissReason> info = std::unexpected(MissReason::kIoError);
        if (error == 0 && got == whole.size()) {
          info =
              check(name, bytes, epoch, whole.first(head_bytes), whole.subspan(head_bytes), whole);
        }
        if (!info) {
          read_failed(name, place, info.error());
          return finish(*kept, info.error());
        }
        const BlockName before = name.group == KvGroup::kHistory
                                     ? BlockName{info->parent, KvGroup::kHistory}
                                     : BlockName{name.key, KvGroup::kHistory};
        const bool rooted = name.group == KvGroup::kHistory && info->depth == 0;
        if (!rooted && log_.find(before) == nullptr) {
          return finish(*kept, MissReason::kParentGone);
        }
        if (off()) return finish(*kept, MissReason::kTierOff);
        kept->info = std::move(*info);
        kept->payload = whole.subspan(head_bytes, bytes);
        append(std::move(kept));
      });
}

// --- a full file system

// No file that does not exist yet can be made: for a minute the tier lives with those it has.
void DiskTier::file_system_full(std::uint32_t segment) {
  notice(DiskNotice::kWarning,
         "the file system of the KV segments is full; the tier goes on with fewer segments");
  const std::int64_t when = now_.wall.value + kReviveSeconds;
  revive_.emplace_back(when, segment);
  for (std::uint32_t other = 0; other < created_.size(); ++other) {
    if (created_[other] || log_.state_of(other) != SegmentState::kClean) continue;
    log_.mark_bad(other, MissReason::kIoError);
    revive_.emplace_back(when, other);
  }
}

void DiskTier::revive_segments() {
  while (!revive_.empty() && revive_.front().first <= now_.wall.value) {
    log_.revive(revive_.front().second);
    revive_.pop_front();
  }
}

}  // namespace penstock::disk
