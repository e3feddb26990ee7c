#include "service/gateway/gateway.h"

#include <memory>
#include <string>

#include "tests/support/gateway_rig.h"

namespace penstock::gateway {

TEST_CASE("a request tells the KV cache who may share it and how long it is kept") {
  Rig rig;
  const auto hints = [&](const std::string& extra, std::vector<HttpHeader> headers = {}) {
    rig.send("POST", "/v1/chat/completions",
             R"({"model":"nano","messages":[{"role":"user","content":"Hi"}])" + extra + "}",
             std::move(headers));
    const CacheHints cache = rig.engines.open().back().request.cache;
    rig.emit_text("x", FinishReason::kLength);
    return cache;
  };
  CHECK(hints("").scope.empty());  // no cache: nothing is said
  rig.context.cache = {true, CacheScope::kTenant, {"default", "chat", "agent"}};
  CHECK(hints("").scope == "tenant:local");
  CHECK(hints("").tenant == "local");
  CHECK(hints("").ttl_class == "chat");
  CHECK(hints(R"(,"cache_class":"default")").ttl_class == "default");
  CHECK(hints(R"(,"tools":[{"type":"function","function":{"name":"f"}}])").ttl_class == "agent");
  CHECK(!hints("").request.empty());
  const auto refused = rig.chat(R"(,"cache_class":"forever")");
  CHECK(refused->status == 400);
  CHECK(contains(refused->body, "there are: default, chat, agent"));
  rig.context.cache.scope = CacheScope::kUser;
  CHECK(hints(R"(,"user":"u1")").scope == "user:local/u1");
  CHECK(hints("").scope == "tenant:local");
  rig.context.cache.scope = CacheScope::kDeployment;
  CHECK(hints(R"(,"user":"u1")").scope == "deployment");
  rig.context.cache.scope = CacheScope::kTenant;
  rig.context.cache.classes = {"default"};
  CHECK(hints("").ttl_class.empty());
  rig.context.authenticate = [](std::string_view key) {
    return std::optional<std::string>("acme-" + std::string(key));
  };
  CHECK(hints("", {{"Authorization", "Bearer k"}}).scope == "tenant:acme-k");
  rig.context.cache.classes = {"default", "chat", "agent"};
  rig.context.cache.key_classes = {{"acme-k", "agent"}};
  CHECK(hints("", {{"Authorization", "Bearer k"}}).ttl_class == "agent");
  CHECK(hints(R"(,"cache_class":"default")", {{"Authorization", "Bearer k"}}).ttl_class ==
        "default");
  CHECK(hints("", {{"Authorization", "Bearer j"}}).ttl_class == "chat");
}

TEST_CASE("what the KV index promises stands in the record") {
  class Index final : public KvIndex {
   public:
    KvIndexMatch match(const KvIdentity&, const CacheHints& hints,
                       std::span<const TokenId> prompt) override {
      scope = hints.scope;
      tokens = prompt.size();
      return {Tokens(2), Tokens(3), Tokens(1), Tokens(4)};
    }
    std::string scope;
    std::size_t tokens = 0;
  };
  Rig rig;
  Index index;
  rig.context.kv_index = &index;
  rig.context.cache = {true, CacheScope::kTenant, {"default"}};
  const auto answer = rig.chat();
  rig.emit_text("x", FinishReason::kLength);
  CHECK(answer->status == 200);
  CHECK(index.scope == "tenant:local");
  CHECK(index.tokens == rig.last().usage.prompt_tokens);
  CHECK(rig.last().expected_cached_tokens == 2);
  CHECK(contains(rig.last().placement,
                 "cached (held in memory 3, on disk 1, in the cluster store 4)"));
}

TEST_CASE("a whole answer carries text and exact usage") {
  Rig rig;
  const auto answer = rig.chat();
  REQUIRE(rig.engines.open().size() == 1);
  const EngineRequest& request = rig.engines.open()[0].request;
  const auto prompt = request.prompt->size();
  CHECK(request.sampling.max_tokens == 4096 - prompt);
  CHECK(request.sampling.seed != 0);
  rig.emit_text("Hello there");
  CHECK(!answer->finished);
  rig.emit_text("!", FinishReason::kLength);
  CHECK(answer->status == 200);
  CHECK(contains(answer->body, R"("content":"Hello there!")"));
  CHECK(contains(answer->body, R"("finish_reason":"length")"));
  CHECK(contains(answer->body, R"("model":"nano")"));
  CHECK(rig.last().usage.prompt_tokens == prompt);
  CHECK(rig.last().usage.cached_tokens == 2);
  CHECK(rig.last().outcome == "length");
  CHECK(rig.gateway.in_flight() == 0);
  CHECK(rig.engines.open().empty());
}

TEST_CASE("a stream sends each output as it comes and ends with [DONE]") {
  Rig rig;
  const auto answer = rig.chat(R"(,"stream":true,"stream_options":{"include_usage":true})");
  CHECK(!answer->streamed);
  rig.emit_text("One");
  CHECK(answer->streamed);
  CHECK(answer->content_type == "text/event-stream; charset=utf-8");
  CHECK(contains(answer->body, R"("role":"assistant")"));
  rig.emit_text(" two");
  rig.engines.emit({*nano_tokenizer()->token_id("<｜end▁of▁sentence｜>")}, FinishReason::kStop);
  rig.clock.run();
  CHECK(answer->finished);
  CHECK(contains(answer->body, R"("finish_reason":"stop")"));
  CHECK(answer->body.ends_with("data: [DONE]\n\n"));
  CHECK(contains(answer->body,
                 R"("completion_tokens":)" + std::to_string(rig.last().usage.completion_tokens)));
}

TEST_CASE("refusals have a status, a code and the field at fault") {
  struct Case {
    const char* method;
    const char* path;
    std::string body;
    int status;
    const char* part;
  };
  const std::vector<Case> cases = {
      {"POST", "/v1/chat/completions", "{", 400, "byte"},
      {"POST", "/v1/chat/completions",
       R"({"model":"x","messages":[{"role":"user","content":"a"}]})", 404,
       R"("code":"model_not_found")"},
      {"POST", "/v1/chat/completions", R"({"model":"nano","messages":[]})", 400, "messages"},
      {"POST", "/v1/chat/completions",
       R"({"model":"nano","messages":[{"role":"user","content":"a"}],"max_tokens":5000})", 400,
       "context_length_exceeded"},
      {"POST", "/v1/chat/completions",
       R"({"model":"nano","messages":[{"role":"user","content":"a"}],"tool_choice":"required",
           "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"array"}}}]})",
       400, "tools[0].function.parameters"},
      {"GET", "/v1/chat/completions", "", 405, "POST"},
      {"GET", "/v1/nothing", "", 404, "not_found"},
      {"GET", "/v1/models/none", "", 404, "model_not_found"},
  };
  Rig rig;
  for (const Case& c : cases) {
    CAPTURE(c.body);
    const auto answer = rig.send(c.method, c.path, c.body);
    CHECK(answer->status == c.status);
    CHECK(contains(answer->body, c.part));
    CHECK(contains(answer->body, R"("error":)"));
  }
  std::string longer = R"({"model":"nano","messages":[{"role":"user","content":")";
  for (int i = 0; i < 5000; ++i)
    longer += "7 ";
  const auto answer = rig.send("POST", "/v1/chat/completions", longer + R"("}]})");
  CHECK(answer->status == 400);
  CHECK(contains(answer->body, R"("code":"context_length_exceeded")"));
  CHECK(rig.engines.submitted == 0);
  CHECK(rig.recorder.started == static_cast<int>(rig.recorder.records.size()));
}

