// The public EPLB algorithm, slot for slot: what our search is compared with.
//
// Groups are packed onto nodes, the hottest expert per copy gets the next copy, and copies are
// packed onto GPUs, heaviest first into the lightest GPU with room (first on ties). When groups do
// not divide over nodes the same is done with one group and one node. Arithmetic is single
// precision like the original's, since ties decide.
//
// Errors: kInvalidArgument for a bad shape or a wrong number of loads.
// Concurrency: pure. Source: github.com/deepseek-ai/EPLB at d52c72d, its published algorithm.
#pragma once

#include <span>

#include "core/experts/placement.h"

namespace penstock::experts {

Result<Placement> plan_baseline(const Shape& shape, std::span<const double> loads);

}  // namespace penstock::experts
