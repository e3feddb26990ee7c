// libFuzzer entry: what a peer sends. Frames are cut from the input as from a socket; a body that
// decodes is what encoding gives.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "io/transport/wire.h"

namespace {

using namespace penstock::transport;

template <typename Decoded>
void same(const Decoded& decoded, std::string_view frame) {
  if (decoded) ENSURE(encode(*decoded) == frame);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  for (;;) {
    const auto head = decode_head(rest);
    if (!head || !*head || rest.size() < kHeadBytes + (*head)->length) return 0;
    const std::string_view whole = rest.substr(0, kHeadBytes + (*head)->length);
    const std::string_view body = whole.substr(kHeadBytes);
    switch ((*head)->kind) {
      case Kind::kHello:
        same(decode_hello(body), whole);
        break;
      case Kind::kWelcome:
        same(decode_welcome(body), whole);
        break;
      case Kind::kJoin:
        same(decode_join(body), whole);
        break;
      case Kind::kPool:
        same(decode_pool(body), whole);
        break;
      case Kind::kRead:
        same(decode_read(body), whole);
        break;
      case Kind::kBytes:
        same(decode_bytes(body), whole);
        break;
      case Kind::kVerdict:
        same(decode_verdict(body), whole);
        break;
      case Kind::kCancel:
        if (const auto id = decode_cancel(body)) ENSURE(encode_cancel(*id) == whole);
        break;
      case Kind::kMessage:
      case Kind::kPing:
      case Kind::kGoodbye:
        ENSURE(frame((*head)->kind, body) == whole);
        break;
    }
    rest.remove_prefix(whole.size());
  }
}