TEST_CASE("a worker that dies in mid-answer costs a pause, not a token") {
  Rig rig;
  rig.engines.add_worker(2, "nano", 4096);
  const auto answer = rig.chat(R"(,"stream":true,"seed":7)");
  CHECK(rig.engines.open()[0].worker == WorkerId(1));
  rig.emit_text("The first part,");
  rig.engines.kill(0);
  rig.clock.run();
  REQUIRE(rig.engines.open().size() == 1);
  const auto& moved = rig.engines.open()[0];
  CHECK(moved.worker == WorkerId(2));
  CHECK(moved.request.sampling.seed == 7);
  std::vector<TokenId> first;
  REQUIRE(nano_tokenizer()->encode("The first part,", first));
  CHECK(moved.request.emitted == first);
  rig.emit_text(" the second.", FinishReason::kLength);
  CHECK(answer->finished);
  CHECK(contains(answer->body, "[DONE]"));
  CHECK(rig.last().moves == 1);
  CHECK(rig.last().usage.completion_tokens > first.size());
}

TEST_CASE("with no worker left a stream ends with an error event, a request with 503") {
  Rig rig;
  const auto stream = rig.chat(R"(,"stream":true)");
  rig.emit_text("Some");
  rig.engines.kill(0);
  rig.clock.advance(std::chrono::seconds(11));
  CHECK(contains(stream->body, R"(data: {"error":)"));
  CHECK(!contains(stream->body, "is gone"));
  CHECK(!contains(stream->body, "[DONE]"));
  CHECK(!contains(stream->body, R"("finish_reason":"stop")"));
  CHECK(stream->finished);
  const auto whole = rig.chat();
  rig.clock.advance(std::chrono::seconds(11));
  CHECK(whole->status == 503);
  CHECK(!whole->header("retry-after").empty());
  CHECK(rig.send("GET", "/readyz")->status == 503);
}

