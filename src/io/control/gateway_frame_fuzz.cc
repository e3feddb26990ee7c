// libFuzzer entry: a worker's view of a hostile gateway, bytes to commands of the worker's loop.
//
// The input is a sequence of (length, GatewayFrame). The engine accepts what has a prompt and gives
// every choice its finish in one step. Limits must hold, whatever numbers are used.
#include <cstddef>
#include <cstdint>
#include <map>

#include "base/check.h"
#include "io/control/engine_codec.h"
#include "service/worker/worker_loop.h"

namespace {

using namespace penstock;           // NOLINT: a fuzzer has one file
using namespace penstock::control;  // NOLINT

class OneTokenEngine final : public service::WorkerEngine {
 public:
  const ModelDescription& description() const override { return description_; }
  Status submit(EngineRequest request) override {
    if (request.prompt->empty()) return fail(ErrorCode::kInvalidArgument, "empty");
    ENSURE(open_.emplace(request.id, request.sampling.choices).second);
    return {};
  }
  void cancel(RequestId request) override { open_.erase(request); }
  bool has_work() const override { return !open_.empty(); }
  void step(std::vector<EngineOutput>& outputs) override {
    for (const auto& [id, choices] : open_) {
      for (std::uint32_t choice = 0; choice < choices; ++choice) {
        EngineOutput output;
        output.request = id;
        output.choice = choice;
        output.finish = FinishReason::kStop;
        outputs.push_back(std::move(output));
      }
    }
    open_.clear();
  }
  EngineLoad load() const override { return {}; }

 private:
  ModelDescription description_{"m", "", 10, 10, true};
  std::map<RequestId, std::uint32_t> open_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  OneTokenEngine engine;
  service::WorkerLoop loop(engine, {.open_max = 8, .choices_max = 4});
  const service::StreamId stream(1);
  std::vector<service::StreamOutput> outputs;
  while (size >= 2) {
    const std::size_t length = std::min<std::size_t>(data[0] | std::size_t{data[1]} << 8, size - 2);
    wire::GatewayFrame frame;
    const bool parsed = frame.ParseFromArray(data + 2, static_cast<int>(length));
    data += 2 + length;
    size -= 2 + length;
    if (!parsed) return 0;
    for (const wire::Submit& submit : frame.submits()) {
      auto request = decode(submit);
      if (!request) continue;
      wire::Submit again;
      encode(*request, again);
      ENSURE(again.prompt() == submit.prompt());
      loop.apply(service::SubmitCommand{stream, std::move(*request)}, outputs);
    }
    for (const std::uint64_t id : frame.cancels()) {
      loop.apply(service::CancelCommand{stream, RequestId(id)}, outputs);
    }
    for (const wire::ExpertQuery& query : frame.expert_queries()) {
      auto map = decode(query.map());
      if (!map) continue;
      wire::ExpertMap again;
      encode(*map, again);
      ENSURE(again.slots_size() == query.map().slots_size());
      loop.apply(service::ExpertsCommand{std::move(*map), [](const Result<ExpertReport>&) {}},
                 outputs);
    }
    if (loop.has_work() && frame.cancels_size() % 2 == 0) loop.step(outputs);
    for (const auto& output : outputs) {
      ENSURE(output.output.finish);
      wire::Output out;
      append(output.output, output.has_logprobs, out);
      ENSURE(output.output.finish != FinishReason::kError || output.output.error);
    }
    outputs.clear();
    ENSURE(loop.open() <= 8);
  }
  return 0;
}
