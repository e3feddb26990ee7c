// place(): which ranks run a request, and why.
//
// Ranks of prefill workers compute prompts, ranks of decode workers go on after them; a mixed rank,
// and any decode rank, can do both. With prefill and decode ranks whose KV is the same, a request
// gets a pair, unless computing its prompt on the decode rank is short (local_prefill_max) and
// predicted to be done before queue, prefill and transfer would be: mostly long hits with a short
// tail. Without a rank of one kind the others do its work: slower for everyone, but nothing stops.
// Among equals: the least predicted waiting for prefill, the fewest requests for decode, the least
// KV, the lowest id. The balancers replace these choices behind this function.
//
// Units: seconds from measured prefill costs (EngineLoad::prefill); a rank that has not measured
// yet counts kUnknownTokenSeconds a token. Errors: kUnavailable when no worker can take the
// request, with the reason. Concurrency: pure, of the views and the ledger. Source: design.md
// sections 5 and 7.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "port/engine_client.h"
#include "service/gateway/rank_ledger.h"

namespace penstock::gateway {

struct PlacementLimits {
  // A prompt is computed on the decode rank only if that holds its streams up no longer than this.
  Duration local_prefill_max = std::chrono::milliseconds(20);
  double bandwidth_near = 2e9;  // bytes a second of a transfer within a zone
  double bandwidth_far = 0.5e9;
  Duration handoff_base = std::chrono::microseconds(1500);  // after the prompt's last token
  bool disaggregate = true;  // false: one rank does all, whatever its role
};

struct PlacementRequest {
  std::string_view model;
  std::uint32_t tokens = 0;  // to be held before the first new one: prompt and emitted
  std::uint32_t cached = 0;  // of them, expected from the KV cache
};

struct Placement {
  std::optional<RankId> prefill;  // none: the whole request runs on `decode`
  RankId decode;
  // Of the prefill worker.
  std::string transport;
  Epoch epoch;
  ModelDescription model;
  std::uint32_t fresh = 0;  // tokens to compute
  std::string reason;  // "prefill-0 computes 2000 tokens (14 ms after 3 ms) for decode-0 (...)"
};

// The context length of the model on the first worker known to serve it; nullopt for none.
std::optional<std::uint32_t> context_length(std::span<const WorkerView> workers,
                                            std::string_view model);

// Whether somebody could take a request for the model now.
bool is_served(std::span<const WorkerView> workers, std::string_view model);

Result<Placement> place(std::span<const WorkerView> workers, const RankLedger& ledger,
                        const PlacementRequest& request, const PlacementLimits& limits);

}  // namespace penstock::gateway