TEST_CASE("a worker that comes back in time takes the waiting request") {
  Rig rig;
  rig.engines.worker(0).connected = false;
  const auto answer = rig.chat();
  rig.clock.advance(std::chrono::seconds(3));
  CHECK(rig.engines.submitted == 0);
  rig.engines.worker(0).connected = true;
  rig.clock.advance(std::chrono::seconds(1));
  CHECK(rig.engines.submitted == 1);
  rig.emit_text("ok", FinishReason::kLength);
  CHECK(answer->status == 200);
}

TEST_CASE("a client that goes away frees the engine at once and is charged for what was made") {
  Rig rig;
  const auto answer = rig.chat(R"(,"stream":true)");
  rig.emit_text("Some text");
  answer->refuse_writes = true;
  answer->disconnect();
  rig.clock.run();
  CHECK(rig.engines.open().empty());
  CHECK(rig.gateway.in_flight() == 0);
  CHECK(rig.last().outcome == "cancelled");
  CHECK(rig.last().status == 499);
  CHECK(rig.last().usage.completion_tokens > 0);
  CHECK(!answer->finished);
}

TEST_CASE("a client that stops reading before the very last event is cut off, and that is all") {
  for (const int writes : {0, 1, 2, 3}) {
    CAPTURE(writes);
    Rig rig;
    const auto answer = rig.chat(R"(,"stream":true)");
    answer->stalls_after = writes;  // the text, the finish, [DONE]
    rig.emit_text("Some text");
    if (writes > 0) rig.emit_text(" more", FinishReason::kLength);
    CHECK(answer->writes == std::min(writes, 3));
    CHECK(answer->finished == (writes == 3));
    CHECK(rig.last().outcome == (writes == 3 ? "length" : "deadline_exceeded"));
    CHECK(rig.gateway.in_flight() == 0);
    CHECK(rig.engines.open().empty());
    CHECK(rig.context.ledger.empty());
  }
}

