// The bytes of a disk segment: header, records, footer. Pure: bytes in, values out.
//
// A segment is a file of fixed size, cut into units of 4 KiB. Unit 0 is the segment's header. Then
// come records, each a header with its slice table (1 to 4 units) and the payload, padded to whole
// units. A sealed segment ends with a footer: the directory of its records and a trailer in the
// last unit. Every use of the file has another epoch: the header names it, records and trailer
// repeat it, so what a former use left behind does not parse.
//
// Invariants: parsing any bytes is safe and reads nothing outside the span; what parses has the
// ranges its struct promises (records fit into `segment_units`, slices add up to the length).
// Units and shapes: unit = 4096 bytes; little-endian. Errors: FormatFault. Concurrency: pure.
// Source: docs/protocol/kv-segments.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>
#include <string_view>
#include <vector>

#include "domain/kv.h"

namespace penstock::kvcache {

inline constexpr std::uint32_t kUnitBytes = 4096;
inline constexpr std::uint32_t kSegmentUnitsMax = 16384;  // 64 MiB
inline constexpr std::uint16_t kSegmentVersion = 2;
inline constexpr std::uint32_t kRecordFixedBytes = 144;  // the slice table begins here
inline constexpr std::uint32_t kHeaderUnitsMax = 4;
inline constexpr std::uint32_t kSlicesMax = (kHeaderUnitsMax * kUnitBytes - kRecordFixedBytes) / 12;
inline constexpr std::uint32_t kPayloadBytesMax = (kSegmentUnitsMax - 4) * kUnitBytes;
inline constexpr std::uint32_t kDirectoryEntryBytes = 40;
inline constexpr std::uint32_t kDirectoryMarksMax = 7;
inline constexpr std::uint32_t kDirectoryHeatMax = 7;

enum class FormatFault : std::uint8_t {
  kShort,         // fewer bytes than needed
  kBlank,         // nothing but zeros: never written
  kForeign,       // the magic is not ours
  kOtherVersion,  // ours, of another format version
  kStale,         // ours, of a former use of the space
  kCorrupt,       // a checksum or a range is wrong
};
std::string_view to_string(FormatFault fault);

struct SegmentHeader {
  Hash128 store;                    // whose segment it is
  std::uint64_t epoch = 0;          // of this use of the file
  std::uint64_t sequence = 0;       // orders the uses of all segments of a store
  std::uint64_t cipher_id = 0;      // names the key of encrypted records; 0: plain
  std::uint64_t class_id = 0;       // checksum64 of the TTL class's name
  std::int64_t slice_end = 0;       // UnixSeconds; lifetimes count from here
  std::uint32_t segment_units = 0;  // size of the file
  bool operator==(const SegmentHeader&) const = default;
};

struct RecordHeader {
  BlockInfo info;  // slices are filled by parse_slices
  std::uint64_t epoch = 0;
  bool encrypted = false;
  std::uint32_t bytes = 0;  // of the payload, without padding; at least 1
  std::uint32_t slice_count = 0;
  std::array<std::uint8_t, 24> nonce{};  // with `encrypted`; tag too
  std::array<std::uint8_t, 16> tag{};

  std::uint32_t header_units() const;
  std::uint32_t record_units() const;  // header and payload
};

struct DirectoryEntry {
  BlockName name;
  std::uint64_t tenant = 0;
  std::uint32_t unit = 0;  // where the record begins
  std::uint32_t bytes = 0;
  std::uint32_t depth = 0;
  std::uint8_t header_units = 1;
  std::uint8_t mark = 0;  // 0: none; else 1 + place in the trailer's `classes`
  std::uint8_t heat = 0;  // hits, saturated
  bool operator==(const DirectoryEntry&) const = default;
};

struct Trailer {
  std::uint64_t epoch = 0;
  std::uint64_t sequence = 0;
  std::uint32_t records = 0;
  std::uint32_t used_units = 0;  // header and records
  std::uint64_t directory_checksum = 0;
  std::array<std::uint64_t, kDirectoryMarksMax> classes{};  // checksum64 of the names of marks
};

std::uint32_t units_of(std::uint64_t bytes);
std::uint32_t header_units_of(std::size_t slices);
std::uint32_t directory_units_of(std::size_t records);

// `out` is one unit, overwritten whole.
void write_segment_header(const SegmentHeader& header, std::span<std::byte> out);
std::expected<SegmentHeader, FormatFault> parse_segment_header(std::span<const std::byte> unit);

// Writes fixed part and slice table into header.header_units() units; header.info.slices,
// slice_count and bytes agree. The table's checksum is left out of encrypted records.
void write_record_header(const RecordHeader& header, std::span<std::byte> out);
// Writes the tag into a header that was encrypted since, and closes it again.
void write_record_tag(std::span<const std::uint8_t, 16> tag, std::span<std::byte> out);
// The part of the header that encryption authenticates.
std::span<const std::byte> authenticated_part(std::span<const std::byte> header);

// Parses the fixed part; `bytes` needs kRecordFixedBytes.
std::expected<RecordHeader, FormatFault> parse_record_header(std::span<const std::byte> bytes,
                                                             std::uint64_t epoch);
// Fills header.info.slices from the table in `bytes` (all header units, decrypted).
std::expected<void, FormatFault> parse_slices(std::span<const std::byte> bytes,
                                              RecordHeader& header);
// Whether every slice of the payload has its checksum.
bool payload_matches(const BlockInfo& info, std::span<const std::byte> payload);

// The footer: directory_units_of(n) units and the trailer's, to be written at the segment's end.
void write_footer(const Trailer& trailer, std::span<const DirectoryEntry> directory,
                  std::span<std::byte> out);
std::expected<Trailer, FormatFault> parse_trailer(std::span<const std::byte> unit,
                                                  std::uint64_t epoch, std::uint32_t segment_units);
// `directory` has directory_units_of(trailer.records) units.
std::expected<std::vector<DirectoryEntry>, FormatFault> parse_directory(
    std::span<const std::byte> directory, const Trailer& trailer);

}  // namespace penstock::kvcache
