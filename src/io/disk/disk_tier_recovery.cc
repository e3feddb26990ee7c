// DiskTier's start: what is on the disk becomes the index again.
#include <fmt/format.h>
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "base/check.h"
#include "io/disk/disk_tier.h"
#include "io/disk/uring_segment_io.h"

namespace penstock::disk {

using kvcache::FormatFault;
using kvcache::kUnitBytes;
using kvcache::SegmentState;

namespace {

constexpr std::size_t kReadsAtOnce = 64;
constexpr std::uint64_t kScanBytes = 2 * 1024 * 1024;  // of one read
constexpr std::size_t kPrefetchAhead = 16;             // entries of a directory
constexpr std::uint64_t kScanReads = 4;                // at once

// What the index can address and what the log needs.
Status check_limits(const kvcache::DiskLogOptions& log) {
  if (log.classes.empty() || log.classes.size() > kvcache::DiskSlot::kMarksMax) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the disk tier keeps 1 to {} TTL classes and {} are given; leave out "
                            "some of kv-class",
                            kvcache::DiskSlot::kMarksMax, log.classes.size()));
  }
  const std::uint64_t kib = std::uint64_t{log.segment_units} * 4;
  const std::uint32_t most = kvcache::DiskSlot::kSegmentsMax;
  if (log.segments > most) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the disk tier holds at most {} GiB ({} segments of {} KiB) and {} GiB "
                            "are given; give a smaller kv-disk-size",
                            most * kib >> 20, most, kib, log.segments * kib >> 20));
  }
  const std::uint32_t least = kvcache::DiskLog::segments_min(log);
  if (log.segments < least) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the disk tier needs room for at least {} segments of {} KiB, its "
                            "limit allows {}; give at least {} MiB of kv-disk-size",
                            least, kib, log.segments, (least * kib + 1023) >> 10));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<DiskTier>> DiskTier::open(DiskTierOptions options,
                                                 std::unique_ptr<SegmentIo> io, TierNow now) {
  TRY_STATUS(check_limits(options.log));
  auto tier = std::unique_ptr<DiskTier>(new DiskTier(std::move(options), std::move(io), now));
  TRY_STATUS(tier->recover());
  return tier;
}

void DiskTier::read_whole(std::uint32_t segment, std::uint64_t offset, std::span<std::byte> to,
                          std::move_only_function<void(bool read)> done) {
  device_read(segment, offset, IoVector(to),
              [size = to.size(), done = std::move(done)](int error, std::size_t got) mutable {
                done(error == 0 && got == size);
              });
}

Status DiskTier::wait_for_device() {
  if (io_->wait(options_.io_time_max)) return {};
  return fail(ErrorCode::kIo,
              fmt::format("the device of the KV segments has not answered for {} s; check it",
                          std::chrono::duration<double>(options_.io_time_max).count()));
}

Status DiskTier::recover() {
  std::vector<SegmentFile> files = io_->files();
  std::ranges::sort(files, {}, &SegmentFile::number);
  for (const SegmentFile& file : files) {
    if (file.number >= options_.log.segments) {
      notice(DiskNotice::kWarning,
             fmt::format("KV segment {:04} is beyond the disk tier's limit; it is left alone, "
                         "remove it to free its space",
                         file.number));
      continue;
    }
    created_[file.number] = true;
    if (file.bytes < kUnitBytes) continue;
    while (io_->in_flight() >= kReadsAtOnce)
      TRY_STATUS(wait_for_device());
    AlignedBuffer unit(kUnitBytes);
    const auto to = unit.span();
    read_whole(file.number, 0, to, [this, file, unit = std::move(unit)](bool read) {
      if (read) return header_read(file, unit.span());
      notice(DiskNotice::kWarning,
             fmt::format("KV segment {:04} cannot be read; it is left alone", file.number));
      log_.mark_bad(file.number, MissReason::kIoError);
    });
  }
  TRY_STATUS(drain());
  TRY_STATUS(read_directories());
  for (const SegmentFile& file : std::exchange(scans_, {}))
    TRY_STATUS(scan(file));
  TRY_STATUS(drain());
  if (!files.empty()) {
    notice(DiskNotice::kInfo,
           fmt::format("{} KV blocks in {} segments found on disk", log_.blocks(), files.size()));
  }
  return {};
}

