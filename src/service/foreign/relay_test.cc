#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/dialects/json_values.h"
#include "tests/support/foreign_rig.h"

#include <doctest/doctest.h>

namespace penstock::foreign {

using namespace testing;

TEST_CASE("relay: a whole answer passes as it is; usage is counted; the body is not touched") {
  Rig rig({EngineKind::kVllm});
  const std::string body =
      R"({ "z":1.50, "model" : "m","messages":[{"role":"user","content":"\u0041 \"model\":\"x\""}], "seed":9007199254740993 })";
  const std::string answer =
      R"({"choices":[{"message":{"content":"A"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3}} )";
  rig.server(0).answers = {whole(answer)};
  const Asked& it = rig.ask(body, WireApi::kChat,
                            {{"Authorization", "Bearer client"},
                             {"X-Api-Key", "client"},
                             {"Cookie", "c"},
                             {"X-Request-Id", "evil"},
                             {"traceparent", "t"}});
  REQUIRE(it.over);
  CHECK(it.answered->status == 200);
  CHECK(it.answered->body == answer);
  CHECK(it.record.usage == Usage{7, 0, 3, 0});
  CHECK(it.record.outcome == "stop");
  CHECK(it.record.model == "m");
  const UpstreamRequest& sent = rig.server(0).posts.at(0);
  CHECK(sent.body == body);
  CHECK(sent.target == "/v1/chat/completions");
  CHECK(header_of(sent, "authorization") == "Bearer secret");
  CHECK(header_of(sent, "x-request-id") == "req-1");
  CHECK(header_of(sent, "traceparent") == "t");
  for (const HttpHeader& h : sent.headers)
    CHECK(h.value.find("client") == std::string::npos);
  CHECK(header_of(rig.server(0).gets.at(0), "authorization") == "Bearer secret");  // probes too
}

TEST_CASE("relay: every API's body but for the model passes byte for byte") {
  for (const WireApi api :
       {WireApi::kChat, WireApi::kCompletion, WireApi::kResponses, WireApi::kMessages,
        WireApi::kCountTokens, WireApi::kEmbeddings, WireApi::kPooling, WireApi::kScore,
        WireApi::kRerank, WireApi::kTokenize, WireApi::kDetokenize, WireApi::kGenerate}) {
    Rig rig({EngineKind::kVllm});
    rig.server(0).answers = {whole("{}"), whole("{}")};
    const std::string head = R"({ "x" : 1e2,"mod\u0065l":)";
    const std::string tail = R"( ,"input":"\"model\": \"alias\"","y":[ ],"x":2})";
    rig.ask(head + R"("m")" + tail, api);
    rig.ask(head + R"("alias")" + tail, api);
    REQUIRE(rig.server(0).posts.size() == 2);
    CHECK(rig.server(0).posts[0].body == head + R"("m")" + tail);
    CHECK(rig.server(0).posts[1].body == head + R"("m")" + tail);
    CHECK(rig.server(0).posts[0].target == dialects::path_of(api));
    CHECK(rig.asked[1]->record.alias == "alias");
  }
}

TEST_CASE(
    "relay: a stream passes event by event, cut anywhere; the usage we asked for stays here") {
  const std::string all = ": ping\n\n" + kChunk + kStop + kUsage + kDone;
  const std::string expected = ": ping\n\n" + kChunk + kStop + kDone;
  for (std::size_t cut = 0; cut <= all.size(); ++cut) {
    Rig rig({EngineKind::kVllm});
    std::vector<std::string> pieces;
    if (cut > 0) pieces.push_back(all.substr(0, cut));
    if (cut < all.size()) pieces.push_back(all.substr(cut));
    rig.server(0).answers = {stream(pieces)};
    const Asked& it = rig.ask(R"({"model":"m","stream":true})");
    REQUIRE(it.over);
    CHECK(it.answered->body == expected);
    CHECK(it.answered->finished);
    CHECK(it.record.usage == Usage{5, 0, 2, 0});
    CHECK(it.record.status == 200);
    CHECK(it.record.stream);
    CHECK(rig.server(0).posts[0].body ==
          R"({"model":"m","stream":true,"stream_options":{"include_usage":true}})");
  }
}

TEST_CASE("relay: a client that asks for usage gets it, and its options stay") {
  Rig rig({EngineKind::kVllm});
  rig.server(0).answers = {stream({kChunk + kUsage + kDone}), stream({kChunk + kUsage + kDone})};
  const std::string asks = R"({"stream":true,"stream_options":{"include_usage":true},"model":"m"})";
  CHECK(rig.ask(asks).answered->body == kChunk + kUsage + kDone);
  CHECK(rig.server(0).posts[0].body == asks);
  rig.ask(R"({"stream":true,"stream_options":{"include_usage":false,"x":1},"model":"m"})");
  CHECK(rig.server(0).posts[1].body ==
        R"({"stream":true,"stream_options":{"include_usage":true,"x":1},"model":"m"})");
  CHECK(rig.asked[1]->answered->body == kChunk + kDone);
}

TEST_CASE("relay: an engine that dies before the first byte is replaced, once the budget allows") {
  Rig rig({EngineKind::kVllm, EngineKind::kVllm});
  for (auto* server : rig.servers)
    server->answers = {};
  // Whichever is picked first has no answer; the other one has.
  rig.ask(R"({"model":"m"})");
  // The one that was tried last stands in the record.
  const std::size_t first = rig.asked[0]->record.placement.starts_with("e1") ? 0 : 1;
  CHECK(rig.server(0).posts.size() + rig.server(1).posts.size() == 2);
  CHECK(rig.asked[0]->answered->status == 503);
  rig.server(1 - first).answers = {whole(R"({"ok":1})")};
  const Asked& it = rig.ask(R"({"model":"m"})");
  CHECK(it.answered->status == 200);
  CHECK(it.record.moves == 1);
  // A stream that was cut before an event was whole has sent nothing either.
  rig.server(first).answers = {stream({"data: {\"half"}, End::kCut)};
  rig.server(1 - first).answers = {stream({kChunk + kDone})};
  CHECK(rig.ask(R"({"model":"m","stream":true})").answered->body == kChunk + kDone);
}

