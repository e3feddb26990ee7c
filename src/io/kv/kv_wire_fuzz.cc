// libFuzzer entry: a stream of frames from a hostile client and from a hostile daemon.
//
// The first byte says who speaks. What is accepted must survive another round trip unchanged.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/check.h"
#include "io/kv/kv_codec.h"

namespace {

using namespace penstock;  // NOLINT: a fuzzer has one file

template <typename Message>
void round_trip(const Message& message, Result<Message> (*decode)(std::string_view)) {
  std::string once;
  if (!kv::append_frame(message, once)) return;
  const Result<Message> again = decode(std::string_view(once).substr(4));
  ENSURE(again.has_value() && again->index() == message.index());
  std::string twice;
  ENSURE(kv::append_frame(*again, twice).has_value());
  ENSURE(once == twice);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  kv::FrameBuffer buffer;
  for (std::size_t at = 1; at < size;) {
    const std::size_t part = std::min<std::size_t>(size - at, 57);
    std::memcpy(buffer.reserve(part), data + at, part);
    buffer.commit(part);
    at += part;
    for (;;) {
      const auto frame = buffer.next();
      if (!frame) return 0;
      if (!*frame) break;
      if (data[0] % 2 == 0) {
        const auto message = kv::decode_client(**frame);
        if (!message) return 0;
        round_trip(*message, kv::decode_client);
      } else {
        const auto message = kv::decode_daemon(**frame);
        if (!message) return 0;
        round_trip(*message, kv::decode_daemon);
      }
    }
  }
  return 0;
}
