// ClusterTier's writes: see cluster_tier.h.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "service/kvd/cluster_tier.h"

namespace penstock::service {
namespace {

constexpr std::size_t kNotesMax = 8192;  // names of one manifest at a time

}  // namespace

bool ClusterTier::may_write(std::uint64_t bytes) const {
  return breaker_.closed() &&
         (write_bytes_ == 0 || write_bytes_ + bytes <= options_.write_bytes_max);
}

void ClusterTier::write(TierWrite write) {
  const std::span<const std::byte> payload = write.payload;
  const std::size_t bytes = kvcache::extent_bytes(std::span(&write.info, 1));
  if (bytes == 0 || !may_write(bytes))
    return later(std::move(write.done), bytes == 0 ? MissReason::kIoError : MissReason::kTooSlow);
  const StoreBuffer buffer = make_buffer(bytes);
  const std::size_t header = kvcache::write_extent_header(std::span(&write.info, 1), buffer.bytes);
  std::memcpy(buffer.bytes.data() + header, payload.data(), bytes - header);
  ++cluster_.singles_written;
  put({single_object(write.info.name), buffer, write.info.ttl_class,
       knowing(std::span(&write.info, 1), std::move(write.done))});
}

void ClusterTier::write_extent(std::span<const BlockInfo> blocks,
                               std::span<const std::span<const std::byte>> payloads, Done done) {
  ENSURE(blocks.size() == payloads.size());
  const std::size_t bytes = kvcache::extent_bytes(blocks);
  if (bytes == 0 || !may_write(bytes))
    return later(std::move(done), bytes == 0 ? MissReason::kIoError : MissReason::kTooSlow);
  const StoreBuffer buffer = make_buffer(bytes);
  std::size_t at = kvcache::write_extent_header(blocks, buffer.bytes);
  for (const std::span<const std::byte> payload : payloads) {
    std::memcpy(buffer.bytes.data() + at, payload.data(), payload.size());
    at += payload.size();
  }
  ENSURE(at == bytes);
  ++cluster_.extents_written;
  put({extent_object(blocks.back().name, static_cast<std::uint32_t>(blocks.size())), buffer,
       blocks.back().ttl_class, knowing(blocks, std::move(done))});
}

ClusterTier::Done ClusterTier::knowing(std::span<const BlockInfo> blocks, Done done) {
  std::vector<std::pair<BlockName, std::uint32_t>> names;
  for (const BlockInfo& block : blocks) {
    std::uint32_t bytes = 0;
    for (const SliceSum& slice : block.slices)
      bytes += slice.bytes;
    names.emplace_back(block.name, bytes);
  }
  return [this, names = std::move(names), ttl_class = blocks.back().ttl_class,
          done = std::move(done)](MissReason reason) {
    if (reason == MissReason::kNone)
      for (const auto& [name, bytes] : names)
        known_.there(name, bytes, end_of(last_slice(ttl_class)));
    if (done) done(reason);
  };
}

void ClusterTier::put(Put put) {
  ++stats_.writes;
  write_bytes_ += put.payload.bytes.size();
  StoreName name = put.name;
  const TtlClass ttl_class = put.ttl_class;
  note(std::move(name), ttl_class, [this, put = std::move(put)](MissReason reason) mutable {
    if (reason != MissReason::kNone) return end_put(std::move(put), reason);
    puts_.push_back(std::move(put));
    start_puts();
  });
}

void ClusterTier::start_puts() {
  while (!puts_.empty() && puts_under_way_ < options_.puts_max) {
    Put put = std::move(puts_.front());
    puts_.pop_front();
    if (!breaker_.closed()) {
      end_put(std::move(put), closed_reason());
      continue;
    }
    ++under_way_;
    ++puts_under_way_;
    const StoreName name = put.name;
    const StoreBuffer payload = put.payload;
    const TimeSlice slice = last_slice(put.ttl_class);
    store_.put({name, payload, slice, now_.now + options_.write_limit,
                [this, put = std::move(put)](MissReason reason) mutable {
                  judge(reason);
                  --puts_under_way_;
                  end_put(std::move(put), reason);
                  start_puts();
                }});
  }
}

void ClusterTier::end_put(Put put, MissReason reason) {
  const std::uint64_t bytes = put.payload.bytes.size();
  write_bytes_ -= bytes;
  if (reason == MissReason::kNone) {
    stats_.write_bytes += bytes;
  } else {
    noted_.erase(put.name.name);
  }
  later(std::move(put.done), reason);
}

void ClusterTier::touch_object(StoreName name, TtlClass ttl_class, TierNow now, Done done) {
  now_ = now;
  if (noted(name) || !breaker_.closed()) return;
  ++cluster_.touches;
  note(name, ttl_class, [this, name, ttl_class, done = std::move(done)](MissReason reason) mutable {
    if (reason != MissReason::kNone) return;
    ++under_way_;
    store_.touch(name, last_slice(ttl_class), now_.now + options_.write_limit,
                 [this, name, done = std::move(done)](MissReason why) {
                   judge(why);
                   if (why != MissReason::kNone) noted_.erase(name.name);
                   if (done) done(why);
                 });
  });
}

// The name stands in the manifest before anything else is done with the object.
void ClusterTier::note(StoreName name, TtlClass ttl_class, Done then) {
  if (noted_.size() >= options_.names_max) noted_.clear();
  noted_.insert(name.name);
  auto& notes = notes_[{ttl_class, slice_}].waiting;
  if (notes.size() >= kNotesMax) return later(std::move(then), MissReason::kTooSlow);
  notes.push_back({std::move(name), std::move(then)});
}

// One write of a manifest at a time: what comes meanwhile goes with the next.
void ClusterTier::flush_notes() {
  std::erase_if(notes_, [this](const auto& entry) {
    return entry.first.slice != slice_ && !entry.second.is_writing && entry.second.waiting.empty();
  });
  for (auto& [id, notes] : notes_) {
    if (!notes.may_go()) continue;
    notes.is_writing = true;
    std::vector<StoreName> names;
    for (const Noting& noting : notes.waiting)
      names.push_back(noting.name);
    ++under_way_;
    store_.add_to_manifest(id, std::move(names), now_.now + options_.write_limit,
                           [this, id, noted = std::exchange(notes.waiting, {})](MissReason reason) {
                             judge(reason);
                             notes_.at(id).is_writing = false;
                             for (const Noting& noting : noted) {
                               if (reason != MissReason::kNone) noted_.erase(noting.name.name);
                               noting.then(reason);
                             }
                           });
  }
}

}  // namespace penstock::service
