// CheckedConstraints: remembers which constraints compile, so that a schema which comes with every
// request is compiled once.
//
// The whole text is the key: nothing is taken for something else. What was asked for least recently
// goes first.
//
// Invariants: bytes() <= bytes_max; a text that would take more than a quarter of it isn't kept.
// Errors: as compile(). Concurrency: one thread. Source: docs/design/0011-structured-output.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "domain/constraint.h"

namespace penstock::grammar {

class CheckedConstraints {
 public:
  static constexpr std::size_t kBytesMax = std::size_t{8} << 20;

  CheckedConstraints() = default;
  explicit CheckedConstraints(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  // Whether it compiles, and if not, why. Precondition: there is a constraint.
  Status check(const Constraint& constraint);

  std::size_t bytes() const { return bytes_; }
  std::uint64_t hits() const { return hits_; }
  std::uint64_t misses() const { return misses_; }

 private:
  struct Entry {
    Constraint::Kind kind;
    std::string text;
    Status outcome;
  };
  using Key = std::pair<Constraint::Kind, std::string_view>;  // into an entry

  static std::size_t cost(const Entry& entry);

  std::size_t bytes_max_ = kBytesMax;
  std::size_t bytes_ = 0;
  std::uint64_t hits_ = 0;
  std::uint64_t misses_ = 0;
  std::list<Entry> entries_;  // what was asked for last is first
  std::map<Key, std::list<Entry>::iterator> index_;
};

}  // namespace penstock::grammar
