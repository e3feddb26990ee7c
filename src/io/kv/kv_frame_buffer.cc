// A stream of bytes cut into frames.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "io/kv/kv_codec.h"

namespace penstock::kv {

char* FrameBuffer::reserve(std::size_t bytes) {
  if (begin_ == end_) {
    begin_ = end_ = 0;
    // After a long frame the memory is given back.
    if (bytes_.size() > (std::size_t{4} << 20)) bytes_ = std::string();
  } else if (begin_ > 0 && bytes_.size() - end_ < bytes) {
    std::memmove(bytes_.data(), bytes_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (bytes_.size() - end_ < bytes) bytes_.resize(std::max(2 * bytes_.size(), end_ + bytes));
  return bytes_.data() + end_;
}

Result<std::optional<std::string_view>> FrameBuffer::next() {
  if (end_ - begin_ < 4) return std::nullopt;
  std::uint8_t head[4];
  std::memcpy(head, bytes_.data() + begin_, sizeof head);
  const std::size_t size = std::size_t{head[0]} | std::size_t{head[1]} << 8 |
                           std::size_t{head[2]} << 16 | std::size_t{head[3]} << 24;
  if (size > kFrameBytesMax) {
    return fail(ErrorCode::kDataLoss,
                fmt::format("a frame of {} bytes, more than {}", size, kFrameBytesMax));
  }
  if (end_ - begin_ - 4 < size) return std::nullopt;
  const std::string_view frame(bytes_.data() + begin_ + 4, size);
  begin_ += 4 + size;
  return frame;
}

}  // namespace penstock::kv
