// Placer: which ranks run a request, and why.
//
// Ranks of prefill workers compute prompts, ranks of decode workers go on after them; a mixed rank,
// and any decode rank, can do both. With prefill and decode ranks whose KV is the same, a request
// gets a pair, unless computing its prompt on the decode rank is short (local_prefill_max) and
// predicted to be done before queue, prefill and transfer would be: mostly long hits with a short
// tail. Without a rank of one kind the others do its work: slower for everyone, but nothing stops.
//
// Which rank of a kind is asked of a policy (core/routing/policies.h), one for prefill and one for
// decode per model: the prefill and the decode balancer, or an alternative by name. The views that
// they decide on are kept (rank_table.h): only what has changed since the last decision is read,
// and what belongs to the request is filled in.
//
// The room for KV on decode ranks is respected while there is any; a request that must be placed
// all the same (has_room() said so, or a worker was lost) waits in its engine.
//
// Units: seconds, from prefill costs as the rank has measured them (EngineLoad::prefill), else from
// EngineCosts. Errors: kUnavailable when no worker can take the request, with the reason.
// Cost: O(ranks), a few nanoseconds each; memory is reused and bounded by ranks and models.
// Concurrency: shard thread only. Source: design.md sections 5 and 7; docs/routing.md.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/routing/policy.h"
#include "core/routing/prefill_balancer.h"
#include "port/engine_client.h"
#include "port/kv_index.h"
#include "service/gateway/engine_costs.h"
#include "service/gateway/explanation.h"
#include "service/gateway/rank_ledger.h"
#include "service/gateway/rank_table.h"

namespace penstock::gateway {

struct PlacementLimits {
  // A prompt is computed on the decode rank only if that holds its streams up no longer than this.
  Duration local_prefill_max = std::chrono::milliseconds(20);
  double bandwidth_near = 2e9;  // bytes a second of a transfer within a zone
  double bandwidth_far = 0.5e9;
  Duration handoff_base = std::chrono::microseconds(1500);  // after the prompt's last token
  bool disaggregate = true;  // false: one rank does all, whatever its role
  // A decode rank is not given more than its engine is predicted to do in steps of this time; 0: no
  // limit.
  Duration step_time_max{};
  // New requests wait in front while every rank that could compute them has this much to do: about
  // two steps, so that none runs dry and what comes next is decided late.
  Duration prefill_backlog = std::chrono::milliseconds(200);
};

struct PlacementRequest {
  std::string_view model;
  std::uint32_t tokens = 0;  // to be held before the first new one: prompt and emitted
  std::uint32_t cached = 0;  // of them, expected from the KV cache
  std::uint32_t output = 0;  // tokens expected of each choice
  std::uint32_t choices = 1;
  std::uint64_t session = 0;  // hash of what the client calls one; 0: nothing
  // Of `cached`: on disk, and held by other hosts. The rest is in host memory.
  std::uint32_t cached_on_disk = 0;
  std::uint32_t cached_remotely = 0;

  // The hit, each part counted where it is fastest to read.
  void set_cached(const KvIndexMatch& match);
};

struct Placement {
  std::optional<RankId> prefill;  // none: the whole request runs on `decode`
  RankId decode;
  // Of the prefill worker.
  std::string transport;
  Epoch epoch;
  ModelDescription model;
  std::uint32_t fresh = 0;  // tokens to compute
  std::string reason;       // "prefill-0 for decode-0: 2000 tokens in 14 ms, ..."
  // What it will hold on `decode`, and on `prefill` until that is done.
  std::uint64_t kv_tokens = 0;
  std::uint64_t prompt_kv_tokens = 0;
  Duration compute{};  // predicted, of the fresh tokens where they are computed
  Duration load{};     // predicted, of the cached tokens' KV to there
};

// What a decision is made from.
struct PlacementState {
  std::span<const WorkerView> workers;  // by id
  const RankLedger& ledger;
  EngineCosts& costs;
  const PlacementLimits& limits;
  Instant now;
  Rng& rng;  // for policies that draw
};

struct PolicyNames {
  std::string prefill = "prefill-balancer";
  std::string decode = "decode-balancer";
};

class Placer {
 public:
  Placer();  // with the balancers
  // kInvalidArgument, with the list, for a name that is unknown.
  static Result<Placer> make(const PolicyNames& names);

