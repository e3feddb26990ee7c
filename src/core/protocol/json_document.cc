#include "core/protocol/json_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/hex.h"
#include "base/json_run.h"
#include "base/utf8.h"
#include "core/protocol/json_text.h"

namespace penstock::protocol {
namespace {

constexpr std::size_t kPathKeyBytes = 64;

std::uint32_t hex4(std::string_view s) {
  std::uint32_t value = 0;
  for (const char c : s.substr(0, 4))
    value = value << 4U | static_cast<std::uint32_t>(hex_value(c));
  return value;
}

// Writes what the escape after the backslash at `i` stands for, and moves `i` behind it.
char* decode_escape(std::string_view raw, std::size_t& i, char* out) {
  const char one = simple_escape(raw[i + 1]);
  i += 2;
  if (one != 0) {
    *out = one;
    return out + 1;
  }
  std::uint32_t code = hex4(raw.substr(i));
  i += 4;
  if (code >= 0xD800 && code < 0xDC00) {
    code = 0x10000 + ((code - 0xD800) << 10U) + (hex4(raw.substr(i + 2)) - 0xDC00);
    i += 6;
  }
  return put_utf8(code, out);
}

// Decoded text is never ahead of `raw`: a step of it, of which a part may count, fits in as many
// bytes.
char* decode(std::string_view raw, char* out) {
  std::size_t i = 0;
  while (i < raw.size()) {
    if (i + kJsonRunStep <= raw.size()) {
      std::memcpy(out, raw.data() + i, kJsonRunStep);
      const std::uint32_t ends = json_run_ends(raw.data() + i);
      const auto plain =
          ends == 0 ? kJsonRunStep : static_cast<std::size_t>(std::countr_zero(ends));
      i += plain;
      out += plain;
      if (ends == 0) continue;
    }
    if (raw[i] == '\\') {
      out = decode_escape(raw, i, out);
    } else {
      *out++ = raw[i++];
    }
  }
  return out;
}

}  // namespace

std::string decode_json_text(std::string_view raw) {
  std::string out;
  out.resize_and_overwrite(raw.size(), [raw](char* text, std::size_t) {
    return static_cast<std::size_t>(decode(raw, text) - text);
  });
  return out;
}

std::string_view describe(JsonKind kind) {
  switch (kind) {
    case JsonKind::kNull:
      return "null";
    case JsonKind::kFalse:
    case JsonKind::kTrue:
      return "a boolean";
    case JsonKind::kNumber:
      return "a number";
    case JsonKind::kString:
      return "a string";
    case JsonKind::kArray:
      return "an array";
    case JsonKind::kObject:
      return "an object";
  }
  return "a value";
}

JsonRef JsonDocument::root() const {
  return {this, 0, static_cast<std::uint32_t>(nodes_.size())};
}

JsonKind JsonRef::kind() const {
  return document_->nodes_[index_].kind;
}

std::string_view JsonRef::text() const {
  const auto& node = document_->nodes_[index_];
  return document_->text_.substr(node.begin, node.end - node.begin);
}

std::string JsonRef::string() const {
  ENSURE(is_string());
  const auto inside = text().substr(1, text().size() - 2);
  return document_->nodes_[index_].escaped ? decode_json_text(inside) : std::string(inside);
}

bool JsonRef::equals(std::string_view expected) const {
  if (!is_string()) return false;
  if (document_->nodes_[index_].escaped) return string() == expected;
  return text().substr(1, text().size() - 2) == expected;
}

double JsonRef::number() const {
  ENSURE(is_number());
  const auto t = text();
  double value = 0;
  const auto error = std::from_chars(t.data(), t.data() + t.size(), value).ec;
  return error == std::errc() ? value : 0.0;  // too large was refused, so too small
}

std::optional<std::int64_t> JsonRef::integer() const {
  if (!is_number()) return std::nullopt;
  const auto t = text();
  std::int64_t whole = 0;
  const auto [end, error] = std::from_chars(t.data(), t.data() + t.size(), whole);
  if (end == t.data() + t.size()) {
    if (error != std::errc()) return std::nullopt;
    return whole;
  }
  const double value = number();
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (value != std::floor(value) || std::fabs(value) > kExact) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

JsonRef JsonRef::first_child() const {
  const auto& node = document_->nodes_[index_];
  if (index_ + 1 >= node.next) return {};
  return {document_, index_ + 1, node.next};
}

JsonRef JsonRef::next_sibling() const {
  const auto next = document_->nodes_[index_].next;
  if (next >= end_) return {};
  return {document_, next, end_};
}

JsonRef JsonRef::find(std::string_view key) const {
  if (!is_object()) return {};
  for (JsonRef member = first_child(); member;) {
    const JsonRef value = member.next_sibling();
    if (member.equals(key)) return value;
    member = value.next_sibling();
  }
  return {};
}

JsonRef JsonRef::root() const {
  return document_->root();
}

std::string JsonRef::path() const {
  std::string out;
  const auto& nodes = document_->nodes_;
  const auto append_key = [&](std::uint32_t key) {
    const auto& node = nodes[key];
    if (node.end == kOpenNode) return;  // the key itself is at fault
    auto text = document_->text_.substr(node.begin + 1, node.end - node.begin - 2);
    const auto decoded = node.escaped ? decode_json_text(text) : std::string(text);
    if (!out.empty()) out.push_back('.');
    std::size_t size = std::min(decoded.size(), kPathKeyBytes);
    while (size < decoded.size() && size > 0 && (decoded[size] & 0xC0) == 0x80)
      --size;
    out.append(decoded, 0, size);
  };
  std::uint32_t at = 0;
  while (at != index_) {
    std::uint32_t child = at + 1;
    if (nodes[at].kind == JsonKind::kArray) {
      std::size_t i = 0;
      for (; nodes[child].next <= index_; ++i)
        child = nodes[child].next;
      out += fmt::format("[{}]", i);
      at = child;
    } else {
      while (child != index_ && nodes[child + 1].next <= index_)
        child = nodes[child + 1].next;
      append_key(child);
      at = child == index_ ? child : child + 1;
    }
  }
  return out;
}

}  // namespace penstock::protocol
