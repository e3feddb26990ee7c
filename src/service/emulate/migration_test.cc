// Requests through a gateway whose engines are emulators, in one process on virtual time: streams
// whose engine dies go on from another one, in every API, and blocks of prefill legs are freed.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/dialects/json_values.h"
#include "service/emulate/emulator.h"
#include "service/foreign/foreign_gateway.h"
#include "tests/support/fake_exchange.h"
#include "tests/support/virtual_clock.h"

#include <doctest/doctest.h>

namespace penstock::emulate {
namespace {

using namespace std::chrono_literals;
using dialects::EngineKind;
using dialects::SseEvent;
using dialects::WireApi;
using foreign::EngineRole;
using testing::Answered;

// To an emulator; what it says comes as it says it.
class EmulatedUpstream final : public Upstream {
 public:
  EmulatedUpstream(Clock& clock, Emulator& emulator) : clock_(clock), emulator_(emulator) {}

  std::unique_ptr<UpstreamCall> call(UpstreamRequest request) override {
    return std::make_unique<Call>(*this, std::move(request));
  }
  void close() override {}
  const UpstreamCounters& counters() const override { return counters_; }

 private:
  struct Running {
    std::shared_ptr<Answered> answered = std::make_shared<Answered>();
    bool over = false;
  };
  Task<void> run(std::shared_ptr<Running> running, std::unique_ptr<HttpExchange> exchange) {
    co_await emulator_.handle(std::move(exchange));
    running->over = true;
    running->answered->disconnect = nullptr;
  }

  class Call final : public UpstreamCall {
   public:
    Call(EmulatedUpstream& server, UpstreamRequest request)
        : server_(server), request_(std::move(request)) {
      for (const std::string_view piece : std::exchange(request_.pieces, {}))
        request_.body += piece;
    }
    ~Call() override { leave(); }
    Task<Result<UpstreamHead>> head(Instant deadline) override {
      HttpRequest in;
      in.method = std::move(request_.method);
      in.path = std::move(request_.target);
      in.headers = std::move(request_.headers);
      in.body = std::move(request_.body);
      running_ = std::make_shared<Running>();
      server_.gate_.start(server_.run(
          running_, std::make_unique<testing::FakeExchange>(std::move(in), running_->answered)));
      while (running_->answered->status == 0) {
        if (const Status ended = ended_by(deadline); !ended)
          co_return std::unexpected(ended.error());
        co_await Sleep(server_.clock_, 1ms);
      }
      co_return UpstreamHead{running_->answered->status,
                             {{"content-type", running_->answered->content_type}}};
    }
    Task<Result<std::string>> read(Instant deadline) override {
      while (running_->answered->body.size() == read_) {
        if (running_->answered->finished) co_return std::string();
        if (const Status ended = ended_by(deadline); !ended)
          co_return std::unexpected(ended.error());
        co_await Sleep(server_.clock_, 1ms);
      }
      const std::string bytes = running_->answered->body.substr(read_);
      read_ += bytes.size();
      co_return bytes;
    }
    bool sent() const override { return running_ != nullptr; }
    void cancel() override {
      cancelled_ = true;
      leave();
    }

   private:
    Status ended_by(Instant deadline) const {
      if (cancelled_) return fail(ErrorCode::kCancelled, "the call was cancelled");
      if (running_->over) return fail(ErrorCode::kDataLoss, "it closed in mid-answer");
      if (server_.clock_.now() >= deadline) return fail(ErrorCode::kDeadlineExceeded, "too late");
      return {};
    }
    void leave() {
      if (running_ && !running_->answered->finished && running_->answered->disconnect)
        std::exchange(running_->answered->disconnect, nullptr)();
    }
    EmulatedUpstream& server_;
    UpstreamRequest request_;
    std::shared_ptr<Running> running_;
    std::size_t read_ = 0;
    bool cancelled_ = false;
  };