  Result<Placement> place(const PlacementState& state, const PlacementRequest& request);
  // The last place(), with the scores of the best candidates; before anything else is asked.
  PlacementExplanation explain();

  // Whether an engine has room for the request now, or there is none to wait for. Decides nothing.
  bool has_room(const PlacementState& state, const PlacementRequest& request);
  // What the request is predicted to take of the engines, in seconds.
  struct Work {
    double total = 0;
    double prompt = 0;       // what is not cached of it
    double cold_prompt = 0;  // all of it
    double ranks = 1;        // that compute such prompts
  };
  Work work(const PlacementState& state, const PlacementRequest& request);

 private:
  // A decision between the ranks of one kind.
  struct Asked {
    const routing::PlacementPolicy* policy = nullptr;  // null: it was not asked
    routing::Decision decision;
  };
  // What is kept of a model.
  struct Model {
    RankTable ranks;
    std::unique_ptr<routing::PlacementPolicy> prefill;
    routing::PrefillBalancer* balancer = nullptr;  // when that is it
    std::unique_ptr<routing::PlacementPolicy> decode;
    bool decode_times = false;  // the views of `others` hold times of the last request
  };
  // A rank with what is known of it.
  struct Candidate {
    const RankTable::Row* row = nullptr;
    const routing::RankView* view = nullptr;
    const WorkerView* worker = nullptr;

    WorkerRole role() const { return worker->description.role; }
    const ModelDescription& model() const { return worker->description.models[row->model]; }
    std::string name() const { return rank_name(*worker, row->id); }
  };

  Model& refresh(const PlacementState& state, std::string_view model);
  // Decode steps of `others`: as they are, in seconds by engine; and one rank's engine with the
  // request. An engine takes as long as its slowest rank.
  void predict_steps(EngineCosts& costs, const Model& model, std::string_view name);
  double step_with(EngineCosts& costs, const Model& model, std::uint32_t row,
                   const PlacementRequest& request) const;
  bool fits_step(const PlacementState& state, const Model& model, std::uint32_t row,
                 const PlacementRequest& request) const;
  Candidate choose_decode(const PlacementState& state, const PlacementRequest& request);
  std::optional<Candidate> choose_prefill(const PlacementState& state,
                                          const PlacementRequest& request, const Candidate* decode);
  Result<Placement> decide(const PlacementState& state, const PlacementRequest& request);
  Candidate candidate(const RankTable::Pool& pool, std::uint32_t row) const;
  static std::string rank_name(const WorkerView& worker, RankId rank);
  std::string why(const Asked& asked) const;
  LegExplanation explain(const Asked& asked, const RankTable::Pool& pool) const;

  PolicyNames names_;
  std::map<std::string, Model, std::less<>> models_;  // by name
  // Of the last decision.
  Model* model_ = nullptr;
  std::span<const WorkerView> workers_;
  EngineCosts* costs_ = nullptr;
  Asked prefill_;
  Asked others_;               // decode and mixed
  std::vector<double> steps_;  // scratch: seconds of a decode step, by engine; 0: nobody runs
  std::vector<double> moe_;    // likewise: what it takes times what its slowest rank would
  PlacementRequest request_;
  std::string reason_;
};

// "prefill-balancer" and the alternatives; the same for decode.
std::vector<std::string_view> prefill_policy_names();
std::vector<std::string_view> decode_policy_names();

// The model as a worker serves it that could take a request now; the first one's.
const ModelDescription* served_model(std::span<const WorkerView> workers, std::string_view model);
// The context length of the model on the first worker known to serve it; nullopt for none.
std::optional<std::uint32_t> context_length(std::span<const WorkerView> workers,
                                            std::string_view model);
// Whether somebody could take a request for the model now.
bool is_served(std::span<const WorkerView> workers, std::string_view model);

}  // namespace penstock::gateway
