// JsonDocument::parse(): the one pass over the text.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <deque>

#include "base/hex.h"
#include "base/json_run.h"
#include "core/protocol/json_document.h"
#include "core/protocol/json_text.h"
#include "core/protocol/json_writer.h"

namespace penstock::protocol {
namespace {

constexpr std::size_t kPairwiseKeys = 8;  // objects this small compare their keys pair by pair
constexpr std::size_t kQuotedKeyBytes = 64;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// True when a checked number is too large for a double, told from one that is too small.
bool overflows(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc::result_out_of_range) return false;
  const auto e = std::min(text.find_first_of("eE"), text.size());
  const auto mantissa = text.substr(0, e);
  const auto first = mantissa.find_first_of("123456789");
  const auto point = std::min(mantissa.find('.'), mantissa.size());
  const bool negative_exponent = e + 1 < text.size() && text[e + 1] == '-';
  auto digits = text.substr(std::min(e + 1, text.size()));
  while (!digits.empty() && (digits.front() == '+' || digits.front() == '-'))
    digits.remove_prefix(1);
  std::int64_t exponent = 0;
  if (std::from_chars(digits.data(), digits.data() + digits.size(), exponent).ec ==
      std::errc::result_out_of_range) {
    exponent = std::int64_t{1} << 60;
  }
  const auto place = static_cast<std::int64_t>(point) - static_cast<std::int64_t>(first);
  return place + (negative_exponent ? -exponent : exponent) > 0;
}

}  // namespace

// Recursive descent, one frame a level; the depth limit bounds the stack.
class JsonScanner {
 public:
  JsonScanner(JsonDocument& document, const JsonLimits& limits)
      : document_(document), text_(document.text_), limits_(limits) {}

  Status scan() {
    skip_space();
    if (at_end()) return syntax("the body is empty, a JSON object is needed");
    TRY_STATUS(value(0));
    skip_space();
    if (!at_end()) return syntax("unexpected text after the end of the JSON value");
    return {};
  }

 private:
  using Node = JsonDocument::Node;

  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  void skip_space() {
    while (!at_end() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
      ++at_;
    }
  }

  std::unexpected<Error> wrong(std::string_view code, std::size_t offset, std::string_view what,
                               std::string field = {}) const {
    Error error{ErrorCode::kInvalidArgument,
                fmt::format("invalid JSON at byte {}: {}", offset, what), std::move(field),
                std::string(code)};
    return std::unexpected(std::move(error));
  }
  std::unexpected<Error> syntax(std::string_view what) const {
    return wrong("invalid_json", at_, what);
  }
  std::string path_of(std::uint32_t node) const {
    return JsonRef(&document_, node, kOpenNode).path();
  }

  Result<std::uint32_t> open_node(JsonKind kind) {
    if (document_.nodes_.size() >= limits_.values_max) {
      return wrong("invalid_json", at_, fmt::format("more than {} values", limits_.values_max));
    }
    document_.nodes_.push_back(
        {kind, false, static_cast<std::uint32_t>(at_), kOpenNode, kOpenNode});
    return static_cast<std::uint32_t>(document_.nodes_.size() - 1);
  }
  void close_node(std::uint32_t index) {
    Node& node = document_.nodes_[index];
    node.end = static_cast<std::uint32_t>(at_);
    node.next = static_cast<std::uint32_t>(document_.nodes_.size());
  }

  Status value(std::uint32_t depth) {
    switch (peek()) {
      case '{':
        return object(depth + 1);
      case '[':
        return array(depth + 1);
      case '"': {
        TRY_STATUS(string());
        return {};
      }
      case 't':
        return word("true", JsonKind::kTrue);
      case 'f':
        return word("false", JsonKind::kFalse);
      case 'n':
        return word("null", JsonKind::kNull);
      default:
        break;
    }
    if (peek() == '-' || is_digit(peek())) return number();
    return syntax(at_end() ? "the text ends where a value is needed" : "a value is needed here");
  }