  Clock& clock_;
  Emulator& emulator_;
  UpstreamCounters counters_;
  Gate gate_;
};

struct Engine {
  EngineKind kind = EngineKind::kVllm;
  EngineRole role = EngineRole::kMixed;
};

struct Fleet {
  explicit Fleet(const std::vector<Engine>& engines, const EmulatorOptions& like = {}) {
    for (const Engine& engine : engines) {
      EmulatorOptions options = like;
      options.kind = engine.kind;
      options.model = "m";
      options.hash_seed = emulators.size() + 1;
      if (engine.kind == EngineKind::kSglang && engine.role != EngineRole::kMixed)
        options.mode = engine.role == EngineRole::kPrefill ? "prefill" : "decode";
      // Whoever names another one names the first.
      emulators.push_back(std::make_unique<Emulator>(
          clock, options, [this] { return unix_seconds(); },
          [this](const std::string&) -> std::unique_ptr<Upstream> {
            return std::make_unique<EmulatedUpstream>(clock, *emulators.front());
          }));
      const auto id = static_cast<std::uint32_t>(emulators.size() - 1);
      set.add({engine.kind, "e" + std::to_string(id), "http://e", "", engine.role, "e0", 8998,
               WorkerId(id), like.mooncake},
              std::make_unique<EmulatedUpstream>(clock, *emulators.back()),
              like.mooncake && engine.role == EngineRole::kPrefill
                  ? std::make_unique<EmulatedUpstream>(clock, *emulators.back())
                  : nullptr);
    }
    set.start();
    clock.advance(100ms);
  }
  ~Fleet() {
    set.stop();
    clock.advance(10min);
    CHECK(gate.running() == 0);
    for (const auto& engine : set.engines())
      CHECK(engine->running == 0);
    for (const auto& emulator : emulators) {
      CHECK(emulator->running() == 0);
      CHECK(emulator->held() == 0);
    }
  }
  double unix_seconds() const {
    return 1'764'547'200.0 + std::chrono::duration<double>(clock.now().time_since_epoch()).count();
  }

  struct Asked {
    std::shared_ptr<Answered> answered = std::make_shared<Answered>();
    RequestRecord record;
    bool over = false;
  };
  std::shared_ptr<Asked> begin(WireApi api, std::string body) {
    auto asked = std::make_shared<Asked>();
    asked->record.request_id = "req-" + std::to_string(++requests);
    HttpRequest request;
    request.method = "POST";
    request.path = dialects::path_of(api);
    request.body = std::move(body);
    request.received_at = clock.now();
    gate.start(run(std::make_unique<testing::FakeExchange>(std::move(request), asked->answered),
                   asked, api));
    return asked;
  }
  std::shared_ptr<Asked> ask(WireApi api, std::string body) {
    auto asked = begin(api, std::move(body));
    clock.advance(5s);
    CHECK(asked->over);
    return asked;
  }
  Task<void> run(std::unique_ptr<HttpExchange> exchange, std::shared_ptr<Asked> asked,
                 WireApi api) {
    co_await gateway.relay(*exchange, asked->record, api);
    asked->over = true;
  }
  void fault(std::size_t emulator, const std::string& faults) {
    HttpRequest request;
    request.method = "POST";
    request.path = "/emulate/faults";
    request.body = faults;
    gate.start(emulators[emulator]->handle(
        std::make_unique<testing::FakeExchange>(std::move(request), std::make_shared<Answered>())));
    clock.run();
  }
  std::size_t first_for(WireApi api) {
    return set.pick({"m", api, R"("hi")"}).engine->config.id.value;
  }