TEST_CASE("a silent engine yields keep-alive comments and, at the limit, a clean end") {
  Rig rig;
  const auto answer = rig.chat(R"(,"stream":true)");
  rig.clock.advance(std::chrono::seconds(25));
  CHECK(answer->body == ": keep-alive\n: keep-alive\n");
  rig.clock.advance(std::chrono::minutes(10));
  CHECK(answer->finished);
  CHECK(contains(answer->body, R"("code":"timeout")"));
  CHECK(rig.engines.open().empty());
  CHECK(rig.clock.timers() == 0);
}

TEST_CASE("a stop string ends the answer before the engine does") {
  Rig rig;
  const auto answer = rig.chat(R"(,"stop":["END"])");
  rig.emit_text("before END after");
  CHECK(answer->finished);
  CHECK(contains(answer->body, R"("content":"before ")"));
  CHECK(contains(answer->body, R"("finish_reason":"stop")"));
  CHECK(rig.engines.open().empty());
}

TEST_CASE("several choices are told apart and summed up") {
  Rig rig;
  const auto answer = rig.chat(R"(,"n":2,"logprobs":true,"top_logprobs":0)");
  rig.emit_text("first", FinishReason::kLength, 1);
  rig.emit_text("second", {}, 0);
  rig.emit_text(" one", FinishReason::kLength, 0);
  CHECK(answer->status == 200);
  CHECK(contains(answer->body, R"("content":"second one")"));
  CHECK(contains(answer->body, R"("logprob":-0.5)"));
  std::vector<TokenId> ids;
  for (const char* text : {"first", "second", " one"})
    REQUIRE(nano_tokenizer()->encode(text, ids));
  CHECK(rig.last().usage.completion_tokens == ids.size());
}

TEST_CASE("aliases, model lists, health and metrics") {
  Rig rig;
  const auto answer = rig.send("POST", "/chat/completions",
                               R"({"model":"chat","messages":[{"role":"user","content":"Hi"}]})",
                               {{"X-Request-Id", "my-id"}});
  rig.emit_text("x", FinishReason::kLength);
  CHECK(contains(answer->body, R"("model":"chat")"));
  CHECK(answer->header("x-request-id") == "my-id");
  CHECK(rig.last().model == "nano");
  CHECK(rig.last().alias == "chat");
  CHECK(contains(rig.send("GET", "/v1/models")->body, R"("id":"nano")"));
  CHECK(contains(rig.send("GET", "/v1/models")->body, R"("id":"chat")"));
  CHECK(contains(rig.send("GET", "/v1/models/chat")->body, R"("id":"chat")"));
  CHECK(contains(rig.send("GET", "/v1/models/chat")->body, R"("context_length":4096)"));
  CHECK(rig.send("GET", "/healthz")->status == 200);
  CHECK(rig.send("GET", "/readyz")->status == 200);
  CHECK(rig.send("HEAD", "/")->status == 200);
  CHECK(rig.send("GET", "/metrics")->body == "m 1\n");
}

TEST_CASE("with keys configured everything but health needs one") {
  Rig rig;
  rig.context.authenticate = [](std::string_view key) -> std::optional<std::string> {
    if (key == "right-key") return "ci";
    return std::nullopt;
  };
  CHECK(rig.send("GET", "/healthz")->status == 200);
  for (const char* path : {"/v1/models", "/metrics", "/v1/models/nano"}) {
    CHECK(rig.send("GET", path)->status == 401);
  }
  const auto wrong = rig.send("GET", "/v1/models", {}, {{"authorization", "Bearer wrong-key"}});
  CHECK(wrong->status == 401);
  CHECK(!contains(wrong->body, "wrong-key"));
  for (const char* credential : {"Bearer right-key", "bearer right-key", "BEARER right-key"}) {
    CHECK(rig.send("GET", "/v1/models", {}, {{"Authorization", credential}})->status == 200);
  }
  CHECK(rig.send("GET", "/v1/models", {}, {{"authorization", "Basic right-key"}})->status == 401);
  CHECK(rig.send("GET", "/v1/models", {}, {{"x-api-key", "right-key"}})->status == 200);
  CHECK(rig.last().key_name == "ci");
}

