// Bytes as a stream of events, cut at places the first bytes choose. Checks: no crash; raw bytes
// and rest are the stream; the same events however it was cut.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "core/dialects/sse_splitter.h"

namespace penstock::dialects {
namespace {

std::vector<std::string> events_of(std::string_view stream, std::string_view steps) {
  std::vector<std::string> events;
  std::string raw;
  SseSplitter splitter;
  const auto take = [&](const SseEvent& e) {
    raw.append(e.raw);
    if (e.has_data) events.push_back(std::string(e.name) + "|" + std::string(e.data));
  };
  std::size_t at = 0;
  for (const char step : steps) {
    const auto piece = stream.substr(at, static_cast<unsigned char>(step) % 8);
    ENSURE(splitter.feed(piece, take));
    at += piece.size();
  }
  ENSURE(splitter.feed(stream.substr(at), take));
  raw.append(splitter.rest());
  ENSURE(raw == stream);
  return events;
}

}  // namespace
}  // namespace penstock::dialects

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::dialects;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const auto steps = all.substr(0, all.empty() ? 0 : static_cast<unsigned char>(all[0]) % 32);
  const auto stream = all.substr(steps.size());
  ENSURE(events_of(stream, steps) == events_of(stream, {}));
  return 0;
}
