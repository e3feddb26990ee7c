// The Responses API through the gateway: every way a stream ends, what is kept, the background.
#include <boost/json.hpp>

#include <string>

#include "core/protocol/responses_fold.h"
#include "tests/support/gateway_rig.h"
#include "tests/support/memory_responses.h"

namespace penstock::gateway {
namespace {

using protocol::ResponseFolder;

struct ResponsesRig : Rig {
  ResponsesRig() {
    context.responses = &store;
    context.response_pool = &pool;
  }
  std::shared_ptr<Answered> ask(const std::string& extra = {}) {
    return send("POST", "/v1/responses", R"({"model":"nano","input":"Hi")" + extra + "}");
  }
  std::shared_ptr<Answered> get(const std::string& id, const std::string& query = {}) {
    HttpRequest request;
    request.method = "GET";
    request.path = "/v1/responses/" + id;
    request.query = query;
    request.received_at = clock.now();
    auto answered = std::make_shared<Answered>();
    gate.start(gateway.handle(std::make_unique<FakeExchange>(std::move(request), answered)));
    clock.run();
    return answered;
  }
  testing::MemoryResponses store;
};

boost::json::object object(const std::shared_ptr<Answered>& answer) {
  return boost::json::parse(answer->body).as_object();
}
std::string id_of(const std::shared_ptr<Answered>& answer) {
  return std::string(object(answer).at("id").as_string());
}

}  // namespace

TEST_CASE("a response, streamed and whole, says the same; both are kept before their end is seen") {
  ResponsesRig rig;
  const std::string thinking = R"(,"reasoning":{"effort":"high"})";
  const auto whole = rig.ask(thinking);
  rig.emit_text("why</think>Because.", FinishReason::kStop);
  const auto stream = rig.ask(thinking + R"(,"stream":true)");
  rig.emit_text("why</think>Beca");
  rig.emit_text("use.", FinishReason::kStop);
  CHECK(whole->status == 200);
  CHECK(stream->finished);
  const auto folded = ResponseFolder().fold(stream->body);
  CHECK(folded.problem == "");
  auto expected = object(whole);
  CHECK(rig.store.all.at(id_of(whole)).first.body == whole->body);
  CHECK(expected.at("output").as_array().size() == 2);
  CHECK(expected.at("usage").at("input_tokens_details").at("cached_tokens") == 2);
  const std::string streamed_id(folded.whole.at("id").as_string());
  CHECK(boost::json::parse(rig.store.all.at(streamed_id).first.body) == folded.whole);
  CHECK(folded.whole.at("usage") == expected.at("usage"));
  CHECK(folded.whole.at("output").at(1).at("content") == expected.at("output").at(1).at("content"));
}

TEST_CASE("store false keeps nothing, and a store that fails does not fail the answer") {
  ResponsesRig rig;
  rig.ask(R"(,"store":false)");
  rig.emit_text("x", FinishReason::kStop);
  CHECK(rig.store.all.empty());
  rig.store.refuse_writes = true;
  const auto answer = rig.ask();
  rig.emit_text("x", FinishReason::kStop);
  CHECK(answer->status == 200);
  CHECK(contains(rig.last().placement, "not stored: the disk is gone"));
  CHECK(rig.ask(R"(,"background":true)")->status == 500);
  CHECK(rig.engines.open().empty());
}

TEST_CASE("a client that leaves a response after any number of events frees the engine") {
  for (int events = 0; events < 3; ++events) {
    CAPTURE(events);
    ResponsesRig rig;
    const auto answer = rig.ask(R"(,"stream":true)");
    for (int i = 0; i < events; ++i)
      rig.emit_text("Some text");
    answer->refuse_writes = true;
    answer->disconnect();
    rig.clock.run();
    CHECK(rig.engines.open().empty());
    CHECK(rig.gateway.in_flight() == 0);
    CHECK(rig.last().status == 499);
    CHECK(rig.store.all.empty());
    CHECK(!answer->finished);
  }
}

TEST_CASE("an engine that fails after any number of events ends the response as failed") {
  for (int events = 0; events < 3; ++events) {
    CAPTURE(events);
    for (const bool streamed : {true, false}) {
      CAPTURE(streamed);
      ResponsesRig rig;
      const auto answer = rig.ask(streamed ? R"(,"stream":true)" : "");
      for (int i = 0; i < events; ++i)
        rig.emit_text("Some text");
      rig.engines.fail({ErrorCode::kInternal, "the kernel broke", {}, {}});
      rig.clock.run();
      CHECK(answer->finished);
      CHECK(rig.last().outcome == "internal");
      if (!streamed || events == 0) {
        CHECK(answer->status == 500);
        CHECK(contains(answer->body, R"({"error":{"message":"the kernel broke")"));
        CHECK(rig.store.all.empty());
      } else {
        const auto folded = ResponseFolder().fold(answer->body);
        CHECK(folded.problem == "");
        CHECK(folded.whole.at("status") == "failed");
        CHECK(folded.whole.at("error").at("message") == "the kernel broke");
      }
    }
  }
}

TEST_CASE("a silent engine yields comments only") {
  ResponsesRig rig;
  const auto answer = rig.ask(R"(,"stream":true)");
  rig.clock.advance(std::chrono::seconds(15));
  CHECK(answer->body == ": keep-alive\n");
  rig.emit_text("text", FinishReason::kLength);
  const auto folded = ResponseFolder().fold(answer->body);
  CHECK(folded.problem == "");
  CHECK(folded.whole.at("incomplete_details").at("reason") == "max_output_tokens");
}

TEST_CASE("a response in the background needs no client, and is followed by whoever asks") {
  ResponsesRig rig;
  const auto queued = rig.ask(R"(,"background":true)");
  CHECK(queued->finished);
  const std::string id = id_of(queued);
  CHECK(object(queued).at("status") == "queued");
  CHECK(object(rig.get(id)).at("status") == "queued");
  rig.emit_text("why</think>Be");
  CHECK(object(rig.get(id)).at("status") == "in_progress");
  const auto follower = rig.get(id, "stream=true");
  const auto later = rig.get(id, "stream=true&starting_after=2");
  CHECK(!follower->finished);
  CHECK(contains(follower->body, "response.output_text.delta"));
  rig.emit_text("cause.", FinishReason::kStop);
  rig.clock.advance(std::chrono::milliseconds(200));
  REQUIRE(follower->finished);
  const auto folded = ResponseFolder().fold(follower->body);
  CHECK(folded.problem == "");
  CHECK(folded.whole == object(rig.get(id)));
  CHECK(folded.whole.at("status") == "completed");
  CHECK(later->finished);
  CHECK(follower->body.ends_with(later->body));
  CHECK(contains(later->body.substr(0, 200), R"("sequence_number":3,)"));
  CHECK(rig.recorder.started == static_cast<int>(rig.recorder.records.size()));
  CHECK(rig.gateway.in_flight() == 0);
}

TEST_CASE("a background response that is cancelled or deleted stops its engine") {
  for (const bool deleted : {false, true}) {
    for (int events = 0; events < 3; ++events) {
      CAPTURE(deleted);
      CAPTURE(events);
      ResponsesRig rig;
      const std::string id = id_of(rig.ask(R"(,"background":true)"));
      for (int i = 0; i < events; ++i)
        rig.emit_text("Some text");
      const auto follower = rig.get(id, "stream=true");
      const auto answer = deleted ? rig.send("DELETE", "/v1/responses/" + id)
                                  : rig.send("POST", "/v1/responses/" + id + "/cancel");
      CHECK(answer->status == 200);
      CHECK(rig.engines.open().empty());
      CHECK(rig.gateway.in_flight() == 0);
      rig.clock.advance(std::chrono::milliseconds(200));
      if (deleted) {
        CHECK(rig.get(id)->status == 404);
        CHECK(!follower->finished);  // cut
      } else {
        CHECK(object(answer).at("status") == "cancelled");
        CHECK(object(rig.get(id)) == object(answer));
        CHECK(rig.send("POST", "/v1/responses/" + id + "/cancel")->body == answer->body);
        CHECK(follower->finished);
        CHECK(contains(follower->body, "event: response.cancelled\n"));
      }
    }
  }
}

TEST_CASE("a background response whose engine fails, or that is refused, has failed") {
  for (int events = 0; events < 3; ++events) {
    CAPTURE(events);
    ResponsesRig rig;
    const std::string id = id_of(rig.ask(R"(,"background":true)"));
    for (int i = 0; i < events; ++i)
      rig.emit_text("Some text");
    rig.engines.fail({ErrorCode::kInternal, "the kernel broke", {}, {}});
    rig.clock.run();
    const auto failed = object(rig.get(id));
    CHECK(failed.at("status") == "failed");
    CHECK(failed.at("error").at("message") == "the kernel broke");
    const auto events_seen = rig.get(id, "stream=true");
    CHECK(events_seen->finished);
    CHECK(contains(events_seen->body, "event: error\n"));
  }
  ResponsesRig rig;
  const auto large = rig.ask(R"(,"background":true,"max_output_tokens":100000)");
  CHECK(large->status == 200);
  CHECK(object(rig.get(id_of(large))).at("status") == "failed");
}

TEST_CASE("input_tokens is what usage says later and takes no engine") {
  ResponsesRig rig;
  rig.ask(R"(,"instructions":"Be brief.")");
  rig.emit_text("x", FinishReason::kStop);
  const auto prompt = rig.last().usage.prompt_tokens;
  rig.engines.kill(0);
  const auto count = rig.send("POST", "/v1/responses/input_tokens",
                              R"({"model":"nano","input":"Hi","instructions":"Be brief."})");
  CHECK(count->body ==
        R"({"object":"response.input_tokens","input_tokens":)" + std::to_string(prompt) + "}");
  CHECK(rig.send("POST", "/v1/responses/input_tokens", R"({"model":"nano"})")->status == 400);
  CHECK(rig.send("POST", "/v1/responses/compact", R"({"input":"x"})")->status == 400);
}

TEST_CASE("a gateway without a store serves what needs none") {
  Rig rig;
  const auto ask = [&](const std::string& extra) {
    return rig.send("POST", "/v1/responses", R"({"model":"nano","input":"Hi")" + extra + "}");
  };
  const auto answer = ask("");
  rig.emit_text("x", FinishReason::kStop);
  CHECK(answer->status == 200);
  CHECK(ask(R"(,"background":true)")->status == 400);
  const auto previous = ask(R"(,"previous_response_id":"resp_1")");
  CHECK(previous->status == 400);
  CHECK(contains(previous->body, R"("code":"previous_response_not_found")"));
  CHECK(rig.send("GET", "/v1/responses/resp_1")->status == 404);
  CHECK(rig.send("DELETE", "/v1/responses/resp_1")->status == 404);
  CHECK(rig.send("POST", "/v1/responses/resp_1/cancel")->status == 404);
  CHECK(rig.send("POST", "/v1/responses/resp_1/other")->status == 404);
  CHECK(rig.send("POST", "/v1/responses", "{")->status == 400);
  CHECK(rig.send("POST", "/v1/responses", "{}", {{"content-type", "text/plain"}})->status == 415);
}

}  // namespace penstock::gateway