TEST_CASE("a head is refused before its body only when no body could help, and is reported") {
  Rig rig;
  rig.context.authenticate = [](std::string_view key) -> std::optional<std::string> {
    if (key == "right-key") return "ci";
    return std::nullopt;
  };
  struct Case {
    const char* method;
    const char* path;
    const char* key;
    int status;  // 0: not refused
    const char* outcome;
    bool key_given;
  };
  for (const Case& c : {
           Case{"POST", "/v1/chat/completions", "", 401, "unauthenticated", false},
           Case{"POST", "/v1/chat/completions", "wrong-key", 401, "unauthenticated", true},
           Case{"POST", "/v1/chat/completions", "right-key", 0, "", true},
           Case{"GET", "/v1/models", "right-key", 0, "", true},
           Case{"POST", "/v1/nothing", "", 404, "not_found", false},
           Case{"PUT", "/healthz", "", 405, "method_not_allowed", false},
           Case{"GET", "/healthz", "", 400, "invalid_argument", false},
       }) {
    CAPTURE(c.path);
    CAPTURE(c.key);
    HttpRequest head;
    head.method = c.method;
    head.path = c.path;
    head.peer = "10.0.0.9";
    if (*c.key != 0) head.headers = {{"x-api-key", c.key}};
    const auto before = rig.recorder.records.size();
    const auto response = rig.gateway.refuse_head(head);
    REQUIRE(response.has_value() == (c.status != 0));
    CHECK(rig.recorder.records.size() == before + (c.status != 0 ? 1 : 0));
    if (!response) continue;
    CHECK(response->status == c.status);
    CHECK(rig.last().status == c.status);
    CHECK(rig.last().outcome == c.outcome);
    CHECK(rig.last().peer == "10.0.0.9");
    CHECK(rig.last().key_given == c.key_given);
    CHECK(!rig.last().request_id.empty());
  }
  CHECK(rig.recorder.started == static_cast<int>(rig.recorder.records.size()));
}

TEST_CASE("only JSON is taken, in any case and with parameters") {
  Rig rig;
  const auto send = [&](std::string type) {
    return rig.send("POST", "/v1/chat/completions", "{", {{"content-type", std::move(type)}})
        ->status;
  };
  for (const char* good :
       {"application/json", "APPLICATION/JSON", "application/json; charset=utf-8"})
    CHECK(send(good) == 400);
  for (const char* bad :
       {"text/plain", "text/notjson", "application/x-www-form-urlencoded", "application/jsonx"})
    CHECK(send(bad) == 415);
}

TEST_CASE("limits: in flight, and none while draining") {
  Rig rig;
  rig.context.limits.in_flight_max = 1;
  const auto first = rig.chat();
  CHECK(rig.chat()->status == 503);
  CHECK(rig.last().limit == "limits.in_flight");
  rig.gateway.begin_drain();
  CHECK(rig.send("GET", "/readyz")->status == 503);
  rig.emit_text("done", FinishReason::kLength);
  CHECK(first->status == 200);
  CHECK(rig.chat()->status == 503);
}

TEST_CASE("at the drain's time limit running answers end with an error, not a cut") {
  Rig rig;
  const auto stream = rig.chat(R"(,"stream":true)");
  rig.emit_text("Some");
  const auto whole = rig.chat();
  rig.gateway.begin_drain();
  rig.gateway.stop_running({ErrorCode::kUnavailable, "the server is shutting down", {}, {}});
  rig.clock.run();
  CHECK(stream->finished);
  CHECK(contains(stream->body, "shutting down"));
  CHECK(!contains(stream->body, "[DONE]"));
  CHECK(whole->status == 503);
  CHECK(rig.last().outcome == "unavailable");
  CHECK(rig.engines.open().empty());
  CHECK(rig.gateway.in_flight() == 0);
}