TEST_CASE(
    "relay: a stream cut at any byte after the first event ends in order, in the API's words") {
  const std::string all = kChunk + kChunk + kStop + kDone;
  for (std::size_t cut = kChunk.size(); cut < all.size() - 1; ++cut) {
    Rig rig({EngineKind::kVllm, EngineKind::kVllm});
    for (auto* server : rig.servers)
      server->answers = {stream({all.substr(0, cut)}, cut % 2 == 0 ? End::kCut : End::kWhole)};
    const Asked& it = rig.ask(R"({"model":"m","stream":true})");
    REQUIRE(it.over);
    CHECK(it.answered->finished);
    // Whole events, then one error, and no last word.
    const auto error = it.answered->body.find("data: {\"error\":");
    REQUIRE(error != std::string::npos);
    CHECK(all.starts_with(it.answered->body.substr(0, error)));
    CHECK(it.answered->body.substr(0, error).ends_with("\n\n"));
    CHECK(it.answered->body.ends_with("}}\n\n"));
    CHECK(it.answered->body.find("[DONE]") == std::string::npos);
    CHECK(it.record.status == 503);
    CHECK(it.record.moves == 0);
    CHECK(rig.server(0).posts.size() + rig.server(1).posts.size() == 1);
  }
  Rig rig({EngineKind::kVllm});
  rig.server(0).answers = {
      stream({"event: message_start\ndata: {\"type\":\"message_start\"}\n\n"}, End::kCut),
      stream({"event: response.created\ndata: {\"type\":\"response.created\"}\n\n"}, End::kCut)};
  CHECK(rig.ask(R"({"model":"m","stream":true})", WireApi::kMessages)
            .answered->body.find("event: error\ndata: {\"type\":\"error\",\"error\":{") !=
        std::string::npos);
  CHECK(rig.ask(R"({"model":"m","stream":true})", WireApi::kResponses)
            .answered->body.find(
                "event: error\ndata: {\"type\":\"error\",\"sequence_number\":1,\"code\":") !=
        std::string::npos);
}

// A chat stream of these words, with this id, and its last words.
std::string said(std::string_view id, std::vector<std::string_view> words) {
  const std::string head =
      R"(data: {"id":")" + std::string(id) + R"(","choices":[{"index":0,"delta":)";
  std::string out = head + R"({"role":"assistant","content":""},"finish_reason":null}]})" + "\n\n";
  for (const std::string_view word : words)
    out +=
        head + R"({"content":)" + dialects::quoted(word) + R"(},"finish_reason":null}]})" + "\n\n";
  return out + head + R"({},"finish_reason":"stop"}]})" + "\n\n";
}

TEST_CASE("relay: a greedy or seeded stream whose engine dies goes on from another one") {
  const std::string first = said("one", {"the ", "water ", "runs ", "on"});
  const std::string second = said("two", {"the w", "ater runs ", "on"});
  for (const std::string more : {R"("temperature":0)", R"("temperature":0.7,"seed":5)"}) {
    for (std::size_t cut = 0; cut < first.size(); cut += 13) {
      Rig rig({EngineKind::kVllm, EngineKind::kVllm});
      // Whichever is asked first.
      const std::string body = R"({"model":"m","stream":true,)" + more + "}";
      rig.server(0).answers = {stream({first.substr(0, cut)}, End::kCut)};
      rig.server(1).answers = {stream({second + kUsage + kDone})};
      if (rig.set.pick({"m", WireApi::kChat, ""}).engine != rig.set.engines()[0])
        std::swap(rig.server(0).answers, rig.server(1).answers);
      const Asked& it = rig.ask(body);
      REQUIRE(it.over);
      CHECK(it.answered->status == 200);
      CHECK(it.answered->finished);
      CHECK(it.record.moves == 1);
      CHECK(it.record.usage == Usage{5, 0, 2, 0});
      CHECK(it.record.outcome == "stop");
      std::string text;
      std::set<std::string> ids;
      dialects::SseSplitter splitter;
      CHECK(splitter.feed(it.answered->body, [&](const dialects::SseEvent& event) {
        const auto choices = dialects::value_at(event.data, {"choices"});
        if (!choices) return;
        ids.insert(*dialects::string_at(event.data, {"id"}));
        text += dialects::string_at(*dialects::first_element(*choices), {"delta", "content"})
                    .value_or("");
      }));
      CHECK(text == "the water runs on");
      CHECK(ids.size() == 1);
      CHECK(it.answered->body.ends_with(kDone));
    }
  }
}

TEST_CASE("relay: an engine whose answer is another does not go on with it; nor does what can't") {
  const std::string body = R"({"model":"m","stream":true,"temperature":0})";
  const auto ask = [&](const std::string& first, UpstreamAnswer second) {
    auto rig = std::make_unique<Rig>(std::vector{EngineKind::kVllm, EngineKind::kVllm});
    rig->server(0).answers = {stream({first}, End::kCut)};
    rig->server(1).answers = {std::move(second)};
    if (rig->set.pick({"m", WireApi::kChat, ""}).engine != rig->set.engines()[0])
      std::swap(rig->server(0).answers, rig->server(1).answers);
    const Asked& it = rig->ask(body);
    REQUIRE(it.over);
    CHECK(it.answered->finished);
    CHECK(it.answered->body.starts_with(first.substr(0, first.rfind("\n\n") + 2)));
    CHECK(it.answered->body.ends_with("}}\n\n"));
    CHECK(it.answered->body.contains("data: {\"error\":"));
    CHECK(it.record.status == 503);
    CHECK(rig->set.engines()[0]->running + rig->set.engines()[1]->running == 0);
    return it.answered->body;
  };
  const std::string whole_begun = said("one", {"the ", "water "});
  CHECK_FALSE(ask(whole_begun, stream({said("two", {"the ", "wind "}) + kDone})).contains("wind"));
  ask(whole_begun, whole(R"({"no":"stream"})"));
  ask(whole_begun, whole("", 500));
  ask(whole_begun, whole(R"({"error":"no"})", 400));
  ask(R"(data: {"id":"c","choices":[{"index":0,"delta":{"function_call":{"name":"f"}}}]})"
      "\n\n",
      stream({said("two", {"x"}) + kDone}));
}

