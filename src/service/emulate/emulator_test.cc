// What an emulator says is checked against texts typed from facts/engines.md 4.1, 4.2, 4.7 and 4.8,
// and read with the parsers that real engines' answers are read with.
#include "service/emulate/emulator.h"

#include <memory>
#include <optional>
#include <string>

#include "core/dialects/answer_watch.h"
#include "core/dialects/engine_reports.h"
#include "core/dialects/json_values.h"
#include "core/dialects/pd_legs.h"
#include "tests/support/fake_exchange.h"
#include "tests/support/virtual_clock.h"

#include <doctest/doctest.h>

namespace penstock::emulate {
namespace {

using namespace std::chrono_literals;
using dialects::EngineKind;
using dialects::WireApi;
using testing::Answered;

// One emulator as another one's peer.
class PeerUpstream final : public Upstream {
 public:
  PeerUpstream(Clock& clock, Emulator& emulator) : clock_(clock), emulator_(emulator) {}

  std::unique_ptr<UpstreamCall> call(UpstreamRequest request) override {
    auto answered = std::make_shared<Answered>();
    HttpRequest in;
    in.method = std::move(request.method);
    in.path = std::move(request.target);
    in.body = std::move(request.body);
    gate_.start(emulator_.handle(std::make_unique<testing::FakeExchange>(std::move(in), answered)));
    return std::make_unique<Call>(clock_, std::move(answered));
  }
  void close() override {}
  const UpstreamCounters& counters() const override { return counters_; }

 private:
  class Call final : public UpstreamCall {
   public:
    Call(Clock& clock, std::shared_ptr<Answered> answered)
        : clock_(clock), answered_(std::move(answered)) {}
    ~Call() override {
      if (!answered_->finished && answered_->disconnect) answered_->disconnect();
    }
    Task<Result<UpstreamHead>> head(Instant deadline) override {
      while (!answered_->finished && !cancelled_ && clock_.now() < deadline)
        co_await Sleep(clock_, 5ms);
      if (!answered_->finished) co_return fail(ErrorCode::kCancelled, "nobody waits");
      co_return UpstreamHead{answered_->status, {}};
    }
    Task<Result<std::string>> read(Instant) override { co_return answered_->body; }
    bool sent() const override { return true; }
    void cancel() override { cancelled_ = true; }

   private:
    Clock& clock_;
    std::shared_ptr<Answered> answered_;
    bool cancelled_ = false;
  };
  Clock& clock_;
  Emulator& emulator_;
  UpstreamCounters counters_;
  Gate gate_;
};

struct Rig {
  explicit Rig(EmulatorOptions options, testing::VirtualClock* shared = nullptr,
               Emulator::Dial dial = nullptr)
      : clock(shared != nullptr ? *shared : own),
        emulator(
            clock, std::move(options),
            [this] {
              return 1'764'547'200.0 +
                     std::chrono::duration<double>(clock.now().time_since_epoch()).count();
            },
            std::move(dial)) {}
  ~Rig() {
    clock.advance(10min);
    CHECK(gate.running() == 0);
    CHECK(emulator.running() == 0);
    CHECK(emulator.held() == 0);
  }

  std::shared_ptr<Answered> begin(std::string method, std::string path, std::string body,
                                  std::vector<HttpHeader> headers = {}) {
    auto answered = std::make_shared<Answered>();
    HttpRequest request;
    request.method = std::move(method);
    request.path = std::move(path);
    request.headers = std::move(headers);
    request.body = std::move(body);
    gate.start(
        emulator.handle(std::make_unique<testing::FakeExchange>(std::move(request), answered)));
    clock.run();
    return answered;
  }
  Answered ask(std::string method, std::string path, std::string body = "") {
    auto answered = begin(std::move(method), std::move(path), std::move(body));
    clock.advance(10s);
    return *answered;
  }
  Answered post(WireApi api, std::string body) {
    return ask("POST", std::string(dialects::path_of(api)), std::move(body));
  }

