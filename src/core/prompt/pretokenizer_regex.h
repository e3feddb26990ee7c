// Regular expressions of tokenizer files, run by PCRE2 with the meaning they have in the reference.
//
// The reference runs Oniguruma in its Ruby dialect with its own Unicode version. translate()
// rewrites the classes that mean something else in PCRE2 (\s, \d, \v, \p{...}) into explicit ones
// and refuses what it can't carry over (anchors, \b, \w, \h, nested classes, {n}+ and the like),
// so a pattern either means the same or is an error at load time.
//
// Invariants: matches come left to right, do not overlap, and an empty one never touches the end of
// the match before it.
// Errors: compile kInvalidArgument (with the offset) or kUnsupported; next kUnsupported when a
// limit of PCRE2 is hit.
// Concurrency: a Regex is immutable; a RegexScratch belongs to one thread at a time.
// Source: pcre2api(3), pcre2jit(3); Oniguruma's doc/RE.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace penstock {

// Match data and JIT stack for any Regex.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

struct Match {
  std::size_t begin = 0;
  std::size_t end = 0;
};

class Regex {
 public:
  // Compiles a pattern of the reference's dialect.
  static Result<Regex> compile(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Returns the next match at or after `from` in well-formed text; `previous_end` is where the
  // match before ended, npos when there was none.
  Result<std::optional<Match>> next(std::string_view text, std::size_t from,
                                    std::size_t previous_end, RegexScratch& scratch) const;

 private:
  struct State;
  explicit Regex(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Returns the PCRE2 pattern that means what `pattern` means in the reference's dialect.
Result<std::string> translate_regex(std::string_view pattern);

}  // namespace penstock
