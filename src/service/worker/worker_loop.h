// WorkerLoop: the book-keeping between the gateways' streams and one engine, as a state machine.
//
// Streams name requests by their own numbers; the loop gives each an engine-local id, submits it,
// and hands every output back under (stream, the stream's number). Commands are applied between
// steps, so a cancel takes effect within one step: the loop reports kCancelled at once and ignores
// what the engine still says about that request. The thread, mailbox and wire around it stand in
// io/control/engine_thread.h.
//
// Invariants: every submit ends in exactly one `finish` per choice, or in one kError output that
// ends the request, unless its stream was dropped: then nothing more comes. Requests of one stream
// are invisible to another, whatever numbers they use. load().step counts steps and never falls.
// Errors: a refused submit (duplicate number, draining, too many open, or the engine's own reasons)
// is a kError output for that request only. An expert map is refused with kConflict unless it is
// newer than the one in use and made to replace exactly that. An engine that breaks its contract
// (unknown choice, tokens after finish) ends that request with kInternal. Concurrency: one thread.
// Source: design.md section 4; docs/protocol/engine.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "domain/engine.h"
#include "service/worker/worker_engine.h"

namespace penstock::service {

// One gateway stream of this worker process; never reused.
using StreamId = Id<struct StreamTag>;

struct SubmitCommand {
  StreamId stream;
  EngineRequest request;
};
struct CancelCommand {
  StreamId stream;
  RequestId request;
};
// The stream is gone: its requests are cancelled and nothing is reported.
struct DropStreamCommand {
  StreamId stream;
};
// No new requests from now on; running ones finish.
struct DrainCommand {};
// Asks for the expert loads, after the map has been applied if there is one. `reply` is called
// once, while the command is applied.
struct ExpertsCommand {
  std::optional<ExpertMap> map;
  std::function<void(Result<ExpertReport>)> reply;
};
using WorkerCommand =
    std::variant<SubmitCommand, CancelCommand, DropStreamCommand, DrainCommand, ExpertsCommand>;

struct StreamOutput {
  StreamId stream;
  EngineOutput output;        // output.request is the stream's own number
  bool has_logprobs = false;  // the request asked for them
};

struct WorkerLimits {
  std::size_t open_max = 4096;      // requests open at a time, of all streams
  std::uint32_t choices_max = 128;  // per request
};

class WorkerLoop {
 public:
  // The engine must outlive the loop.
  WorkerLoop(WorkerEngine& engine, WorkerLimits limits) : engine_(engine), limits_(limits) {}

  // Applies one command; answers it causes at once (refusals, cancellations) are appended.
  void apply(WorkerCommand command, std::vector<StreamOutput>& outputs);
  bool has_work() const { return engine_.has_work(); }
  // Runs one engine step and appends its outputs. Precondition: has_work().
  void step(std::vector<StreamOutput>& outputs);
  // Counts a step in which there was nothing to do.
  void turn() { ++steps_; }

  EngineLoad load() const;
  ExpertUse expert_use() const { return engine_.expert_use(); }
  std::size_t open() const { return open_.size(); }
  // True once draining and nothing is open: the process may end.
  bool drained() const { return draining_ && open_.empty(); }

 private:
  struct Open {
    StreamId stream;
    RequestId request;
    std::vector<bool> finished;             // [choices]
    std::vector<std::uint32_t> next_index;  // [choices]
    std::uint32_t unfinished = 0;
    bool has_logprobs = false;
  };
  using OpenMap = std::unordered_map<RequestId, Open>;  // by engine-local id

  void on(SubmitCommand command, std::vector<StreamOutput>& outputs);
  void on(CancelCommand command, std::vector<StreamOutput>& outputs);
  void on(DropStreamCommand command, std::vector<StreamOutput>& outputs);
  void on(DrainCommand command, std::vector<StreamOutput>& outputs);
  void on(ExpertsCommand command, std::vector<StreamOutput>& outputs);
  Status take_map(const ExpertMap& map);
  Status admit(const SubmitCommand& command) const;
  void forward(EngineOutput output, std::vector<StreamOutput>& outputs);
  void erase(OpenMap::iterator open);

  WorkerEngine& engine_;
  WorkerLimits limits_;
  OpenMap open_;
  // (stream, stream's number) -> engine-local id; ordered, so a stream's requests are a range.
  std::map<std::pair<StreamId, RequestId>, RequestId> by_stream_;
  std::uint64_t last_local_id_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t map_version_ = 0;
  bool draining_ = false;
  std::vector<EngineOutput> step_outputs_;  // reused between steps
};

}  // namespace penstock::service