  testing::VirtualClock own;
  testing::VirtualClock& clock;
  Emulator emulator;
  Gate gate;
};

EmulatorOptions of(EngineKind kind) {
  EmulatorOptions options;
  options.kind = kind;
  return options;
}

std::string content(std::string_view body) {
  const auto choice = dialects::first_element(*dialects::value_at(body, {"choices"}));
  return dialects::string_at(*choice, {"message", "content"}).value_or("?");
}

constexpr auto kChat =
    R"({"model":"emulated","messages":[{"role":"user","content":"hi"}],"max_tokens":8})";

std::int64_t cached(const Answered& answered) {
  return *dialects::integer_at(answered.body, {"usage", "prompt_tokens_details", "cached_tokens"});
}

}  // namespace

TEST_CASE("emulate: what was computed is cached, by rank, until newer prompts need the room") {
  EmulatorOptions options = of(EngineKind::kVllm);
  REQUIRE(set_option(options, "cache-tokens=160"));
  REQUIRE(set_option(options, "ranks=2"));
  Rig rig(options);
  const auto ask = [&](char letter, std::string_view rank) {
    const auto answered =
        rig.begin("POST", "/v1/completions", R"({"prompt":")" + std::string(399, letter) + R"("})",
                  {{"x-data-parallel-rank", std::string(rank)}});
    rig.clock.advance(10s);
    return cached(*answered);
  };
  CHECK(ask('a', "0") == 0);
  CHECK(ask('a', "0") == 96);  // whole blocks of 400 bytes and a quote
  CHECK(ask('a', "1") == 0);
  CHECK(ask('b', "0") == 0);
  CHECK(ask('a', "0") == 64);  // six blocks of b left four of the ten
}

// A prefill and a decode emulator that can reach one another as http://p:8998.
struct Pair {
  explicit Pair(EmulatorOptions options) {
    EmulatorOptions prefills = options;
    if (options.kind == EngineKind::kSglang) prefills.mode = "prefill";
    prefill.emplace(prefills, &clock);
    if (options.kind == EngineKind::kSglang) options.mode = "decode";
    options.ranks = 1;
    decode.emplace(options, &clock, [this](const std::string& url) -> std::unique_ptr<Upstream> {
      if (url != "http://p:8998" && url != "http://127.0.0.1:8998") return nullptr;
      return std::make_unique<PeerUpstream>(clock, prefill->emulator);
    });
  }
  testing::VirtualClock clock;
  std::optional<Rig> prefill;
  std::optional<Rig> decode;  // goes first
};

std::string with(std::string_view body, std::string_view member) {
  return std::string(body.substr(0, body.size() - 1)) + "," + std::string(member) + "}";
}

TEST_CASE("emulate: an SGLang server of a mode wants a room, and the room names prefill's rank") {
  EmulatorOptions options = of(EngineKind::kSglang);
  REQUIRE(set_option(options, "ranks=3"));
  Pair pair(options);
  const auto room = [](std::string_view number) {
    return with(kChat, R"("bootstrap_host":"p","bootstrap_port":8998,"bootstrap_room":)" +
                           std::string(number));
  };
  for (Rig* rig : {&*pair.prefill, &*pair.decode}) {
    CHECK(rig->post(WireApi::kChat, kChat).status == 400);
    CHECK(rig->post(WireApi::kChat, room("-1")).status == 400);
  }
  const auto info = dialects::parse_sglang_info(pair.prefill->ask("GET", "/server_info").body);
  REQUIRE(info.has_value());
  CHECK(info->disaggregation_mode == "prefill");
  CHECK(info->bootstrap_port == 8998);
  CHECK(info->load_balance_method == "follow_bootstrap_room");
  // Either leg waits for the other one.
  const auto prefill = pair.prefill->begin("POST", "/v1/chat/completions", room("8"));
  pair.clock.advance(1min);
  CHECK(prefill->status == 0);
  CHECK(pair.prefill->begin("GET", "/v1/loads", "")
            ->body.contains(R"("dp_rank":2,"num_running_reqs":1)"));
  const auto wrong = pair.decode->begin("POST", "/v1/chat/completions", room("5"));
  const auto right = pair.decode->begin("POST", "/v1/chat/completions", room("8"));
  pair.clock.advance(1s);
  CHECK(prefill->status == 200);
  CHECK(right->status == 200);
  Rig plain(of(EngineKind::kSglang));
  CHECK(content(right->body) == content(plain.post(WireApi::kChat, kChat).body));
  pair.clock.advance(298s);
  CHECK(wrong->status == 0);
  pair.clock.advance(2s);
  CHECK(wrong->status == 500);
  // What was prefilled is decoded, whatever the decode leg's own body says.
  const auto other =
      pair.prefill->begin("POST", "/v1/chat/completions",
                          with(R"({"messages":[2]})",
                               R"("bootstrap_host":"p","bootstrap_port":8998,"bootstrap_room":9)"));
  const Answered mixed = pair.decode->post(WireApi::kChat, room("9"));
  CHECK(mixed.status == 200);
  CHECK(content(mixed.body) != content(right->body));
  // A leg whose client goes is gone, and leaves nothing behind.
  const auto left = pair.decode->begin("POST", "/v1/chat/completions", room("11"));
  left->disconnect();
  pair.clock.advance(100ms);
  CHECK(pair.decode->emulator.running() == 0);
  EmulatorOptions bad;
  CHECK_FALSE(set_option(bad, "mode=both"));
}

TEST_CASE("emulate: Mooncake's legs meet by transfer and engine id, which differ between ranks") {
  EmulatorOptions options = of(EngineKind::kVllm);
  REQUIRE(set_option(options, "ranks=2"));
  REQUIRE(set_option(options, "connector=mooncake"));
  Pair pair(options);
  const auto engines = dialects::parse_mooncake_query(pair.prefill->ask("GET", "/query").body);
  REQUIRE(engines.size() == 2);
  CHECK(engines[1].engine_id == "emulated_dp1");
  // Typed from what the engine documents.
  const auto prefill = [&](std::string_view transfer, std::string_view rank) {
    return pair.prefill->begin(
        "POST", "/v1/chat/completions",
        R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":1,"stream":false,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":")" +
            std::string(transfer) + "\"}}",
        {{"x-data-parallel-rank", std::string(rank)}});
  };
  const auto decode = [&](std::string_view transfer, std::string_view engine) {
    return pair.decode->begin(
        "POST", "/v1/chat/completions",
        with(
            kChat,
            R"("kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"transfer_id":")" +
                std::string(transfer) +
                R"(","remote_bootstrap_addr":"http://p:8998","remote_engine_id":")" +
                std::string(engine) + "\"}"));
  };
  const auto wrong_rank = decode("xfer-1", "emulated_dp0");
  const auto early = decode("xfer-2", "emulated_dp1");
  const auto p1 = prefill("xfer-1", "1");
  const auto p2 = prefill("xfer-2", "1");
  pair.clock.advance(1s);
  CHECK(p1->status == 200);
  CHECK(p2->status == 200);
  CHECK(early->status == 200);
  Rig plain(of(EngineKind::kVllm));
  CHECK(content(early->body) == content(plain.post(WireApi::kChat, kChat).body));
  CHECK(wrong_rank->status == 0);
  CHECK(pair.prefill->emulator.held() == 1);
  pair.clock.advance(480s);
  CHECK(wrong_rank->status == 500);
  CHECK(pair.prefill->emulator.held() == 0);
  // NIXL's params mean nothing here.
  CHECK(pair.prefill
            ->post(
                WireApi::kChat,
                R"({"messages":[1],"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}})")
            .status == 400);
}

