#include "io/http/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/hex.h"
#include "io/http/characters.h"

namespace penstock::http {
namespace {

using enum ErrorCode;

bool is_token(std::string_view s) {
  return !s.empty() && std::ranges::all_of(s, is_token_char);
}
char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t'))
    s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t'))
    s.remove_suffix(1);
  return s;
}

// The next line without its CRLF; the head is known to end in an empty line.
std::string_view take_line(std::string_view& rest) {
  const auto end = rest.find("\r\n");
  const auto line = rest.substr(0, end);
  rest.remove_prefix(std::min(rest.size(), line.size() + 2));
  return line;
}

Result<std::uint64_t> parse_length(std::string_view value) {
  std::uint64_t length = 0;
  const auto* end = value.data() + value.size();
  const bool digits =
      !value.empty() && std::ranges::all_of(value, [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) return fail(kInvalidArgument, "Content-Length is not a number");
  if (std::from_chars(value.data(), end, length).ec != std::errc()) {
    return fail(kPayloadTooLarge, "Content-Length is larger than any limit");
  }
  return length;
}

Result<std::vector<HttpHeader>> parse_fields(std::string_view rest, const HeadLimits& limits) {
  std::vector<HttpHeader> headers;
  while (true) {
    const auto line = take_line(rest);
    if (line.empty()) return headers;
    if (headers.size() == limits.count_max) {
      return fail(kHeadersTooLarge, fmt::format("more than {} header fields", limits.count_max));
    }
    if (line.front() == ' ' || line.front() == '\t') {
      return fail(kInvalidArgument, "folded header lines are not accepted");
    }
    const auto colon = line.find(':');
    if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) {
      return fail(kInvalidArgument,
                  fmt::format("header field {} has no valid name", headers.size() + 1));
    }
    const auto value = trim(line.substr(colon + 1));
    if (!std::ranges::all_of(value, is_value_char)) {
      return fail(kInvalidArgument, fmt::format("header field \"{}\" holds a control character",
                                                line.substr(0, colon)));
    }
    headers.push_back({std::string(line.substr(0, colon)), std::string(value)});
  }
}

Result<std::string> decode_path(std::string_view raw) {
  std::string path;
  path.reserve(raw.size());
  for (std::size_t i = 0; i < raw.size(); ++i) {
    char c = raw[i];
    if (c == '%') {
      const int high = i + 2 < raw.size() ? hex_value(raw[i + 1]) : -1;
      const int low = i + 2 < raw.size() ? hex_value(raw[i + 2]) : -1;
      if (high < 0 || low < 0) return fail(kInvalidArgument, "bad percent escape in the path");
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    const auto u = static_cast<unsigned char>(c);
    if (u < 0x20 || u == 0x7F) return fail(kInvalidArgument, "control character in the path");
    path.push_back(c);
  }
  return path;
}

Status parse_target(std::string_view target, RequestHead& head) {
  const bool visible = std::ranges::all_of(target, [](char c) { return c > 0x20 && c < 0x7F; });
  if (!visible || target.contains('#')) {
    return fail(kInvalidArgument, "the request target holds a character that must be escaped");
  }
  if (const auto scheme = target.find("://"); !target.starts_with('/') && scheme < 6) {
    const auto slash = target.find_first_of("/?", scheme + 3);  // absolute form, as for proxies
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  if (!target.starts_with('/')) {
    return fail(kInvalidArgument, "the request target must be a path that starts with /");
  }
  const auto question = target.find('?');
  TRY(head.path, decode_path(target.substr(0, question)));
  if (question != std::string_view::npos) head.query = target.substr(question + 1);
  return {};
}

Status parse_request_line(std::string_view line, RequestHead& head) {
  const auto first = line.find(' ');
  const auto last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    return fail(kInvalidArgument, "the request line is not \"METHOD target HTTP/1.1\"");
  }
  const auto method = line.substr(0, first);
  const auto version = line.substr(last + 1);
  if (!is_token(method)) return fail(kInvalidArgument, "the request method is not a token");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return fail(kInvalidArgument, "only HTTP/1.1 and HTTP/1.0 are spoken here");
  }
  head.method = method;
  head.version_1_1 = version.back() == '1';
  head.keep_alive = head.version_1_1;  // 1.0's optional keep-alive is not worth a second rule
  return parse_target(line.substr(first + 1, last - first - 1), head);
}

// Framing and connection fields of a request.
Status interpret(RequestHead& head) {
  bool has_length = false;
  int hosts = 0;
  for (const auto& [name, value] : head.headers) {
    if (iequals(name, "host")) {
      ++hosts;
    } else if (iequals(name, "content-length")) {
      if (has_length) return fail(kInvalidArgument, "more than one Content-Length");
      has_length = true;
      TRY(head.content_length, parse_length(value));
    } else if (iequals(name, "transfer-encoding")) {
      if (head.chunked || !iequals(value, "chunked")) {
        return fail(kInvalidArgument, "the only Transfer-Encoding accepted is \"chunked\", once");
      }
      head.chunked = true;
    } else if (iequals(name, "connection")) {
      if (has_list_item(value, "close")) head.keep_alive = false;
    } else if (iequals(name, "expect")) {
      if (!iequals(value, "100-continue")) return fail(kUnsupported, "unknown Expect", "expect");
      head.expect_continue = head.version_1_1;
    }
  }
  if (has_length && head.chunked) {
    return fail(kInvalidArgument, "both Content-Length and Transfer-Encoding");
  }
  if (head.chunked && !head.version_1_1) {
    return fail(kInvalidArgument, "Transfer-Encoding in an HTTP/1.0 request");
  }
  if (hosts > 1 || (hosts == 0 && head.version_1_1)) {
    return fail(kInvalidArgument, "an HTTP/1.1 request needs exactly one Host");
  }
  return {};
}

}  // namespace

