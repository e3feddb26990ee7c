// A Constraint compiled: the one place that knows all notations.
//
// Errors: kInvalidArgument or kUnsupported with the reason, as the notation's header says.
// Concurrency: pure.
#pragma once

#include <memory>

#include "base/result.h"
#include "core/grammar/grammar.h"
#include "core/grammar/limits.h"
#include "domain/constraint.h"

namespace penstock::grammar {

// Precondition: constraint.kind isn't kNone.
Result<std::shared_ptr<const Grammar>> compile(const Constraint& constraint,
                                               const GrammarLimits& limits = {});

}  // namespace penstock::grammar
