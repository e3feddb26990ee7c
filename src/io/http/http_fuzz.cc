// Bytes as an HTTP message: the head parser and the chunk decoder must give the same result however
// the bytes are cut, and never crash. The first byte chooses the cut.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "io/http/client.h"
#include "io/http/message.h"

namespace penstock::http {
namespace {

constexpr HeadLimits kLimits{4096, 20};

// Where the head ends when the bytes come `step` at a time: an offset, 0 for "not yet", -1 refused.
long head_end(std::string_view bytes, std::size_t step) {
  HeadScan scan;
  for (std::size_t got = 0; got < bytes.size();) {
    got = std::min(bytes.size(), got + step);
    const auto end = find_head_end(bytes.substr(0, got), scan, kLimits);
    if (!end) return -1;
    if (*end) return static_cast<long>(**end);
  }
  return 0;
}

struct Decoded {
  bool ok = true;
  std::size_t used = 0;
  std::string body;
  bool operator==(const Decoded&) const = default;
};

Decoded decode(std::string_view bytes, std::size_t step) {
  ChunkDecoder decoder(2048);
  Decoded out;
  while (!bytes.empty() && !decoder.done()) {
    const auto used = decoder.feed(bytes.substr(0, step), out.body);
    if (!used) {
      out.ok = false;
      out.body.clear();  // how much came out before the fault may differ
      out.used = 0;
      return out;
    }
    out.used += *used;
    bytes.remove_prefix(*used);
  }
  ENSURE(out.body.size() <= 2048);
  return out;
}

void check_head(const RequestHead& head) {
  ENSURE(!head.method.empty() && head.path.starts_with('/'));
  ENSURE(head.headers.size() <= kLimits.count_max);
  ENSURE(!head.chunked || head.content_length == 0);
  for (const auto& [name, value] : head.headers) {
    ENSURE(!name.empty() &&
           value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
  }
  std::string out;
  append_response_head(out, {.content_type = head.path, .headers = head.headers, .date = {}});
  HeadScan scan;
  const auto end = find_head_end(out, scan, {std::size_t{1} << 20, 100});
  ENSURE(end && *end && **end == out.size());  // nothing a client sent ends our head early
}

}  // namespace
}  // namespace penstock::http

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::http;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t step = 1 + data[0] % 16;
  const auto end = head_end(bytes, bytes.size() + 1);
  const auto cut = head_end(bytes, step);
  // A fault after the limit may be seen as either; below the limit all cuts agree.
  if (bytes.size() < kLimits.bytes_max) ENSURE(end == cut);
  std::string_view body = bytes;
  if (end > 0) {
    body = bytes.substr(static_cast<std::size_t>(end));
    const auto head = parse_request_head(bytes.substr(0, static_cast<std::size_t>(end)), kLimits);
    if (head) check_head(*head);
    (void)parse_response_head(bytes.substr(0, static_cast<std::size_t>(end)), kLimits);
  }
  ENSURE(decode(body, body.size() + 1) == decode(body, step));
  (void)parse_url(bytes);
  return 0;
}