TEST_CASE("relay: an engine that says in its stream that it failed is as good as dead") {
  Rig rig({EngineKind::kVllm, EngineKind::kVllm});
  const std::string all = said("one", {"the ", "water"});
  const std::string error = "data: {\"error\":{\"message\":\"EngineDeadError\"}}\n\n";
  const std::string head = all.substr(0, all.find("\n\n", all.find("the ")) + 2);
  for (FakeUpstream* server : rig.servers)
    server->answers = {stream({all + kDone})};
  const bool zero = rig.set.pick({"m", WireApi::kChat, ""}).engine == rig.set.engines()[0];
  rig.server(zero ? 0 : 1).answers = {stream({head + error})};
  const Asked& it = rig.ask(R"({"model":"m","stream":true,"temperature":0})");
  CHECK(it.answered->body == all + kDone);
  // One that is drawn without a seed hears of it, in the engine's words.
  Rig other({EngineKind::kVllm, EngineKind::kVllm});
  for (FakeUpstream* server : other.servers)
    server->answers = {stream({head + error})};
  CHECK(other.ask(R"({"model":"m","stream":true})").answered->body == head + error);
}

TEST_CASE("relay: 4xx passes in the engine's words and breaks nothing; 429 and 503 are busy") {
  Rig rig({EngineKind::kVllm});
  for (int i = 0; i < 50; ++i) {
    rig.server(0).answers = {whole(R"({"error":"too long"})", 400)};
    const Asked& it = rig.ask(R"({"model":"m"})");
    CHECK(it.answered->status == 400);
    CHECK(it.answered->body == R"({"error":"too long"})");
  }
  rig.server(0).answers = {{429, "application/json", {"{}"}, End::kWhole, {{"Retry-After", "2"}}}};
  const Asked& busy = rig.ask(R"({"model":"m"})");
  CHECK(busy.answered->status == 503);
  CHECK_FALSE(busy.answered->header("retry-after").empty());
  CHECK(rig.ask(R"({"model":"m"})").answered->status == 503);
  CHECK(rig.server(0).posts.size() == 51);  // it is left alone
  rig.clock.advance(2s);
  rig.server(0).answers = {whole("{}")};
  CHECK(rig.ask(R"({"model":"m"})").answered->status == 200);
  rig.server(0).answers = {whole("{}", 401)};
  CHECK(rig.ask(R"({"model":"m"})").answered->status == 503);  // not the client's key
}

TEST_CASE("relay: failures open the breaker, a request waits for the engine, and is served") {
  Rig rig({EngineKind::kVllm});
  for (int i = 0; i < 5; ++i) {
    rig.server(0).answers = {whole("", 500)};
    CHECK(rig.ask(R"({"model":"m"})").answered->status == 500);
  }
  rig.server(0).answers = {whole("{}")};
  Asked& it = rig.ask(R"({"model":"m"})");
  CHECK_FALSE(it.over);
  rig.clock.advance(1500ms);
  CHECK(it.answered->status == 200);
}

TEST_CASE("relay: when the client goes, the engine's connection goes; when time is over, both") {
  Rig rig({EngineKind::kSglang});
  rig.server(0).answers = {stream({kChunk}, End::kHang), stream({kChunk}, End::kHang),
                           stream({}, End::kHang), stream({kChunk}, End::kHang)};
  Asked& gone = rig.ask(R"({"model":"m","stream":true})");
  CHECK_FALSE(gone.over);
  CHECK(rig.set.engines()[0]->running == 1);
  rig.clock.advance(25s);
  CHECK(gone.answered->body == kChunk + ": keep-alive\n: keep-alive\n");
  const std::string& sent = rig.server(0).posts[0].body;
  const auto at = sent.find("\"rid\":");
  const std::string rid = sent.substr(at, sent.find(',', at) - at) + "}";
  CHECK(rid.size() > 30);  // nobody else's, whatever x-request-id says
  gone.answered->disconnect();
  CHECK(gone.over);
  REQUIRE(rig.server(0).posts.size() == 2);
  CHECK(rig.server(0).posts[1].target == "/abort_request");
  CHECK(rig.server(0).posts[1].body == "{" + rid);
  CHECK(gone.record.status == 499);
  CHECK(rig.server(0).cancelled >= 1);

  Asked& slow = rig.ask(R"({"model":"m","stream":true})");
  rig.clock.advance(10min);
  CHECK(slow.over);
  CHECK(slow.answered->finished);
  CHECK(slow.record.outcome == "deadline_exceeded");

  Asked& unsent = rig.ask(R"({"model":"m","stream":true})");
  rig.clock.advance(10min);
  CHECK(unsent.answered->status == 504);

  Asked& stopped = rig.ask(R"({"model":"m","stream":true})");
  rig.gateway.stop_running({ErrorCode::kUnavailable, "the server is shutting down", {}, {}});
  CHECK(stopped.over);
  CHECK(stopped.answered->body.find("shutting down") != std::string::npos);
}

