// Template: a chat template in Jinja, as checkpoints carry it, parsed once and run per
// conversation.
//
// A subset of Jinja 3.1 as transformers sets it up (trim_blocks, lstrip_blocks, loop controls, the
// `generation` tag, raise_exception, strftime_now, a tojson that escapes nothing): statements if,
// for, set, macro, with, filter, break, continue, raw; expressions, filters, tests and methods of
// strings and dictionaries (builtins.h). A tree is walked; nothing of the outside can be reached.
//
// What a run makes remembers which of its text is the template's own and which came from values
// (text.h), so that only the first is searched for special tokens.
//
// Invariants: a run ends: it has a budget of steps, of text made, and of depth. The same values
// give the same text. Errors: Failure with the template's line and the reason; `refused` when the
// template itself raised it. Concurrency: immutable after parsing; every run has its own state.
// Source: the Jinja 3.1 documentation; transformers' documentation of chat templates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "core/prompt/jinja/ast.h"

namespace penstock::jinja {

struct Limits {
  // An expression or statement is a step; a conversation of 1000 messages takes some 100,000.
  std::size_t steps = 5'000'000;
  // Text and lists made on the way, kept or not.
  std::size_t bytes = std::size_t{256} << 20;
  std::size_t output_bytes = std::size_t{64} << 20;
};

class Template {
 public:
  static Fallible<std::shared_ptr<const Template>> parse(std::string_view source);

  // `now`: seconds since 1970 for strftime_now; without it the function isn't there.
  Fallible<Text> render(const Dict& variables, std::optional<std::int64_t> now,
                        const Limits& limits) const;
  Fallible<Text> render(const Dict& variables) const { return render(variables, {}, Limits()); }

 private:
  explicit Template(Body body) : body_(std::move(body)) {}
  Body body_;
};

}  // namespace penstock::jinja
