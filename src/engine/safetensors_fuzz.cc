// libFuzzer: any bytes as a safetensors header; the last two say how much data follows it.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "engine/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::engine;
  if (size < 2) return 0;
  const std::uint64_t data_bytes = data[size - 2] | static_cast<std::uint64_t>(data[size - 1]) << 8;
  const std::string_view header(reinterpret_cast<const char*>(data), size - 2);
  const auto index = parse_tensor_index(header, data_bytes);
  if (!index) return 0;
  std::uint64_t total = 0;
  for (const auto& [name, tensor] : *index) {
    ENSURE(tensor.begin <= tensor.end && tensor.end <= data_bytes);
    total += tensor.end - tensor.begin;
  }
  ENSURE(total == data_bytes);
  return 0;
}
