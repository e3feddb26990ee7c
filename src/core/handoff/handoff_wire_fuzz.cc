// libFuzzer entry: a message of a hostile peer. What is accepted is made of the same bytes again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "core/handoff/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::handoff;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const auto message = decode(bytes)) ENSURE(encode(*message) == bytes);
  return 0;
}
