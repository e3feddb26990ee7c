// MsgpackWriter: MessagePack bytes, each number in its shortest form.
//
// For those who speak as an engine does: benches and tests.
// Errors: none. Concurrency: one thread. Source: https://github.com/msgpack/msgpack spec.md.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace penstock::dialects {

class MsgpackWriter {
 public:
  MsgpackWriter& nil() { return put(0xC0, 0, 0); }
  MsgpackWriter& array(std::size_t items) {
    return items < 16 ? put(0x90 + items, 0, 0) : put(0xDD, items, 4);
  }
  MsgpackWriter& map(std::size_t pairs) {
    return pairs < 16 ? put(0x80 + pairs, 0, 0) : put(0xDF, pairs, 4);
  }
  MsgpackWriter& number(std::uint64_t value) {
    if (value < 0x80) return put(value, 0, 0);
    if (value < 0x100) return put(0xCC, value, 1);
    if (value < 0x10000) return put(0xCD, value, 2);
    if (value < 0x100000000) return put(0xCE, value, 4);
    return put(0xCF, value, 8);
  }
  MsgpackWriter& negative(std::int64_t value) {
    return put(0xD3, static_cast<std::uint64_t>(value), 8);
  }
  MsgpackWriter& real(double value) { return put(0xCB, std::bit_cast<std::uint64_t>(value), 8); }
  MsgpackWriter& text(std::string_view value) {
    value.size() < 32 ? put(0xA0 + value.size(), 0, 0) : put(0xDB, value.size(), 4);
    bytes_ += value;
    return *this;
  }
  MsgpackWriter& binary(std::string_view value) {
    put(0xC6, value.size(), 4);
    bytes_ += value;
    return *this;
  }

  const std::string& bytes() const { return bytes_; }
  std::span<const std::byte> span() const { return std::as_bytes(std::span(bytes_)); }

 private:
  // A lead byte and a big-endian number of that many bytes.
  MsgpackWriter& put(std::uint64_t lead, std::uint64_t value, unsigned bytes) {
    bytes_ += static_cast<char>(lead);
    for (unsigned i = bytes; i > 0; --i)
      bytes_ += static_cast<char>(value >> (8 * (i - 1)));
    return *this;
  }

  std::string bytes_;
};

}  // namespace penstock::dialects
