// The arguments of one call, bound to the names of its parameters.
// Errors: Failure for an argument too many, unknown, or of the wrong type. Concurrency: pure.
#pragma once

#include <fmt/format.h>
#include <array>
#include <string>
#include <string_view>

#include "base/result.h"
#include "core/prompt/jinja/builtins.h"

namespace penstock::jinja {

// Names of parameters in order; empty ones are not there.
using Parameters = std::array<std::string_view, 4>;

struct CallInput {
  std::string_view name;  // of what is called
  const Value& subject;
  std::array<const Value*, 4> arguments{};  // null: not given
  const CallArguments& all;
  Budget& budget;

  bool has(std::size_t i) const { return arguments[i] != nullptr; }
  bool flag(std::size_t i, bool fallback = false) const {
    return has(i) ? truthy(*arguments[i]) : fallback;
  }
  Fallible<std::int64_t> integer(std::size_t i, std::int64_t fallback) const {
    if (!has(i) || arguments[i]->is<None>()) return fallback;
    if (const auto* integer = arguments[i]->integer()) return *integer;
    return failure(
        fmt::format("{}: an integer is expected, not a {}", name, type_name(*arguments[i])));
  }
  Fallible<const Text*> text(std::size_t i) const {
    if (has(i) && arguments[i]->text() != nullptr) return arguments[i]->text();
    return failure(fmt::format("{}: a string is expected, not {}", name,
                               has(i) ? type_name(*arguments[i]) : "nothing"));
  }
  // The subject as text, whatever it is.
  Fallible<Text> printed_subject() const {
    TRY_STATUS(charge(budget, weight_of(subject)));
    return printed(subject);
  }
};

// Binds; `parameters` of which the first is "*" takes anything.
inline Fallible<void> bind(const Parameters& parameters, CallInput& input) {
  if (parameters[0] == "*") return {};
  std::size_t count = 0;
  while (count < parameters.size() && !parameters[count].empty())
    ++count;
  const auto& given = input.all;
  if (given.positional.size() > count) {
    return failure(fmt::format("{} takes at most {} arguments", input.name, count));
  }
  for (std::size_t i = 0; i < given.positional.size(); ++i)
    input.arguments[i] = &given.positional[i];
  for (const auto& [name, value] : given.keyword) {
    std::size_t i = 0;
    while (i < count && parameters[i] != name)
      ++i;
    if (i == count) return failure(fmt::format("{} has no argument '{}'", input.name, name));
    input.arguments[i] = &value;
  }
  return {};
}

// What strings' methods and filters share.
Fallible<Text> replaced(const Text& text, const Text& from, const Text& to, std::int64_t count,
                        Budget& budget);
Text capitalized(const Text& text);
Fallible<Text> joined(const std::vector<Value>& items, const Text& separator, Budget& budget);
// Lines without their ends.
std::vector<Text> lines_of(const Text& text);

}  // namespace penstock::jinja
