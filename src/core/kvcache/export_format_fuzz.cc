// Bytes as an export. Checks: no crash, steps stay within the bytes, payloads have the sizes their
// slices say, and what was parsed and is written again is the same bytes.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "base/check.h"
#include "core/kvcache/export_format.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::kvcache;
  const auto file = std::as_bytes(std::span(data, size));
  ExportParser parser;
  ExportWriter writer;
  std::string again;
  while (!parser.ended()) {
    const std::uint64_t begin = parser.offset();
    const auto step = parser.next(file.subspan(begin));
    if (!step) return 0;
    if (!step->item) {
      ENSURE(step->bytes > size - begin);
      return 0;
    }
    ENSURE(step->bytes <= size - begin && parser.offset() == begin + step->bytes);
    if (const auto* head = std::get_if<ExportHead>(&*step->item)) writer.head(*head, again);
    if (const auto* root = std::get_if<ExportRoot>(&*step->item)) writer.root(*root, again);
    if (const auto* block = std::get_if<ExportBlock>(&*step->item)) {
      ENSURE(block->payload.size() == block->info.bytes());
      writer.block(block->info, again);
      again.append(reinterpret_cast<const char*>(block->payload.data()), block->payload.size());
    }
    if (parser.ended()) writer.end(again);
  }
  ENSURE(again == std::string(reinterpret_cast<const char*>(data), parser.offset()));
  return 0;
}
