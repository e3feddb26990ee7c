#include "service/worker/worker_loop.h"

#include <deque>
#include <memory>

#include "base/check.h"
#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock::service {
namespace {

// Emits the scripted outputs, one list a step; remembers what it was told.
class ScriptedEngine final : public WorkerEngine {
 public:
  const ModelDescription& description() const override { return description_; }
  Status submit(EngineRequest request) override {
    if (refuse) return fail(ErrorCode::kContextLengthExceeded, "too long", "messages");
    submitted.push_back(request.id);
    return {};
  }
  void cancel(RequestId request) override { cancelled.push_back(request); }
  bool has_work() const override { return !script.empty(); }
  void step(std::vector<EngineOutput>& outputs) override {
    for (EngineOutput& output : script.front())
      outputs.push_back(std::move(output));
    script.pop_front();
  }
  EngineLoad load() const override {
    EngineLoad load;
    load.running = 3;
    return load;
  }

  ExpertReport expert_report() const override {
    ExpertReport report;
    report.map = map;
    return report;
  }
  Status set_expert_map(const ExpertMap& wanted) override {
    if (refuse) return fail(ErrorCode::kInvalidArgument, "impossible", "map");
    map = wanted;
    return {};
  }

  ExpertMap map;
  bool refuse = false;
  std::vector<RequestId> submitted;
  std::vector<RequestId> cancelled;
  std::deque<std::vector<EngineOutput>> script;

 private:
  ModelDescription description_{"m", "", 100, 100, true};
};

EngineRequest request(std::uint64_t id, std::uint32_t choices = 1) {
  EngineRequest r;
  r.id = RequestId(id);
  r.prompt = std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{1, 2});
  r.sampling.choices = choices;
  r.sampling.max_tokens = 8;
  return r;
}

EngineOutput output(RequestId id, std::uint32_t choice, TokenId token,
                    std::optional<FinishReason> finish = std::nullopt) {
  EngineOutput o;
  o.request = id;
  o.choice = choice;
  o.tokens.push_back({token, 0.0F, {}});
  o.finish = finish;
  return o;
}

struct Fixture {
  ScriptedEngine engine;
  WorkerLoop loop{engine, {.open_max = 4}};
  std::vector<StreamOutput> outputs;

  void submit(std::uint64_t stream, EngineRequest r) {
    loop.apply(SubmitCommand{StreamId(stream), std::move(r)}, outputs);
  }
  ErrorCode last_error() const { return outputs.back().output.error->code; }
};

}  // namespace

TEST_CASE("two streams with the same request number do not see each other") {
  Fixture f;
  f.submit(1, request(7));
  f.submit(2, request(7));
  REQUIRE(f.engine.submitted.size() == 2);
  const auto a = f.engine.submitted[0];
  const auto b = f.engine.submitted[1];
  f.engine.script = {{output(a, 0, 10), output(b, 0, 20)}, {output(b, 0, 21, FinishReason::kStop)}};
  f.loop.step(f.outputs);
  REQUIRE(f.outputs.size() == 2);
  CHECK(f.outputs[0].stream == StreamId(1));
  CHECK(f.outputs[0].output.request == RequestId(7));
  CHECK(f.outputs[0].output.tokens[0].token == 10);
  CHECK(f.outputs[1].stream == StreamId(2));
  f.loop.step(f.outputs);
  CHECK(f.loop.open() == 1);
  CHECK(f.loop.load().step == 2);
  CHECK(f.loop.load().running == 3);
}

TEST_CASE("a refused submit is an error for that request only") {
  Fixture f;
  f.engine.refuse = true;
  f.submit(1, request(1));
  CHECK(f.last_error() == ErrorCode::kContextLengthExceeded);
  CHECK(f.outputs.back().output.error->field == "messages");
  f.engine.refuse = false;
  f.submit(1, request(2));
  f.submit(1, request(2));
  CHECK(f.last_error() == ErrorCode::kConflict);
  f.submit(1, request(3, 0));
  CHECK(f.last_error() == ErrorCode::kInvalidArgument);
  f.submit(1, request(3, 129));
  CHECK(f.last_error() == ErrorCode::kInvalidArgument);
  for (std::uint64_t id = 4; id < 7; ++id)
    f.submit(1, request(id));
  f.submit(1, request(9));
  CHECK(f.last_error() == ErrorCode::kOverloaded);
  CHECK(f.loop.open() == 4);
}

TEST_CASE("cancel reports each unfinished choice at once and ignores what the engine still says") {
  Fixture f;
  f.submit(1, request(5, 3));
  const auto id = f.engine.submitted[0];
  f.engine.script = {{output(id, 1, 4, FinishReason::kStop)},
                     {output(id, 0, 5), output(id, 2, 5, FinishReason::kCancelled)}};
  f.loop.step(f.outputs);
  f.outputs.clear();
  f.loop.apply(CancelCommand{StreamId(2), RequestId(5)}, f.outputs);  // another stream's number
  CHECK(f.outputs.empty());
  f.loop.apply(CancelCommand{StreamId(1), RequestId(5)}, f.outputs);
  REQUIRE(f.outputs.size() == 2);
  CHECK(f.outputs[0].output.choice == 0);
  CHECK(f.outputs[1].output.choice == 2);
  CHECK(f.outputs[1].output.finish == FinishReason::kCancelled);
  CHECK(f.engine.cancelled == std::vector{id});
  f.outputs.clear();
  f.loop.step(f.outputs);
  CHECK(f.outputs.empty());
  CHECK(f.loop.open() == 0);
}

