// Bytes as the frames of a WebSocket's client: the same events and the same fault however the bytes
// are cut, and never more held than a message may be long. The first byte chooses the cut.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "io/http/websocket_frames.h"

namespace penstock::http {
namespace {

constexpr std::size_t kMessageMax = 2048;

struct Read {
  std::vector<FrameEvent> events;
  std::uint16_t fault = 0;
  bool operator==(const Read&) const = default;
};

Read read(std::string_view bytes, std::size_t step) {
  FrameReader reader(kMessageMax);
  Read out;
  while (!bytes.empty() && out.fault == 0) {
    if (const auto fed = reader.feed(bytes.substr(0, step), out.events); !fed)
      out.fault = fed.error().code;
    ENSURE(reader.held() <= kMessageMax);
    bytes.remove_prefix(step < bytes.size() ? step : bytes.size());
  }
  for (const FrameEvent& event : out.events)
    ENSURE(event.payload.size() <= (event.kind == Opcode::kText ? kMessageMax : 125));
  return out;
}

}  // namespace
}  // namespace penstock::http

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::http;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  const Read whole = read(bytes, bytes.size() + 1);
  ENSURE(read(bytes, 1) == whole);
  ENSURE(read(bytes, 1 + data[0] % 16) == whole);
  return 0;
}