TEST_CASE("relay: what a client may not say") {
  Rig rig({EngineKind::kVllm});
  const auto status = [&](std::string body, WireApi api = WireApi::kChat) {
    return rig.ask(std::move(body), api).answered->status;
  };
  CHECK(status("{") == 400);
  CHECK(status(R"({"model":"m","model":"m"})") == 400);
  CHECK(status(R"({"model":"m","mod\u0065l":"m"})") == 400);
  CHECK(status(R"({"model":3})") == 400);
  CHECK(status(R"({"model":"x"})") == 404);
  CHECK(status(R"({"model":"nowhere"})") == 404);
  for (const auto* key : {"kv_transfer_params", "ec_transfer_params", "bootstrap_host",
                          "bootstrap_room", "routed_dp_rank", "data_parallel_rank"}) {
    CHECK(status(std::string(R"({"model":"m",")") + key + R"(":1})") == 400);
  }
  CHECK(rig.server(0).posts.empty());
  Rig llama({EngineKind::kLlamaCpp});
  CHECK(llama.ask(R"({"model":"m"})", WireApi::kPooling).answered->status == 400);
  llama.server(0).answers = {whole("{}")};
  CHECK(llama.ask(R"({"content":"x"})", WireApi::kTokenize).answered->status == 200);
}

TEST_CASE("engines: probes find models and loads, old forms too; the lost is noticed") {
  Rig rig({EngineKind::kVllm, EngineKind::kSglang, EngineKind::kLlamaCpp});
  rig.server(0).get["/metrics"] = {200, "vllm:num_requests_running{engine=\"1\"} 3\n"};
  rig.server(1).get["/get_load"] = {200, R"([{"dp_rank":0,"num_reqs":7,"num_waiting_reqs":2}])"};
  rig.server(2).get["/slots"] = {501, ""};
  rig.server(2).get["/health"] = {500, ""};
  rig.clock.advance(1100ms);
  rig.server(2).get["/health"] = {200, ""};
  rig.server(2).get["/props"] = {
      200, R"({"default_generation_settings":{"n_ctx":2048},"total_slots":4})"};
  rig.server(2).get["/metrics"] = {200, "llamacpp:requests_processing 2\n"};
  rig.clock.advance(1100ms);
  CHECK(rig.set.engines()[0]->load() == 3);
  CHECK(rig.set.engines()[1]->load() == 7);
  CHECK(rig.set.engines()[2]->load() == 2);
  CHECK(rig.set.models() == std::vector<dialects::EngineModel>{{"m", 4096, ""}});
  CHECK(rig.gateway.models().size() == 2);                           // and the alias
  CHECK(rig.set.engines()[2]->models.at(0).context_length == 2048);  // not what it was trained for
  CHECK(rig.told.size() == 3);
  for (auto* server : rig.servers)
    server->get.clear();
  rig.clock.advance(1100ms);
  CHECK(rig.gateway.ready());  // one failed probe is not the end
  rig.clock.advance(1100ms);
  CHECK_FALSE(rig.gateway.ready());
  CHECK(rig.told.size() == 6);
  Asked& it = rig.ask(R"({"model":"m"})");
  rig.clock.advance(11s);
  CHECK(it.answered->status == 503);
}

TEST_CASE("engines: the least loaded gets the request, a conversation finds its engine again") {
  Rig rig({EngineKind::kVllm, EngineKind::kVllm, EngineKind::kVllm});
  const auto pick = [&](std::string_view head) {
    return rig.set.pick({"m", WireApi::kChat, head}).engine;
  };
  std::vector<int> share(3);
  for (int i = 0; i < 300; ++i) {
    const std::string head = "conversation " + std::to_string(i);
    const auto first = pick(head);
    CHECK(pick(head) == first);
    for (std::size_t e = 0; e < 3; ++e)
      share[e] += rig.set.engines()[e] == first ? 1 : 0;
  }
  for (const int n : share)
    CHECK(n > 60);
  const auto bound = pick("a");
  bound->loads = {{0, 50, 0, std::nullopt}};
  CHECK(pick("a") != bound);
  bound->loads.clear();
  CHECK(pick("a") == bound);
}

TEST_CASE("legs: vLLM, serial: one token there, its params here, nothing else of the body moves") {
  Rig rig({EngineKind::kVllm, EngineKind::kVllm}, {EngineRole::kPrefill, EngineRole::kDecode});
  FakeUpstream& prefill = rig.server(0);
  FakeUpstream& decode = rig.server(1);
  const std::string params =
      R"({"do_remote_prefill":true, "remote_block_ids":[[7]],"big":9007199254740993})";
  const std::string reply =
      R"({"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}},"kv_transfer_params":)" +
      params + "}";
  const std::string body =
      R"({"model":"m","seed":9007199254740993,"messages":[1],"max_tokens":9,"min_tokens":2})";
  prefill.answers = {whole(reply)};
  decode.answers = {whole(
      R"({"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":9}}})")};
  const Asked& it = rig.ask(body);
  CHECK(it.answered->status == 200);
  CHECK(
      prefill.posts.at(0).body ==
      R"({"model":"m","seed":9007199254740993,"messages":[1],"max_tokens":1,"stream":false,"max_completion_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}})");
  CHECK(decode.posts.at(0).body ==
        body.substr(0, body.size() - 1) + R"(,"kv_transfer_params":)" + params + "}");
  CHECK(header_of(prefill.posts[0], "x-request-id") == header_of(decode.posts[0], "x-request-id"));
  CHECK(it.record.usage == Usage{9, 4, 3, 0});  // cached is what the prefill engine had
  CHECK(it.record.placement == "e0 -> e1 (vllm)");

  // Blocks whose lease is over by the engine's clock, or none: decode goes plain.
  for (const std::string& what :
       {std::string(R"({"kv_transfer_params":{"remote_blocks_expiry_time":1764547200.5}})"),
        std::string(R"({"kv_transfer_params":null})")}) {
    prefill.answers = {whole(what)};
    decode.answers = {whole("{}")};
    rig.ask(body);
    CHECK(decode.posts.back().body == body);
  }
  CHECK(rig.told.back().contains("names no blocks in its replies"));
  // No prefill engine: said aloud, not done without.
  prefill.answers = {};
  CHECK(rig.ask(body).answered->status == 503);
  // What the client got wrong is answered in the engine's words.
  prefill.answers = {whole("bad", 400)};
  decode.answers = {whole(R"({"error":"bad"})", 400)};
  CHECK(rig.ask(body).answered->body == R"({"error":"bad"})");
}

