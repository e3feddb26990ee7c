#include "core/dialects/sse_splitter.h"

#include <algorithm>

namespace penstock::dialects {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Offset of the next CR or LF at or after `from`, npos when there is none. Events have no CR as a
// rule, so LF is looked for first and CR only in what lies before it.
std::size_t find_line_end(std::string_view text, std::size_t from) {
  const auto lf = text.find('\n', from);
  const auto cr = text.substr(0, std::min(lf, text.size())).find('\r', from);
  return std::min(lf, cr);
}

}  // namespace

bool SseSplitter::feed(std::string_view bytes, const Take& take) {
  if (broken_) return false;
  if (pending_.empty()) {
    const std::size_t taken = scan(bytes, take);
    pending_.assign(bytes.substr(taken));
  } else {
    pending_.append(bytes);
    pending_.erase(0, scan(pending_, take));
  }
  broken_ = pending_.size() > event_bytes_max_;
  return !broken_;
}

// Hands out the complete events of `text`, which begins where the current event does; returns how
// many bytes they are.
std::size_t SseSplitter::scan(std::string_view text, const Take& take) {
  std::size_t taken = 0;
  std::string_view event = text;
  const auto cut = [&](std::size_t size) {
    hand_out(event.substr(0, size), take);
    taken += size;
    event.remove_prefix(size);
    reset();
  };
  while (true) {
    if (at_start_) {
      const std::size_t known = std::min(event.size(), kByteOrderMark.size());
      const bool mark = event.substr(0, known) == kByteOrderMark.substr(0, known);
      if (mark && known < kByteOrderMark.size()) return taken;
      if (mark) line_begin_ = seen_ = kByteOrderMark.size();
      at_start_ = false;
    }
    if (after_cr_ && seen_ < event.size()) {
      after_cr_ = false;
      if (event[seen_] == '\n') line_begin_ = ++seen_;
    }
    const std::size_t end = find_line_end(event, seen_);
    if (end >= event.size()) {
      seen_ = event.size();
      return taken;
    }
    const bool empty = end == line_begin_;
    std::size_t next = end + 1;
    if (event[end] == '\r') {
      if (next < event.size() && event[next] == '\n') {
        ++next;
      } else {
        after_cr_ = next == event.size();
      }
    }
    if (!empty) end_line(event, line_begin_, end);
    line_begin_ = seen_ = next;
    // An empty line ends an event; after a comment that stood alone it is only a line.
    const bool lone_comment = !empty && has_comment_ && !has_field_;
    if (empty || lone_comment) cut(next);
  }
}

void SseSplitter::end_line(std::string_view text, std::size_t begin, std::size_t end) {
  const std::string_view line = text.substr(begin, end - begin);
  if (line.front() == ':') {
    has_comment_ = true;
    return;
  }
  has_field_ = true;
  const std::size_t colon = line.find(':');
  const std::string_view field = line.substr(0, colon);
  std::size_t value = colon == std::string_view::npos ? line.size() : colon + 1;
  if (value < line.size() && line[value] == ' ') ++value;
  const Span span{begin + value, line.size() - value};
  if (field == "event") {
    name_ = span;
  } else if (field == "data") {
    if (data_lines_ == 1) joined_.assign(text.substr(data_.begin, data_.size));
    if (data_lines_ >= 1) joined_.append("\n").append(text.substr(span.begin, span.size));
    data_ = span;
    ++data_lines_;
  }
}

void SseSplitter::hand_out(std::string_view raw, const Take& take) {
  const auto text = [&](Span span) { return raw.substr(span.begin, span.size); };
  take({raw, text(name_), data_lines_ > 1 ? std::string_view(joined_) : text(data_),
        data_lines_ > 0});
}

void SseSplitter::reset() {
  line_begin_ = seen_ = 0;
  name_ = data_ = {};
  joined_.clear();
  data_lines_ = 0;
  has_field_ = has_comment_ = false;
}

}  // namespace penstock::dialects
