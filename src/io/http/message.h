// HTTP/1.1 message syntax, strictly: request heads, response heads, chunked bodies. Pure functions.
//
// Written by hand rather than on Beast's parser because that one joins folded header lines and
// accepts more than one framing; here a message that two parsers could read differently is refused.
//
// Invariants: never reads beyond its input; the result does not depend on how the input was cut.
// Errors: kInvalidArgument for bad syntax, kUnsupported for what is valid but not spoken here,
// kHeadersTooLarge, kPayloadTooLarge. Concurrency: values.
// Source: RFC 9112 sections 2-7, RFC 9110 section 5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "port/http.h"

namespace penstock::http {

struct HeadLimits {
  std::size_t bytes_max = std::size_t{64} << 10;
  std::size_t count_max = 100;
};

// Where the search for the end of a head stands; kept between reads so that no byte is looked at
// twice.
struct HeadScan {
  std::size_t line_begin = 0;
  std::size_t next = 0;
};

// The size of the head at the start of `bytes` (empty line included), or nullopt when it is not
// complete yet. Fails as soon as it can't become a head any more.
Result<std::optional<std::size_t>> find_head_end(std::string_view bytes, HeadScan& scan,
                                                 const HeadLimits& limits);

struct RequestHead {
  std::string method;
  std::string path;   // decoded
  std::string query;  // raw
  std::vector<HttpHeader> headers;
  bool version_1_1 = true;
  bool keep_alive = true;
  bool expect_continue = false;
  bool chunked = false;
  std::uint64_t content_length = 0;  // 0 when absent
};

// Parses a complete head, as found by find_head_end().
Result<RequestHead> parse_request_head(std::string_view head, const HeadLimits& limits);

struct ResponseHead {
  int status = 0;
  std::vector<HttpHeader> headers;
  bool chunked = false;
  bool keep_alive = true;  // HTTP/1.1, no "connection: close", one framing
  std::optional<std::uint64_t> content_length;
};

Result<ResponseHead> parse_response_head(std::string_view head, const HeadLimits& limits);

// Decodes a chunked body fed in pieces. Extensions and trailers are checked and dropped.
class ChunkDecoder {
 public:
  explicit ChunkDecoder(std::size_t body_bytes_max) : body_bytes_max_(body_bytes_max) {}

  // Consumes a prefix of `in`, appends the decoded bytes to `out`, and returns the bytes consumed:
  // all of them unless the body ended before.
  Result<std::size_t> feed(std::string_view in, std::string& out);
  bool done() const { return state_ == State::kDone; }

 private:
  enum class State : std::uint8_t {
    kSize,
    kExtension,
    kSizeLf,
    kData,
    kDataCr,
    kDataLf,
    kTrailerStart,
    kTrailer,
    kTrailerLf,
    kEndLf,
    kDone
  };
  Status take(char c);

  std::size_t body_bytes_max_;
  State state_ = State::kSize;
  std::uint64_t left_ = 0;      // bytes of the current chunk
  std::uint64_t total_ = 0;     // bytes of the body so far, this chunk included
  std::size_t digits_ = 0;      // of the size
  std::size_t line_bytes_ = 0;  // of extension or trailers
};

enum class BodyFraming : std::uint8_t { kLength, kChunked, kUntilClose, kNone };

struct ResponseStart {
  int status = 200;
  std::string_view content_type;
  std::span<const HttpHeader> headers;
  BodyFraming framing = BodyFraming::kLength;
  std::size_t content_length = 0;
  bool close = false;
  std::string_view date;  // IMF-fixdate
};

// Appends the head, empty line included. Header values lose CR, LF and NUL (as spaces), headers
// with an invalid name are dropped: nothing that came from a client can split an answer.
void append_response_head(std::string& out, const ResponseStart& start);

// Appends the line that opens a chunk of `size` bytes.
void append_chunk_size(std::string& out, std::size_t size);

bool iequals(std::string_view a, std::string_view b);
// Whether a comma-separated list has that item, in any case.
bool has_list_item(std::string_view list, std::string_view item);
std::string_view reason_phrase(int status);
// The time as IMF-fixdate ("Sun, 06 Nov 1994 08:49:37 GMT").
std::string http_date(std::int64_t seconds_since_1970);

}  // namespace penstock::http
