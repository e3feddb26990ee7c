// EngineCosts: what work costs on each type of engine, as this shard has seen it.
//
// A type is an engine and a model ("embedded 0.1.0", "nano"). Its CostModels start from the profile
// given for the engine, else from about what the embedded engine needs on a laptop, and learn:
//
//   prefill   from prompts that had their rank to themselves: submitted until the first token
//   step      from the step counters in load frames: how long steps took that only decoded; those
//             of ranks that step together from all of their loads, and from how unevenly their
//             experts were loaded meanwhile (the profile's moe_lb, until they say so)
//   load      from prompts that had their rank to themselves and a hit in one tier: what their
//             first token took beyond the rest's computation
//
// A rank that reports its own prefill coefficients is predicted with these; the type's are for
// ranks that have not measured yet, for whom waits in the queue, and to be compared with reality.
//
// Invariants: at most kTypesMax types; further ones share the first seeds and learn nothing. Equal
// observations give equal models. Units: seconds, tokens. Errors: none; impossible observations
// are ignored. Concurrency: shard thread only. Source: design.md section 7; docs/design/0007.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/routing/cost_model.h"
#include "port/engine_client.h"
#include "service/gateway/expert_balance.h"
#include "service/gateway/rank_ledger.h"

namespace penstock::gateway {

// Seeds by the engine's name, its version left out: "embedded".
using EngineSeeds = std::map<std::string, routing::CostSeeds, std::less<>>;

class EngineCosts {
 public:
  static constexpr std::size_t kTypesMax = 64;

  EngineCosts() : EngineCosts(EngineSeeds{}) {}
  explicit EngineCosts(EngineSeeds seeds) : seeds_(std::move(seeds)) {}

  const routing::CostModels& of(std::string_view engine, std::string_view model);
  // How often some type's prefill coefficients have changed.
  std::uint64_t prefill_changes() const { return prefill_changes_; }

  // Looks at the loads; called often (some times a second), it learns what steps take.
  void watch(std::span<const WorkerView> workers);
  const ExpertBalance& experts() const { return experts_; }
  // What the decode steps of this worker's engine take times what its slowest rank would.
  double decode_moe(const WorkerDescription& worker, const routing::CostModels& costs) const;
  // A prompt that nothing else delayed.
  void prompt_computed(const WorkerView& worker, std::string_view model, Tokens fresh,
                       Duration took);
  // Likewise, with the KV of a hit from one tier; how long that took is what computing the rest is
  // not predicted to have taken.
  void prefix_loaded(const WorkerView& worker, std::string_view model, Tokens cached, KvTier tier,
                     Tokens fresh, Duration took);
  // An answer has come to its end.
  void answer_ended(std::uint64_t tokens);
  // Tokens that an answer is expected to have: as the last ones on average.
  std::uint32_t expected_answer(std::uint32_t tokens_max) const;

  struct Type {
    std::string engine;
    std::string model;
    routing::CostModels costs;
  };
  std::span<const Type> types() const { return types_; }

 private:
  void watch_group(std::span<const WorkerView> workers, const WorkerView& first);
  routing::CostModels* to_learn(std::string_view engine, std::string_view model);

  struct Seen {
    Epoch epoch;
    std::uint64_t step = 0;
    Instant at;
    std::uint32_t running = 0;
    bool decoding = false;
  };

  EngineSeeds seeds_;
  ExpertBalance experts_;
  std::vector<Type> types_;
  // The last look at ranks that step together.
  struct SeenGroup {
    std::uint64_t step = 0;  // of the first one
    Instant at;
    std::vector<Epoch> epochs;             // of its workers
    std::vector<routing::StepLoad> ranks;  // empty: some computed prompts, or none did anything
  };
  std::map<RankId, Seen> seen_;  // ranks that are connected and step by themselves
  std::map<std::string, SeenGroup, std::less<>> groups_;
  double answer_tokens_ = 256;
  std::uint64_t prefill_changes_ = 0;
};

}  // namespace penstock::gateway