TEST_CASE("a text that can't fit is refused before it is encoded, under the name the client used") {
  Rig rig;
  const auto huge = rig.send("POST", "/v1/chat/completions",
                             R"({"model":"nano","messages":[{"role":"user","content":")" +
                                 std::string(4 << 20, 'a') + R"("}]})");
  CHECK(huge->status == 400);
  CHECK(contains(huge->body, "bytes of text"));
  CHECK(contains(huge->body, R"("code":"context_length_exceeded")"));
  CHECK(contains(rig.chat(R"(,"max_completion_tokens":5000)")->body,
                 R"("param":"max_completion_tokens")"));
  CHECK(contains(rig.chat(R"(,"max_tokens":5000)")->body, R"("param":"max_tokens")"));
}

TEST_CASE("tool calls and reasoning reach the client in their own fields") {
  Rig rig;
  const auto answer = rig.chat(
      R"(,"thinking":{"type":"enabled"},"tools":[{"type":"function","function":{"name":"f"}}])");
  rig.emit_text("why</think>");
  // The DSML mark is one added token; the rest of the markup is text.
  const TokenId dsml = *nano_tokenizer()->token_id("｜DSML｜");
  std::vector<TokenId> ids;
  const auto add = [&](std::string_view text) { REQUIRE(nano_tokenizer()->encode(text, ids)); };
  add("ok\n\n<");
  ids.push_back(dsml);
  add("tool_calls>\n<");
  ids.push_back(dsml);
  add("invoke name=\"f\">\n<");
  ids.push_back(dsml);
  add("parameter name=\"a\" string=\"true\">b</");
  ids.push_back(dsml);
  add("parameter>\n</");
  ids.push_back(dsml);
  add("invoke>\n</");
  ids.push_back(dsml);
  add("tool_calls>");
  rig.engines.emit(ids, FinishReason::kLength);
  rig.clock.run();
  CHECK(contains(answer->body, R"("reasoning_content":"why")"));
  CHECK(contains(answer->body, R"("name":"f")"));
  CHECK(contains(answer->body, R"({\"a\": \"b\"})"));
  CHECK(rig.last().usage.reasoning_tokens > 0);
}

TEST_CASE("beyond what the engines may have at once requests wait, tenants in turn") {
  Rig rig;
  rig.context.authenticate = [](std::string_view key) { return std::optional(std::string(key)); };
  rig.context.tenants["gold"] = {1, 1};
  rig.context.limits.admission.running_max = 1;
  const auto chat = [&](const char* key, const char* extra = "") {
    return rig.send(
        "POST", "/v1/chat/completions",
        R"({"model":"nano","messages":[{"role":"user","content":"Hi"}])" + std::string(extra) + "}",
        {{"x-api-key", key}, {"content-type", "application/json"}});
  };
  const auto first = chat("ann");
  const auto later = chat("ann", R"(,"service_tier":"flex")");
  const auto second = chat("ann");
  const auto third = chat("bob");
  const auto golden = chat("gold");
  CHECK(rig.engines.submitted == 1);
  CHECK(rig.context.admission.queued() == 4);
  CHECK(rig.context.admission.running() == 1);
  CHECK(rig.context.ledger.requests() == 1);  // who waits holds nothing
  rig.clock.advance(std::chrono::seconds(1));
  for (const auto& next : {first, golden, second, third, later}) {
    CHECK(!next->finished);
    rig.emit_text("x", FinishReason::kLength);
    rig.clock.advance(std::chrono::milliseconds(1));
    CHECK(next->status == 200);
  }
  CHECK(contains(rig.last().placement, "; queued 1"));
  CHECK(*rig.last().queue >= std::chrono::seconds(1));
  CHECK(rig.context.admission.running() == 0);
  CHECK(rig.context.admission.queued() == 0);
  CHECK(rig.context.ledger.empty());
  rig.clock.advance(std::chrono::seconds(1));
  CHECK(rig.clock.timers() == 0);
}

