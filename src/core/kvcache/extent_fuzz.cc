// Bytes as an extent. Checks: no crash; what parses keeps the ranges its header promises and is
// written again as the same bytes. The checksum is made right first, so that what is behind it is
// reached.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "core/kvcache/extent.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::kvcache;
  const auto bytes = std::as_bytes(std::span(data, size));
  std::vector<std::byte> object(bytes.begin(), bytes.end());
  for (const bool repaired : {false, true}) {
    if (repaired && object.size() >= 52) {
      std::uint32_t header = 0;
      std::memcpy(&header, object.data() + 48, sizeof header);
      if (header >= 64 && header <= object.size()) {
        const auto sum = penstock::checksum64(std::span<const std::byte>(object).first(header - 8));
        std::memcpy(object.data() + header - 8, &sum, sizeof sum);
      }
    }
    const auto extent = parse_extent(object);
    if (!extent) continue;
    ENSURE(extent->bytes() == object.size());
    ENSURE(!extent->blocks.empty() && extent->blocks.size() <= kExtentBlocksMax);
    ENSURE(extent_bytes(extent->blocks) == object.size());
    std::vector<std::byte> again(object.size());
    const std::size_t header = write_extent_header(extent->blocks, again);
    ENSURE(header == extent->header_bytes);
    const auto second = parse_extent(again);
    ENSURE(second && second->blocks.back().name == extent->blocks.back().name);
  }
  return 0;
}