void DiskTier::header_read(const SegmentFile& file, std::span<const std::byte> unit) {
  const auto ignored = [&](std::string_view why) {
    notice(DiskNotice::kWarning,
           fmt::format("KV segment {:04} is {}; its content is ignored and its space will be used",
                       file.number, why));
  };
  const auto header = kvcache::parse_segment_header(unit);
  if (!header) {
    if (header.error() == FormatFault::kBlank) return;
    if (header.error() != FormatFault::kForeign) return ignored(to_string(header.error()));
    notice(DiskNotice::kWarning, fmt::format("file {:04}.seg is {}; it is left alone", file.number,
                                             to_string(header.error())));
    return log_.mark_bad(file.number, MissReason::kIoError);
  }
  if (header->store != io_->store()) return ignored("of another store");
  if (header->cipher_id != (cipher_ ? cipher_->id() : 0)) {
    return ignored(header->cipher_id == 0 ? "not encrypted" : "encrypted with another key");
  }
  if (header->segment_units != options_.log.segment_units) return ignored("of another size");
  if (!log_.restore_segment(file.number, *header, now_.wall)) return;
  const std::uint64_t whole = std::uint64_t{header->segment_units} * kUnitBytes;
  if (file.bytes < whole) {
    notice(DiskNotice::kWarning,
           fmt::format("KV segment {:04} is truncated; what is there is used", file.number));
    scans_.push_back(file);
    return;
  }
  AlignedBuffer trailer(kUnitBytes);
  const auto to = trailer.span();
  read_whole(file.number, whole - kUnitBytes, to,
             [this, file, trailer = std::move(trailer)](bool read) {
               if (read) return trailer_read(file, trailer.span());
               scans_.push_back(file);
             });
}

void DiskTier::trailer_read(const SegmentFile& file, std::span<const std::byte> unit) {
  const auto trailer =
      kvcache::parse_trailer(unit, log_.epoch_of(file.number), options_.log.segment_units);
  if (!trailer) return scans_.push_back(file);
  directories_.emplace_back(file, *trailer);
}

Status DiskTier::read_directories() {
  std::size_t blocks = 0;
  for (const auto& [file, trailer] : directories_)
    blocks += trailer.records;
  log_.reserve(blocks);
  const std::uint64_t end = std::uint64_t{options_.log.segment_units - 1} * kUnitBytes;
  for (const auto& [file, trailer] : directories_) {
    while (io_->in_flight() >= kReadsAtOnce)
      TRY_STATUS(wait_for_device());
    AlignedBuffer directory(std::size_t{kvcache::directory_units_of(trailer.records)} * kUnitBytes);
    const auto to = directory.span();
    read_whole(file.number, end - to.size(), to,
               [this, &file, &trailer, directory = std::move(directory)](bool read) {
                 if (!read) return scans_.push_back(file);
                 const auto entries = kvcache::parse_directory(directory.span(), trailer);
                 if (!entries) return scans_.push_back(file);
                 for (std::size_t i = 0; i < entries->size(); ++i) {
                   const std::size_t ahead = std::min(i + kPrefetchAhead, entries->size() - 1);
                   log_.prefetch((*entries)[ahead].name);
                   log_.restore(file.number, (*entries)[i], now_.wall, trailer.classes);
                 }
                 log_.restored(file.number, trailer.used_units, true, now_.wall);
               });
  }
  TRY_STATUS(drain());
  directories_ = {};
  return {};
}

Status DiskTier::drain() {
  while (io_->in_flight() > 0)
    TRY_STATUS(wait_for_device());
  return {};
}