TEST_CASE("legs: a decode engine that is reached too late for the blocks computes the prompt") {
  const std::string body = R"({"model":"m","messages":[1]})";
  struct Case {
    double lease;  // seconds, by the engine's clock; by ours it is 30
    Duration connects;
    bool late;
  };
  for (const Case& at : {Case{100, 24900ms, false}, Case{100, 25s, true}, Case{10, 4900ms, false},
                         Case{10, 5s, true}}) {
    Rig rig({EngineKind::kVllm, EngineKind::kVllm}, {EngineRole::kPrefill, EngineRole::kDecode});
    const std::string expiry = std::to_string(
        1'764'547'200.0 +
        std::chrono::duration<double>(rig.clock.now().time_since_epoch()).count() + at.lease);
    rig.server(0).answers = {
        whole(R"({"kv_transfer_params":{"remote_block_ids":[[7]],"remote_blocks_expiry_time":)" +
              expiry + "}}")};
    UpstreamAnswer slow = whole("{}");
    slow.connects = at.connects;
    rig.server(1).answers = {slow, whole(R"({"plain":1})")};
    const Asked& it = rig.ask(body);
    rig.clock.advance(1min);
    REQUIRE(it.over);
    CHECK(it.answered->body == (at.late ? R"({"plain":1})" : "{}"));
    CHECK(it.record.moves == 0);
    const auto& sent = rig.server(1).posts;
    REQUIRE(sent.size() == (at.late ? 2 : 1));
    CHECK(sent.front().body.find("kv_transfer_params") != std::string::npos);
    if (at.late) CHECK(sent.back().body == body);
  }
}

TEST_CASE("legs: a client that goes during the prefill ends it; decode never hears of it") {
  Rig rig({EngineKind::kVllm, EngineKind::kVllm}, {EngineRole::kPrefill, EngineRole::kDecode});
  rig.server(0).answers = {stream({}, End::kHang)};
  Asked& it = rig.ask(R"({"model":"m","messages":[1]})");
  CHECK_FALSE(it.over);
  it.answered->disconnect();
  CHECK(it.over);
  CHECK(rig.server(0).cancelled >= 1);
  CHECK(rig.server(1).posts.empty());
}

TEST_CASE("legs: blocks that no decode engine has heard of are fetched for nobody, and so freed") {
  const std::string params = R"({"do_remote_prefill":true,"remote_block_ids":[[7]]})";
  const std::string body = R"({"model":"m","messages":[1],"max_tokens":9})";
  const std::string released =
      R"({"model":"m","messages":[1],"max_tokens":1,"stream":false,"max_completion_tokens":1,"kv_transfer_params":)" +
      params + "}";
  const auto make = [&] {
    auto rig = std::make_unique<Rig>(
        std::vector{EngineKind::kVllm, EngineKind::kVllm, EngineKind::kVllm},
        std::vector{EngineRole::kPrefill, EngineRole::kDecode, EngineRole::kDecode});
    const UpstreamAnswer reply = whole(R"({"kv_transfer_params":)" + params + "}");
    rig->server(0).answers = {reply, reply};
    return rig;
  };
  const auto first_of = [](Rig& rig) {
    return rig.set.pick({"m", WireApi::kChat, "[1]"}).engine == rig.set.engines()[1] ? 1U : 2U;
  };
  // Whoever is first is busy, refuses or is not there: the other one frees them and answers. One
  // that had the request and died may have fetched them.
  UpstreamAnswer nobody;
  nobody.refused = ErrorCode::kUnavailable;
  for (const auto& [answer, releases] :
       {std::pair(whole("", 503), true), std::pair(whole("", 429), true), std::pair(nobody, true),
        std::pair(whole("", 500), false), std::pair(stream({"data: x"}, End::kCut), false)}) {
    auto rig = make();
    const std::size_t first = first_of(*rig);
    rig->server(first).answers = {answer};
    rig->server(3 - first).answers = {whole("{}"), whole("{}")};
    CHECK(rig->ask(body).answered->status == 200);
    const auto& sent = rig->server(3 - first).posts;
    REQUIRE(sent.size() == (releases ? 2 : 1));
    CHECK(sent.front().body.contains(params));
    CHECK((sent.front().body == released) == releases);
    CHECK(rig->server(0).posts.size() == 2);  // the request itself has a prefill of its own
  }
  // The client goes before the decode engine has its request, or after.
  for (const bool before : {true, false}) {
    auto rig = make();
    const std::size_t first = first_of(*rig);
    UpstreamAnswer slow = stream({kChunk}, End::kHang);
    if (before) slow.connects = 1s;
    rig->server(first).answers = {slow, whole("{}")};
    Asked& it = rig->ask(R"({"model":"m","messages":[1],"max_tokens":9,"stream":true})");
    it.answered->disconnect();
    rig->clock.advance(2s);
    CHECK(it.over);
    const auto& sent = rig->server(first).posts;
    REQUIRE(sent.size() == (before ? 2 : 1));
    if (before) CHECK(sent.back().body.contains(R"("max_tokens":1,"stream":false)"));
  }
  // Mooncake's wait for 480 s.
  Rig rig({EngineKind::kVllm, EngineKind::kVllm, EngineKind::kVllm},
          {EngineRole::kPrefill, EngineRole::kDecode, EngineRole::kDecode}, nullptr, true);
  const std::size_t first = first_of(rig);
  rig.server(0).answers = {whole("{}"), whole("{}")};
  rig.server(first).answers = {whole("", 503)};
  rig.server(3 - first).answers = {whole("{}"), whole("{}")};
  CHECK(rig.ask(body).answered->status == 200);
  const auto transfer_of = [](const std::string& text) {
    return text.substr(text.find("xfer-"), 37);
  };
  const auto& sent = rig.server(3 - first).posts;
  REQUIRE(sent.size() == 2);
  REQUIRE(rig.server(0).posts.size() == 2);
  CHECK(transfer_of(sent[0].body) == transfer_of(rig.server(0).posts[0].body));
  CHECK(sent[0].body.contains(R"("max_tokens":1)"));
  CHECK(transfer_of(sent[1].body) == transfer_of(rig.server(0).posts[1].body));
}

