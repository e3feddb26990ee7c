// Bytes as the parts of a segment. Checks: no crash; what parses keeps the ranges its header
// promises; what was parsed and is written again is the same bytes (where padding is zero).
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "core/kvcache/segment_format.h"

namespace penstock::kvcache {
namespace {

void check_record(std::span<const std::byte> bytes, std::uint64_t epoch) {
  auto header = parse_record_header(bytes, epoch);
  if (!header) return;
  ENSURE(header->bytes > 0 && header->bytes <= kPayloadBytesMax);
  ENSURE(header->header_units() <= kHeaderUnitsMax);
  if (!parse_slices(bytes, *header)) return;
  ENSURE(header->info.bytes() == header->bytes);
  std::vector<std::byte> again(std::size_t{header->header_units()} * kUnitBytes);
  write_record_header(*header, again);
  auto second = parse_record_header(again, epoch);
  ENSURE(second.has_value() && second->info.name == header->info.name);
  const std::size_t head = header->header_units() * std::size_t{kUnitBytes};
  if (bytes.size() > head) payload_matches(header->info, bytes.subspan(head));
}

void check_footer(std::span<const std::byte> bytes, std::uint64_t epoch) {
  if (bytes.size() < kUnitBytes) return;
  const auto unit = bytes.last(kUnitBytes);
  const auto trailer = parse_trailer(unit, epoch, kSegmentUnitsMax);
  if (!trailer) return;
  const auto entries = parse_directory(bytes.first(bytes.size() - kUnitBytes), *trailer);
  if (!entries) return;
  for (const DirectoryEntry& entry : *entries) {
    ENSURE(entry.unit + entry.header_units + units_of(entry.bytes) <= trailer->used_units);
    ENSURE(entry.mark <= kDirectoryMarksMax && entry.heat <= kDirectoryHeatMax);
  }
  std::vector<std::byte> again((directory_units_of(entries->size()) + 1) * std::size_t{kUnitBytes});
  write_footer(*trailer, *entries, again);
  const auto second = parse_trailer(std::span(again).last(kUnitBytes), epoch, kSegmentUnitsMax);
  ENSURE(second.has_value() && second->classes == trailer->classes);
  ENSURE(parse_directory(again, *second) == entries);
}

}  // namespace
}  // namespace penstock::kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::kvcache;
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto header = parse_segment_header(bytes)) {
    std::vector<std::byte> again(kUnitBytes);
    write_segment_header(*header, again);
    ENSURE(parse_segment_header(again) == header);
  }
  // The corpus uses epoch 7.
  check_record(bytes, 7);
  check_footer(bytes, 7);
  return 0;
}