  Status word(std::string_view expected, JsonKind kind) {
    if (text_.substr(at_, expected.size()) != expected) return syntax("a value is needed here");
    TRY(const auto node, open_node(kind));
    at_ += expected.size();
    close_node(node);
    return {};
  }

  std::size_t digits() {
    const auto begin = at_;
    while (is_digit(peek()))
      ++at_;
    return at_ - begin;
  }

  Status number() {
    TRY(const auto node, open_node(JsonKind::kNumber));
    const auto begin = at_;
    if (peek() == '-') ++at_;
    const bool zero = peek() == '0';
    const auto whole = digits();
    if (whole == 0 || (zero && whole > 1)) return syntax("malformed number");
    bool plain = whole < 300;
    if (peek() == '.') {
      ++at_;
      if (digits() == 0) return syntax("malformed number");
    }
    if (peek() == 'e' || peek() == 'E') {
      plain = false;
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      if (digits() == 0) return syntax("malformed number");
    }
    close_node(node);
    if (!plain && overflows(text_.substr(begin, at_ - begin))) {
      return wrong("invalid_value", begin, "the number is too large", path_of(node));
    }
    return {};
  }

  // Four hex digits at `offset`, or -1.
  int code_unit(std::size_t offset) const {
    if (offset + 4 > text_.size()) return -1;
    int unit = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const int digit = hex_value(text_[offset + i]);
      if (digit < 0) return -1;
      unit = unit * 16 + digit;
    }
    return unit;
  }

  Status escape(std::uint32_t node) {
    const auto begin = at_;
    ++at_;
    if (simple_escape(peek()) != 0) {
      ++at_;
      return {};
    }
    const int unit = peek() == 'u' ? code_unit(at_ + 1) : -1;
    if (unit < 0) return syntax("malformed escape in a string");
    at_ += 5;
    if (unit < 0xD800 || unit > 0xDFFF) return {};
    const bool pair = unit < 0xDC00 && text_.substr(at_, 2) == "\\u" &&
                      code_unit(at_ + 2) >= 0xDC00 && code_unit(at_ + 2) <= 0xDFFF;
    if (!pair) {
      return wrong("invalid_json", begin, "a lone surrogate is not a character", path_of(node));
    }
    at_ += 6;
    return {};
  }

  Result<std::uint32_t> string() {
    TRY(const auto node, open_node(JsonKind::kString));
    ++at_;
    bool escaped = false;
    while (true) {
      at_ = json_run_end(text_, at_);
      if (at_end()) return syntax("the text ends inside a string");
      if (text_[at_] == '"') break;
      if (text_[at_] != '\\') return syntax("a control character in a string must be escaped");
      escaped = true;
      // Code in a body has an escape every twenty bytes, so the usual ones take no call.
      if (at_ + 1 < text_.size() && simple_escape(text_[at_ + 1]) != 0) {
        at_ += 2;
        continue;
      }
      TRY_STATUS(escape(node));
    }
    ++at_;
    close_node(node);
    document_.nodes_[node].escaped = escaped;
    return node;
  }

  Status enter(std::uint32_t depth, std::uint32_t node) {
    if (depth > limits_.depth_max) {
      return wrong("invalid_json", at_,
                   fmt::format("nested deeper than {} levels", limits_.depth_max), path_of(node));
    }
    ++at_;
    skip_space();
    return {};
  }

  Status array(std::uint32_t depth) {
    TRY(const auto node, open_node(JsonKind::kArray));
    TRY_STATUS(enter(depth, node));
    if (peek() != ']') {
      while (true) {
        TRY_STATUS(value(depth));
        skip_space();
        if (peek() == ']') break;
        if (peek() != ',') return syntax("a comma or ] is needed here");
        ++at_;
        skip_space();
      }
    }
    ++at_;
    close_node(node);
    return {};
  }

  Status object(std::uint32_t depth) {
    TRY(const auto node, open_node(JsonKind::kObject));
    TRY_STATUS(enter(depth, node));
    const auto first_key = keys_.size();
    if (peek() != '}') {
      while (true) {
        if (peek() != '"') return syntax("a key in quotes is needed here");
        TRY(const auto key, string());
        keys_.push_back(key);
        skip_space();
        if (peek() != ':') return syntax("a colon is needed here");
        ++at_;
        skip_space();
        TRY_STATUS(value(depth));
        skip_space();
        if (peek() == '}') break;
        if (peek() != ',') return syntax("a comma or } is needed here");
        ++at_;
        skip_space();
      }
    }
    ++at_;
    close_node(node);
    const auto duplicate = find_duplicate(first_key);
    keys_.resize(first_key);
    if (duplicate == kOpenNode) return {};
    const auto offset = document_.nodes_[duplicate].begin;
    return wrong("duplicate_key", offset,
                 fmt::format("the key {} stands here twice",
                             text_.substr(offset, std::min<std::size_t>(
                                                      kQuotedKeyBytes,
                                                      document_.nodes_[duplicate].end - offset))),
                 path_of(duplicate));
  }

  std::string_view inside(std::uint32_t node) const {
    const Node& n = document_.nodes_[node];
    return text_.substr(n.begin + 1, n.end - n.begin - 2);
  }

  bool same_key(std::uint32_t a, std::uint32_t b) const {
    const auto& nodes = document_.nodes_;
    if (!nodes[a].escaped && !nodes[b].escaped) return inside(a) == inside(b);
    return decode_json_text(inside(a)) == decode_json_text(inside(b));
  }

  // The first key of keys_[first..] that repeats an earlier one, or kOpenNode.
  std::uint32_t find_duplicate(std::size_t first) const {
    const auto count = keys_.size() - first;
    if (count > kPairwiseKeys) return find_duplicate_sorted(first);
    for (std::size_t i = first + 1; i < keys_.size(); ++i) {
      for (std::size_t j = first; j < i; ++j) {
        if (same_key(keys_[i], keys_[j])) return keys_[i];
      }
    }
    return kOpenNode;
  }

  std::uint32_t find_duplicate_sorted(std::size_t first) const {
    std::deque<std::string> decoded;  // keys with escapes; addresses stay
    std::vector<std::pair<std::string_view, std::uint32_t>> keys;
    keys.reserve(keys_.size() - first);
    for (std::size_t i = first; i < keys_.size(); ++i) {
      auto key = inside(keys_[i]);
      if (document_.nodes_[keys_[i]].escaped) key = decoded.emplace_back(decode_json_text(key));
      keys.emplace_back(key, keys_[i]);
    }
    std::ranges::sort(keys);
    std::uint32_t found = kOpenNode;
    for (std::size_t i = 1; i < keys.size(); ++i) {
      if (keys[i].first == keys[i - 1].first) found = std::min(found, keys[i].second);
    }
    return found;
  }

  JsonDocument& document_;
  std::string_view text_;
  const JsonLimits& limits_;
  std::size_t at_ = 0;
  std::vector<std::uint32_t> keys_;  // of the objects that are open
};

Result<JsonDocument> JsonDocument::parse(std::string_view text, const JsonLimits& limits) {
  if (text.size() >= kOpenNode) {
    return fail(ErrorCode::kPayloadTooLarge, "the JSON text is larger than 4 GiB");
  }
  if (const auto bad = find_invalid_utf8(text); bad != std::string_view::npos) {
    return std::unexpected(Error{ErrorCode::kInvalidArgument,
                                 fmt::format("the body is not valid UTF-8 at byte {}", bad),
                                 {},
                                 "invalid_json"});
  }
  JsonDocument document;
  document.text_ = text;
  document.nodes_.reserve(std::min<std::size_t>(text.size() / 16 + 1, limits.values_max));
  TRY_STATUS(JsonScanner(document, limits).scan());
  return document;
}

}  // namespace penstock::protocol
