#include "service/worker/worker_loop.h"

#include <limits>
#include <string>

namespace penstock::service {
namespace {

StreamOutput refusal(StreamId stream, RequestId request, Error error) {
  EngineOutput output;
  output.request = request;
  output.finish = FinishReason::kError;
  output.error = std::move(error);
  return {stream, std::move(output), false};
}

}  // namespace

void WorkerLoop::apply(WorkerCommand command, std::vector<StreamOutput>& outputs) {
  std::visit([&](auto&& c) { on(std::move(c), outputs); }, std::move(command));
}

Status WorkerLoop::admit(const SubmitCommand& command) const {
  const EngineRequest& request = command.request;
  if (draining_) {
    return fail(ErrorCode::kUnavailable, "the worker is draining; place the request elsewhere");
  }
  if (by_stream_.contains({command.stream, request.id})) {
    return fail(ErrorCode::kConflict,
                "request " + std::to_string(request.id.value) + " is open already on this stream");
  }
  if (open_.size() >= limits_.open_max) {
    return fail(ErrorCode::kOverloaded, "the worker has " + std::to_string(open_.size()) +
                                            " requests open, its limit; retry later");
  }
  if (!request.prompt) return fail(ErrorCode::kInvalidArgument, "prompt is missing", "prompt");
  if (request.sampling.choices == 0 || request.sampling.choices > limits_.choices_max) {
    return fail(ErrorCode::kInvalidArgument,
                "choices must be 1.." + std::to_string(limits_.choices_max), "n");
  }
  return {};
}

void WorkerLoop::on(SubmitCommand command, std::vector<StreamOutput>& outputs) {
  const RequestId number = command.request.id;
  const StreamId stream = command.stream;
  if (Status admitted = admit(command); !admitted) {
    outputs.push_back(refusal(stream, number, std::move(admitted).error()));
    return;
  }
  const RequestId local(++last_local_id_);
  const std::uint32_t choices = command.request.sampling.choices;
  const bool has_logprobs = command.request.sampling.top_logprobs >= 0;
  std::vector<std::uint32_t> next(choices, 0);
  next[0] = static_cast<std::uint32_t>(command.request.emitted.size());
  command.request.id = local;
  if (Status accepted = engine_.submit(std::move(command.request)); !accepted) {
    outputs.push_back(refusal(stream, number, std::move(accepted).error()));
    return;
  }
  open_.emplace(local, Open{stream, number, std::vector<bool>(choices), std::move(next), choices,
                            has_logprobs});
  by_stream_.emplace(std::pair(stream, number), local);
}

void WorkerLoop::on(CancelCommand command, std::vector<StreamOutput>& outputs) {
  const auto found = by_stream_.find({command.stream, command.request});
  if (found == by_stream_.end()) return;  // finished already: the cancel crossed the last frame
  const auto open = open_.find(found->second);
  engine_.cancel(open->first);
  for (std::uint32_t choice = 0; choice < open->second.finished.size(); ++choice) {
    if (open->second.finished[choice]) continue;
    EngineOutput output;
    output.request = command.request;
    output.choice = choice;
    output.finish = FinishReason::kCancelled;
    outputs.push_back({command.stream, std::move(output), open->second.has_logprobs});
  }
  erase(open);
}

void WorkerLoop::on(DropStreamCommand command, std::vector<StreamOutput>&) {
  const auto begin = by_stream_.lower_bound({command.stream, RequestId(0)});
  const auto end = by_stream_.upper_bound(
      {command.stream, RequestId(std::numeric_limits<std::uint64_t>::max())});
  for (auto it = begin; it != end; ++it) {
    engine_.cancel(it->second);
    open_.erase(it->second);
  }
  by_stream_.erase(begin, end);
}

void WorkerLoop::on(DrainCommand, std::vector<StreamOutput>&) {
  draining_ = true;
}

Status WorkerLoop::take_map(const ExpertMap& map) {
  if (map.version <= map_version_) {
    return fail(ErrorCode::kConflict,
                "expert map " + std::to_string(map.version) + " is old: this rank uses map " +
                    std::to_string(map_version_),
                "map");
  }
  if (map.replaces != map_version_) {
    return fail(ErrorCode::kConflict,
                "expert map " + std::to_string(map.version) + " was made to replace map " +
                    std::to_string(map.replaces) + ", this rank uses map " +
                    std::to_string(map_version_),
                "map");
  }
  TRY_STATUS(engine_.set_expert_map(map));
  map_version_ = map.version;
  return {};
}

void WorkerLoop::on(ExpertsCommand command, std::vector<StreamOutput>&) {
  Status taken = command.map ? take_map(*command.map) : Status();
  command.reply(taken ? Result<ExpertReport>(engine_.expert_report())
                      : std::unexpected(std::move(taken).error()));
}

void WorkerLoop::step(std::vector<StreamOutput>& outputs) {
  step_outputs_.clear();
  engine_.step(step_outputs_);
  ++steps_;
  for (EngineOutput& output : step_outputs_)
    forward(std::move(output), outputs);
}

void WorkerLoop::forward(EngineOutput output, std::vector<StreamOutput>& outputs) {
  const auto found = open_.find(output.request);
  if (found == open_.end()) return;  // cancelled or dropped since
  Open& open = found->second;
  const bool sane = output.choice < open.finished.size() && !open.finished[output.choice];
  if (!sane || (output.finish == FinishReason::kError && !output.error)) {
    engine_.cancel(found->first);
    outputs.push_back(refusal(open.stream, open.request,
                              {ErrorCode::kInternal,
                               "the engine broke its contract at choice " +
                                   std::to_string(output.choice) + " (report this)",
                               {},
                               {}}));
    erase(found);
    return;
  }
  output.request = open.request;
  output.index = open.next_index[output.choice];
  open.next_index[output.choice] += static_cast<std::uint32_t>(output.tokens.size());
  bool over = false;
  if (output.finish) {
    open.finished[output.choice] = true;
    over = --open.unfinished == 0;
    if (output.finish == FinishReason::kError && !over) {
      engine_.cancel(found->first);  // an error ends the whole request
      over = true;
    }
  }
  outputs.push_back({open.stream, std::move(output), open.has_logprobs});
  if (over) erase(found);
}

void WorkerLoop::erase(OpenMap::iterator open) {
  by_stream_.erase({open->second.stream, open->second.request});
  open_.erase(open);
}

EngineLoad WorkerLoop::load() const {
  EngineLoad load = engine_.load();
  load.step = steps_;
  return load;
}

}  // namespace penstock::service
