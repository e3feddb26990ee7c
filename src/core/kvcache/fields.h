// Fields of on-disk formats, copied as they are: little-endian values at byte offsets.
//
// Precondition: the field lies inside the span. Concurrency: values.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

namespace penstock::kvcache {

static_assert(std::endian::native == std::endian::little, "fields are copied as they are");

template <typename T>
void put(std::span<std::byte> out, std::size_t offset, const T& value) {
  std::memcpy(out.subspan(offset, sizeof value).data(), &value, sizeof value);
}

template <typename T>
T get(std::span<const std::byte> in, std::size_t offset) {
  T value;
  std::memcpy(&value, in.subspan(offset, sizeof value).data(), sizeof value);
  return value;
}

}  // namespace penstock::kvcache
