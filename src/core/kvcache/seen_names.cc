#include "core/kvcache/seen_names.h"

#include <algorithm>
#include <bit>

namespace penstock::kvcache {

SeenNames::SeenNames(std::size_t names)
    : prints_(std::bit_floor(std::max(names, kWays))), mask_(prints_.size() / kWays - 1) {}

bool SeenNames::see(const BlockName& name) {
  std::uint64_t word = 0;
  std::uint32_t print = 0;
  std::memcpy(&word, name.key.bytes.data(), sizeof word);
  std::memcpy(&print, name.key.bytes.data() + 8, sizeof print);
  word = (word + static_cast<std::uint64_t>(name.group)) * 0x9E3779B97F4A7C15U;
  print = std::max(print, 1U);
  std::uint32_t* bucket = prints_.data() + (word >> 32 & mask_) * kWays;
  std::uint32_t* hit = std::find(bucket, bucket + kWays, print);
  const bool seen = hit != bucket + kWays;
  if (!seen) hit = bucket + kWays - 1;
  std::move_backward(bucket, hit, hit + 1);
  *bucket = print;
  return seen;
}

}  // namespace penstock::kvcache
