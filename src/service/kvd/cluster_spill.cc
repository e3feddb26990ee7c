#include "service/kvd/cluster_spill.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"

namespace penstock::service {
namespace {

constexpr std::size_t kAlignment = 4096;  // of what the disk reads into

}  // namespace

struct ClusterSpill::Job {
  explicit Job(Item of)
      : item(std::move(of)),
        place_bytes((item.block_bytes + kAlignment - 1) / kAlignment * kAlignment),
        memory(static_cast<std::byte*>(
                   ::operator new(place_bytes* item.names.size(), std::align_val_t{kAlignment})),
               [](std::byte* at) { ::operator delete(at, std::align_val_t{kAlignment}); }),
        infos(item.names.size()) {}
  std::span<std::byte> place(std::size_t block) const {
    return {memory.get() + block * place_bytes, place_bytes};
  }

  Item item;
  std::size_t place_bytes;
  std::shared_ptr<std::byte> memory;
  std::vector<BlockInfo> infos;
  std::size_t reads = 0;  // under way
  bool is_lost = false;
  bool is_writing = false;
};

ClusterSpill::ClusterSpill(Holdings& holdings, WriteThrough& writes, ClusterTier* tier,
                           double disk_share_max, Written written)
    : holdings_(holdings), writes_(writes), tier_(tier), written_(std::move(written)) {
  if (tier == nullptr || holdings.disk() == nullptr) return;
  const auto room = static_cast<double>(holdings.disk()->stats().bytes_total);
  bytes_max_ = static_cast<std::uint64_t>(room * disk_share_max);
}

void ClusterSpill::add(std::span<const HostBlock> blocks) {
  Item item;
  for (const HostBlock block : blocks) {
    const HostEntry& entry = holdings_.host().at(block);
    item.block_bytes = std::max(item.block_bytes, entry.bytes);
    item.names.push_back(entry.info.name);
    if (!holdings_.on_disk(entry.info.name)) writes_.offer(block, WriteThrough::Admission::kAlways);
  }
  bytes_ += item.bytes();
  items_.push_back(std::move(item));
  ++numbers_.added;
}

bool ClusterSpill::has_work() const {
  if (!job_) return !items_.empty() && tier_->may_write(items_.front().bytes());
  return !job_->is_writing && job_->reads == 0 &&
         (job_->is_lost || tier_->may_write(job_->item.bytes()));
}

void ClusterSpill::work() {
  if (!has_work()) return;
  if (!job_) return begin();
  if (job_->is_lost) return end(true);
  const StoreName object =
      job_->item.names.size() == 1
          ? ClusterTier::single_object(job_->item.names[0])
          : ClusterTier::extent_object(job_->item.names.back(),
                                       static_cast<std::uint32_t>(job_->item.names.size()));
  if (tier_->noted(object)) return end(false);  // written meanwhile, after another offer
  std::vector<std::span<const std::byte>> payloads;
  for (std::size_t i = 0; i < job_->infos.size(); ++i)
    payloads.emplace_back(job_->place(i).first(job_->infos[i].bytes()));
  job_->is_writing = true;
  const auto done = [this, is = std::weak_ptr(job_)](MissReason reason) {
    if (is.expired()) return;
    job_->is_writing = false;
    const bool again = reason == MissReason::kTooSlow || reason == MissReason::kTierOff ||
                       reason == MissReason::kIoError;
    if (again) return;  // when the store takes writes
    if (reason == MissReason::kNone) {
      ++numbers_.written;
      written_(job_->infos.size(), job_->item.bytes());
    }
    end(reason != MissReason::kNone);
  };
  if (payloads.size() == 1) {
    tier_->write({job_->infos[0], payloads[0], done});
  } else {
    tier_->write_extent(job_->infos, payloads, done);
  }
}

void ClusterSpill::begin() {
  job_ = std::make_shared<Job>(std::move(items_.front()));
  items_.pop_front();
  for (std::size_t i = 0; i < job_->item.names.size(); ++i) {
    const BlockName& name = job_->item.names[i];
    if (const auto held = holdings_.find_sealed(name)) {
      const std::span<const std::byte> bytes = holdings_.bytes(*held);
      std::memcpy(job_->place(i).data(), bytes.data(), bytes.size());
      job_->infos[i] = holdings_.host().at(*held).info;
    } else if (holdings_.on_disk(name)) {
      ++job_->reads;
      holdings_.disk()->read(
          {name, job_->place(i), [job = job_, i](MissReason reason, const BlockInfo& info) {
             --job->reads;
             job->infos[i] = info;
             if (reason != MissReason::kNone) job->is_lost = true;
           }});
    } else {
      job_->is_lost = true;
    }
  }
}

void ClusterSpill::end(bool is_lost) {
  if (is_lost) ++numbers_.lost;
  bytes_ -= job_->item.bytes();
  job_.reset();
}

}  // namespace penstock::service