bool iequals(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, lower, lower);
}

bool has_list_item(std::string_view list, std::string_view item) {
  while (!list.empty()) {
    const auto comma = list.find(',');
    if (iequals(trim(list.substr(0, comma)), item)) return true;
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  return false;
}

Result<std::optional<std::size_t>> find_head_end(std::string_view bytes, HeadScan& scan,
                                                 const HeadLimits& limits) {
  const auto too_large = [&] {
    return fail(kHeadersTooLarge,
                fmt::format("the request head is larger than {} bytes", limits.bytes_max));
  };
  if (!bytes.empty() && !is_token_char(bytes.front())) {
    return fail(kInvalidArgument, "this is not HTTP (is the client speaking TLS or HTTP/2?)");
  }
  while (true) {
    const auto lf = bytes.find('\n', scan.next);
    if (lf == std::string_view::npos) break;
    if (lf == scan.line_begin || bytes[lf - 1] != '\r') {
      return fail(kInvalidArgument, "a header line ends in a bare line feed");
    }
    scan.next = lf + 1;
    const bool empty = lf == scan.line_begin + 1;
    scan.line_begin = lf + 1;
    if (scan.next > limits.bytes_max) return too_large();
    if (empty) return scan.next;
  }
  scan.next = bytes.size();
  if (bytes.size() >= limits.bytes_max) return too_large();
  return std::nullopt;
}

Result<RequestHead> parse_request_head(std::string_view head_text, const HeadLimits& limits) {
  RequestHead head;
  TRY_STATUS(parse_request_line(take_line(head_text), head));
  TRY(head.headers, parse_fields(head_text, limits));
  TRY_STATUS(interpret(head));
  return head;
}

Result<ResponseHead> parse_response_head(std::string_view text, const HeadLimits& limits) {
  ResponseHead head;
  const auto line = take_line(text);
  const auto code = line.substr(std::min<std::size_t>(line.size(), 9), 3);
  if (!line.starts_with("HTTP/1.") || code.size() != 3 ||
      std::from_chars(code.data(), code.data() + 3, head.status).ptr != code.data() + 3) {
    return fail(kDataLoss, "the answer does not start with an HTTP/1.1 status line");
  }
  TRY(head.headers, parse_fields(text, limits));
  for (const auto& [name, value] : head.headers) {
    if (iequals(name, "transfer-encoding")) head.chunked = iequals(value, "chunked");
    if (iequals(name, "content-length")) {
      TRY(head.content_length, parse_length(value));
    }
    if (iequals(name, "connection") && iequals(value, "close")) head.keep_alive = false;
  }
  if (!line.starts_with("HTTP/1.1") || (head.chunked && head.content_length))
    head.keep_alive = false;
  return head;
}

void append_chunk_size(std::string& out, std::size_t size) {
  std::array<char, 20> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), size, 16).ptr;
  out.append(text.data(), end);
  out.append("\r\n");
}

