// Anthropic's Messages API through the gateway: routes, shapes, counts, and every way a stream
// ends.
#include <boost/json.hpp>

#include <string>

#include "core/protocol/messages_fold.h"
#include "tests/support/gateway_rig.h"

namespace penstock::gateway {
namespace {

std::string body_of(const std::string& extra = {}) {
  return R"({"model":"nano","max_tokens":100,"messages":[{"role":"user","content":"Hi"}])" + extra +
         "}";
}

std::shared_ptr<Answered> ask(Rig& rig, const std::string& extra = {},
                              const std::string& path = "/v1/messages") {
  return rig.send("POST", path, body_of(extra));
}

// A call of f(a: "b") as the model writes it; the DSML mark is one added token.
std::vector<TokenId> call_tokens() {
  const TokenId dsml = *nano_tokenizer()->token_id("｜DSML｜");
  std::vector<TokenId> ids;
  bool first = true;
  for (const char* text : {"ok\n\n<", "tool_calls>\n<", "invoke name=\"f\">\n<",
                           "parameter name=\"a\" string=\"true\">b</", "parameter>\n</",
                           "invoke>\n</", "tool_calls>"}) {
    if (!std::exchange(first, false)) ids.push_back(dsml);
    REQUIRE(nano_tokenizer()->encode(text, ids));
  }
  return ids;
}

constexpr const char* kTools =
    R"(,"thinking":{"type":"adaptive"},"tools":[{"name":"f","input_schema":{"type":"object"}}])";

}  // namespace

TEST_CASE("a message, streamed and whole, says the same") {
  Rig rig;
  for (const char* path : {"/v1/messages", "/anthropic/v1/messages"}) {
    const auto play = [&](const std::string& extra) {
      const auto answer = ask(rig, extra, path);
      rig.emit_text("why</think>");
      rig.engines.emit(call_tokens(), FinishReason::kStop);
      rig.clock.run();
      return answer;
    };
    const auto whole = play(kTools);
    const auto stream = play(std::string(kTools) + R"(,"stream":true)");
    CHECK(whole->status == 200);
    CHECK(whole->header("request-id") == whole->header("x-request-id"));
    CHECK(!whole->header("request-id").empty());
    CHECK(stream->content_type == "text/event-stream; charset=utf-8");
    CHECK(stream->finished);
    CHECK(!stream->header("request-id").empty());
    auto folded = protocol::MessagesFolder().fold(stream->body);
    CHECK(folded.problem == "");
    CHECK(folded.done);
    auto expected = boost::json::parse(whole->body).as_object();
    CHECK(expected.at("stop_reason") == "tool_use");
    CHECK(expected.at("content").as_array().size() == 3);
    CHECK(expected.at("content").at(0).at("thinking") == "why");
    CHECK(expected.at("content").at(1).at("text") == "ok");
    CHECK(expected.at("content").at(2).at("input") == boost::json::object{{"a", "b"}});
    CHECK(expected.at("content").at(2).at("id").as_string().starts_with("toolu_"));
    CHECK(expected.at("usage").at("cache_read_input_tokens") == 2);
    CHECK(expected.at("usage").at("input_tokens").as_int64() + 2 ==
          static_cast<std::int64_t>(rig.last().usage.prompt_tokens));
    for (auto* message : {&expected, &folded.whole}) {
      message->erase("id");
      (*message)["content"].at(0).as_object().erase("signature");
      (*message)["content"].at(2).as_object().erase("id");
    }
    CHECK(folded.whole == expected);
  }
  CHECK(rig.last().outcome == "tool_calls");
  CHECK(rig.last().route == "/anthropic/v1/messages");
}

TEST_CASE("stop reasons: a stop sequence by name, max_tokens, the context's end") {
  Rig rig;
  const auto stopped = ask(rig, R"(,"stop_sequences":["XX","END"])");
  rig.emit_text("before END after");
  CHECK(contains(stopped->body, R"("stop_reason":"stop_sequence","stop_sequence":"END")"));
  CHECK(rig.engines.open().empty());
  const auto cut = ask(rig);
  CHECK(rig.engines.open()[0].request.sampling.max_tokens == 100);
  rig.emit_text("on and on", FinishReason::kLength);
  CHECK(contains(cut->body, R"("stop_reason":"max_tokens","stop_sequence":null)"));
  const auto full = rig.send("POST", "/v1/messages",
                             R"({"model":"nano","max_tokens":32000,"thinking":{"type":"enabled",
                                 "budget_tokens":31999},"messages":[{"role":"user","content":"Hi"}]})");
  const auto& request = rig.engines.open()[0].request;
  CHECK(request.sampling.max_tokens == 4096 - request.prompt->size());
  rig.emit_text("on and on", FinishReason::kLength);
  CHECK(contains(full->body, R"("stop_reason":"model_context_window_exceeded")"));
}

