// EngineRun: one request on the engines, from placement to the last output, wherever it runs.
//
// It is the one owner of everything the request holds outside: its legs (submitted requests) and
// its permits in the ledger. A request is one leg on one rank, or two: the prefill leg computes the
// prompt and the first token, the decode leg pulls the KV meanwhile and goes on. Both are submitted
// at once, name the same handoff, and may both report the first token: the first report counts. Any
// end of the request, or of the decode leg, ends the other.
//
// When a worker dies the run is placed again and goes on: with the tokens emitted so far when there
// is one choice, else only if nothing was emitted yet (law 3: the same text follows, because
// sampling depends on seed, choice and position only). A prefill leg that fails after its first
// token doesn't matter: the decode leg has the KV, or computes it.
//
// Outputs of a choice merge while the reader is busy (a slow client), so memory is bounded by the
// tokens asked for.
//
// Invariants: next() yields each token once and in order, over any number of moves and legs; after
// stop(), abandon() or the destructor no leg runs and no permit is held.
// Errors: submit() as EngineClient, never kUnavailable; next() kDeadlineExceeded, what abandon()
// gave, the engine's own error, or kUnavailable when the moves are used up. Concurrency: shard
// thread only.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "service/gateway/context.h"
#include "service/gateway/placement.h"

namespace penstock::gateway {

class EngineRun {
 public:
  EngineRun(GatewayContext& context, Instant deadline, std::string request_id = {});
  ~EngineRun();
  EngineRun(const EngineRun&) = delete;
  EngineRun& operator=(const EngineRun&) = delete;

  // The model as a worker serves it, waiting for one like place().
  Task<Result<ModelDescription>> find_model(std::string_view model);
  // Waits in front of the engines until one has room for the request, unless one has now.
  Task<std::expected<void, Admission::Refusal>> enter(AdmissionTicket ticket,
                                                      PlacementRequest request);
  // Waits for workers that can take the request, up to worker_wait_max and the deadline.
  Task<Result<Placement>> place(PlacementRequest request);
  // Sends the request to the placed ranks. request.id is set here. A worker that is found gone is
  // one that died: next() places the request again.
  Status submit(const Placement& placement, EngineRequest request);
  // The next output; nullopt when `wake_at` passes first.
  Task<Result<std::optional<EngineOutput>>> next(Instant wake_at);
  // Nobody wants the answer any more: place() and next() fail with `why`, the engines stop.
  void abandon(Error why);
  // Everything needed has come (a stop string): the engines stop, next() is not called again.
  void stop();

  std::uint32_t moves() const { return moves_; }
  // In front of the engines.
  Duration queued() const { return queued_; }
  // Where it was placed after the first time, and why; empty without a move.
  const std::string& moved_to() const { return moved_to_; }

 private:
  // A request at a worker.
  struct Running {
    RequestId id;
    bool open = false;
    RankPermit permit;
    // For what the prompt's computation teaches: it had the rank to itself.
    bool alone = false;
    Instant submitted_at;
  };
  Running& at(Leg leg) { return legs_[leg == Leg::kPrefill ? 0 : 1]; }
  Status submit_legs(const Placement& placement);
  Status submit_leg(RankId rank, const HandoffRef& handoff, const RankLedger::Entry& part);
  const WorkerView* worker_of(RankId rank) const;
  bool is_idle(RankId rank) const;
  void learn(Running& leg, const EngineOutput& output);
  void explain();
  void end(Running& leg);
  void receive(Leg leg, EngineOutput output);
  void lost(Leg leg, EngineOutput output);
  // Cuts what came already off the front; false when nothing is left.
  bool trim(EngineOutput& output);
  void queue(EngineOutput output);
  Task<Status> move_on(const Error& why);
  void release();

  GatewayContext& context_;
  Instant deadline_;
  std::string request_id_;
  EngineRequest request_;    // `emitted` grows with the outputs
  PlacementRequest wanted_;  // as placed last; the model's name is request_'s by then
  Admission::Slot slot_;     // among the requests that the engines have been given
  RequestId waiting_id_;     // while it waits for the slot
  Duration queued_{};
  std::array<Running, 2> legs_;          // prefill; decode or whole
  std::vector<std::uint32_t> received_;  // tokens so far, by choice
  std::uint32_t placed_at_ = 0;          // tokens of choice 0 when it was placed last
  bool emitted_any_ = false;
  bool refused_ = false;  // a worker that the last placement chose was not there
  std::optional<Error> abandoned_;
  std::uint32_t moves_ = 0;
  std::string moved_to_;
  Channel<EngineOutput> outputs_;
};

}  // namespace penstock::gateway