TEST_CASE("dropping a stream cancels its requests and only those") {
  Fixture f;
  f.submit(1, request(1));
  f.submit(2, request(1));
  f.submit(1, request(2));
  f.loop.apply(DropStreamCommand{StreamId(1)}, f.outputs);
  CHECK(f.outputs.empty());
  CHECK(f.engine.cancelled == std::vector{f.engine.submitted[0], f.engine.submitted[2]});
  CHECK(f.loop.open() == 1);
}

TEST_CASE("draining refuses new requests and is over when the last one finished") {
  Fixture f;
  f.submit(1, request(1));
  f.loop.apply(DrainCommand{}, f.outputs);
  CHECK_FALSE(f.loop.drained());
  f.submit(1, request(2));
  CHECK(f.last_error() == ErrorCode::kUnavailable);
  f.engine.script = {{output(f.engine.submitted[0], 0, 3, FinishReason::kLength)}};
  f.loop.step(f.outputs);
  CHECK(f.loop.drained());
}

TEST_CASE("an engine that breaks its contract costs one request, not the process") {
  Fixture f;
  f.submit(1, request(1, 2));
  const auto id = f.engine.submitted[0];
  SUBCASE("unknown choice") {
    f.engine.script = {{output(id, 2, 1)}};
  }
  SUBCASE("tokens after finish") {
    f.engine.script = {{output(id, 0, 1, FinishReason::kStop), output(id, 0, 1)}};
  }
  SUBCASE("error without a code") {
    f.engine.script = {{output(id, 0, 1, FinishReason::kError)}};
  }
  f.loop.step(f.outputs);
  CHECK(f.last_error() == ErrorCode::kInternal);
  CHECK(f.engine.cancelled == std::vector{id});
  CHECK(f.loop.open() == 0);
}

TEST_CASE("an error of one choice ends the request") {
  Fixture f;
  f.submit(1, request(1, 2));
  EngineOutput o = output(f.engine.submitted[0], 1, 1, FinishReason::kError);
  o.error = Error{ErrorCode::kInternal, "not a number", {}, {}};
  f.engine.script = {{o}};
  f.loop.step(f.outputs);
  CHECK(f.outputs.size() == 1);
  CHECK(f.loop.open() == 0);
  CHECK(f.engine.cancelled.size() == 1);
}

TEST_CASE("an expert map must be newer than the one in use and made to replace it") {
  Fixture f;
  const auto push = [&](std::uint64_t version, std::uint64_t replaces) {
    ExpertMap map;
    map.version = version;
    map.replaces = replaces;
    std::optional<Result<ExpertReport>> answer;
    f.loop.apply(ExpertsCommand{map, [&](Result<ExpertReport> report) { answer = report; }},
                 f.outputs);
    REQUIRE(answer);
    return answer->has_value() ? Status() : std::unexpected(answer->error());
  };
  CHECK(push(0, 0).error().code == ErrorCode::kConflict);
  CHECK(push(5, 4).error().code == ErrorCode::kConflict);  // made for a rank that holds map 4
  f.engine.refuse = true;
  CHECK(push(5, 0).error().message == "impossible");
  f.engine.refuse = false;
  CHECK(push(5, 0));  // the refused one was not taken
  CHECK(push(5, 5).error().code == ErrorCode::kConflict);
  CHECK(push(4, 5).error().code == ErrorCode::kConflict);
  CHECK(push(9, 0).error().code == ErrorCode::kConflict);
  CHECK(push(6, 5));
  CHECK(f.engine.map.version == 6);
  std::uint64_t version = 0;
  f.loop.apply(ExpertsCommand{std::nullopt,
                              [&](Result<ExpertReport> report) { version = report->map.version; }},
               f.outputs);
  CHECK(version == 6);
  CHECK(f.outputs.empty());
}

TEST_CASE("random commands: every submit ends once, dropped streams stay silent") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Rng rng(seed);
    ScriptedEngine engine;
    WorkerLoop loop(engine, {.open_max = 8});
    std::map<std::pair<std::uint64_t, std::uint64_t>, int> unfinished;
    std::uint64_t next = 0;
    for (int turn = 0; turn < 300; ++turn) {
      std::vector<StreamOutput> outputs;
      const std::uint64_t stream = 1 + rng.below(3);
      switch (rng.below(6)) {
        case 0:
        case 1:
          unfinished[{stream, ++next}] = 2;
          loop.apply(SubmitCommand{StreamId(stream), request(next, 2)}, outputs);
          break;
        case 2:
          loop.apply(CancelCommand{StreamId(stream), RequestId(rng.below(next + 1))}, outputs);
          break;
        case 3:
          if (rng.below(8) != 0) break;
          loop.apply(DropStreamCommand{StreamId(stream)}, outputs);
          std::erase_if(unfinished, [&](auto& entry) { return entry.first.first == stream; });
          break;
        default:
          if (engine.submitted.empty()) break;
          // Also for requests that are over: the loop must not care.
          engine.script.push_back({output(engine.submitted[rng.below(engine.submitted.size())], 0,
                                          1, FinishReason::kError)});
          engine.script.back()[0].error = Error{};
          loop.step(outputs);
      }
      for (const StreamOutput& o : outputs) {
        auto it = unfinished.find({o.stream.value, o.output.request.value});
        REQUIRE(it != unfinished.end());
        it->second = o.output.finish == FinishReason::kError ? 0 : it->second - 1;
        if (it->second == 0) unfinished.erase(it);
      }
      REQUIRE(unfinished.size() == loop.open());
    }
  }
}

}  // namespace penstock::service