TEST_CASE(
    "emulate: NIXL's blocks are freed by the decode leg that fetches them, and then are gone") {
  Pair pair(of(EngineKind::kVllm));
  const auto prefill = pair.prefill->begin(
      "POST", "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}})");
  pair.clock.advance(100ms);
  const auto reply = dialects::read_prefill_reply(prefill->body);
  REQUIRE(reply.params.has_value());
  CHECK(pair.prefill->emulator.held() == 1);
  const std::string body = with(kChat, R"("kv_transfer_params":)" + *reply.params);
  const auto first = pair.decode->begin("POST", "/v1/chat/completions", body);
  pair.clock.advance(10ms);
  CHECK(pair.prefill->emulator.held() == 0);  // with the request, not with its first token
  pair.clock.advance(1s);
  Rig plain(of(EngineKind::kVllm));
  const std::string text = content(plain.post(WireApi::kChat, kChat).body);
  CHECK(content(first->body) == text);
  const Answered again = pair.decode->post(WireApi::kChat, body);
  CHECK(again.status == 200);
  CHECK(content(again.body) != text);
}

TEST_CASE("emulate: an SGLang server that is deaf to closing stops a request by its rid") {
  EmulatorOptions options = of(EngineKind::kSglang);
  REQUIRE(set_option(options, "ignore-close=1"));
  REQUIRE(set_option(options, "first-token-ms=60000"));
  Rig rig(options);
  const auto left = rig.begin("POST", "/v1/chat/completions", with(kChat, R"("rid":"r-1")"));
  left->disconnect();
  rig.clock.advance(1s);
  CHECK(rig.emulator.running() == 1);
  CHECK(rig.ask("POST", "/abort_request", R"({"rid":"r-2"})").status == 200);
  CHECK(rig.emulator.running() == 1);
  rig.ask("POST", "/abort_request", R"({"rid":"r-1"})");
  CHECK(rig.emulator.running() == 0);
}

