#include "core/kvcache/segment_format.h"

#include <doctest/doctest.h>
#include <fstream>
#include <string>

#include "base/rng.h"

namespace penstock::kvcache {
namespace {

std::vector<std::byte> random_bytes(Rng& rng, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes)
    b = static_cast<std::byte>(rng.next_u64());
  return bytes;
}

RecordHeader sample_record(std::span<const std::byte> payload, std::size_t slices) {
  RecordHeader header;
  header.epoch = 7;
  header.info.name.key.bytes[0] = 1;
  header.info.name.group = KvGroup::kWindow;
  header.info.parent.bytes[0] = 2;
  header.info.root.bytes[0] = 3;
  header.info.depth = 9;
  header.info.ttl_class = 2;
  header.info.tenant = 0x1122334455667788;
  header.bytes = static_cast<std::uint32_t>(payload.size());
  header.slice_count = static_cast<std::uint32_t>(slices);
  std::size_t at = 0;
  for (std::size_t i = 0; i < slices; ++i) {
    const std::size_t bytes = i + 1 == slices ? payload.size() - at : payload.size() / slices;
    header.info.slices.push_back(
        {static_cast<std::uint32_t>(bytes), checksum64(payload.subspan(at, bytes))});
    at += bytes;
  }
  return header;
}

std::vector<std::byte> bytes_of(const RecordHeader& header) {
  std::vector<std::byte> bytes(std::size_t{header.header_units()} * kUnitBytes);
  write_record_header(header, bytes);
  return bytes;
}

TEST_CASE("a segment header comes back, and every flipped bit is noticed") {
  SegmentHeader header;
  header.store.bytes[3] = 8;
  header.epoch = 7;
  header.sequence = 11;
  header.class_id = 12;
  header.slice_end = 13;
  header.segment_units = 64;
  std::vector<std::byte> unit(kUnitBytes);
  CHECK(parse_segment_header(unit).error() == FormatFault::kBlank);
  write_segment_header(header, unit);
  REQUIRE(parse_segment_header(unit) == header);
  for (std::size_t bit = 0; bit < std::size_t{80} * 8; ++bit) {
    auto flipped = unit;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    const auto parsed = parse_segment_header(flipped);
    CAPTURE(bit);
    REQUIRE_FALSE(parsed.has_value());
  }
  CHECK(parse_segment_header(std::span(unit).first(79)).error() == FormatFault::kShort);
  unit[4] = std::byte{kSegmentVersion - 1};
  CHECK(parse_segment_header(unit).error() == FormatFault::kOtherVersion);
  unit[0] = std::byte{0x7F};
  CHECK(parse_segment_header(unit).error() == FormatFault::kForeign);
}

TEST_CASE("a record comes back with its slices, whatever their number") {
  Rng rng(1);
  for (const std::size_t slices : {1, 2, 61, 329, 330, 1353}) {
    CAPTURE(slices);
    const auto payload = random_bytes(rng, 40'000);
    const RecordHeader header = sample_record(payload, slices);
    const auto bytes = bytes_of(header);
    auto parsed = parse_record_header(bytes, 7);
    REQUIRE(parsed.has_value());
    REQUIRE(parse_slices(bytes, *parsed).has_value());
    CHECK(parsed->info.name == header.info.name);
    CHECK(parsed->info.parent == header.info.parent);
    CHECK(parsed->info.root == header.info.root);
    CHECK(parsed->info.depth == 9);
    CHECK(parsed->info.ttl_class == 2);
    CHECK(parsed->info.tenant == header.info.tenant);
    CHECK(parsed->info.slices == header.info.slices);
    CHECK(parsed->record_units() == header.header_units() + 10);
    CHECK(payload_matches(parsed->info, payload));
    CHECK(parse_record_header(bytes, 8).error() == FormatFault::kStale);
  }
}

TEST_CASE("every flipped bit of header, table or payload is noticed") {
  Rng rng(2);
  const auto payload = random_bytes(rng, 100);
  const auto bytes = bytes_of(sample_record(payload, 3));
  const std::size_t used = kRecordFixedBytes + 3 * 12;
  for (std::size_t bit = 0; bit < used * 8; ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    auto parsed = parse_record_header(flipped, 7);
    CAPTURE(bit);
    REQUIRE_FALSE((parsed.has_value() && parse_slices(flipped, *parsed).has_value()));
  }
  auto parsed = parse_record_header(bytes, 7);
  REQUIRE(parse_slices(bytes, *parsed).has_value());
  for (std::size_t bit = 0; bit < payload.size() * 8; ++bit) {
    auto flipped = payload;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    REQUIRE_FALSE(payload_matches(parsed->info, flipped));
  }
}

TEST_CASE("a footer comes back; damage, a former use and a short file are told apart") {
  std::vector<DirectoryEntry> directory;
  for (std::uint32_t i = 0; i < 300; ++i) {
    DirectoryEntry entry;
    entry.name.key.bytes[0] = static_cast<std::uint8_t>(i);
    entry.name.group = i % 2 == 0 ? KvGroup::kHistory : KvGroup::kWindow;
    entry.tenant = i;
    entry.unit = 1 + 2 * i;
    entry.bytes = 1 + i;
    entry.depth = i;
    entry.mark = static_cast<std::uint8_t>(i % 8);
    entry.heat = static_cast<std::uint8_t>(i % 5);
    directory.push_back(entry);
  }
  const Trailer trailer{7, 5, 300, 601, 0, {11, 12, 13, 14, 15, 16, 17}};
  std::vector<std::byte> footer((directory_units_of(300) + 1) * std::size_t{kUnitBytes});
  write_footer(trailer, directory, footer);
  const auto unit = std::span(footer).last(kUnitBytes);
  const auto body = std::span(footer).first(footer.size() - kUnitBytes);
  const auto parsed = parse_trailer(unit, 7, 1024);
  REQUIRE(parsed.has_value());
  CHECK(parsed->sequence == 5);
  CHECK(parsed->classes == trailer.classes);
  CHECK(parse_directory(body, *parsed) == directory);
  CHECK(parse_trailer(unit, 8, 1024).error() == FormatFault::kStale);
  CHECK(parse_trailer(unit, 7, 604).error() == FormatFault::kCorrupt);
  CHECK(parse_directory(body.first(100), *parsed).error() == FormatFault::kShort);
  for (std::size_t at = 0; at < footer.size(); at += 7) {
    auto damaged = footer;
    damaged[at] ^= std::byte{0x10};
    const auto t = parse_trailer(std::span(damaged).last(kUnitBytes), 7, 1024);
    // Behind the trailer's 104 bytes the unit is padding.
    if (at >= body.size() + 104) continue;
    REQUIRE_FALSE((t.has_value() && parse_directory(damaged, *t).has_value()));
  }
  // A mark or heat out of range is no directory, whatever its checksum says.
  for (auto field : {&DirectoryEntry::mark, &DirectoryEntry::heat}) {
    auto wrong = directory;
    wrong[9].*field = 8;
    write_footer(trailer, wrong, footer);
    const auto t = parse_trailer(unit, 7, 1024);
    REQUIRE(t.has_value());
    CHECK(parse_directory(body, *t).error() == FormatFault::kCorrupt);
  }
}

}  // namespace
}  // namespace penstock::kvcache
