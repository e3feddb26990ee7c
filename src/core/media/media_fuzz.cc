// Bytes as an image, as base64 and as a data URL. Checks: no crash; what is taken keeps the limits
// and has a type; what was decoded encodes to the very text it came from.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "core/media/data_url.h"
#include "core/media/image_header.h"

namespace penstock::media {
namespace {

constexpr std::size_t kBytesMax = 4096;

std::string encode(std::string_view bytes) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t group = 0;
    for (std::size_t i = at; i < at + 3; ++i)
      group = group << 8 | (i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0U);
    for (std::size_t i = 0; i < 4; ++i) {
      const bool beyond = at + i > bytes.size();
      out += beyond ? '=' : kAlphabet[group >> (18 - 6 * i) & 63];
    }
  }
  return out;
}

void check_image(std::string_view bytes) {
  const ImageLimits limits{kBytesMax, 1000, 100'000};
  const auto info = read_image_header(bytes, limits);
  if (!info) {
    ENSURE(info.error().code == ErrorCode::kInvalidArgument && !info.error().openai_code.empty());
    return;
  }
  ENSURE(bytes.size() <= limits.bytes_max && is_image_media_type(media_type(info->type)));
  ENSURE(info->width >= 1 && info->width <= limits.side_max);
  ENSURE(info->height >= 1 && info->height <= limits.side_max);
  ENSURE(std::uint64_t{info->width} * info->height <= limits.pixels_max);
}

}  // namespace
}  // namespace penstock::media

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::media;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_image(text);
  if (const auto bytes = decode_base64(text, kBytesMax)) {
    ENSURE(bytes->size() <= kBytesMax && encode(*bytes) == text);
    check_image(*bytes);
  }
  if (const auto bytes = decode_image_url(text, kBytesMax))
    ENSURE(is_data_url(text) && text.ends_with("," + encode(*bytes)));
  // Every string has a spelling, and it is read back.
  const auto again = decode_base64(encode(text), size);
  ENSURE(again && *again == text);
  return 0;
}