TEST_CASE("emulate: a fault's delay ends with the client") {
  EmulatorOptions options = of(EngineKind::kVllm);
  REQUIRE(set_option(options, "fault-delay-ms=600000"));
  Rig rig(options);
  const auto slow = rig.begin("POST", "/v1/chat/completions", kChat);
  rig.clock.advance(1s);
  CHECK(rig.emulator.running() == 1);
  slow->disconnect();
  rig.clock.advance(50ms);
  CHECK(rig.emulator.running() == 0);
}

TEST_CASE("emulate: what each engine tells of itself") {
  for (const EngineKind kind : {EngineKind::kVllm, EngineKind::kSglang, EngineKind::kLlamaCpp}) {
    for (const bool old_forms : {false, true}) {
      EmulatorOptions options = of(kind);
      options.old_forms = old_forms;
      options.ranks = 2;
      Rig rig(options);
      CHECK(rig.ask("GET", "/health").status == 200);
      const auto models = dialects::parse_models(rig.ask("GET", "/v1/models").body);
      REQUIRE(models.has_value());
      CHECK(models->at(0).id == "emulated");
      CHECK(models->at(0).context_length == 32768);
      const auto running = rig.begin("POST", "/v1/chat/completions", kChat);
      std::vector<dialects::RankLoad> loads;
      if (kind == EngineKind::kVllm) {
        loads = dialects::parse_vllm_metrics(rig.begin("GET", "/metrics", "")->body);
        CHECK(loads.at(0).kv_used.has_value());
      } else if (kind == EngineKind::kSglang) {
        loads = dialects::parse_sglang_loads(
            rig.begin("GET", old_forms ? "/get_load" : "/v1/loads", "")->body);
        CHECK(rig.begin("GET", old_forms ? "/v1/loads" : "/get_load", "")->status == 404);
        CHECK(dialects::parse_sglang_info(rig.begin("GET", "/get_server_info", "")->body)
                  .value()
                  .dp_size == 2);
      } else {
        loads = dialects::parse_llamacpp_slots(rig.begin("GET", "/slots", "")->body);
        CHECK(dialects::parse_llamacpp_props(rig.begin("GET", "/props", "")->body).value().slots ==
              4);
      }
      double sum = 0;
      for (const auto& load : loads)
        sum += load.running.value_or(-1);
      CHECK(sum == 1);
    }
  }
}

TEST_CASE(
    "emulate: one prompt, one text, whole and streamed, in every API; usage and end are read") {
  for (const WireApi api : {WireApi::kChat, WireApi::kCompletion, WireApi::kResponses,
                            WireApi::kMessages, WireApi::kGenerate}) {
    Rig rig(of(EngineKind::kVllm));
    const std::string head =
        R"({"model":"emulated","messages":[1],"prompt":"x","input":"y","stream_options":{"include_usage":true})";
    const Answered whole = rig.post(api, head + "}");
    const Answered streamed = rig.post(api, head + R"(,"stream":true})");
    CHECK(whole.status == 200);
    CHECK(streamed.finished);
    dialects::AnswerWatch of_whole(api);
    of_whole.whole(whole.body);
    dialects::AnswerWatch of_stream(api);
    dialects::SseSplitter splitter;
    CHECK(splitter.feed(streamed.body,
                        [&](const dialects::SseEvent& event) { of_stream.event(event); }));
    CHECK(splitter.rest().empty());
    CHECK(of_stream.ended());
    CHECK_FALSE(of_stream.failed());
    REQUIRE(of_whole.usage().has_value());
    CHECK(of_whole.usage() == of_stream.usage());
    CHECK(of_whole.usage()->completion_tokens == 16);
    CHECK_FALSE(of_whole.finish().empty());
  }
}

