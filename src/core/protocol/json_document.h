// JsonDocument: a checked index over JSON text, without copying or rewriting any of it.
//
// One pass checks everything a client can get wrong (UTF-8, grammar, lone surrogates, depth,
// duplicate keys, numbers beyond a double, count of values) and records for each value where it
// begins and ends. Strings are decoded and numbers converted only when asked for, so a tool's
// schema keeps its key order and its number text: text() is the very bytes the client sent.
//
// Invariants: a JsonDocument exists only for valid text; nodes are in document order, and an
// object's node is followed by key, value, key, value. Memory is 16 bytes a value, values are
// limited. Units and shapes: offsets are bytes from the start of the text; texts are below 4 GiB.
// Errors: kInvalidArgument with code "invalid_json" or "duplicate_key", the byte offset in the
// message and, where it is known, the path of the value in `field`. Concurrency: immutable after
// parse(). JsonRef is a view: text and document must outlive it. Source: RFC 8259, RFC 3629;
// facts/api.md 3.1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace penstock::protocol {

enum class JsonKind : std::uint8_t { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };

// "a string", "an object", ... for messages.
std::string_view describe(JsonKind kind);

struct JsonLimits {
  std::uint32_t depth_max = 128;
  std::uint32_t values_max = 1'000'000;  // keys count as values
};

class JsonDocument;

// One value of a document.
class JsonRef {
 public:
  JsonRef() = default;

  explicit operator bool() const { return document_ != nullptr; }
  JsonKind kind() const;
  bool is_null() const { return kind() == JsonKind::kNull; }
  bool is_string() const { return kind() == JsonKind::kString; }
  bool is_object() const { return kind() == JsonKind::kObject; }
  bool is_array() const { return kind() == JsonKind::kArray; }
  bool is_number() const { return kind() == JsonKind::kNumber; }
  bool is_bool() const { return kind() == JsonKind::kTrue || kind() == JsonKind::kFalse; }

  // The bytes of the value as sent, quotes and braces included.
  std::string_view text() const;
  // The decoded text of a string. Precondition: is_string().
  std::string string() const;
  // True when the decoded string equals `expected`; allocates only for strings with escapes.
  bool equals(std::string_view expected) const;
  // The number as an integer: also 5.0 and 1e2; nullopt when it has a fraction or leaves int64.
  std::optional<std::int64_t> integer() const;
  // The number; finite. Precondition: is_number().
  double number() const;

  // The member of that name, or an empty ref. Linear in the number of members.
  JsonRef find(std::string_view key) const;
  // Walks arrays and objects: first child, and the sibling after this one (empty at the end). For
  // objects the children are key, value, key, value.
  JsonRef first_child() const;
  JsonRef next_sibling() const;
  // The value that is the whole document.
  JsonRef root() const;

  // "messages[2].content[0].type": where this value is. Linear in the document; for error messages.
  std::string path() const;

 private:
  friend class JsonDocument;
  friend class JsonScanner;
  JsonRef(const JsonDocument* document, std::uint32_t index, std::uint32_t end)
      : document_(document), index_(index), end_(end) {}

  const JsonDocument* document_ = nullptr;
  std::uint32_t index_ = 0;
  std::uint32_t end_ = 0;  // index after the last node of the enclosing container
};

class JsonDocument {
 public:
  // Checks and indexes `text`, which must outlive the document.
  static Result<JsonDocument> parse(std::string_view text, const JsonLimits& limits = {});

  JsonRef root() const;

 private:
  friend class JsonRef;
  friend class JsonScanner;
  struct Node {
    JsonKind kind = JsonKind::kNull;
    bool escaped = false;     // a string with backslashes
    std::uint32_t begin = 0;  // offset of the first byte
    std::uint32_t end = 0;    // offset after the last byte
    std::uint32_t next = 0;   // index of the node after this subtree
  };

  std::string_view text_;
  std::vector<Node> nodes_;
};

}  // namespace penstock::protocol
