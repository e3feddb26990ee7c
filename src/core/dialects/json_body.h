// JsonBody: the controlled members of a JSON object, found and edited in its own bytes.
//
// A body that passes through a gateway keeps what its sender wrote: key order, number text, unknown
// fields, white space, byte for byte. One pass over the structure finds the top-level members whose
// names are controlled; edited() sets, replaces or removes those at their position and copies all
// else. Only structure is checked (strings, brackets, commas, colons); whether a number or literal
// is spelled right is for the engine that reads the value.
//
// Invariants: a key is a key only where the grammar has one: nothing inside a string or a nested
// value is taken for it. Escaped spellings ("mod\u0065l") are the key they spell. A controlled
// name that stands twice is an error: two readers could take different values. Members that are not
// controlled may be anything, twice too.
// Errors: kInvalidArgument with code "invalid_json" and the byte offset, or "duplicate_key".
// Concurrency: a value. The text outlives it. Cost: one pass, memchr inside strings.
// Source: RFC 8259; issue 7, part 3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock::dialects {

// What becomes of one controlled member.
struct Edit {
  std::string_view key;
  std::optional<std::string> json;  // the new value as JSON text; nothing: the member goes
};

// A body with edits made, not copied: the pieces, one after the other, are its text.
struct EditedBody {
  std::vector<std::string_view> pieces;  // of the text that was read, and of `added`
  std::unique_ptr<std::string> added;    // stays where it is when this is moved
  std::size_t size = 0;

  std::string text() const;
};

class JsonBody {
 public:
  // Containers open at once; more is an error, not a crash of the engine behind.
  static constexpr std::size_t kDepthMax = 512;

  // `controlled` are names in ASCII; they outlive the body.
  static Result<JsonBody> read(std::string_view text, std::span<const std::string_view> controlled);

  bool has(std::string_view key) const { return find(key) != nullptr; }
  // The bytes of the value; nothing when the member is not there.
  std::optional<std::string_view> value(std::string_view key) const;
  // The text of a string value; nothing when it is absent or no string. Ill-formed escapes make it
  // nothing, too.
  std::optional<std::string> string(std::string_view key) const;
  // Exactly the literal true.
  bool is_true(std::string_view key) const { return value(key) == "true"; }

  // The text with the edits made; members that were not there come last, in the order given.
  // Precondition: every key was controlled and stands in `edits` once; values are JSON text.
  // The text that was read outlives the pieces.
  EditedBody edit(std::span<const Edit> edits) const;
  std::string edited(std::span<const Edit> edits) const;

 private:
  friend class BodyReader;
  struct Member {
    std::size_t name = 0;    // index into controlled_
    std::size_t index = 0;   // among all members
    std::size_t begin = 0;   // of the key's quote
    std::size_t before = 0;  // where the text before it ends: the last value, or the brace
    std::size_t value_begin = 0;
    std::size_t value_end = 0;
    std::size_t next_begin = 0;  // of the next key's quote; value_end for the last member
  };
  const Member* find(std::string_view key) const;

  std::string_view text_;
  std::span<const std::string_view> controlled_;
  std::vector<Member> found_;  // in document order
  std::size_t members_ = 0;
  std::size_t end_ = 0;  // where a new member goes
};

// The text of a JSON string with its quotes; nothing when it is none or an escape is ill-formed.
std::optional<std::string> decode_string(std::string_view quoted);

// The elements of a JSON array as they stand; nothing when the text is none.
std::optional<std::vector<std::string_view>> read_array(std::string_view json);

// `text` as a JSON string. Precondition: it is UTF-8.
std::string quoted(std::string_view text);

}  // namespace penstock::dialects