TEST_CASE("emulate: the text is the prompt's, on any engine; a limit cuts it") {
  Rig vllm(of(EngineKind::kVllm));
  Rig sglang(of(EngineKind::kSglang));
  const std::string text = content(vllm.post(WireApi::kChat, kChat).body);
  CHECK(content(sglang.post(WireApi::kChat, kChat).body) == text);
  CHECK(content(vllm.post(WireApi::kChat,
                          R"({"messages":[{"role":"user","content":"ho"}],"max_tokens":8})")
                    .body) != text);
  CHECK(text.starts_with(content(
      vllm.post(WireApi::kChat,
                R"({"messages":[{"role":"user","content":"hi"}],"max_completion_tokens":3})")
          .body)));
}

TEST_CASE("emulate: vLLM's legs: params pass, blocks are held for the lease, stale ones lie") {
  EmulatorOptions options = of(EngineKind::kVllm);
  options.lease = 5s;
  Rig rig(options);
  const std::string text = content(rig.post(WireApi::kChat, kChat).body);
  const auto body = dialects::JsonBody::read(kChat, dialects::leg_keys());
  REQUIRE(body.has_value());
  const auto prefill = [&] {
    auto answered = rig.begin("POST", "/v1/chat/completions",
                              body->edited(dialects::nixl_prefill_edits(*body, WireApi::kChat)));
    rig.clock.advance(100ms);
    return dialects::read_prefill_reply(answered->body);
  };
  const auto decode = [&](std::string_view params) {
    const dialects::Edit edit = dialects::nixl_decode_edit(params);
    auto answered = rig.begin("POST", "/v1/chat/completions", body->edited(std::span(&edit, 1)));
    rig.clock.advance(1s);
    return content(answered->body);
  };
  const auto reply = prefill();
  REQUIRE(reply.params.has_value());
  REQUIRE(reply.expires_at.has_value());
  CHECK(rig.emulator.held() == 1);
  CHECK(decode(*reply.params) == text);
  rig.clock.advance(5s);
  CHECK(rig.emulator.held() == 0);
  CHECK(decode(*reply.params) != text);  // 200, and wrong, as the real one
  // A prefill leg that streams or wants more than a token is a mistake of the router's.
  const dialects::Edit stream{"kv_transfer_params", R"({"do_remote_decode":true})"};
  CHECK(rig.post(WireApi::kChat, body->edited(std::span(&stream, 1))).status == 400);
}

// Answers are called by names that never come again.
std::string unnamed(std::string text) {
  constexpr std::string_view kPrefix = "chatcmpl-";
  for (auto at = text.find(kPrefix); at != std::string::npos; at = text.find(kPrefix, at + 1))
    text.erase(at + kPrefix.size(), 16);
  return text;
}

TEST_CASE("emulate: faults: a status, a pause, a cut at every byte, every nth; and its key") {
  EmulatorOptions options = of(EngineKind::kVllm);
  options.key = "k";
  Rig locked(options);
  CHECK(locked.ask("GET", "/v1/models").status == 401);
  CHECK(locked.ask("GET", "/health").status == 200);

  Rig rig(of(EngineKind::kVllm));
  const std::string streamed = R"({"messages":[1],"stream":true})";
  const std::string whole = rig.post(WireApi::kChat, streamed).body;
  for (std::size_t cut = 0; cut < whole.size(); cut += 7) {
    CHECK(
        rig.ask("POST", "/emulate/faults", R"({"cut_after":)" + std::to_string(cut) + "}").status ==
        200);
    const Answered answered = rig.post(WireApi::kChat, streamed);
    CHECK_FALSE(answered.finished);
    CHECK(unnamed(answered.body) == unnamed(whole.substr(0, cut)));
  }
  rig.ask("POST", "/emulate/faults", R"({"status":503,"every":2})");
  int refused = 0;
  for (int i = 0; i < 10; ++i)
    refused += rig.post(WireApi::kChat, kChat).status == 503 ? 1 : 0;
  CHECK(refused == 5);
  rig.ask("POST", "/emulate/faults", R"({"delay_ms":3000})");
  const auto late = rig.begin("POST", "/v1/chat/completions", kChat);
  rig.clock.advance(2s);
  CHECK(late->status == 0);
  rig.clock.advance(2s);
  CHECK(late->status == 200);
  CHECK(rig.ask("POST", "/emulate/faults", "[]").status == 400);
  rig.ask("POST", "/emulate/faults", "{}");
  const auto left = rig.begin("POST", "/v1/chat/completions", streamed);
  CHECK(rig.emulator.running() == 1);
  left->disconnect();
  left->refuse_writes = true;
  rig.clock.advance(100ms);
  CHECK(rig.emulator.running() == 0);
}

