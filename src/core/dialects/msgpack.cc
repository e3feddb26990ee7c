#include "core/dialects/msgpack.h"

#include <bit>
#include <cstring>
#include <limits>

namespace penstock::dialects {
namespace {

// Lead bytes of the format.
constexpr std::uint8_t kFixMap = 0x80;
constexpr std::uint8_t kFixArray = 0x90;
constexpr std::uint8_t kFixText = 0xA0;
constexpr std::uint8_t kNil = 0xC0;
constexpr std::uint8_t kBytes8 = 0xC4;
constexpr std::uint8_t kBytes32 = 0xC6;
constexpr std::uint8_t kExtension8 = 0xC7;
constexpr std::uint8_t kFloat32 = 0xCA;
constexpr std::uint8_t kFloat64 = 0xCB;
constexpr std::uint8_t kUnsigned8 = 0xCC;
constexpr std::uint8_t kUnsigned16 = 0xCD;
constexpr std::uint8_t kUnsigned32 = 0xCE;
constexpr std::uint8_t kUnsigned64 = 0xCF;
constexpr std::uint8_t kSigned8 = 0xD0;
constexpr std::uint8_t kSigned64 = 0xD3;
constexpr std::uint8_t kFixExtension1 = 0xD4;
constexpr std::uint8_t kText8 = 0xD9;
constexpr std::uint8_t kText32 = 0xDB;
constexpr std::uint8_t kArray16 = 0xDC;
constexpr std::uint8_t kMap16 = 0xDE;
constexpr std::uint8_t kNegativeFix = 0xE0;

std::uint64_t big_endian_word(std::uint64_t word) {
  return std::endian::native == std::endian::little ? __builtin_bswap64(word) : word;
}

}  // namespace

std::uint64_t MsgpackReader::big_endian(std::size_t from, std::size_t bytes) const {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i)
    value = value << 8 | at_[from + i];
  return value;
}

std::optional<std::uint64_t> MsgpackReader::take_header(std::size_t bytes) {
  if (left() < 1 + bytes) {
    fail();
    return std::nullopt;
  }
  const std::uint64_t value = big_endian(1, bytes);
  at_ += 1 + bytes;
  return value;
}

std::optional<std::uint32_t> MsgpackReader::take_count(std::size_t bytes, std::uint64_t per_item) {
  const auto count = take_header(bytes);
  if (count && *count * per_item <= left()) return static_cast<std::uint32_t>(*count);
  fail();
  return std::nullopt;
}

std::optional<std::string_view> MsgpackReader::take_run(std::uint64_t size) {
  if (size > left()) {
    fail();
    return std::nullopt;
  }
  const std::string_view run(reinterpret_cast<const char*>(at_), static_cast<std::size_t>(size));
  at_ += size;
  return run;
}

std::optional<std::uint32_t> MsgpackReader::read_array() {
  if (is_next(kFixArray, kFixArray + 15)) {
    const std::uint32_t count = *at_ - kFixArray;
    if (!take_header(0) || count > left()) {
      fail();
      return std::nullopt;
    }
    return count;
  }
  if (!is_next(kArray16, kArray16 + 1)) return std::nullopt;
  return take_count(*at_ == kArray16 ? 2 : 4, 1);
}

std::optional<std::uint32_t> MsgpackReader::read_map() {
  if (is_next(kFixMap, kFixMap + 15)) {
    const std::uint32_t count = *at_ - kFixMap;
    if (!take_header(0) || count * 2 > left()) {
      fail();
      return std::nullopt;
    }
    return count;
  }
  if (!is_next(kMap16, kMap16 + 1)) return std::nullopt;
  return take_count(*at_ == kMap16 ? 2 : 4, 2);
}

std::optional<std::uint64_t> MsgpackReader::read_unsigned() {
  if (is_next(0, 0x7F)) return *at_++;
  if (is_next(kUnsigned8, kUnsigned64)) return take_header(std::size_t{1} << (*at_ - kUnsigned8));
  return std::nullopt;
}

