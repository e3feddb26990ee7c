// What an emulator says is checked against texts typed from facts/engines.md 4.1, 4.2, 4.7 and 4.8,
// and read with the parsers that real engines' answers are read with.
#include "service/emulate/emulator.h"

#include <memory>
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

struct Rig {
  explicit Rig(EmulatorOptions options)
      : emulator(clock, std::move(options), [this] {
          return 1'764'547'200.0 +
                 std::chrono::duration<double>(clock.now().time_since_epoch()).count();
        }) {}
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

  testing::VirtualClock clock;
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

TEST_CASE("emulate: an SGLang server of a mode wants a room, and the room names prefill's rank") {
  for (const std::string mode : {"prefill", "decode"}) {
    EmulatorOptions options = of(EngineKind::kSglang);
    REQUIRE(set_option(options, "mode=" + mode));
    REQUIRE(set_option(options, "ranks=3"));
    Rig rig(options);
    CHECK(rig.post(WireApi::kChat, kChat).status == 400);
    const std::string with = std::string(kChat).substr(0, std::string_view(kChat).size() - 1) +
                             R"(,"bootstrap_host":"p","bootstrap_port":8998,"bootstrap_room":)";
    CHECK(rig.post(WireApi::kChat, with + "-1}").status == 400);
    const auto running = rig.begin("POST", "/v1/chat/completions", with + "8}");
    const auto loads = rig.begin("GET", "/v1/loads", "");
    if (mode == "prefill")
      CHECK(loads->body.find(R"("dp_rank":2,"num_running_reqs":1)") != std::string::npos);
    const auto info = dialects::parse_sglang_info(rig.begin("GET", "/server_info", "")->body);
    REQUIRE(info.has_value());
    CHECK(info->disaggregation_mode == mode);
    CHECK(info->load_balance_method == "follow_bootstrap_room");
    rig.clock.advance(10s);
    CHECK(running->status == 200);
  }
  EmulatorOptions options;
  CHECK_FALSE(set_option(options, "mode=both"));
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
  for (const WireApi api :
       {WireApi::kChat, WireApi::kCompletion, WireApi::kResponses, WireApi::kMessages}) {
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
    CHECK(answered.body == whole.substr(0, cut));
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