TEST_CASE(
    "emulate: what a rank's cache holds is published, and the render routes name the same tokens") {
  struct Message {
    std::size_t rank;
    bool lost;
  };
  std::vector<Message> messages;
  EmulatorOptions options = of(EngineKind::kVllm);
  options.ranks = 2;
  Rig rig(options);
  rig.emulator.publish_with(
      [&](std::size_t rank, std::string, bool lost) { messages.push_back({rank, lost}); }, "{}");
  const std::string messages_json =
      R"([{"role":"user","content":")" + std::string(100, 'a') + "\"}]";
  const std::string body = R"({"messages":)" + messages_json + "}";
  const auto chat = rig.ask("POST", "/v1/chat/completions/render", body);
  const auto rendered = dialects::parse_rendered(chat.body);
  REQUIRE(rendered.has_value());
  CHECK(rendered->tokens.size() == messages_json.size() / 4);
  CHECK(rendered->tokens[0] == 0x227b5b + (std::uint32_t{'r'} << 24));
  const auto ids = dialects::parse_rendered(
      rig.ask("POST", "/v1/completions/render", R"({"prompt":[5,6,7]})").body);
  REQUIRE(ids.has_value());
  CHECK(ids->tokens == std::vector<std::uint32_t>{5, 6, 7});
  CHECK(rig.ask("POST", "/v1/chat/completions/render", "{}").status == 400);
  CHECK(rig.ask("POST", "/v1/messages/render", body).status == 404);
  const auto ask = [&](std::string_view rank) {
    rig.begin("POST", "/v1/chat/completions", body, {{"x-data-parallel-rank", std::string(rank)}});
    rig.clock.advance(1s);
  };
  ask("1");
  ask("1");  // nothing new
  rig.ask("POST", "/emulate/faults", R"({"lose_events":true})");
  ask("0");
  REQUIRE(messages.size() == 2);
  CHECK(messages[0].rank == 1);
  CHECK_FALSE(messages[0].lost);
  CHECK(messages[1].rank == 0);
  CHECK(messages[1].lost);
}

TEST_CASE("emulate: tokens in, tokens out, with a limit of their own; embeddings") {
  Rig rig(of(EngineKind::kVllm));
  const auto ids = [](std::string_view body) {
    const auto choice = dialects::first_element(*dialects::value_at(body, {"choices"}));
    return *dialects::parse_token_ids(*dialects::value_at(*choice, {"token_ids"}));
  };
  const auto all = ids(rig.post(WireApi::kGenerate, R"({"token_ids":[7,8,9]})").body);
  CHECK(all.size() == 16);
  const Answered few =
      rig.post(WireApi::kGenerate, R"({"token_ids":[7,8,9],"sampling_params":{"max_tokens":3}})");
  CHECK(ids(few.body) == std::vector<std::uint32_t>(all.begin(), all.begin() + 3));
  CHECK(few.body.contains(R"("finish_reason":"length")"));
  const std::string one = rig.post(WireApi::kEmbeddings, R"({"input":"a"})").body;
  CHECK(one == rig.post(WireApi::kEmbeddings, R"({"input":"a"})").body);
  CHECK(one != rig.post(WireApi::kEmbeddings, R"({"input":"b"})").body);
  CHECK(dialects::integer_at(one, {"usage", "prompt_tokens"}) == 1);
}

TEST_CASE("emulate: settings") {
  EmulatorOptions options;
  CHECK(set_option(options, "model=x").has_value());
  CHECK(set_option(options, "ranks=3").has_value());
  CHECK(set_option(options, "fault-cut-after=9").has_value());
  CHECK(options.model == "x");
  CHECK(options.ranks == 3);
  CHECK(options.faults.cut_after == 9);
  CHECK_FALSE(set_option(options, "rank=3").has_value());
  CHECK_FALSE(set_option(options, "ranks=three").has_value());
  CHECK_FALSE(set_option(options, "ranks").has_value());
}

}  // namespace penstock::emulate
