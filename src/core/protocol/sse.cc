#include "core/protocol/sse.h"

#include <algorithm>
#include <utility>

namespace penstock::protocol {
namespace {

constexpr std::size_t kRequestIdMax = 128;

}  // namespace

void append_sse_event(std::string& out, std::string_view json) {
  out.append("data: ").append(json).append("\n\n");
}

void append_sse_event(std::string& out, std::string_view name, std::string_view json) {
  out.append("event: ").append(name).append("\n");
  append_sse_event(out, json);
}

void SseReader::end_line(std::vector<std::string>& events) {
  const auto line = std::exchange(line_, {});
  if (line.empty()) {
    if (has_data_) events.push_back(std::exchange(data_, {}));
    has_data_ = false;
    return;
  }
  std::string_view value;
  if (line.starts_with("data:")) {
    value = std::string_view(line).substr(5);
    if (value.starts_with(' ')) value.remove_prefix(1);
  } else if (line != "data") {
    return;  // a comment, or a field we have no use for
  }
  if (has_data_) data_ += '\n';
  has_data_ = true;
  data_ += value;
}

bool SseReader::feed(std::string_view bytes, std::vector<std::string>& events) {
  for (const char c : bytes) {
    if (broken_) return false;
    const bool second_half = after_cr_ && c == '\n';
    after_cr_ = c == '\r';
    if (second_half) continue;
    if (c == '\n' || c == '\r') {
      end_line(events);
    } else {
      line_.push_back(c);
      broken_ = line_.size() + data_.size() > event_bytes_max_;
    }
  }
  return !broken_;
}

bool request_id_is_safe(std::string_view id) {
  return !id.empty() && id.size() <= kRequestIdMax && std::ranges::all_of(id, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == ':' || c == '-';
  });
}

}  // namespace penstock::protocol
