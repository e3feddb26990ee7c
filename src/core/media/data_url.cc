#include "core/media/data_url.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/media/image_header.h"

namespace penstock::media {
namespace {

constexpr std::uint8_t kNoDigit = 0x40;  // no value of six bits has this one

constexpr std::array<std::uint8_t, 256> kDigits = [] {
  std::array<std::uint8_t, 256> table{};
  table.fill(kNoDigit);
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t i = 0; i < kAlphabet.size(); ++i)
    table[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::uint8_t>(i);
  return table;
}();

std::uint32_t digit(char c) {
  return kDigits[static_cast<unsigned char>(c)];
}

std::unexpected<Error> refuse(std::string_view code, std::string message) {
  return std::unexpected(
      Error{ErrorCode::kInvalidArgument, std::move(message), {}, std::string(code)});
}

std::unexpected<Error> not_base64(std::string_view why) {
  return refuse("invalid_base64_image", fmt::format("not valid base64: {}", why));
}

bool starts_with_ignoring_case(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() &&
         std::ranges::equal(text.substr(0, lower.size()), lower, [](char a, char b) {
           return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 32) : a) == b;
         });
}

}  // namespace

Result<std::string> decode_base64(std::string_view text, std::size_t bytes_max) {
  if (text.size() % 4 != 0) {
    return not_base64(
        fmt::format("{} characters are no whole number of groups of 4, padding with "
                    "= included",
                    text.size()));
  }
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  const std::size_t size = text.size() / 4 * 3 - padding;
  if (size > bytes_max) {
    return refuse("image_file_too_large",
                  fmt::format("{} bytes; at most {} are taken", size, bytes_max));
  }
  const auto digits = text.substr(0, text.size() - padding);
  std::string out(size, '\0');
  std::size_t written = 0;
  std::uint32_t all = 0;  // every digit together: one check finds a stranger among them
  std::size_t at = 0;
  for (; at + 4 <= digits.size(); at += 4) {
    const std::uint32_t a = digit(digits[at]), b = digit(digits[at + 1]), c = digit(digits[at + 2]),
                        d = digit(digits[at + 3]);
    all |= a | b | c | d;
    out[written++] = static_cast<char>(a << 2 | b >> 4);
    out[written++] = static_cast<char>(b << 4 | c >> 2);
    out[written++] = static_cast<char>(c << 6 | d);
  }
  std::uint32_t rest = 0;
  for (std::size_t i = at; i < digits.size(); ++i) {
    rest = rest << 6 | digit(digits[i]);
    all |= digit(digits[i]);
  }
  if ((all & kNoDigit) != 0) {
    const auto bad =
        std::ranges::find_if(digits, [](char c) { return digit(c) == kNoDigit; }) - digits.begin();
    return not_base64(fmt::format("the character at {} does not belong to it", bad));
  }
  if (padding > 0) {
    const std::uint32_t unused = padding == 1 ? 2 : 4;
    if ((rest & ((1U << unused) - 1)) != 0) return not_base64("its unused last bits are not zero");
    rest >>= unused;
    if (padding == 1) out[written++] = static_cast<char>(rest >> 8);
    out[written++] = static_cast<char>(rest);
  }
  return out;
}

bool is_data_url(std::string_view text) {
  return starts_with_ignoring_case(text, "data:");
}

Result<std::string> decode_image_url(std::string_view url, std::size_t bytes_max) {
  constexpr std::string_view kEncoding = ";base64";
  if (!is_data_url(url)) return refuse("invalid_image_url", "not a data URL");
  url.remove_prefix(std::string_view("data:").size());
  const std::size_t comma = url.find(',');
  if (comma == std::string_view::npos)
    return refuse("invalid_image_url", "the data URL has no comma before its data");
  const auto head = url.substr(0, comma);
  if (head.size() < kEncoding.size() ||
      !starts_with_ignoring_case(head.substr(head.size() - kEncoding.size()), kEncoding)) {
    return refuse("invalid_image_url",
                  "the data URL is not base64: \";base64\" must stand before "
                  "its comma");
  }
  if (!is_image_media_type(head)) {
    return refuse("unsupported_image_media_type",
                  "the data URL must declare image/png, image/jpeg, image/gif or image/webp");
  }
  return decode_base64(url.substr(comma + 1), bytes_max);
}

}  // namespace penstock::media
