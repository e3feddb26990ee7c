// Server-sent events: framing, content type, comments; and ids that may travel in headers.
//
// Invariants: an event is one `data:` line of JSON (JSON has no raw newline, so no text can forge
// an event), after an `event:` line in the formats that name events, and one blank line; `id:` is
// never sent. A comment is one line WITHOUT a blank line: a blank line after a comment makes older
// openai-python raise a JSON error. Concurrency: pure. Source: facts/api.md 3.1, 5.6; WHATWG HTML,
// server-sent events.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock::protocol {

inline constexpr std::string_view kSseContentType = "text/event-stream; charset=utf-8";
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSseKeepAlive = ": keep-alive\n";

// Appends "data: <json>\n\n". `json` holds no newline.
void append_sse_event(std::string& out, std::string_view json);
// Appends "event: <name>\ndata: <json>\n\n".
void append_sse_event(std::string& out, std::string_view name, std::string_view json);

// Splits a byte stream into events for clients (tests, `penstock chat`, health checks): feed()
// takes bytes cut anywhere and appends the data of each complete event. Accepts LF, CRLF and CR. An
// event's data is at most `event_bytes_max`; beyond it feed() returns false and stays there.
class SseReader {
 public:
  explicit SseReader(std::size_t event_bytes_max = std::size_t{64} << 20)
      : event_bytes_max_(event_bytes_max) {}
  bool feed(std::string_view bytes, std::vector<std::string>& events);

 private:
  void end_line(std::vector<std::string>& events);

  std::size_t event_bytes_max_;
  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false;
  bool broken_ = false;
};

// True for ids a client may choose: 1 to 128 of [A-Za-z0-9._:-]. Others are replaced, never echoed.
bool request_id_is_safe(std::string_view id);

}  // namespace penstock::protocol