// Takes up the records of a segment that has no footer, piece by piece. A piece without any ends
// it: a hole that a crash leaves holds what was being written, and nothing behind it was
// acknowledged.
Status DiskTier::scan(const SegmentFile& file) {
  const std::uint64_t whole = std::uint64_t{options_.log.segment_units} * kUnitBytes;
  const std::uint64_t bytes = std::min(whole, file.bytes / kUnitBytes * kUnitBytes);
  if (log_.expired(file.number, now_.wall)) {  // without a footer there are no marks
    log_.restored(file.number, 1, false, now_.wall);
    return {};
  }
  const auto memory = std::make_shared<AlignedBuffer>(bytes);  // of every read under way
  Filling filling;
  filling.ready = true;
  ScanPosition position;
  for (std::uint64_t end = 0; end < bytes;) {
    for (std::uint64_t i = 0; i < kScanReads && end < bytes; ++i) {
      const auto part = memory->span().subspan(end, std::min(kScanBytes, bytes - end));
      end += part.size();
      // What can't be read is no record.
      read_whole(file.number, end - part.size(), part, [part, memory](bool read) {
        if (!read) std::ranges::fill(part, std::byte{0});
      });
    }
    TRY_STATUS(drain());
    const std::uint32_t before = position.used;
    scan_records(file.number, memory->span().first(end), end == bytes, position);
    if (position.used == before && !position.record_goes_on) break;
  }
  const SegmentState state = log_.restored(file.number, position.used, false, now_.wall);
  if (state != SegmentState::kOpen && state != SegmentState::kSealing) return {};
  filling.closing = state == SegmentState::kSealing;
  filling_.emplace(file.number, std::move(filling));
  if (state == SegmentState::kSealing) try_seal(file.number);
  return {};
}

// Units that hold no intact record (torn, damaged, never written) are passed over one by one: a
// record is known by its epoch and checksums, wherever it stands.
void DiskTier::scan_records(std::uint32_t segment, std::span<std::byte> bytes, bool last,
                            ScanPosition& position) {
  const std::uint64_t epoch = log_.epoch_of(segment);
  const auto units = static_cast<std::uint32_t>(bytes.size() / kUnitBytes);
  std::uint32_t& unit = position.unit;
  position.record_goes_on = false;
  while (unit < units) {
    const auto rest = bytes.subspan(std::size_t{unit} * kUnitBytes);
    const auto header = kvcache::parse_record_header(rest, epoch);
    const bool fits = header && header->record_units() <= units - unit;
    if (header && !fits && !last) {
      position.record_goes_on = true;
      return;
    }
    if (!fits) {
      ++unit;
      continue;
    }
    const std::size_t head_bytes = std::size_t{header->header_units()} * kUnitBytes;
    const auto record = rest.first(std::size_t{header->record_units()} * kUnitBytes);
    const auto info = check(header->info.name, header->bytes, epoch, record.first(head_bytes),
                            record.subspan(head_bytes), record);
    if (!info) {
      ++unit;
      continue;
    }
    const kvcache::DirectoryEntry entry{
        info->name,    info->tenant, unit,
        header->bytes, info->depth,  static_cast<std::uint8_t>(header->header_units())};
    log_.restore(segment, entry, now_.wall);
    unit += header->record_units();
    position.used = unit;
  }
}

Result<std::unique_ptr<DiskTier>> open_disk_tier(const std::string& folder,
                                                 const std::string& key_file,
                                                 DiskTierOptions options, TierNow now) {
  TRY_STATUS(check_limits(options.log));  // before anything is made in the folder
  TRY_STATUS(RecordCipher::initialise());
  if (!key_file.empty()) {
    TRY(options.key, RecordCipher::read_key_file(key_file));
  }
  UringOptions uring;
  uring.folder = folder;
  uring.segment_bytes = std::uint64_t{options.log.segment_units} * kUnitBytes;
  uring.segments = options.log.segments;
  uring.log = [notice = options.notice](const std::string& text) {
    if (notice) notice(DiskNotice::kWarning, text);
  };
  TRY(auto io, open_uring_segments(std::move(uring)));
  options.log.epoch_seed = RecordCipher::random_word();
  return DiskTier::open(std::move(options), std::move(io), now);
}

}  // namespace penstock::disk
