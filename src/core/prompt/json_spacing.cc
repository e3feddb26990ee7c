#include "core/prompt/json_spacing.h"

#include <fmt/format.h>
#include <cstdint>
#include <optional>
#include "base/json_run.h"
#include "base/utf8.h"
#include "core/prompt/unicode_utf8.h"

namespace penstock::prompt {
namespace {

class Rewriter {
 public:
  Rewriter(std::string_view in, int indent) : in_(in), indent_(indent) {
    out_.reserve(in.size() + in.size() / 8);
  }

  Result<std::string> run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '"') {
        if (!string()) return bad("a string is not closed or has a bad escape");
        continue;
      }
      ++at_;
      switch (c) {
        case ' ':
        case '\t':
        case '\n':
        case '\r':
          break;
        case ',':
          out_ += indent_ > 0 ? "," : ", ";
          new_line();
          break;
        case ':':
          out_ += ": ";
          break;
        case '{':
        case '[':
          open_ += c;
          out_ += c;
          if (!closes_at_once()) new_line();
          break;
        case '}':
        case ']':
          if (open_.empty() || open_.back() != (c == '}' ? '{' : '[')) {
            return bad("brackets do not match");
          }
          open_.pop_back();
          if (out_.back() != '{' && out_.back() != '[') new_line();
          out_ += c;
          break;
        default:
          out_ += c;
      }
    }
    if (!open_.empty()) return bad("a bracket is not closed");
    return std::move(out_);
  }

 private:
  std::unexpected<Error> bad(std::string_view why) const {
    return fail(ErrorCode::kInvalidArgument, fmt::format("not JSON: {} (byte {})", why, at_));
  }

  void new_line() {
    if (indent_ == 0) return;
    out_ += '\n';
    out_.append(open_.size() * static_cast<std::size_t>(indent_), ' ');
  }
  // At the byte after an opening bracket: whether nothing stands between the two.
  bool closes_at_once() const {
    const std::size_t next = in_.find_first_not_of(" \t\n\r", at_);
    return next != std::string_view::npos && (in_[next] == '}' || in_[next] == ']');
  }

  // Copies one string, from the opening quote to the closing one.
  bool string() {
    out_ += '"';
    for (++at_; at_ < in_.size(); ++at_) {
      const std::size_t end = json_run_end(in_, at_);
      out_.append(in_, at_, end - at_);
      at_ = end;
      if (at_ == in_.size()) return false;
      const char c = in_[at_];
      if (c == '"') {
        out_ += '"';
        ++at_;
        return true;
      }
      if (c != '\\') {
        out_ += c;
      } else if (!escape()) {
        return false;
      }
    }
    return false;
  }

  // At a backslash: appends what it stands for; ends on the last byte of the escape.
  bool escape() {
    if (++at_ >= in_.size()) return false;
    switch (in_[at_]) {
      case '/':
        out_ += '/';
        return true;
      case '"':
      case '\\':
      case 'b':
      case 'f':
      case 'n':
      case 'r':
      case 't':
        out_ += '\\';
        out_ += in_[at_];
        return true;
      case 'u':
        break;
      default:
        return false;
    }
    const auto high = hex4();
    if (!high) return false;
    std::uint32_t c = *high;
    if (c >= 0xD800 && c < 0xDC00) {
      if (in_.substr(at_ + 1, 2) != "\\u") return false;
      at_ += 2;
      const auto low = hex4();
      if (!low || *low < 0xDC00 || *low > 0xDFFF) return false;
      c = 0x10000 + ((c - 0xD800) << 10) + (*low - 0xDC00);
    } else if (c >= 0xDC00 && c < 0xE000) {
      return false;
    }
    append_character(c);
    return true;
  }

  std::optional<std::uint32_t> hex4() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      if (++at_ >= in_.size()) return std::nullopt;
      const char c = in_[at_];
      std::uint32_t digit = 0;
      if (c >= '0' && c <= '9') {
        digit = static_cast<std::uint32_t>(c - '0');
      } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
        digit = static_cast<std::uint32_t>((c | 0x20) - 'a') + 10;
      } else {
        return std::nullopt;
      }
      value = value << 4 | digit;
    }
    return value;
  }

  void append_character(std::uint32_t c) {
    switch (c) {
      case '"':
        out_ += "\\\"";
        return;
      case '\\':
        out_ += "\\\\";
        return;
      case '\b':
        out_ += "\\b";
        return;
      case '\f':
        out_ += "\\f";
        return;
      case '\n':
        out_ += "\\n";
        return;
      case '\r':
        out_ += "\\r";
        return;
      case '\t':
        out_ += "\\t";
        return;
      default:
        break;
    }
    if (c < 0x20) {
      out_ += fmt::format("\\u{:04x}", c);
    } else {
      append_utf8(c, out_);
    }
  }

  std::string_view in_;
  int indent_;
  std::size_t at_ = 0;
  std::string open_;  // the brackets that are open
  std::string out_;
};

}  // namespace

Result<std::string> python_style(std::string_view json, int indent) {
  return Rewriter(json, indent).run();
}

}  // namespace penstock::prompt
