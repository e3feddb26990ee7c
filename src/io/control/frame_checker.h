// FrameChecker: everything a worker may not say, as a state machine over one stream's frames.
//
// The client registers each request that it sends; check() takes the frames in order, converts what
// is right and names the first thing that is wrong. After an error the stream is to be dropped and
// the checker reset.
//
// Rules: the hello comes first and once; step counters (all, and per rank) never fall; the number
// of ranks stands; an output names an open request and a choice that has not finished; tokens lie
// in the vocabulary and within max_tokens; logprobs are there exactly when asked for and add up; an
// error ends the request; an expert answer names an open query. A forgotten request stays known
// until the worker has finished it, so that what is still under way is swallowed and everything
// else is a breach. Errors: check() fails with kDataLoss and the reason; opened() with kConflict or
// kModelNotFound. Concurrency: one thread. Pure. Source: docs/protocol/engine.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "domain/engine.h"
#include "io/control/engine_codec.h"

namespace penstock::control {

class FrameChecker {
 public:
  // Registers a request that is about to be sent.
  Status opened(const EngineRequest& request);
  // Takes back opened(), when sending failed.
  void withdrawn(RequestId request) { open_.erase(request); }
  // From now on the request's outputs are checked and dropped.
  void forgotten(RequestId request);

  // An expert query of that number is about to be sent, to one of the ranks there are.
  void asked(std::uint64_t number) { expert_queries_.insert(number); }

  // Returns the outputs of the frame for requests that are not forgotten, in order.
  Result<std::vector<EngineOutput>> check(const wire::WorkerFrame& frame);

  bool greeted() const { return greeted_; }
  // As the hello said; id unset. Valid once greeted().
  const WorkerDescription& description() const { return description_; }
  const std::vector<EngineLoad>& loads() const { return loads_; }
  bool draining() const { return draining_; }
  const HandoffUse& handoffs() const { return handoffs_; }
  const std::vector<ExpertUse>& experts() const { return experts_; }
  // What the last frame answered, moved out.
  struct ExpertAnswer {
    std::uint64_t number = 0;
    Result<ExpertReport> report;
  };
  std::vector<ExpertAnswer> take_expert_answers() { return std::exchange(expert_answers_, {}); }
  // Requests the worker has not finished, those forgotten included.
  std::size_t open() const { return open_.size(); }

 private:
  struct Open {
    OutputShape shape;
    std::vector<bool> finished;              // [choices]
    std::vector<std::uint32_t> tokens_left;  // [choices]
    std::vector<std::uint32_t> next_index;   // [choices]
    std::uint32_t unfinished = 0;
    bool forgotten = false;
    bool is_prefill = false;  // its leg
  };

  Status check_loads(const wire::WorkerFrame& frame);
  Status check_experts(const wire::WorkerFrame& frame);
  Status check_output(const wire::Output& output, std::vector<EngineOutput>& outputs);

  bool greeted_ = false;
  bool draining_ = false;
  HandoffUse handoffs_;
  std::vector<ExpertUse> experts_;
  std::vector<ExpertAnswer> expert_answers_;
  std::unordered_set<std::uint64_t> expert_queries_;  // not answered yet
  std::uint64_t step_ = 0;
  WorkerDescription description_;
  std::vector<EngineLoad> loads_;
  std::unordered_map<RequestId, Open> open_;
};

}  // namespace penstock::control