TEST_CASE("count_tokens is what usage says later, takes no engine and is not charged") {
  Rig rig;
  const std::string extra =
      std::string(kTools) + R"(,"system":[{"type":"text","text":"Be brief."}])";
  const auto answer = ask(rig, extra);
  rig.emit_text("x", FinishReason::kLength);
  const auto prompt = rig.last().usage.prompt_tokens;
  CHECK(answer->status == 200);
  rig.engines.kill(0);  // counting needs no worker
  for (const char* path : {"/v1/messages/count_tokens", "/anthropic/v1/messages/count_tokens"}) {
    const auto count = ask(rig, extra, path);
    CHECK(count->status == 200);
    CHECK(count->body == R"({"input_tokens":)" + std::to_string(prompt) + "}");
    CHECK(!count->header("request-id").empty());
    CHECK(rig.last().usage == Usage{});
    CHECK(rig.last().status == 200);
  }
  CHECK(rig.engines.submitted == 1);
  CHECK(ask(rig, R"(,"system":7)", "/v1/messages/count_tokens")->status == 400);
  // More than any context holds is a number, too.
  std::string longer = R"({"model":"nano","messages":[{"role":"user","content":")";
  for (int i = 0; i < 5000; ++i)
    longer += "7 ";
  CHECK(rig.send("POST", "/v1/messages/count_tokens", longer + R"("}]})")->status == 200);
}

TEST_CASE("a client that leaves a message after any number of events frees the engine") {
  for (int events = 0; events < 3; ++events) {
    CAPTURE(events);
    Rig rig;
    const auto answer = ask(rig, R"(,"stream":true)");
    for (int i = 0; i < events; ++i)
      rig.emit_text("Some text");
    answer->refuse_writes = true;
    answer->disconnect();
    rig.clock.run();
    CHECK(rig.engines.open().empty());
    CHECK(rig.gateway.in_flight() == 0);
    CHECK(rig.last().status == 499);
    CHECK((rig.last().usage.completion_tokens > 0) == (events > 0));
    CHECK(!answer->finished);
  }
}

TEST_CASE("an engine that fails after any number of events ends the message in an error") {
  for (int events = 0; events < 3; ++events) {
    CAPTURE(events);
    for (const bool streamed : {true, false}) {
      CAPTURE(streamed);
      Rig rig;
      const auto answer = ask(rig, streamed ? R"(,"stream":true)" : "");
      for (int i = 0; i < events; ++i)
        rig.emit_text("Some text");
      rig.engines.fail({ErrorCode::kInternal, "the kernel broke", {}, {}});
      rig.clock.run();
      CHECK(answer->finished);
      CHECK(rig.last().outcome == "internal");
      if (!streamed || events == 0) {
        CHECK(answer->status == 500);
        CHECK(contains(answer->body, R"({"type":"error","error":{"type":"api_error")"));
        CHECK(contains(answer->body, answer->header("request-id")));
      } else {
        const auto folded = protocol::MessagesFolder().fold(answer->body);
        CHECK(folded.problem == "");
        CHECK(folded.error == "api_error");
        CHECK(!folded.done);
        CHECK(folded.whole.at("stop_reason").is_null());
      }
    }
  }
}

