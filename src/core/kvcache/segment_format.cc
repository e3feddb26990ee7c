#include "core/kvcache/segment_format.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "core/kvcache/fields.h"

namespace penstock::kvcache {
namespace {

constexpr std::uint32_t kSegmentMagic = 0x31534B50;  // "PKS1"
constexpr std::uint32_t kRecordMagic = 0x31524B50;   // "PKR1"
constexpr std::uint32_t kTrailerMagic = 0x31464B50;  // "PKF1"
constexpr std::size_t kSegmentHeaderBytes = 80;
constexpr std::size_t kTrailerBytes = 104;
constexpr std::size_t kTagOffset = 112;
constexpr std::size_t kRecordChecksumOffset = 136;
constexpr std::uint16_t kEncrypted = 1;

bool blank(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

// Size, magic, version and the checksum that ends the first `bytes` bytes.
std::expected<void, FormatFault> check_frame(std::span<const std::byte> in, std::size_t bytes,
                                             std::uint32_t magic) {
  if (in.size() < bytes) return std::unexpected(FormatFault::kShort);
  if (get<std::uint32_t>(in, 0) != magic) {
    return std::unexpected(blank(in.first(bytes)) ? FormatFault::kBlank : FormatFault::kForeign);
  }
  if (get<std::uint16_t>(in, 4) != kSegmentVersion) {
    return std::unexpected(FormatFault::kOtherVersion);
  }
  if (get<std::uint64_t>(in, bytes - 8) != checksum64(in.first(bytes - 8))) {
    return std::unexpected(FormatFault::kCorrupt);
  }
  return {};
}

}  // namespace

std::string_view to_string(FormatFault fault) {
  switch (fault) {
    case FormatFault::kShort:
      return "too short";
    case FormatFault::kBlank:
      return "never written";
    case FormatFault::kForeign:
      return "not a segment of a KV store";
    case FormatFault::kOtherVersion:
      return "of another format version";
    case FormatFault::kStale:
      return "of a former use";
    case FormatFault::kCorrupt:
      return "damaged";
  }
  return "unknown";
}

std::uint32_t RecordHeader::header_units() const {
  return header_units_of(slice_count);
}
std::uint32_t RecordHeader::record_units() const {
  return header_units() + units_of(bytes);
}

std::uint32_t units_of(std::uint64_t bytes) {
  return static_cast<std::uint32_t>((bytes + kUnitBytes - 1) / kUnitBytes);
}
std::uint32_t header_units_of(std::size_t slices) {
  return units_of(kRecordFixedBytes + slices * 12);
}
std::uint32_t directory_units_of(std::size_t records) {
  return units_of(records * kDirectoryEntryBytes);
}

void write_segment_header(const SegmentHeader& header, std::span<std::byte> out) {
  ENSURE(out.size() == kUnitBytes);
  std::ranges::fill(out, std::byte{0});
  put(out, 0, kSegmentMagic);
  put(out, 4, kSegmentVersion);
  put(out, 8, header.store);
  put(out, 24, header.epoch);
  put(out, 32, header.sequence);
  put(out, 40, header.cipher_id);
  put(out, 48, header.class_id);
  put(out, 56, header.slice_end);
  put(out, 64, header.segment_units);
  put(out, 72, checksum64(out.first(72)));
}

std::expected<SegmentHeader, FormatFault> parse_segment_header(std::span<const std::byte> unit) {
  if (auto frame = check_frame(unit, kSegmentHeaderBytes, kSegmentMagic); !frame) {
    return std::unexpected(frame.error());
  }
  SegmentHeader header;
  header.store = get<Hash128>(unit, 8);
  header.epoch = get<std::uint64_t>(unit, 24);
  header.sequence = get<std::uint64_t>(unit, 32);
  header.cipher_id = get<std::uint64_t>(unit, 40);
  header.class_id = get<std::uint64_t>(unit, 48);
  header.slice_end = get<std::int64_t>(unit, 56);
  header.segment_units = get<std::uint32_t>(unit, 64);
  const bool sane = header.segment_units >= 4 && header.segment_units <= kSegmentUnitsMax;
  if (!sane) return std::unexpected(FormatFault::kCorrupt);
  return header;
}

void write_record_header(const RecordHeader& header, std::span<std::byte> out) {
  const BlockInfo& info = header.info;
  ENSURE(out.size() == std::size_t{header.header_units()} * kUnitBytes);
  ENSURE(info.slices.size() == header.slice_count && header.slice_count <= kSlicesMax);
  ENSURE(info.bytes() == header.bytes && header.bytes > 0 && header.bytes <= kPayloadBytesMax);
  std::ranges::fill(out, std::byte{0});
  put(out, 0, kRecordMagic);
  put(out, 4, kSegmentVersion);
  put(out, 6, header.encrypted ? kEncrypted : std::uint16_t{0});
  put(out, 8, header.epoch);
  put(out, 16, info.name.key);
  put(out, 32, info.parent);
  put(out, 48, info.root);
  put(out, 64, info.tenant);
  put(out, 72, info.depth);
  put(out, 76, header.bytes);
  put(out, 80, header.slice_count);
  put(out, 84, info.name.group);
  put(out, 85, info.ttl_class);
  put(out, 88, header.nonce);
  put(out, kTagOffset, header.tag);
  std::size_t at = kRecordFixedBytes;
  for (const SliceSum& slice : info.slices) {
    put(out, at, slice.bytes);
    put(out, at + 4, slice.checksum);
    at += 12;
  }
  const auto table = out.subspan(kRecordFixedBytes, at - kRecordFixedBytes);
  put(out, 128, header.encrypted ? std::uint64_t{0} : checksum64(table));
  put(out, kRecordChecksumOffset, checksum64(out.first(kRecordChecksumOffset)));
}

void write_record_tag(std::span<const std::uint8_t, 16> tag, std::span<std::byte> out) {
  std::memcpy(out.subspan(kTagOffset, tag.size()).data(), tag.data(), tag.size());
  put(out, kRecordChecksumOffset, checksum64(out.first(kRecordChecksumOffset)));
}

std::span<const std::byte> authenticated_part(std::span<const std::byte> header) {
  return header.first(kTagOffset);
}

std::expected<RecordHeader, FormatFault> parse_record_header(std::span<const std::byte> bytes,
                                                             std::uint64_t epoch) {
  if (auto frame = check_frame(bytes, kRecordFixedBytes, kRecordMagic); !frame) {
    return std::unexpected(frame.error());
  }
  RecordHeader header;
  header.epoch = get<std::uint64_t>(bytes, 8);
  if (header.epoch != epoch) return std::unexpected(FormatFault::kStale);
  BlockInfo& info = header.info;
  info.name.key = get<Hash128>(bytes, 16);
  info.parent = get<Hash128>(bytes, 32);
  info.root = get<Hash128>(bytes, 48);
  info.tenant = get<std::uint64_t>(bytes, 64);
  info.depth = get<std::uint32_t>(bytes, 72);
  header.bytes = get<std::uint32_t>(bytes, 76);
  header.slice_count = get<std::uint32_t>(bytes, 80);
  const auto group = get<std::uint8_t>(bytes, 84);
  info.ttl_class = get<std::uint8_t>(bytes, 85);
  header.nonce = get<std::array<std::uint8_t, 24>>(bytes, 88);
  header.tag = get<std::array<std::uint8_t, 16>>(bytes, kTagOffset);
  const auto flags = get<std::uint16_t>(bytes, 6);
  header.encrypted = flags == kEncrypted;
  const bool sane = flags <= kEncrypted && group <= 1 && header.bytes > 0 &&
                    header.bytes <= kPayloadBytesMax && header.slice_count > 0 &&
                    header.slice_count <= kSlicesMax;
  if (!sane) return std::unexpected(FormatFault::kCorrupt);
  info.name.group = static_cast<KvGroup>(group);
  return header;
}

std::expected<void, FormatFault> parse_slices(std::span<const std::byte> bytes,
                                              RecordHeader& header) {
  const std::size_t table_bytes = std::size_t{header.slice_count} * 12;
  if (bytes.size() < kRecordFixedBytes + table_bytes) return std::unexpected(FormatFault::kShort);
  const auto table = bytes.subspan(kRecordFixedBytes, table_bytes);
  if (!header.encrypted && get<std::uint64_t>(bytes, 128) != checksum64(table)) {
    return std::unexpected(FormatFault::kCorrupt);
  }
  auto& slices = header.info.slices;
  slices.resize(header.slice_count);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    slices[i] = {get<std::uint32_t>(table, i * 12), get<std::uint64_t>(table, i * 12 + 4)};
  }
  if (header.info.bytes() != header.bytes) return std::unexpected(FormatFault::kCorrupt);
  return {};
}

bool payload_matches(const BlockInfo& info, std::span<const std::byte> payload) {
  if (payload.size() < info.bytes()) return false;
  std::size_t at = 0;
  for (const SliceSum& slice : info.slices) {
    if (checksum64(payload.subspan(at, slice.bytes)) != slice.checksum) return false;
    at += slice.bytes;
  }
  return true;
}

void write_footer(const Trailer& trailer, std::span<const DirectoryEntry> directory,
                  std::span<std::byte> out) {
  const std::size_t directory_bytes =
      std::size_t{directory_units_of(directory.size())} * kUnitBytes;
  ENSURE(out.size() == directory_bytes + kUnitBytes && trailer.records == directory.size());
  std::ranges::fill(out, std::byte{0});
  std::size_t at = 0;
  for (const DirectoryEntry& entry : directory) {
    put(out, at, entry.name.key);
    put(out, at + 16, entry.tenant);
    put(out, at + 24, entry.unit);
    put(out, at + 28, entry.bytes);
    put(out, at + 32, entry.depth);
    put(out, at + 36, entry.name.group);
    put(out, at + 37, entry.header_units);
    put(out, at + 38, entry.mark);
    put(out, at + 39, entry.heat);
    at += kDirectoryEntryBytes;
  }
  const auto unit = out.subspan(directory_bytes);
  put(unit, 0, kTrailerMagic);
  put(unit, 4, kSegmentVersion);
  put(unit, 8, trailer.epoch);
  put(unit, 16, trailer.sequence);
  put(unit, 24, trailer.records);
  put(unit, 28, trailer.used_units);
  put(unit, 32, checksum64(out.first(directory_bytes)));
  put(unit, 40, trailer.classes);
  put(unit, kTrailerBytes - 8, checksum64(unit.first(kTrailerBytes - 8)));
}

std::expected<Trailer, FormatFault> parse_trailer(std::span<const std::byte> unit,
                                                  std::uint64_t epoch,
                                                  std::uint32_t segment_units) {
  if (auto frame = check_frame(unit, kTrailerBytes, kTrailerMagic); !frame) {
    return std::unexpected(frame.error());
  }
  Trailer trailer;
  trailer.epoch = get<std::uint64_t>(unit, 8);
  trailer.sequence = get<std::uint64_t>(unit, 16);
  trailer.records = get<std::uint32_t>(unit, 24);
  trailer.used_units = get<std::uint32_t>(unit, 28);
  trailer.directory_checksum = get<std::uint64_t>(unit, 32);
  trailer.classes = get<std::array<std::uint64_t, kDirectoryMarksMax>>(unit, 40);
  if (trailer.epoch != epoch) return std::unexpected(FormatFault::kStale);
  // A record has at least two units, so the directory always fits below the count's bound.
  const bool sane =
      trailer.records < segment_units && trailer.used_units >= 1 &&
      std::uint64_t{trailer.used_units} + directory_units_of(trailer.records) + 1 <= segment_units;
  if (!sane) return std::unexpected(FormatFault::kCorrupt);
  return trailer;
}

std::expected<std::vector<DirectoryEntry>, FormatFault> parse_directory(
    std::span<const std::byte> directory, const Trailer& trailer) {
  const std::size_t bytes = std::size_t{directory_units_of(trailer.records)} * kUnitBytes;
  if (directory.size() < bytes) return std::unexpected(FormatFault::kShort);
  if (checksum64(directory.first(bytes)) != trailer.directory_checksum) {
    return std::unexpected(FormatFault::kCorrupt);
  }
  std::vector<DirectoryEntry> entries(trailer.records);
  std::size_t at = 0;
  for (DirectoryEntry& entry : entries) {
    entry.name.key = get<Hash128>(directory, at);
    entry.tenant = get<std::uint64_t>(directory, at + 16);
    entry.unit = get<std::uint32_t>(directory, at + 24);
    entry.bytes = get<std::uint32_t>(directory, at + 28);
    entry.depth = get<std::uint32_t>(directory, at + 32);
    const auto group = get<std::uint8_t>(directory, at + 36);
    entry.header_units = get<std::uint8_t>(directory, at + 37);
    entry.mark = get<std::uint8_t>(directory, at + 38);
    entry.heat = get<std::uint8_t>(directory, at + 39);
    const bool sane = group <= 1 && entry.mark <= kDirectoryMarksMax &&
                      entry.heat <= kDirectoryHeatMax && entry.unit >= 1 && entry.bytes > 0 &&
                      entry.bytes <= kPayloadBytesMax && entry.header_units >= 1 &&
                      entry.header_units <= kHeaderUnitsMax &&
                      std::uint64_t{entry.unit} + entry.header_units + units_of(entry.bytes) <=
                          trailer.used_units;
    if (!sane) return std::unexpected(FormatFault::kCorrupt);
    entry.name.group = static_cast<KvGroup>(group);
    at += kDirectoryEntryBytes;
  }
  return entries;
}

}  // namespace penstock::kvcache
