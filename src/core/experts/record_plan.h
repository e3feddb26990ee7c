// A placement from recorded loads, layer by layer, with what it is worth; and the files that
// engines take.
//
// The record's windows are joined into at most kWindowsMax + 1 equal parts: their mean is what to
// expect, and how they differ what may change (load_window.h). All figures are max/mean load of the
// GPUs over the whole record.
//
// Units and shapes: as placement.h. Errors: kInvalidArgument as check() and check_loads().
// Concurrency: pure. Source: docs/experts.md.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/experts/load_record.h"
#include "core/experts/placement.h"

namespace penstock::experts {

enum class PlanMethod : std::uint8_t {
  kSearch,    // ours
  kBaseline,  // the public EPLB
  kWeighted,  // ours with unequal shares of traffic
};

struct RecordedLayerPlan {
  Placement placement;
  std::vector<double> shares;  // of each slot, of its expert's load; kWeighted only
  double picks = 0;
  double in_order = 1;  // experts in order, spare slots filled by further rounds
  double baseline = 1;
  double planned = 1;
  double floor = 1;  // of the kind of split; no placement can be below
};

Result<RecordedLayerPlan> plan_recorded_layer(const LoadRecord& record, std::uint32_t layer,
                                              const Shape& shape, PlanMethod method);

// JSON: physical_to_logical_map [layers, slots], logical_to_physical_map [layers, experts, copies]
// padded with -1, logical_replica_count [layers, experts], and slot_shares when there are any.
std::string print_maps(const LoadRecord& record, const Shape& shape,
                       std::span<const RecordedLayerPlan> layers);
// The file of SGLang's --init-expert-location: physical_to_logical_map with a row for every layer
// of the model, those before the first with routed experts too. Start the engine with
// --ep-num-redundant-experts = slots - experts.
std::string print_sglang_location(const LoadRecord& record, const Shape& shape,
                                  std::span<const RecordedLayerPlan> layers);

}  // namespace penstock::experts
