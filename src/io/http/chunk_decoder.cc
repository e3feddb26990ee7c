#include <fmt/format.h>

#include <algorithm>

#include "base/hex.h"
#include "io/http/characters.h"
#include "io/http/message.h"

namespace penstock::http {
namespace {

using enum ErrorCode;

constexpr std::size_t kChunkDigitsMax = 15;        // 2^60 bytes: far beyond every limit
constexpr std::size_t kExtensionBytesMax = 256;    // a chunk
constexpr std::size_t kTrailerBytesMax = 8 << 10;  // all trailers

}  // namespace

Status ChunkDecoder::take(char c) {
  const auto malformed = [] { return fail(kInvalidArgument, "malformed chunked body"); };
  switch (state_) {
    case State::kSize: {
      if (const int digit = hex_value(c); digit >= 0) {
        if (++digits_ > kChunkDigitsMax) return malformed();
        left_ = left_ * 16 + static_cast<std::uint64_t>(digit);
        return {};
      }
      if (digits_ == 0) return malformed();
      total_ += left_;
      if (total_ > body_bytes_max_) {
        return fail(kPayloadTooLarge,
                    fmt::format("the body is larger than {} bytes", body_bytes_max_));
      }
      digits_ = 0;
      line_bytes_ = 0;
      if (c == '\r')
        state_ = State::kSizeLf;
      else if (c == ';')
        state_ = State::kExtension;
      else
        return malformed();
      return {};
    }
    case State::kExtension:
      if (c == '\r')
        state_ = State::kSizeLf;
      else if (!is_value_char(c) || ++line_bytes_ > kExtensionBytesMax)
        return malformed();
      return {};
    case State::kSizeLf:
      if (c != '\n') return malformed();
      state_ = left_ == 0 ? State::kTrailerStart : State::kData;
      line_bytes_ = 0;
      return {};
    case State::kDataCr:
      if (c != '\r') return malformed();
      state_ = State::kDataLf;
      return {};
    case State::kDataLf:
      if (c != '\n') return malformed();
      state_ = State::kSize;
      return {};
    case State::kTrailerStart:
      if (c == '\r') {
        state_ = State::kEndLf;
        return {};
      }
      if (!is_token_char(c)) return malformed();
      state_ = State::kTrailer;
      return {};
    case State::kTrailer:
      if (c == '\r')
        state_ = State::kTrailerLf;
      else if (!is_value_char(c) || ++line_bytes_ > kTrailerBytesMax)
        return malformed();
      return {};
    case State::kTrailerLf:
      if (c != '\n' || ++line_bytes_ > kTrailerBytesMax) return malformed();
      state_ = State::kTrailerStart;
      return {};
    case State::kEndLf:
      if (c != '\n') return malformed();
      state_ = State::kDone;
      return {};
    case State::kData:
    case State::kDone:
      return {};
  }
  return {};
}

Result<std::size_t> ChunkDecoder::feed(std::string_view in, std::string& out) {
  std::size_t used = 0;
  while (used < in.size() && !done()) {
    if (state_ == State::kData) {
      const auto take = static_cast<std::size_t>(
          std::min<std::uint64_t>(left_, static_cast<std::uint64_t>(in.size() - used)));
      out.append(in.substr(used, take));
      used += take;
      left_ -= take;
      if (left_ == 0) state_ = State::kDataCr;
      continue;
    }
    TRY_STATUS(take(in[used]));
    ++used;
  }
  return used;
}

}  // namespace penstock::http