std::optional<std::int64_t> MsgpackReader::read_signed() {
  if (is_next(kNegativeFix, 0xFF)) return static_cast<std::int8_t>(*at_++);
  if (is_next(kSigned8, kSigned64)) {
    const std::size_t bytes = std::size_t{1} << (*at_ - kSigned8);
    const auto value = take_header(bytes);
    if (!value) return std::nullopt;
    const auto unused = static_cast<unsigned>(64 - 8 * bytes);
    return static_cast<std::int64_t>(*value << unused) >> unused;
  }
  const MsgpackReader before = *this;
  const auto value = read_unsigned();
  if (!value) return std::nullopt;
  if (*value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return static_cast<std::int64_t>(*value);
  *this = before;
  return std::nullopt;
}

std::optional<double> MsgpackReader::read_number() {
  if (is_next(kFloat64, kFloat64)) {
    const auto bits = take_header(8);
    return bits ? std::optional(std::bit_cast<double>(*bits)) : std::nullopt;
  }
  if (is_next(kFloat32, kFloat32)) {
    const auto bits = take_header(4);
    return bits ? std::optional<double>(std::bit_cast<float>(static_cast<std::uint32_t>(*bits)))
                : std::nullopt;
  }
  const auto value = read_signed();
  return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}

std::optional<std::string_view> MsgpackReader::read_text() {
  if (is_next(kFixText, kFixText + 31)) {
    const std::uint64_t size = *at_++ - kFixText;
    return take_run(size);
  }
  if (!is_next(kText8, kText32)) return std::nullopt;
  const auto size = take_header(std::size_t{1} << (*at_ - kText8));
  return size ? take_run(*size) : std::nullopt;
}

std::optional<std::string_view> MsgpackReader::read_bytes() {
  if (!is_next(kBytes8, kBytes32)) return std::nullopt;
  const auto size = take_header(std::size_t{1} << (*at_ - kBytes8));
  return size ? take_run(*size) : std::nullopt;
}

bool MsgpackReader::read_nil() {
  if (!is_next(kNil, kNil)) return false;
  ++at_;
  return true;
}

bool MsgpackReader::skip() {
  // Each item takes a byte at least, so the count of what is left to skip can't run away.
  for (std::uint64_t items = 1; items > 0; --items) {
    if (at_ == end_) return fail();
    const std::uint8_t lead = *at_;
    if (const auto count = read_array()) {
      items += *count;
    } else if (const auto pairs = read_map()) {
      items += std::uint64_t{*pairs} * 2;
    } else if (read_unsigned() || read_signed() || read_number() || read_text() || read_bytes()) {
      continue;
    } else if (!ok()) {
      return false;
    } else if (lead >= kFixExtension1 && lead < kText8) {
      if (!take_header(0) || !take_run((std::uint64_t{1} << (lead - kFixExtension1)) + 1))
        return false;
    } else if (lead >= kExtension8 && lead < kFloat32) {
      const auto size = take_header(std::size_t{1} << (lead - kExtension8));
      if (!size || !take_run(*size + 1)) return false;
    } else {
      ++at_;  // nil, false, true, and the one lead byte that is never used
    }
    if (!ok()) return false;
  }
  return true;
}

bool MsgpackReader::read_u32_array(std::vector<std::uint32_t>& out) {
  const auto count = read_array();
  if (!count) return false;
  const std::size_t first = out.size();
  out.resize(first + *count);
  std::uint32_t* to = out.data() + first;
  std::uint32_t* const to_end = to + *count;
  while (to != to_end) {
    // Token ids are of one, three or five bytes in any order, so nothing here branches on which.
    for (; to != to_end && left() >= 8; ++to) {
      const std::uint8_t lead = *at_;
      const bool is_small = lead < kFixMap;
      const bool is_large = lead == kUnsigned32;
      if (!(is_small | is_large | (lead == kUnsigned16))) break;
      const unsigned bytes = (is_small ? 1U : 3U) + (is_large ? 2U : 0U);
      std::uint64_t word = 0;
      std::memcpy(&word, at_, sizeof word);
      word = big_endian_word(word) << (is_small ? 0 : 8);
      *to = static_cast<std::uint32_t>(word >> (is_large ? 32 : is_small ? 56 : 48));
      at_ += bytes;
    }
    if (to == to_end) break;
    const auto value = read_unsigned();
    if (!value || *value > std::numeric_limits<std::uint32_t>::max()) {
      out.resize(first);
      return false;
    }
    *to++ = static_cast<std::uint32_t>(*value);
  }
  return true;
}

}  // namespace penstock::dialects