void append_response_head(std::string& out, const ResponseStart& start) {
  fmt::format_to(std::back_inserter(out), "HTTP/1.1 {} {}\r\n", start.status,
                 reason_phrase(start.status));
  const auto append = [&out](std::string_view name, std::string_view value) {
    if (!is_token(name)) return;
    out.append(name).append(": ");
    for (const char c : value)
      out.push_back(is_value_char(c) ? c : ' ');
    out.append("\r\n");
  };
  if (!start.date.empty()) append("date", start.date);
  if (!start.content_type.empty()) append("content-type", start.content_type);
  for (const HttpHeader& header : start.headers)
    append(header.name, header.value);
  if (start.framing == BodyFraming::kLength) {
    fmt::format_to(std::back_inserter(out), "content-length: {}\r\n", start.content_length);
  } else if (start.framing == BodyFraming::kChunked) {
    out.append("transfer-encoding: chunked\r\n");
  }
  if (start.close) out.append("connection: close\r\n");
  out.append("\r\n");
}

std::string_view reason_phrase(int status) {
  constexpr std::pair<int, std::string_view> kPhrases[] = {{100, "Continue"},
                                                           {200, "OK"},
                                                           {202, "Accepted"},
                                                           {204, "No Content"},
                                                           {304, "Not Modified"},
                                                           {101, "Switching Protocols"},
                                                           {400, "Bad Request"},
                                                           {401, "Unauthorized"},
                                                           {402, "Payment Required"},
                                                           {403, "Forbidden"},
                                                           {404, "Not Found"},
                                                           {405, "Method Not Allowed"},
                                                           {408, "Request Timeout"},
                                                           {409, "Conflict"},
                                                           {413, "Content Too Large"},
                                                           {415, "Unsupported Media Type"},
                                                           {422, "Unprocessable Content"},
                                                           {429, "Too Many Requests"},
                                                           {431, "Request Header Fields Too Large"},
                                                           {499, "Client Closed Request"},
                                                           {500, "Internal Server Error"},
                                                           {503, "Service Unavailable"},
                                                           {504, "Gateway Timeout"},
                                                           {529, "Overloaded"}};
  for (const auto& [code, phrase] : kPhrases) {
    if (code == status) return phrase;
  }
  return "Status";
}

std::string http_date(std::int64_t seconds_since_1970) {
  using namespace std::chrono;
  constexpr std::array kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                  "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const sys_seconds time{seconds(seconds_since_1970)};
  const auto day = floor<days>(time);
  const year_month_day date(day);
  const hh_mm_ss clock(time - day);
  return fmt::format("{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT", kDays[weekday(day).c_encoding()],
                     static_cast<unsigned>(date.day()),
                     kMonths[static_cast<unsigned>(date.month()) - 1],
                     static_cast<int>(date.year()), clock.hours().count(), clock.minutes().count(),
                     clock.seconds().count());
}

}  // namespace penstock::http