TEST_CASE("legs: SGLang, both at once with one room; a leg that fails ends the other at once") {
  const auto make = [] {
    return std::make_unique<Rig>(
        std::vector<EngineKind>{EngineKind::kSglang, EngineKind::kSglang},
        std::vector<EngineRole>{EngineRole::kPrefill, EngineRole::kDecode});
  };
  auto rig = make();
  rig->server(0).answers = {stream({kChunk + kDone})};
  rig->server(1).answers = {stream({kChunk + kStop + kUsage + kDone})};
  const std::string body = R"({"model":"m","messages":[1],"stream":true})";
  const Asked& it = rig->ask(body);
  CHECK(it.answered->body == kChunk + kStop + kDone);
  const std::string& p = rig->server(0).posts.at(0).body;
  const std::string& d = rig->server(1).posts.at(0).body;
  const auto room_of = [](const std::string& text) {
    const auto at = text.find("\"bootstrap_room\":");
    REQUIRE(at != std::string::npos);
    return text.substr(at);
  };
  CHECK(room_of(p) == room_of(d));
  CHECK(p.find(R"("bootstrap_host":"p-host","bootstrap_port":8998)") != std::string::npos);
  CHECK(p.starts_with(body.substr(0, body.size() - 1)));

  // Prefill refuses: decode would wait for five minutes.
  rig = make();
  rig->server(0).answers = {whole("", 500)};
  rig->server(1).answers = {stream({}, End::kHang)};
  CHECK(rig->ask(body).over);
  CHECK(rig->server(1).cancelled + static_cast<int>(rig->server(1).posts.empty()) >= 1);
  // It dies later: the stream ends in order, at once.
  rig = make();
  rig->server(0).answers = {stream({}, End::kHang)};
  rig->server(1).answers = {stream({kChunk}, End::kHang)};
  Asked& late = rig->ask(body);
  CHECK_FALSE(late.over);
  rig->clock.advance(5min);
  CHECK(late.over);
  CHECK(late.answered->finished);
  // Decode fails: prefill is ended.
  rig = make();
  rig->server(0).answers = {stream({}, End::kHang)};
  rig->server(1).answers = {whole("", 400)};
  CHECK(rig->ask(body).over);
  CHECK(rig->server(0).cancelled >= 1);
  // Closing is not enough for all of its versions: it is named, by a rid of its own.
  const auto rid_of = [](const std::string& text) {
    return text.substr(text.find("\"rid\":"), 50);
  };
  REQUIRE(rig->server(0).posts.size() == 2);
  const UpstreamRequest& abort = rig->server(0).posts[1];
  CHECK(abort.target == "/abort_request");
  CHECK(abort.body.size() > 20);
  CHECK(rig->server(0).posts[0].body.contains(abort.body.substr(1, abort.body.size() - 2)));
  CHECK(rid_of(rig->server(0).posts[0].body) != rid_of(rig->server(1).posts[0].body));
}

TEST_CASE("legs: vLLM with Mooncake: both at once, paired by a transfer and the rank's engine id") {
  Rig rig({EngineKind::kVllm, EngineKind::kVllm}, {EngineRole::kPrefill, EngineRole::kDecode},
          nullptr, true);
  FakeUpstream& prefill = rig.server(0);
  FakeUpstream& decode = rig.server(1);
  rig.bootstraps[0]->get["/query"] = {
      200, R"({"0": {"engine_id": "e_dp0"}, "1": {"engine_id": "e_dp1"}})"};
  rig.clock.advance(1100ms);
  std::set<std::string> transfers;
  std::set<std::string> ranks;
  for (int i = 0; i < 16; ++i) {
    prefill.answers = {whole(R"({"choices":[],"kv_transfer_params":null})")};
    decode.answers = {stream({kChunk + kStop + kUsage + kDone})};
    const std::string messages = "[" + std::to_string(i) + "]";
    const std::string body = R"({"model":"m","seed":9007199254740993,"messages":)" + messages +
                             R"(,"stream":true,"max_tokens":7})";
    CHECK(rig.ask(body).answered->body == kChunk + kStop + kDone);
    const UpstreamRequest& p = prefill.posts.back();
    const UpstreamRequest& d = decode.posts.back();
    const std::string rank = header_of(p, "x-data-parallel-rank");
    ranks.insert(rank);
    const auto at = p.body.find("xfer-");
    REQUIRE(at != std::string::npos);
    const std::string transfer = p.body.substr(at, p.body.find('"', at) - at);
    transfers.insert(transfer);
    CHECK(
        p.body ==
        R"({"model":"m","seed":9007199254740993,"messages":)" + messages +
            R"(,"stream":false,"max_tokens":1,"max_completion_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":")" +
            transfer + "\"}}");
    CHECK(
        d.body ==
        R"({"model":"m","seed":9007199254740993,"messages":)" + messages +
            R"(,"stream":true,"max_tokens":7,"stream_options":{"include_usage":true},"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"transfer_id":")" +
            transfer +
            R"(","remote_bootstrap_addr":"http://p-host:8998","remote_engine_id":"e_dp)" + rank +
            "\"}}");
    CHECK(header_of(d, "x-data-parallel-rank").empty());
  }
  CHECK(transfers.size() == 16);
  CHECK(ranks == std::set<std::string>{"0", "1"});
  // Routes on which vLLM takes no rank go whole to the decode engine.
  decode.answers = {whole("{}")};
  CHECK(rig.ask(R"({"model":"m","input":"x"})", WireApi::kResponses).answered->status == 200);
  CHECK(decode.posts.back().body == R"({"model":"m","input":"x"})");
}

