// SseSplitter: cuts a stream of server-sent events at the ends of events, and keeps their bytes.
//
// Bytes come cut anywhere; each event is handed out once, complete, with its raw bytes (what a
// gateway passes on) and with its name and data (what it looks at). The raw bytes of all events,
// one after the other, are the stream, but for rest(): the beginning of an event that never ended,
// which must not be passed on when the stream is cut, or the next words would be glued to it.
//
// An event ends with an empty line. A comment that stands alone is handed out with its line, with
// no data: engines send them to keep connections open, and hold no empty line back for it.
// Lines end with LF, CRLF or CR; a byte order mark at the start is not part of a line; several
// data lines make one text with line feeds between. Fields other than event and data are passed on
// and not looked at. Data is bytes: UTF-8 cut by the network is whole again in a whole event.
//
// Invariants: the events do not depend on how the stream was cut, but for where the LF of a CRLF
// counts when the two come apart: it then begins the next raw. Cost: one copy of what is not
// complete; a byte is looked at once.
// Errors: feed() is false, for good, once an event is longer than the limit.
// Concurrency: one owner. Source: WHATWG HTML, server-sent events, 9.2.6.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace penstock::dialects {

// Views that are good until the call returns.
struct SseEvent {
  std::string_view raw;
  std::string_view name;  // of the event field; empty: "message"
  std::string_view data;
  bool has_data = false;
};

class SseSplitter {
 public:
  using Take = std::function<void(const SseEvent&)>;

  explicit SseSplitter(std::size_t event_bytes_max = std::size_t{16} << 20)
      : event_bytes_max_(event_bytes_max) {}

  bool feed(std::string_view bytes, const Take& take);
  // What belongs to an event that is not complete; an LF that ends a handed-out CRLF is none.
  std::string_view rest() const { return pending_; }

 private:
  std::size_t scan(std::string_view text, const Take& take);
  void end_line(std::string_view text, std::size_t begin, std::size_t end);
  void hand_out(std::string_view raw, const Take& take);
  void reset();

  struct Span {
    std::size_t begin = 0;
    std::size_t size = 0;
  };

  std::size_t event_bytes_max_;
  std::string pending_;
  // Of the event that is being read; offsets are from its first byte.
  std::size_t line_begin_ = 0;
  std::size_t seen_ = 0;  // bytes that hold no line end after line_begin_
  Span name_;
  Span data_;
  std::string joined_;  // the data, when it has several lines
  std::size_t data_lines_ = 0;
  bool has_field_ = false;    // a line that is no comment
  bool has_comment_ = false;  // and one that is
  bool at_start_ = true;      // of the stream: a byte order mark may stand here
  bool after_cr_ = false;     // an LF that comes next belongs to the line that ended
  bool broken_ = false;
};

}  // namespace penstock::dialects
