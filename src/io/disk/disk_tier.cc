#include "io/disk/disk_tier.h"

#include <fmt/format.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"

namespace penstock::disk {

using kvcache::DiskLog;
using kvcache::DiskPlace;
using kvcache::DiskSlot;
using kvcache::kUnitBytes;
using kvcache::SegmentState;
using kvcache::units_of;

namespace {

constexpr std::int64_t kCorruptTellSeconds = 60;
constexpr std::size_t kFootersPerSecond = 4;
constexpr std::size_t kFootersAtStop = 256;

}  // namespace

DiskTier::DiskTier(DiskTierOptions options, std::unique_ptr<SegmentIo> io, TierNow now)
    : options_(std::move(options)),
      io_(std::move(io)),
      now_(now),
      log_(options_.log),
      readers_(options_.log.segments),
      errors_(options_.log.segments),
      created_(options_.log.segments) {
  if (options_.key) cipher_.emplace(*options_.key);
  stats_.state = "ok";
}

DiskTier::~DiskTier() {
  if (stats_.in_service) {
    constexpr UnixSeconds kAll(std::numeric_limits<std::int64_t>::max());
    write_old_footers(kAll, kFootersAtStop);
  }
  // Buffers of callers are still the device's; nothing new is begun but what completions begin.
  const auto until = std::chrono::steady_clock::now() + options_.drain_time_max;
  for (auto left = options_.drain_time_max; io_->in_flight() > 0 && left >= Duration();) {
    if (!io_->wait(left)) break;
    left = until - std::chrono::steady_clock::now();
  }
  if (io_->in_flight() == 0) return;
  notice(DiskNotice::kAlarm,
         fmt::format("the disk tier ends with {} operations that the device has not answered; what "
                     "they write may be lost, their memory is left to them",
                     io_->in_flight()));
  // The operations belong to `io_`, the records being written to `filling_`.
  static auto& kept_for_ever =
      *new std::vector<std::pair<std::unique_ptr<SegmentIo>, decltype(filling_)>>;
  kept_for_ever.emplace_back(std::move(io_), std::move(filling_));
}

void DiskTier::device_read(std::uint32_t segment, std::uint64_t offset, IoVector to,
                           SegmentIo::Done done) {
  io_->read(segment, offset, to, watch_.watched(std::move(done)));
}

void DiskTier::device_write(std::uint32_t segment, std::uint64_t offset, IoVector from,
                            SegmentIo::Done done) {
  io_->write(segment, offset, from, watch_.watched(std::move(done)));
}

void DiskTier::notice(DiskNotice level, const std::string& text) const {
  if (options_.notice) options_.notice(level, text);
}

bool DiskTier::contains(const BlockName& name) const {
  return stats_.in_service && log_.find(name) != nullptr;
}

std::optional<std::uint32_t> DiskTier::size_of(const BlockName& name) const {
  const DiskSlot* slot = stats_.in_service ? log_.find(name) : nullptr;
  if (slot == nullptr) return std::nullopt;
  return slot->bytes();
}

void DiskTier::touch(std::span<const BlockName> path, TtlClass ttl_class, TierNow now) {
  if (!off()) log_.touch(path, ttl_class, now.wall);
}

void DiskTier::remove(const BlockName& name, MissReason reason) {
  if (!off()) log_.remove(name, reason);
}

void DiskTier::for_each(const std::function<bool(const BlockName&, std::uint32_t)>& visit) const {
  if (stats_.in_service) log_.for_each(visit);
}

void DiskTier::for_each_in(
    std::size_t part, const std::function<bool(const BlockName&, std::uint32_t)>& visit) const {
  if (stats_.in_service) log_.for_each_in(part, visit);
}

int DiskTier::event_fd() const {
  return io_->event_fd();
}

TierStats DiskTier::stats() const {
  TierStats stats = stats_;
  stats.blocks = log_.blocks();
  stats.bytes_used = log_.bytes_used();
  stats.bytes_total =
      std::uint64_t{options_.log.segments} * options_.log.segment_units * kUnitBytes;
  stats.index_bytes = log_.memory_bytes();
  const kvcache::DiskUse use = log_.use(now_.wall);
  for (const auto& its : use.classes)
    stats.classes.push_back({its.blocks, its.bytes, its.segments});
  for (const auto& its : use.tenants)
    stats.tenants.push_back({its.ttl_class, its.tenant, its.blocks, its.bytes});
  stats.idle_oldest = std::chrono::seconds(use.oldest_idle);
  stats.idle_median = std::chrono::seconds(use.median_idle);
  return stats;
}

// --- reading

void DiskTier::read(TierRead read) {
  const auto refuse = [&](MissReason reason) {
    finished_.push_back([done = std::move(read.done), reason] { done(reason, BlockInfo{}); });
    io_->wake();
  };
  if (!stats_.in_service) return refuse(MissReason::kTierOff);
  const DiskSlot* slot = log_.find(read.name);
  if (slot == nullptr) return refuse(MissReason::kNeverStored);
  const std::uint32_t bytes = slot->bytes();
  const std::size_t room = offset_of(units_of(bytes));
  ENSURE(read.destination.size() >= room);
  const DiskPlace place = slot->place();
  const std::uint64_t epoch = log_.epoch_of(place.segment);
  const std::size_t head_bytes = offset_of(slot->header_units());
  // Encrypted records are opened as one piece and copied out; plain ones land where they belong.
  AlignedBuffer head(head_bytes + (cipher_ ? room : 0));
  IoVector to(head.span());
  if (!cipher_) to.add(read.destination.first(room));
  const std::size_t expected = to.bytes();
  ++readers_[place.segment];
  ++stats_.reads;
  device_read(place.segment, offset_of(place.unit), to,
              [this, read = std::move(read), head = std::move(head), head_bytes, expected, place,
               epoch, bytes, room](int error, std::size_t got) mutable {
                --readers_[place.segment];
                std::expected<BlockInfo, MissReason> info = std::unexpected(MissReason::kIoError);
                if (error == 0 && got == expected) {
                  const auto payload =
                      cipher_ ? head.span().subspan(head_bytes) : read.destination.first(room);
                  info = check(read.name, bytes, epoch, head.span().first(head_bytes), payload,
                               head.span());
                  if (info && cipher_) std::ranges::copy(payload, read.destination.begin());
                }
                if (info) {
                  stats_.read_bytes += bytes;
                } else {
                  read_failed(read.name, place, info.error());
                }
                // At once, so that the caller's next read begins before this thread verifies
                // another.
                if (!polling_) return;
                read.done(info ? MissReason::kNone : info.error(), info ? *info : BlockInfo{});
              });
}

std::expected<BlockInfo, MissReason> DiskTier::check(const BlockName& name, std::uint32_t bytes,
                                                     std::uint64_t epoch,
                                                     std::span<std::byte> header,
                                                     std::span<const std::byte> payload,
                                                     std::span<std::byte> whole) const {
  const auto corrupt = std::unexpected(MissReason::kCorrupt);
  auto parsed = kvcache::parse_record_header(header, epoch);
  if (!parsed || parsed->info.name != name || parsed->bytes != bytes) return corrupt;
  if (offset_of(parsed->header_units()) != header.size()) return corrupt;
  if (parsed->encrypted != cipher_.has_value()) return corrupt;
  if (cipher_ && !cipher_->open(*parsed, whole)) return corrupt;
  if (!kvcache::parse_slices(header, *parsed)) return corrupt;
  if (!kvcache::payload_matches(parsed->info, payload)) return corrupt;
  return std::move(parsed->info);
}

void DiskTier::read_failed(const BlockName& name, DiskPlace place, MissReason reason) {
  if (reason == MissReason::kCorrupt) {
    ++stats_.corrupt;
    log_.drop(name, place, reason);
    if (corrupt_told_ < 0 || now_.wall.value - corrupt_told_ >= kCorruptTellSeconds) {
      corrupt_told_ = now_.wall.value;
      notice(DiskNotice::kAlarm,
             fmt::format("a KV block in segment {:04} does not match its checksum; it is not "
                         "served ({} so far)",
                         place.segment, stats_.corrupt));
    }
  }
  if (reason == MissReason::kIoError) ++stats_.io_errors;
  error_in(place.segment, "read");
}

// --- writing

void DiskTier::write(TierWrite write) {
  const auto refuse = [&](MissReason reason) {
    finished_.push_back([done = std::move(write.done), reason] { done(reason); });
    io_->wake();
  };
  const BlockInfo& info = write.info;
  if (!stats_.in_service) return refuse(MissReason::kTierOff);
  if (log_.find(info.name) != nullptr) return refuse(MissReason::kNone);
  const std::uint64_t bytes = info.bytes();
  ENSURE(write.payload.size() >= bytes);
  const bool writable =
      bytes > 0 && bytes <= kvcache::kPayloadBytesMax &&
      info.slices.size() <= kvcache::kSlicesMax &&
      log_.fits(std::uint64_t{kvcache::header_units_of(info.slices.size())} + units_of(bytes));
  if (!writable || pending_.contains(info.name)) return refuse(MissReason::kNotAdmitted);
  if (pending_.size() >= options_.writes_max) return refuse(MissReason::kNotAdmitted);
  const MissReason reason = log_.admit(info);
  const bool is_wanted = write.always && reason == MissReason::kNotAdmitted;
  if (reason != MissReason::kNone && !is_wanted) return refuse(reason);
  pending_.insert(info.name);
  auto fresh = std::make_unique<Append>();
  fresh->info = std::move(write.info);
  fresh->payload = write.payload.first(bytes);
  fresh->done = std::move(write.done);
  append(std::move(fresh));
}

void DiskTier::append(std::unique_ptr<Append> append) {
  kvcache::RecordHeader& header = append->header;
  header.bytes = static_cast<std::uint32_t>(append->payload.size());
  header.slice_count = static_cast<std::uint32_t>(append->info.slices.size());
  const bool kept = append->from.has_value();
  const auto placed =
      log_.place(kept ? append->from->ttl_class : append->info.ttl_class, header.record_units(),
                 now_.wall, kept ? DiskLog::Purpose::kReinsert : DiskLog::Purpose::kWrite);
  if (!placed) {
    if (kept) return finish(*append, MissReason::kEvictedDisk);
    waiting_.push_back(std::move(append));
    io_->wake();
    return;
  }
  append->place = placed->place;
  const std::uint32_t segment = placed->place.segment;
  Filling& filling = filling_[segment];
  Append& last = *filling.order.emplace_back(std::move(append));
  if (placed->opened) {
    prepare(segment);
  } else if (filling.ready) {
    submit(segment, last);
  }
}

void DiskTier::prepare(std::uint32_t segment) {
  io_->prepare(segment, watch_.watched([this, segment](int error, std::size_t) {
    if (error != 0) return header_written(segment, error);
    created_[segment] = true;
    AlignedBuffer unit(kUnitBytes);
    kvcache::SegmentHeader header = log_.header_of(segment);
    header.store = io_->store();
    header.cipher_id = cipher_ ? cipher_->id() : 0;
    kvcache::write_segment_header(header, unit.span());
    const IoVector from(unit.span());
    device_write(segment, 0, from,
                 [this, segment, unit = std::move(unit)](int failure, std::size_t got) {
                   header_written(segment, failure == 0 && got != kUnitBytes ? EIO : failure);
                 });
  }));
}

void DiskTier::header_written(std::uint32_t segment, int error) {
  Filling& filling = filling_.at(segment);
  if (error == 0) {
    filling.ready = true;
    for (const auto& append : filling.order)
      submit(segment, *append);
    return try_seal(segment);
  }
  // The segment can't be used now. What waited for it gets a second place.
  auto order = std::exchange(filling.order, {});
  filling_.erase(segment);
  log_.mark_bad(segment, MissReason::kIoError);
  if (error == ENOSPC) {
    file_system_full(segment);
  } else if (!fatal(error, fmt::format("opening KV segment {:04}", segment))) {
    ++stats_.io_errors;
    error_in(segment, "opening");
  }
  for (auto& waiting : order) {
    if (!stats_.in_service) {
      finish(*waiting, MissReason::kTierOff);
    } else if (++waiting->attempts > 1) {
      finish(*waiting, MissReason::kIoError);
    } else {
      append(std::move(waiting));
    }
  }
}

// Lays the record out for writing: header, whole units of the caller's payload, padded tail.
IoVector DiskTier::build_record(Append& append) {
  kvcache::RecordHeader& header = append.header;
  header.info = append.info;
  header.epoch = log_.epoch_of(append.place.segment);
  header.encrypted = cipher_.has_value();
  const std::size_t head_bytes = offset_of(header.header_units());
  const std::size_t tail_bytes = append.payload.size() % kUnitBytes;
  const std::size_t direct_bytes = append.payload.size() - tail_bytes;
  const std::size_t padded = tail_bytes > 0 ? kUnitBytes : 0;
  if (cipher_) {
    header.nonce = RecordCipher::nonce();
    append.head = AlignedBuffer(head_bytes + direct_bytes + padded);
    const auto record = append.head.span();
    kvcache::write_record_header(header, record.first(head_bytes));
    std::ranges::copy(append.payload, record.begin() + static_cast<std::ptrdiff_t>(head_bytes));
    std::ranges::fill(record.subspan(head_bytes + append.payload.size()), std::byte{0});
    cipher_->seal(header, record);
    return IoVector(record);
  }
  append.head = AlignedBuffer(head_bytes + padded);
  const auto record = append.head.span();
  kvcache::write_record_header(header, record.first(head_bytes));
  const auto tail = record.subspan(head_bytes);
  std::ranges::fill(tail, std::byte{0});
  std::ranges::copy(append.payload.subspan(direct_bytes), tail.begin());
  IoVector from(record.first(head_bytes));
  from.add(append.payload.first(direct_bytes));
  from.add(tail);
  return from;
}

void DiskTier::submit(std::uint32_t segment, Append& append) {
  append.state = Append::State::kWriting;
  const IoVector from = build_record(append);
  device_write(segment, offset_of(append.place.unit), from,
               [this, segment, &append, expected = from.bytes()](int error, std::size_t got) {
                 const bool whole = error == 0 && got == expected;
                 append.state = whole ? Append::State::kWritten : Append::State::kFailed;
                 if (!whole) {
                   filling_.at(segment).failed = true;
                   log_.close(segment);
                   const bool full = error == ENOSPC || (error == 0 && got < expected);
                   if (!full && !fatal(error, fmt::format("writing KV segment {:04}", segment))) {
                     ++stats_.io_errors;
                     error_in(segment, "write");
                   }
                 }
                 advance(segment);
               });
}

// Acknowledges in the order of places; behind a failed record nothing is acknowledged.
void DiskTier::advance(std::uint32_t segment) {
  Filling& filling = filling_.at(segment);
  while (!filling.order.empty()) {
    Append& front = *filling.order.front();
    if (front.state != Append::State::kWritten && front.state != Append::State::kFailed) break;
    const auto append = std::move(filling.order.front());
    filling.order.pop_front();
    filling.broken = filling.broken || append->state == Append::State::kFailed ||
                     log_.state_of(segment) == SegmentState::kBad;
    if (filling.broken || off()) {
      finish(*append, off() ? MissReason::kTierOff : MissReason::kIoError);
      continue;
    }
    const BlockInfo& info = append->info;
    if (append->from) {
      const bool moved = log_.move(info.name, append->from->from, append->place);
      stats_.reinserted += moved ? 1 : 0;
    } else {
      log_.publish(info, append->header.header_units(), append->place);
    }
    ++stats_.writes;
    stats_.write_bytes += append->header.bytes;
    finish(*append, MissReason::kNone);
  }
  try_seal(segment);
}

void DiskTier::finish(Append& append, MissReason reason) {
  if (append.from) {
    if (reason != MissReason::kNone) log_.drop(append.info.name, append.from->from, reason);
    --reclaiming_->active;
    return;
  }
  pending_.erase(append.info.name);
  finished_.push_back([done = std::move(append.done), reason] { done(reason); });
  io_->wake();
}

// --- sealing

void DiskTier::try_seal(std::uint32_t segment) {
  Filling& filling = filling_.at(segment);
  if (!filling.closing || !filling.ready || !filling.order.empty()) return;
  filling.ready = false;  // only once
  if (filling.failed || log_.state_of(segment) == SegmentState::kBad) {
    return footer_written(segment, 0);
  }
  AlignedBuffer footer = footer_of(segment);
  const IoVector from(footer.span());
  device_write(
      segment, offset_of(options_.log.segment_units) - from.bytes(), from,
      [this, segment, size = from.bytes(), footer = std::move(footer)](int error, std::size_t got) {
        if (error != 0 || got != size) return footer_written(segment, error);
        io_->sync(segment, watch_.watched([this, segment](int failure, std::size_t) {
          footer_written(segment, failure);
        }));
      });
}

void DiskTier::footer_written(std::uint32_t segment, int error) {
  filling_.erase(segment);
  log_.sealed(segment);  // without a footer it is scanned at the next start
  if (error != 0 && error != ENOSPC &&
      !fatal(error, fmt::format("sealing segment {:04}", segment))) {
    ++stats_.io_errors;
    error_in(segment, "sealing");
  }
}

AlignedBuffer DiskTier::footer_of(std::uint32_t segment) {
  const std::vector<kvcache::DirectoryEntry> directory = log_.directory_of(segment);
  AlignedBuffer footer(offset_of(kvcache::directory_units_of(directory.size()) + 1));
  kvcache::write_footer(log_.trailer_of(segment, directory.size()), directory, footer.span());
  return footer;
}

// In place: one that is torn fails its checksum, and the next start finds the records themselves.
// Counted among the segment's readers, so that the file is not used anew before it has ended.
void DiskTier::write_old_footers(UnixSeconds until, std::size_t count) {
  while (count-- > 0) {
    const auto segment = log_.take_old_footer(until);
    if (!segment) return;
    AlignedBuffer footer = footer_of(*segment);
    const IoVector from(footer.span());
    ++readers_[*segment];
    device_write(*segment, offset_of(options_.log.segment_units) - from.bytes(), from,
                 [this, number = *segment, size = from.bytes(), footer = std::move(footer)](
                     int error, std::size_t got) {
                   --readers_[number];
                   if ((error == 0 && got == size) || !polling_) return;
                   if (fatal(error, fmt::format("writing KV segment {:04}", number))) return;
                   ++stats_.io_errors;
                   error_in(number, "footer");
                 });
  }
}

// --- time

void DiskTier::poll(TierNow now, std::vector<TierRemoval>& removals) {
  now_ = now;
  watch_.advance(now.now);
  polling_ = true;
  io_->poll();
  polling_ = false;
  watch_device();
  if (stats_.in_service) {
    for (const std::uint32_t segment : log_.take_seals(now_.wall)) {
      // A segment whose header or a record failed is not filled any more.
      const auto filling = filling_.find(segment);
      if (filling == filling_.end()) continue;
      filling->second.closing = true;
      try_seal(segment);
    }
    revive_segments();
    run_reclaim();
    retry_waiting();
    if (std::exchange(footers_written_at_, now.wall.value) != now.wall.value)
      write_old_footers(now.wall, kFootersPerSecond);
  } else if (off() && !log_.empty_some(MissReason::kTierOff)) {
    io_->wake();
  }
  for (const kvcache::DiskRemoval& removal : log_.take_removals()) {
    ++stats_.removals[static_cast<std::size_t>(removal.reason)];
    // The caller hears of completions first; what was stored again since is not gone.
    if (log_.find(removal.name) == nullptr)
      removals.push_back({removal.name, removal.reason, removal.ttl_class, removal.tenant});
  }
  for (auto& callback : std::exchange(finished_, {}))
    callback();
}

void DiskTier::retry_waiting() {
  for (std::size_t left = waiting_.size(); left > 0; --left) {
    auto first = std::move(waiting_.front());
    waiting_.pop_front();
    const std::size_t others = waiting_.size();
    append(std::move(first));
    if (waiting_.size() > others) break;  // it waits again, at the end
  }
  // Nothing is being freed and nothing can be: drop, rather than hold the caller's memory.
  const bool sealing =
      std::ranges::any_of(filling_, [](const auto& filling) { return filling.second.closing; });
  if (reclaiming_ || sealing) return;
  while (!waiting_.empty()) {
    const auto append = std::move(waiting_.front());
    waiting_.pop_front();
    finish(*append, MissReason::kNotAdmitted);
  }
}

}  // namespace penstock::disk