TEST_CASE("a silent engine yields a comment before the message and pings within it") {
  Rig rig;
  const auto answer = ask(rig, R"(,"stream":true)");
  rig.clock.advance(std::chrono::seconds(15));
  CHECK(answer->body == ": keep-alive\n");
  rig.emit_text("Some");
  rig.clock.advance(std::chrono::seconds(15));
  CHECK(answer->body.ends_with("event: ping\ndata: {\"type\":\"ping\"}\n\n"));
  rig.emit_text(" text", FinishReason::kLength);
  const auto folded = protocol::MessagesFolder().fold(answer->body);
  CHECK(folded.problem == "");
  CHECK(folded.done);
  CHECK(folded.whole.at("content").at(0).at("text") == "Some text");
}

TEST_CASE("refusals of the Messages API have Anthropic's shape") {
  Rig rig;
  struct Case {
    const char* method;
    const char* path;
    std::string body;
    int status;
    const char* type;
    const char* part;
  };
  for (const Case& c : {
           Case{"POST", "/v1/messages", "{", 400, "invalid_request_error", "byte 1"},
           Case{"POST", "/v1/messages",
                R"({"model":"no","max_tokens":1,"messages":[{"role":"user","content":"a"}]})", 404,
                "not_found_error", "there are: "},
           Case{"POST", "/v1/messages", body_of(R"(,"tool_choice":{"type":"any"},"tools":[
                {"name":"f","input_schema":{"type":"array"}}])"),
                400, "invalid_request_error", "'f'"},
           Case{"GET", "/v1/messages", "", 405, "invalid_request_error", "POST"},
           Case{"GET", "/anthropic/v1/models/none", "", 404, "not_found_error", "none"},
       }) {
    CAPTURE(c.path);
    const auto answer = rig.send(c.method, c.path, c.body);
    CHECK(answer->status == c.status);
    CHECK(contains(answer->body, std::string(R"({"type":"error","error":{"type":")") + c.type));
    CHECK(contains(answer->body, c.part));
    CHECK(contains(answer->body, answer->header("request-id")));
  }
  rig.gateway.begin_drain();
  const auto draining = ask(rig);
  CHECK(draining->status == 529);
  CHECK(draining->header("retry-after") == "1");
  CHECK(contains(draining->body, "overloaded_error"));
  CHECK(rig.last().status == 529);
  rig.context.authenticate = [](std::string_view) { return std::optional<std::string>(); };
  const auto stranger = ask(rig);
  CHECK(stranger->status == 401);
  CHECK(contains(stranger->body, "authentication_error"));
}

TEST_CASE("base paths, and models in the shape that the client speaks") {
  Rig rig;
  const auto chat = rig.send("POST", "/beta/chat/completions",
                             R"({"model":"nano","messages":[{"role":"user","content":"Hi"}]})");
  rig.emit_text("x", FinishReason::kLength);
  CHECK(chat->status == 200);
  const std::vector<HttpHeader> version = {{"anthropic-version", "2023-06-01"}};
  for (const char* path : {"/v1/models", "/models", "/beta/models"}) {
    CHECK(contains(rig.send("GET", path)->body, R"({"object":"list")"));
    CHECK(contains(rig.send("GET", path, {}, version)->body, R"("first_id":"chat")"));
  }
  CHECK(contains(rig.send("GET", "/anthropic/v1/models")->body, R"("has_more":false)"));
  CHECK(contains(rig.send("GET", "/v1/models/nano", {}, version)->body, R"({"type":"model")"));
  CHECK(contains(rig.send("GET", "/v1/models/nano")->body, R"("object":"model")"));
  const auto unknown = rig.send("GET", "/v1/nothing", {}, version);
  CHECK(unknown->status == 404);
  CHECK(contains(unknown->body, R"({"type":"error")"));
}

}  // namespace penstock::gateway
