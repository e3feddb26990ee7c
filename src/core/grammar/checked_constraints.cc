#include "core/grammar/checked_constraints.h"

#include "core/grammar/constraint.h"

namespace penstock::grammar {

// What lists and maps add to an entry, roughly.
constexpr std::size_t kEntryBytes = 192;

std::size_t CheckedConstraints::cost(const Entry& entry) {
  const std::size_t reason =
      entry.outcome ? 0 : entry.outcome.error().message.size() + entry.outcome.error().field.size();
  return kEntryBytes + entry.text.size() + reason;
}

Status CheckedConstraints::check(const Constraint& constraint) {
  if (const auto found = index_.find({constraint.kind, constraint.text}); found != index_.end()) {
    ++hits_;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->outcome;
  }
  ++misses_;
  Status outcome;
  if (auto grammar = compile(constraint); !grammar)
    outcome = std::unexpected(std::move(grammar).error());
  Entry entry{constraint.kind, constraint.text, outcome};
  const std::size_t bytes = cost(entry);
  if (bytes > bytes_max_ / 4) return outcome;
  entries_.push_front(std::move(entry));
  index_.emplace(Key{constraint.kind, entries_.front().text}, entries_.begin());
  bytes_ += bytes;
  while (bytes_ > bytes_max_) {
    const Entry& last = entries_.back();
    bytes_ -= cost(last);
    index_.erase({last.kind, last.text});
    entries_.pop_back();
  }
  return outcome;
}

}  // namespace penstock::grammar