TEST_CASE("what waits too long, is too much, or gives way is told when to come again") {
  Rig rig;
  rig.context.authenticate = [](std::string_view key) { return std::optional(std::string(key)); };
  rig.context.tenants["gold"] = {1, 1};
  auto& limits = rig.context.limits.admission;
  limits = {1, 2, 1, std::chrono::seconds(5)};
  const auto chat = [&](const char* key) {
    return rig.send("POST", "/v1/chat/completions",
                    R"({"model":"nano","messages":[{"role":"user","content":"Hi"}]})",
                    {{"x-api-key", key}, {"content-type", "application/json"}});
  };
  const auto refused = [&](const std::shared_ptr<Answered>& answer, int status,
                           std::string_view limit) {
    CHECK(answer->status == status);
    CHECK(answer->header("retry-after") == "1");
    CHECK(rig.last().limit == limit);
    CHECK(rig.last().status == status);
  };
  const auto running = chat("ann");
  const auto waiting = chat("ann");
  refused(chat("ann"), 429, "limits.tenant_queue");
  const auto displaced = chat("bob");
  refused(chat("cat"), 503, "limits.queue");
  const auto golden = chat("gold");
  refused(displaced, 503, "limits.queue");
  CHECK(rig.context.admission.queued() == 2);
  rig.clock.advance(std::chrono::milliseconds(5001));
  refused(waiting, 503, "limits.queue_time");
  CHECK(contains(golden->body, "limits.queue_time"));
  CHECK(rig.context.admission.queued() == 0);
  CHECK(rig.engines.submitted == 1);
  rig.emit_text("x", FinishReason::kLength);
  CHECK(running->status == 200);
  CHECK(rig.gateway.in_flight() == 0);
  CHECK(rig.clock.timers() == 0);
}

TEST_CASE(
    "a client that leaves while it waits is out of the queue at once, and stop ends the wait") {
  Rig rig;
  rig.context.limits.admission.running_max = 1;
  const auto running = rig.chat();
  const auto gone = rig.chat();
  const auto stopped = rig.chat();
  CHECK(rig.context.admission.queued() == 2);
  gone->disconnect();
  CHECK(rig.context.admission.queued() == 1);
  CHECK(rig.gateway.in_flight() == 2);
  CHECK(rig.last().outcome == "cancelled");
  CHECK(rig.last().status == 499);
  rig.gateway.stop_running({ErrorCode::kUnavailable, "the server is shutting down", {}, {}});
  rig.clock.run();
  CHECK(stopped->status == 503);
  CHECK(running->status == 503);
  CHECK(rig.gateway.in_flight() == 0);
  CHECK(rig.context.admission.queued() == 0);
  CHECK(rig.context.admission.running() == 0);
  CHECK(rig.context.ledger.empty());
  rig.clock.advance(std::chrono::seconds(1));
  CHECK(rig.clock.timers() == 0);
}

TEST_CASE(
    "requests wait for KV on the decode rank, and go when a load or an end says there is some") {
  Rig rig;
  EngineLoad& load = rig.engines.worker(0).loads[0];
  load.kv_tokens_total = Tokens(1000);
  const auto first = rig.chat(R"(,"max_tokens":50)");
  CHECK(rig.engines.submitted == 1);
  load.kv_tokens_used = Tokens(990);
  load.running = 1;
  const auto second = rig.chat(R"(,"max_tokens":50)");
  CHECK(rig.engines.submitted == 1);
  CHECK(rig.context.admission.queued() == 1);
  load.kv_tokens_used = Tokens(500);
  rig.clock.advance(std::chrono::milliseconds(25));
  CHECK(rig.engines.submitted == 2);
  load.kv_tokens_used = Tokens(990);
  const auto third = rig.chat(R"(,"max_tokens":50)");
  CHECK(rig.engines.submitted == 2);
  rig.engines.kill(0);  // nothing to wait for in the queue: it waits for a worker
  rig.clock.advance(std::chrono::milliseconds(25));
  CHECK(rig.context.admission.queued() == 0);
  load = {};
  rig.engines.worker(0).connected = true;
  rig.clock.advance(std::chrono::milliseconds(100));
  for (int i = 0; i < 3; ++i)
    rig.emit_text("x", FinishReason::kLength);
  for (const auto& answer : {first, second, third})
    CHECK(answer->status == 200);
  CHECK(rig.context.admission.running() == 0);
  CHECK(rig.context.ledger.empty());
}