TEST_CASE(
    "legs: a decode engine that dies in mid-answer: another one goes on, by a prefill of its own") {
  for (const bool mooncake : {false, true}) {
    Rig rig({EngineKind::kVllm, EngineKind::kVllm, EngineKind::kVllm},
            {EngineRole::kPrefill, EngineRole::kDecode, EngineRole::kDecode}, nullptr, mooncake);
    const std::string all = said("one", {"the ", "water"});
    const std::string reply = R"({"choices":[],"kv_transfer_params":{"remote_block_ids":[[7]]}})";
    rig.server(0).answers = {whole(reply), whole(reply)};
    const bool one = rig.set.pick({"m", WireApi::kChat, "[1]"}).engine == rig.set.engines()[1];
    FakeUpstream& dies = rig.server(one ? 1 : 2);
    FakeUpstream& lives = rig.server(one ? 2 : 1);
    dies.answers = {stream({all.substr(0, all.find("water"))}, End::kCut)};
    lives.answers = {stream({all + kDone})};
    const Asked& it = rig.ask(R"({"model":"m","messages":[1],"stream":true,"temperature":0})");
    CHECK(it.answered->body == all + kDone);
    CHECK(it.record.moves == 1);
    REQUIRE(rig.server(0).posts.size() == 2);
    CHECK(lives.posts.at(0).body.contains("kv_transfer_params"));
  }
}

TEST_CASE("legs: Mooncake: a prefill that fails ends the decode, and another one is asked") {
  Rig rig({EngineKind::kVllm, EngineKind::kVllm, EngineKind::kVllm},
          {EngineRole::kPrefill, EngineRole::kPrefill, EngineRole::kDecode}, nullptr, true);
  const std::string body = R"({"model":"m","messages":[1],"stream":true})";
  // Whichever is first: it fails, and has got another name meanwhile.
  for (std::size_t i = 0; i < 2; ++i) {
    rig.server(i).answers = {whole("", 500)};
    rig.bootstraps[i]->get["/query"] = {200,
                                        R"({"0":{"engine_id":"new-)" + std::to_string(i) + "\"}}"};
  }
  rig.server(2).answers = {stream({}, End::kHang), stream({}, End::kHang)};
  const Asked& failed = rig.ask(body);
  REQUIRE(failed.over);
  CHECK(failed.answered->status == 503);
  CHECK(rig.server(0).posts.size() + rig.server(1).posts.size() == 2);
  for (std::size_t i = 0; i < 2; ++i)
    rig.server(i).answers = {whole("{}")};
  rig.server(2).answers = {stream({kChunk + kDone})};
  CHECK(rig.ask(body).answered->body == kChunk + kDone);
  const std::string& sent = rig.server(2).posts.back().body;
  CHECK(sent.contains(R"("remote_engine_id":"new-)"));

  // What the client got wrong is said at once.
  for (std::size_t i = 0; i < 2; ++i)
    rig.server(i).answers = {whole("", 400)};
  rig.server(2).answers = {stream({}, End::kHang)};
  CHECK(rig.ask(body).answered->status == 400);

  // The prompt is computed and the answer does not begin.
  for (std::size_t i = 0; i < 2; ++i)
    rig.server(i).answers = {whole("{}")};
  rig.server(2).answers = {stream({}, End::kHang)};
  Asked& late = rig.ask(body);
  rig.clock.advance(59s);
  CHECK_FALSE(late.over);
  rig.clock.advance(2s);
  CHECK(late.over);
  CHECK(late.answered->status == 504);
}

TEST_CASE("engines: a Mooncake prefill engine whose bootstrap server does not answer is not used") {
  Rig rig({EngineKind::kVllm, EngineKind::kVllm}, {EngineRole::kPrefill, EngineRole::kDecode},
          nullptr, true);
  rig.bootstraps[0]->get.clear();
  rig.clock.advance(2100ms);
  CHECK_FALSE(rig.set.engines()[0]->healthy);
  CHECK(rig.told.back().contains("GET http://p-host:8998/query: it says 404"));
  Asked& it = rig.ask(R"({"model":"m","messages":[1]})");
  rig.clock.advance(11s);
  CHECK(it.answered->status == 503);
  CHECK(it.answered->body.contains("no prefill engine of the model m"));
}

