#include "core/dialects/json_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/hex.h"
#include "base/utf8.h"

namespace penstock::dialects {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}
// What numbers and literals are made of.
bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '+' || c == '.';
}

std::optional<std::uint32_t> hex4(std::string_view text) {
  std::uint32_t value = 0;
  if (text.size() < 4) return std::nullopt;
  for (const char c : text.substr(0, 4)) {
    const int digit = hex_value(c);
    if (digit < 0) return std::nullopt;
    value = value << 4 | static_cast<std::uint32_t>(digit);
  }
  return value;
}

// Takes \uXXXX, or two of them that are one character, from the front of `rest` (after the "\u").
bool take_unicode(std::string_view& rest, std::string& out) {
  auto point = hex4(rest);
  if (!point) return false;
  rest.remove_prefix(4);
  if (*point >= 0xD800 && *point < 0xDC00 && rest.starts_with("\\u")) {
    const auto low = hex4(rest.substr(2));
    if (low && *low >= 0xDC00 && *low < 0xE000) {
      *point = 0x10000 + ((*point - 0xD800) << 10) + (*low - 0xDC00);
      rest.remove_prefix(6);
    }
  }
  append_utf8(*point >= 0xD800 && *point < 0xE000 ? 0xFFFD : *point, out);
  return true;
}

bool take_escape(std::string_view& rest, std::string& out) {
  if (rest.empty()) return false;
  const char c = rest.front();
  rest.remove_prefix(1);
  constexpr std::string_view kFrom = "\"\\/bfnrt";
  constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
  if (const auto at = kFrom.find(c); at != std::string_view::npos) {
    out.push_back(kTo[at]);
    return true;
  }
  return c == 'u' && take_unicode(rest, out);
}

}  // namespace

std::optional<std::string> decode_string(std::string_view quoted) {
  if (quoted.size() < 2 || quoted.front() != '"' || quoted.back() != '"') return std::nullopt;
  std::string_view rest = quoted.substr(1, quoted.size() - 2);
  std::string out;
  while (true) {
    const auto slash = std::min(rest.find('\\'), rest.size());
    out.append(rest.substr(0, slash));
    rest.remove_prefix(slash);
    if (rest.empty()) return out;
    rest.remove_prefix(1);
    if (!take_escape(rest, out)) return std::nullopt;
  }
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
  return out;
}

// Walks the structure of one object, or of one array.
class BodyReader {
 public:
  BodyReader(JsonBody& body, std::string_view text) : body_(body), text_(text) {}
  explicit BodyReader(JsonBody& body) : BodyReader(body, body.text_) {}

  Status read_elements(std::vector<std::string_view>& out) {
    skip_space();
    if (peek() != '[') return bad("expected an array");
    ++at_;
    skip_space();
    while (peek() != ']' || !out.empty()) {
      const std::size_t begin = at_;
      TRY_STATUS(skip_value());
      out.push_back(text_.substr(begin, at_ - begin));
      skip_space();
      if (peek() == ']') break;
      if (peek() != ',') return bad("expected a comma or the end of the array");
      ++at_;
      skip_space();
    }
    ++at_;
    skip_space();
    if (at_ != text_.size()) return bad("nothing may follow the array");
    return {};
  }

  Status read() {
    skip_space();
    if (peek() != '{') return bad("the body must be a JSON object");
    ++at_;
    body_.end_ = at_;
    skip_space();
    if (peek() != '}') TRY_STATUS(read_members());
    ++at_;
    skip_space();
    if (at_ != text_.size()) return bad("nothing may follow the object");
    return {};
  }