TEST_CASE("the first token of a prompt that was alone on its rank says what prompts cost") {
  Rig rig;
  const auto observed = [&] {
    return rig.context.costs.types()[0].costs.error(routing::CostLaw::kPrefill).observations;
  };
  const auto answer = [&](std::uint32_t cached) {
    EngineOutput output;
    const auto& open = rig.engines.open().back();
    output.request = open.request.id;
    output.tokens = {{5, 0, {}}};
    output.finish = FinishReason::kLength;
    output.cached_tokens = cached;
    rig.clock.advance(std::chrono::milliseconds(30));
    rig.clock.post([sink = open.sink, output] { sink(output); });
    rig.clock.run();
  };
  rig.chat();
  answer(0);
  CHECK(observed() == 1);
  rig.chat();
  answer(2);  // the way of cached KV is in the time
  CHECK(observed() == 1);
  rig.engines.worker(0).loads[0].running = 1;
  rig.chat();
  answer(0);
  CHECK(observed() == 1);
}

TEST_CASE("a placement is explained to the operator only, with nothing of the request in it") {
  Rig rig;
  std::vector<PlacementExplanation> kept;
  rig.context.keep_explanation = [&](PlacementExplanation e) { kept.push_back(std::move(e)); };
  rig.context.explain = [&](std::string_view id) -> std::optional<std::string> {
    for (const auto& e : kept)
      if (e.request_id == id) return R"({"model":")" + e.model + "\"}";
    return std::nullopt;
  };
  rig.send("POST", "/v1/chat/completions",
           R"({"model":"nano","messages":[{"role":"user","content":"Hi"}]})",
           {{"x-request-id", "r1"}, {"content-type", "application/json"}});
  REQUIRE(kept.size() == 1);
  CHECK(kept[0].request_id == "r1");
  CHECK(kept[0].decode->chosen == "worker-1");
  CHECK(contains(kept[0].summary, "only candidate"));
  rig.engines.kill(0);
  rig.clock.advance(std::chrono::milliseconds(100));
  rig.engines.worker(0).connected = true;
  rig.clock.advance(std::chrono::milliseconds(100));
  REQUIRE(kept.size() == 2);
  CHECK(kept[1].placement == 1);

  CHECK(rig.send("GET", "/admin/explain/r1")->status == 401);  // nobody is an operator here
  rig.context.authenticate = [](std::string_view) { return std::optional(std::string("ci")); };
  rig.context.is_operator = [](std::string_view token) { return token == "op"; };
  CHECK(rig.send("GET", "/admin/explain/r1", {}, {{"x-api-key", "any"}})->status == 401);
  CHECK(rig.send("GET", "/admin/explain/r1", {}, {{"authorization", "Bearer any"}})->status == 401);
  const std::vector<HttpHeader> token = {{"authorization", "Bearer op"}};
  CHECK(rig.send("GET", "/admin/explain/r1", {}, token)->body == R"({"model":"nano"})");
  CHECK(rig.last().route == "/admin/explain/{}");
  const auto unknown = rig.send("GET", "/admin/explain/r2", {}, token);
  CHECK(unknown->status == 404);
  CHECK(contains(unknown->body, "nothing is known of the request r2"));
  rig.emit_text("x", FinishReason::kLength);
}

}  // namespace penstock::gateway
