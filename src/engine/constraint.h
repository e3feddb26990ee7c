// TokenConstraint: what restricts the tokens of one choice, as the sampler sees it.
//
// The engine knows no grammars. It asks a Constraints, given by whoever put it together, for a
// TokenConstraint per choice, tells it each token that was taken, and before each draw asks which
// may come. Both are functions of the tokens alone, so a continued or migrated stream gets the same
// answers.
//
// Errors: start() refuses with the reason, for the client. Concurrency: one call at a time, by the
// engine's thread or, while that computes a forward pass, by one of its compute threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "domain/constraint.h"

namespace penstock::engine {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // False when the token wasn't allowed.
  virtual bool take(TokenId token) = 0;
  // Sets one bit per token that may come next, [vocab / 64 rounded up]; true when the answer may
  // end here, too. Never neither.
  virtual bool allow(std::span<std::uint64_t> allowed) = 0;
};

class Constraints {
 public:
  virtual ~Constraints() = default;
  // Precondition: there is a constraint. Cheap for one that was started before.
  virtual Result<std::unique_ptr<TokenConstraint>> start(const Constraint& constraint) = 0;
};

}  // namespace penstock::engine
