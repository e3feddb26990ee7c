// MsgpackReader: walks over MessagePack bytes, item by item, without a tree.
//
// read_X() takes the next item if it is an X, else leaves it where it is and answers no; skip()
// takes any item with all that it holds. Truncated bytes fail the reader for good.
//
// Invariants: never reads outside the bytes; no recursion, so depth costs nothing; a header that
// promises more items than bytes are left fails. Views live as long as the bytes.
// Errors: ok(). Concurrency: one thread. Source: https://github.com/msgpack/msgpack spec.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace penstock::dialects {

class MsgpackReader {
 public:
  explicit MsgpackReader(std::span<const std::byte> bytes)
      : at_(reinterpret_cast<const std::uint8_t*>(bytes.data())), end_(at_ + bytes.size()) {}

  bool ok() const { return !failed_; }
  bool at_end() const { return at_ == end_; }

  std::optional<std::uint32_t> read_array();  // items
  std::optional<std::uint32_t> read_map();    // pairs
  std::optional<std::uint64_t> read_unsigned();
  std::optional<std::int64_t> read_signed();
  std::optional<double> read_number();           // a float or an integer
  std::optional<std::string_view> read_text();   // str
  std::optional<std::string_view> read_bytes();  // bin
  bool read_nil();
  bool skip();

  // The items of an array as 32-bit numbers, added to `out`. No: there is no array, or one of its
  // items is none; the reader then stands somewhere in it.
  bool read_u32_array(std::vector<std::uint32_t>& out);

 private:
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  bool is_next(std::uint8_t first, std::uint8_t last) const {
    return at_ != end_ && *at_ >= first && *at_ <= last;
  }
  std::uint64_t big_endian(std::size_t from, std::size_t bytes) const;
  // Header of a lead byte and `bytes` of length. No: truncated.
  std::optional<std::uint64_t> take_header(std::size_t bytes);
  std::optional<std::uint32_t> take_count(std::size_t bytes, std::uint64_t per_item);
  std::optional<std::string_view> take_run(std::uint64_t size);
  bool fail() {
    failed_ = true;
    at_ = end_;
    return false;
  }

  const std::uint8_t* at_;
  const std::uint8_t* end_;
  bool failed_ = false;
};

}  // namespace penstock::dialects
