// Traffic over the copies of an expert in unequal shares, and the floors of both kinds of split.
//
// With equal shares a hot expert's copies all weigh the same, whatever else their GPUs hold. With
// shares, each expert's load is poured over its GPUs like water until their levels are even; done
// round and round over all experts this converges to the least possible peak for the placement (a
// convex problem, solved by blocks). plan_weighted() also chooses counts for it: as many copies as
// a target peak needs, for a ladder of targets.
//
// The floors hold for every placement. Weighted: every expert needs at least load/T copies, and
// there are only so many slots; with two slots per GPU also: a slot above T less the least load has
// a neighbour that carries less than any whole expert does, so copies that carry next to nothing
// must be as numerous as those slots (a Lagrange bound over experts). Equal: for each threshold h <
// T/2, a copy above T - h needs all its neighbours at most h, so copies that light must be numerous
// enough; the best trade of copies for that is a small knapsack over experts. (For two slots per
// GPU this is nearly exact.)
//
// Units: loads as in placement.h; a floor is a load of the worst GPU. Errors: as check_loads().
// Concurrency: pure.
#pragma once

#include <span>
#include <vector>

#include "core/experts/search.h"

namespace penstock::experts {

struct WeightedSplit {
  std::vector<double> shares;  // of each slot, of its expert's load; they add up to 1 per expert
  std::vector<double> gpus;    // load of each GPU
};

// The shares with the least peak for this placement. Precondition: the placement is complete.
WeightedSplit split(const Shape& shape, const Placement& placement, std::span<const double> loads);

struct WeightedPlan {
  Placement placement;
  WeightedSplit split;
};
Result<WeightedPlan> plan_weighted(const Shape& shape, std::span<const double> loads);

// No placement can have a worst GPU below this. For hierarchical shapes: of the shape without
// nodes, which is a floor too. Preconditions: check_loads().
double weighted_floor(const Shape& shape, std::span<const double> loads);
double equal_floor(const Shape& shape, std::span<const double> loads);

}  // namespace penstock::experts
