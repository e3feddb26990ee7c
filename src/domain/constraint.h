// What an answer has to look like: a grammar in one of the notations that clients use.
//
// The text travels as the client wrote it; the engine that samples compiles it (core/grammar), so
// an engine that constrains itself gets it untouched. Invariants: `text` is empty for kNone and
// kJsonObject. Concurrency: values. Source: docs/design/0011-structured-output.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "domain/tokens.h"

namespace penstock {

struct Constraint {
  enum class Kind : std::uint8_t { kNone, kJsonObject, kJsonSchema, kRegex, kEbnf, kLark };
  Kind kind = Kind::kNone;
  std::string text = {};
  // The constrained part begins behind this token, and the answer doesn't end before it: reasoning
  // is free. None: it begins at once.
  std::optional<TokenId> after = {};

  explicit operator bool() const { return kind != Kind::kNone; }
  bool operator==(const Constraint&) const = default;
};

}  // namespace penstock