TEST_CASE("engines: prefill and decode engines of different versions are never paired") {
  Rig rig({EngineKind::kVllm, EngineKind::kVllm, EngineKind::kVllm, EngineKind::kVllm},
          {EngineRole::kPrefill, EngineRole::kPrefill, EngineRole::kDecode, EngineRole::kDecode});
  const auto restart = [&](std::size_t i, std::string_view version) {
    rig.server(i).get["/health"] = {500, ""};
    rig.clock.advance(1100ms);
    rig.server(i).get["/health"] = {200, ""};
    rig.server(i).get["/version"] = {200, R"({"version":")" + std::string(version) + "\"}"};
    rig.clock.advance(1100ms);
  };
  const auto ask_often = [&] {
    for (int i = 0; i < 12; ++i) {
      for (FakeUpstream* server : rig.servers)
        server->answers = {whole("{}")};
      rig.ask(R"({"model":"m","messages":[)" + std::to_string(i) + "]}");
    }
  };
  restart(0, "0.11.0");
  restart(1, "0.12.0");
  restart(2, "0.12.0");
  restart(3, "0.11.0");
  ask_often();
  for (const auto& asked : rig.asked) {
    CHECK(asked->answered->status == 200);
    const std::string& how = asked->record.placement;
    CHECK((how == "e0 -> e3 (vllm)" || how == "e1 -> e2 (vllm)"));
  }
  // The update goes on: a decode engine whose counterparts are gone gets nothing.
  rig.asked.clear();
  restart(0, "0.12.0");
  ask_often();
  for (const auto& asked : rig.asked)
    CHECK(asked->record.placement.ends_with("-> e2 (vllm)"));
  restart(2, "0.11.0");
  Asked& none = rig.ask(R"({"model":"m","messages":[1]})");
  rig.clock.advance(11s);
  CHECK(none.answered->status == 503);
  CHECK(none.answered->body.contains("runs version 0.12.0"));
}

constexpr std::string_view kImage = R"({"type":"image_url","image_url":{"url":"data:a"}})";
constexpr std::string_view kSound = R"({"type":"input_audio","input_audio":{"data":"b"}})";

TEST_CASE("legs: media are encoded first, each alone, and who computes the prompt is told where") {
  Rig rig({EngineKind::kVllm, EngineKind::kVllm, EngineKind::kVllm, EngineKind::kVllm},
          {EngineRole::kEncode, EngineRole::kEncode, EngineRole::kPrefill, EngineRole::kDecode});
  const std::string body = R"({"model":"m","messages":[{"role":"user","content":[)" +
                           std::string(kImage) + "," + std::string(kSound) + "," +
                           std::string(kImage) + R"(]}],"max_tokens":9})";
  const auto encoded = [](std::string_view name) {
    return whole(R"({"choices":[],"ec_transfer_params":{")" + std::string(name) +
                 R"(":{"peer_port":1}}})");
  };
  for (std::size_t i = 0; i < 2; ++i)
    rig.server(i).answers = {encoded("h" + std::to_string(i)), encoded("h" + std::to_string(i))};
  rig.server(2).answers = {
      whole(R"({"choices":[],"kv_transfer_params":{"remote_block_ids":[[7]]}})")};
  rig.server(3).answers = {whole("{}")};
  CHECK(rig.ask(body).answered->status == 200);
  std::multiset<std::string> legs;
  std::set<std::string> ids;
  for (std::size_t i = 0; i < 2; ++i) {
    for (const UpstreamRequest& leg : rig.server(i).posts) {
      legs.insert(leg.body);
      ids.insert(header_of(leg, "x-request-id"));
    }
  }
  const auto alone = [](std::string_view item) {
    return R"({"model":"m","messages":[{"role":"user","content":[)" + std::string(item) +
           R"(]}],"max_tokens":1,"stream":false,"max_completion_tokens":1})";
  };
  CHECK(legs == std::multiset<std::string>{alone(kImage), alone(kSound)});
  CHECK(ids.size() == 2);
  CHECK(ids.begin()->starts_with("req-1:0:"));
  REQUIRE(rig.server(2).posts.size() == 1);
  CHECK(rig.server(2).posts[0].body.contains(R"("ec_transfer_params":{"h)"));
  CHECK_FALSE(rig.server(3).posts.at(0).body.contains("ec_transfer_params"));
  // Text alone needs nobody's help.
  for (std::size_t i = 0; i < 2; ++i)
    rig.server(i).posts.clear();
  rig.server(2).answers = {whole("{}")};
  rig.server(3).answers = {whole("{}")};
  rig.ask(R"({"model":"m","messages":[{"role":"user","content":"x"}]})");
  CHECK(rig.server(0).posts.size() + rig.server(1).posts.size() == 0);
}

TEST_CASE("legs: an encode engine that fails is replaced; whatever ends one leg ends all") {
  const std::string body = R"({"model":"m","messages":[{"role":"user","content":[)" +
                           std::string(kImage) + "," + std::string(kSound) + "]}]}";
  const auto make = [] {
    return std::make_unique<Rig>(
        std::vector{EngineKind::kVllm, EngineKind::kVllm, EngineKind::kVllm},
        std::vector{EngineRole::kEncode, EngineRole::kEncode, EngineRole::kMixed});
  };
  const UpstreamAnswer good = whole(R"({"choices":[],"ec_transfer_params":{}})");
  auto rig = make();
  rig->server(0).answers = {whole("", 500), whole("", 500)};
  rig->server(1).answers = {good, good};
  rig->server(2).answers = {whole("{}")};
  CHECK(rig->ask(body).answered->status == 200);
  CHECK(rig->server(2).posts.at(0).body == body);
  // All of them fail, or say that the client is wrong.
  for (const auto& [status, expected] : {std::pair(500, 503), std::pair(400, 400)}) {
    rig = make();
    for (std::size_t i = 0; i < 2; ++i)
      rig->server(i).answers = {whole("", status), stream({}, End::kHang)};
    const Asked& it = rig->ask(body);
    rig->clock.advance(6min);
    CHECK(it.over);
    CHECK(it.answered->status == expected);
    CHECK(rig->server(2).posts.empty());
  }
  // The client goes: both legs end at once.
  rig = make();
  for (std::size_t i = 0; i < 2; ++i)
    rig->server(i).answers = {stream({}, End::kHang), stream({}, End::kHang)};
  Asked& gone = rig->ask(body);
  CHECK_FALSE(gone.over);
  CHECK(rig->server(0).open + rig->server(1).open == 2);
  gone.answered->disconnect();
  CHECK(gone.over);
  CHECK(rig->server(0).open + rig->server(1).open == 0);
}

}  // namespace penstock::foreign