 private:
  // '\0' at the end; a NUL in the text is bad everywhere.
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_]))
      ++at_;
  }
  std::unexpected<Error> bad(std::string_view why) const {
    return std::unexpected(Error{ErrorCode::kInvalidArgument,
                                 fmt::format("the body is not valid JSON at byte {}: {}", at_, why),
                                 {},
                                 "invalid_json"});
  }

  Status read_members() {
    std::size_t open = npos;  // of found_: the member whose next_begin is not known
    while (true) {
      const std::size_t begin = at_;
      if (open != npos) body_.found_[std::exchange(open, npos)].next_begin = begin;
      TRY_STATUS(skip_string("a key in quotes"));
      const std::string_view key = text_.substr(begin, at_ - begin);
      skip_space();
      if (peek() != ':') return bad("expected a colon after the key");
      ++at_;
      skip_space();
      const std::size_t value_begin = at_;
      TRY_STATUS(skip_value());
      TRY(const std::size_t name, controlled(key));
      if (name != npos) {
        open = body_.found_.size();
        body_.found_.push_back({name, body_.members_, begin, body_.end_, value_begin, at_, at_});
      }
      ++body_.members_;
      body_.end_ = at_;
      skip_space();
      if (peek() == '}') return {};
      if (peek() != ',') return bad("expected a comma or the end of the object");
      ++at_;
      skip_space();
    }
  }

  // Which controlled name the key spells, npos when none.
  Result<std::size_t> controlled(std::string_view key) {
    const std::string_view raw = key.substr(1, key.size() - 2);
    std::optional<std::string> decoded;
    if (raw.find('\\') != std::string_view::npos) {
      decoded = decode_string(key);
      if (!decoded) return bad("a key holds an escape that JSON does not have");
    }
    const std::string_view name = decoded ? std::string_view(*decoded) : raw;
    const auto it = std::ranges::find(body_.controlled_, name);
    if (it == body_.controlled_.end()) return npos;
    if (body_.find(name) != nullptr) {
      return std::unexpected(Error{ErrorCode::kInvalidArgument,
                                   fmt::format("the key \"{}\" stands twice in the body", name),
                                   std::string(name), "duplicate_key"});
    }
    return static_cast<std::size_t>(it - body_.controlled_.begin());
  }

  Status skip_string(std::string_view expected) {
    if (peek() != '"') return bad(fmt::format("expected {}", expected));
    const std::size_t begin = at_++;
    while (true) {
      const void* found = std::memchr(text_.data() + at_, '"', text_.size() - at_);
      if (found == nullptr) {
        at_ = begin;
        return bad("the string that begins here has no end");
      }
      const auto quote = static_cast<std::size_t>(static_cast<const char*>(found) - text_.data());
      std::size_t slashes = 0;
      while (text_[quote - 1 - slashes] == '\\')
        ++slashes;  // ends at the opening quote at the latest
      at_ = quote + 1;
      if (slashes % 2 == 0) return {};
    }
  }

  Status skip_word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_word(text_[at_]))
      ++at_;
    if (at_ == begin) return bad("expected a value");
    return {};
  }

  // A scalar, or a container with all that is in it.
  Status skip_value() {
    std::string open;  // the closing brackets that are due
    while (true) {
      // Here a value begins.
      const char c = peek();
      if (c == '{' || c == '[') {
        if (open.size() == JsonBody::kDepthMax) return bad("containers are nested too deeply");
        open.push_back(c == '{' ? '}' : ']');
        ++at_;
        skip_space();
        if (peek() == open.back()) {
          TRY(const bool done, close(open));
          if (done) return {};
        } else if (open.back() == '}') {
          TRY_STATUS(skip_key());
          continue;
        } else {
          continue;
        }
      } else {
        TRY_STATUS(c == '"' ? skip_string("a value") : skip_word());
        if (open.empty()) return {};
        TRY(const bool done, close(open));
        if (done) return {};
      }
    }
  }

  // After a value or at the end of an empty container: closes what ends here, then steps over the
  // comma to the next value. True when the outermost container has closed.
  Result<bool> close(std::string& open) {
    while (true) {
      skip_space();
      const char c = peek();
      if (c == open.back()) {
        ++at_;
        open.pop_back();
        if (open.empty()) return true;
        continue;
      }
      if (c != ',') return bad("expected a comma or the end of the container");
      ++at_;
      skip_space();
      if (open.back() == '}') TRY_STATUS(skip_key());
      return false;
    }
  }

  Status skip_key() {
    TRY_STATUS(skip_string("a key in quotes"));
    skip_space();
    if (peek() != ':') return bad("expected a colon after the key");
    ++at_;
    skip_space();
    return {};
  }

  static constexpr std::size_t npos = std::string_view::npos;
  JsonBody& body_;
  std::string_view text_;
  std::size_t at_ = 0;
};