  testing::VirtualClock clock;
  std::vector<std::unique_ptr<Emulator>> emulators;
  foreign::EngineSet set{clock, [](const std::string&) {}};
  foreign::ForeignGateway gateway{clock, set, {}, {}, Rng(1), [this] { return unix_seconds(); }};
  Gate gate;
  int requests = 0;
};

// What a client makes of a stream.
struct Read {
  std::string text;   // of content, deltas, ids and arguments
  std::string kinds;  // of the events that are no text
  std::map<std::string, std::string> names;
  bool good = true;
  bool operator==(const Read&) const = default;
};

Read read(std::string_view stream, WireApi api) {
  Read out;
  std::int64_t number = 0;
  const auto name = [&](std::string what, std::optional<std::string> value) {
    if (!value) return;
    const auto [known, is_new] = out.names.emplace(std::move(what), *value);
    out.good = out.good && (is_new || known->second == *value);
  };
  dialects::SseSplitter splitter;
  out.good = splitter.feed(stream, [&](const SseEvent& event) {
    if (!event.has_data) return;
    if (event.data == "[DONE]") {
      out.kinds += "done ";
      return;
    }
    if (api == WireApi::kResponses) {
      const auto told = dialects::integer_at(event.data, {"sequence_number"});
      out.good = out.good && told == number++;
      name("response", dialects::string_at(event.data, {"response", "id"}));
      if (const auto created = dialects::value_at(event.data, {"response", "created_at"}))
        name("created", std::string(*created));
      name("item", dialects::string_at(event.data, {"item_id"}));
      name("item", dialects::string_at(event.data, {"item", "id"}));
      name("call", dialects::string_at(event.data, {"item", "call_id"}));
      if (const auto output = dialects::value_at(event.data, {"response", "output"});
          output && *output != "[]") {
        name("item", dialects::string_at(*dialects::first_element(*output), {"id"}));
        name("call", dialects::string_at(*dialects::first_element(*output), {"call_id"}));
      }
      if (auto delta = dialects::string_at(event.data, {"delta"})) {
        out.text += *delta;
        return;
      }
    }
    if (api == WireApi::kMessages) {
      for (const std::string_view field : {"text", "partial_json"}) {
        if (auto text = dialects::string_at(event.data, {"delta", field})) {
          out.text += *text;
          return;
        }
      }
    }
    if (!event.name.empty()) {
      out.kinds += std::string(event.name) + " ";
      return;
    }
    name("answer", dialects::string_at(event.data, {"id"}));
    name("answer", dialects::string_at(event.data, {"request_id"}));
    const auto choices = dialects::value_at(event.data, {"choices"});
    const auto choice = choices ? dialects::first_element(*choices) : std::nullopt;
    if (!choice) {
      out.kinds += "usage ";
      return;
    }
    if (const auto finish = dialects::string_at(*choice, {"finish_reason"}))
      out.kinds += *finish + " ";
    if (dialects::string_at(*choice, {"delta", "role"})) out.kinds += "role ";
    out.text += dialects::string_at(*choice, {"delta", "content"}).value_or("");
    out.text += dialects::string_at(*choice, {"text"}).value_or("");
    if (const auto ids = dialects::value_at(*choice, {"token_ids"})) {
      const std::string list(ids->substr(1, ids->size() - 2));
      if (!list.empty()) out.text += list + ",";
    }
    const auto calls = dialects::value_at(*choice, {"delta", "tool_calls"});
    if (!calls) return;
    const std::string_view call = *dialects::first_element(*calls);
    if (dialects::string_at(call, {"function", "name"})) out.kinds += "named ";
    out.text += dialects::string_at(call, {"function", "arguments"}).value_or("");
  }) && out.good;
  out.good = out.good && splitter.rest().empty();
  return out;
}

std::string body_of(WireApi api, bool tool) {
  const std::string ask = api == WireApi::kChat || api == WireApi::kMessages
                              ? R"("messages":[{"role":"user","content":"hi"}])"
                          : api == WireApi::kCompletion ? R"("prompt":"hi")"
                          : api == WireApi::kGenerate
                              ? R"("token_ids":[1,2,3],"sampling_params":{"temperature":0.0})"
                              : R"("input":"hi")";
  const std::string tools = !tool ? ""
                            : api == WireApi::kChat
                                ? R"(,"tools":[{"type":"function","function":{"name":"f"}}])"
                                : R"(,"tools":[{"name":"f"}])";
  const std::string greedy = api == WireApi::kGenerate ? "" : R"(,"temperature":0)";
  return R"({"model":"m",)" + ask + tools + greedy + R"(,"stream":true})";
}

}  // namespace

TEST_CASE(
    "migration: in every API, with tools and without, a stream that is cut anywhere is whole") {
  for (const bool tool : {false, true}) {
    for (const WireApi api : {WireApi::kChat, WireApi::kCompletion, WireApi::kResponses,
                              WireApi::kMessages, WireApi::kGenerate}) {
      if (tool && (api == WireApi::kCompletion || api == WireApi::kGenerate)) continue;
      const std::string body = body_of(api, tool);
      std::string whole;
      Usage usage;
      {
        Fleet alone({{}});
        const auto asked = alone.ask(api, body);
        whole = asked->answered->body;
        usage = asked->record.usage;
        REQUIRE(asked->record.outcome != "");
      }
      const Read expected = read(whole, api);
      INFO(whole);
      REQUIRE(expected.good);
      CHECK(expected.text.size() > 40);
      CHECK(usage.completion_tokens == 16);
      for (std::size_t cut = 0; cut < whole.size(); cut += 61) {
        Fleet fleet({{}, {}});
        const std::size_t first = fleet.first_for(api);
        fleet.fault(first, R"({"cut_after":)" + std::to_string(cut) + "}");
        const auto asked = fleet.ask(api, body);
        const Read got = read(asked->answered->body, api);
        INFO(dialects::path_of(api), " cut at ", cut, "\n", asked->answered->body);
        CHECK(asked->answered->status == 200);
        CHECK(asked->answered->finished);
        CHECK(got.good);
        CHECK(got.text == expected.text);
        CHECK(got.kinds == expected.kinds);
        CHECK(asked->record.usage == usage);
        CHECK(asked->record.moves == 1);
        CHECK(fleet.emulators[0]->running() + fleet.emulators[1]->running() == 0);
      }
    }
  }
}

TEST_CASE(
    "migration: what can't be repeated ends with one error event of the API, and its number") {
  Fleet fleet({{}, {}});
  for (const std::size_t i : {0U, 1U})
    fleet.fault(i, R"({"cut_after":1600})");
  for (const WireApi api : {WireApi::kResponses, WireApi::kMessages}) {
    std::string body = body_of(api, false);
    body.replace(body.find(R"("temperature":0)"), 15, R"("temperature":1)");
    const auto asked = fleet.ask(api, body);
    const std::string& got = asked->answered->body;
    CHECK(asked->answered->finished);
    CHECK(asked->record.moves == 0);
    REQUIRE(got.contains("event: error\n"));
    CHECK(got.find("event: error\n") == got.rfind("event: error\n"));
    if (api == WireApi::kResponses) CHECK(read(got, api).good);
  }
}

TEST_CASE("migration: a request that dies twice is numbered on, and its last error too") {
  Fleet fleet({{}, {}, {}});
  const std::string body = body_of(WireApi::kResponses, false);
  std::size_t cut = 1800;
  for (std::size_t i = 0; i < 3; ++i)
    fleet.fault(i, R"({"cut_after":)" + std::to_string(cut) + "}");
  // Enough requests that there is a budget for two tries more.
  const auto asked = fleet.ask(WireApi::kResponses, body);
  const Read got = read(asked->answered->body, WireApi::kResponses);
  CHECK(got.good);
  CHECK(got.kinds.ends_with("error "));
  CHECK(asked->answered->finished);
}

TEST_CASE(
    "blocks: those of a prefill that no decode engine took are freed long before their time") {
  for (const bool mooncake : {false, true}) {
    EmulatorOptions like;
    like.mooncake = mooncake;
    Fleet fleet({{.role = EngineRole::kPrefill},
                 {.role = EngineRole::kDecode},
                 {.role = EngineRole::kDecode}},
                like);
    const std::string body = R"({"model":"m","messages":[{"role":"user","content":"hi"}]})";
    const auto plain = fleet.ask(WireApi::kChat, body);
    CHECK(plain->answered->status == 200);
    CHECK(fleet.emulators[0]->held() == 0);
    // One that is busy: its blocks go with the request, the other one's by being fetched.
    fleet.fault(1, R"({"status":503})");
    for (int i = 0; i < 8; ++i) {
      const auto asked = fleet.ask(WireApi::kChat, body);
      CHECK(fleet.emulators[0]->held() == 0);
      fleet.clock.advance(2s);
      if (asked->answered->status == 200)
        CHECK(dialects::string_at(
                  *dialects::first_element(*dialects::value_at(asked->answered->body, {"choices"})),
                  {"message", "content"}) ==
              dialects::string_at(
                  *dialects::first_element(*dialects::value_at(plain->answered->body, {"choices"})),
                  {"message", "content"}));
    }
  }
}

TEST_CASE("blocks: SGLang servers that are deaf to closing end both legs by their rids") {
  EmulatorOptions like;
  like.ignore_close = true;
  like.first_token = 1min;
  Fleet fleet(
      {{EngineKind::kSglang, EngineRole::kPrefill}, {EngineKind::kSglang, EngineRole::kDecode}},
      like);
  const auto asked = fleet.begin(
      WireApi::kChat, R"({"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true})");
  fleet.clock.advance(1s);
  CHECK(fleet.emulators[0]->running() == 1);
  CHECK(fleet.emulators[1]->running() == 1);
  asked->answered->disconnect();
  fleet.clock.advance(1s);
  CHECK(asked->over);
  CHECK(fleet.emulators[0]->running() == 0);
  CHECK(fleet.emulators[1]->running() == 0);
}

}  // namespace penstock::emulate
