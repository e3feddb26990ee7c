// Truncation: which messages of a conversation go first when it doesn't fit a model's context.
//
// The oldest turns go first, each from a user's message up to the next; then, of the last turn, its
// oldest answers with the results of their calls. System and developer messages stay, and the last
// user's message, and what follows the last answer's beginning.
//
// Invariants: a call and its results stay or go together; what is left begins with a user's message
// if there is one. Concurrency: pure.
#pragma once

#include <cstddef>
#include <vector>

#include "domain/conversation.h"

namespace penstock::gateway {

class Truncation {
 public:
  // `conversation` outlives it.
  explicit Truncation(const Conversation& conversation);

  std::size_t steps() const { return dropped_.size() - 1; }
  // How many messages the first `steps` drop.
  std::size_t dropped(std::size_t steps) const { return dropped_[steps].size(); }
  // The conversation without them. Precondition: at most steps().
  Conversation after(std::size_t steps) const;

 private:
  const Conversation& conversation_;
  std::vector<std::vector<std::size_t>> dropped_;  // [steps]: messages, in order
};

}  // namespace penstock::gateway