Result<JsonBody> JsonBody::read(std::string_view text,
                                std::span<const std::string_view> controlled) {
  JsonBody body;
  body.text_ = text;
  body.controlled_ = controlled;
  TRY_STATUS(BodyReader(body).read());
  return body;
}

std::optional<std::vector<std::string_view>> read_array(std::string_view json) {
  JsonBody none;
  std::vector<std::string_view> out;
  if (!BodyReader(none, json).read_elements(out)) return std::nullopt;
  return out;
}

const JsonBody::Member* JsonBody::find(std::string_view key) const {
  const auto it =
      std::ranges::find(found_, key, [&](const Member& m) { return controlled_[m.name]; });
  return it == found_.end() ? nullptr : &*it;
}

std::optional<std::string_view> JsonBody::value(std::string_view key) const {
  const Member* member = find(key);
  if (member == nullptr) return std::nullopt;
  return text_.substr(member->value_begin, member->value_end - member->value_begin);
}

std::optional<std::string> JsonBody::string(std::string_view key) const {
  const auto json = value(key);
  return json ? decode_string(*json) : std::nullopt;
}

EditedBody JsonBody::edit(std::span<const Edit> edits) const {
  struct Splice {
    std::size_t begin;
    std::size_t end;
    std::string_view json;
  };
  std::vector<Splice> splices;
  std::size_t gone = 0;
  for (const Member& member : found_) {
    const auto edit = std::ranges::find(edits, controlled_[member.name], &Edit::key);
    if (edit == edits.end()) continue;
    if (edit->json) {
      splices.push_back({member.value_begin, member.value_end, *edit->json});
    } else {
      // With its comma: the one before it, or the one behind when nothing that stays is before.
      const bool first = member.index == gone++;
      splices.push_back(first ? Splice{member.begin, member.next_begin, {}}
                              : Splice{member.before, member.value_end, {}});
    }
  }
  std::string added;
  bool comma = members_ > gone;
  for (const Edit& edit : edits) {
    ENSURE(std::ranges::find(controlled_, edit.key) != controlled_.end());
    if (!edit.json || has(edit.key)) continue;
    added += std::exchange(comma, true) ? "," : "";
    added += quoted(edit.key);
    added.append(":").append(*edit.json);
  }
  if (!added.empty()) splices.push_back({end_, end_, added});

  // What is added is in one string, which must not move while it is put together.
  std::size_t new_bytes = 0;
  for (const Splice& splice : splices)
    new_bytes += splice.json.size();
  EditedBody out;
  out.added = std::make_unique<std::string>();
  out.added->reserve(new_bytes);
  const auto put = [&](std::string_view piece) {
    if (!piece.empty()) out.pieces.push_back(piece);
    out.size += piece.size();
  };
  std::size_t at = 0;
  for (const Splice& splice : splices) {
    // The end of the last member may lie in what has gone with it.
    const std::size_t begin = std::max(at, splice.begin);
    put(text_.substr(at, begin - at));
    const std::size_t from = out.added->size();
    out.added->append(splice.json);
    put(std::string_view(*out.added).substr(from));
    at = std::max(at, splice.end);
  }
  put(text_.substr(at));
  return out;
}

std::string JsonBody::edited(std::span<const Edit> edits) const {
  return edit(edits).text();
}

std::string EditedBody::text() const {
  std::string out;
  out.reserve(size);
  for (const std::string_view piece : pieces)
    out += piece;
  return out;
}

}  // namespace penstock::dialects
