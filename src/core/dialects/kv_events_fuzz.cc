// Fuzzes the decoder of KV events: whatever comes, ranges stay inside what was decoded.
#include <cstdlib>

#include "core/dialects/kv_events.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock;
  EngineKvBatch batch;
  if (!dialects::decode_kv_events(std::as_bytes(std::span(data, size)), batch)) return 0;
  const auto inside = [](EngineKvEvent::Range range, std::size_t all) {
    return range.first <= all && range.count <= all - range.first;
  };
  for (const EngineKvEvent& event : batch.events) {
    const bool fits = inside(event.hashes, batch.hashes.size()) &&
                      inside(event.tokens, batch.tokens.size()) &&
                      inside(event.media, batch.media.size());
    if (!fits) std::abort();
    for (std::uint32_t i = 0; i < event.media.count; ++i) {
      if (batch.media[event.media.first + i].token >= event.tokens.count) std::abort();
    }
  }
  return 0;
}
