// FakeEngines: an EngineClient whose workers the test plays: it sees each submit and emits outputs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "port/engine_client.h"

namespace penstock::testing {

class FakeEngines final : public EngineClient {
 public:
  struct Open {
    WorkerId worker;
    EngineRequest request;
    Sink sink;
    std::map<std::uint32_t, std::uint32_t> tokens = {};  // so far, by choice
    std::uint32_t finished = 0;                          // choices
  };

  explicit FakeEngines(Clock& clock) : clock_(clock) {}

  void add_worker(std::uint64_t id, std::string model, std::uint32_t context_length) {
    WorkerView view;
    view.description.id = WorkerId(id);
    view.description.name = "worker-" + std::to_string(id);
    ModelDescription description;
    description.name = std::move(model);
    description.context_length = context_length;
    view.description.models.push_back(std::move(description));
    view.loads.emplace_back();
    view.connected = true;
    workers_.push_back(std::move(view));
  }
  WorkerView& worker(std::size_t index) { return workers_[index]; }
  std::vector<Open>& open() { return open_; }

  // Gives an output to the request submitted last but `back`; runs the sink from the clock's loop.
  void emit(std::vector<TokenId> tokens, std::optional<FinishReason> finish = {},
            std::uint32_t choice = 0, std::size_t back = 0) {
    EngineOutput output;
    Open& target = open_[open_.size() - 1 - back];
    output.request = target.request.id;
    output.choice = choice;
    output.cached_tokens = 2;
    if (choice == 0 && target.tokens.empty()) {
      target.tokens[0] = static_cast<std::uint32_t>(target.request.emitted.size());
    }
    output.index = target.tokens[choice];
    target.tokens[choice] += static_cast<std::uint32_t>(tokens.size());
    for (const TokenId token : tokens)
      output.tokens.push_back({token, -0.5F, {}});
    output.finish = finish;
    clock_.post([this, id = target.request.id, output] { deliver(id, output); });
  }
  // Ends the request submitted last but `back` with an error.
  void fail(Error error, std::size_t back = 0) {
    EngineOutput output;
    output.request = open_[open_.size() - 1 - back].request.id;
    output.finish = FinishReason::kError;
    output.error = std::move(error);
    clock_.post([this, id = output.request, output] { deliver(id, output); });
  }
  // The worker dies: every open request on it gets an error.
  void kill(std::size_t index) {
    workers_[index].connected = false;
    std::vector<RequestId> lost;
    for (const Open& open : open_) {
      if (open.worker == workers_[index].description.id) lost.push_back(open.request.id);
    }
    for (const RequestId id : lost) {
      EngineOutput output;
      output.request = id;
      output.finish = FinishReason::kError;
      output.error = Error{ErrorCode::kUnavailable, "the worker is gone", {}, {}};
      clock_.post([this, id, output] { deliver(id, output); });
    }
  }

  std::span<const WorkerView> workers() const override { return workers_; }
  Status submit(WorkerId worker, EngineRequest request, Sink sink) override {
    if (const auto refused = refuses.find(worker); refused != refuses.end())
      return std::unexpected(refused->second);
    open_.push_back({worker, std::move(request), std::move(sink)});
    ++submitted;
    return {};
  }
  void cancel(RequestId) override {}
  void forget(RequestId request) override {
    std::erase_if(open_, [request](const Open& o) { return o.request.id == request; });
  }

  int submitted = 0;
  std::map<WorkerId, Error> refuses;  // as one does whose end the view does not show yet

 private:
  void deliver(RequestId id, const EngineOutput& output) {
    for (Open& open : open_) {
      if (open.request.id != id) continue;
      const Sink sink = open.sink;  // the sink may change the list
      if (output.finish) ++open.finished;
      if (output.error || open.finished == open.request.sampling.choices) forget(id);
      sink(output);
      return;
    }
  }

  Clock& clock_;
  std::vector<WorkerView> workers_;
  std::vector<Open> open_;
};

}  // namespace penstock::testing
