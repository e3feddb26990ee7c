// The WebSocket of the Responses API through the gateway: messages in, events out, chains, ends.
#include <boost/json.hpp>

#include <string>

#include "core/protocol/responses_fold.h"
#include "tests/support/gateway_rig.h"
#include "tests/support/memory_responses.h"

namespace penstock::gateway {
namespace {

using testing::FakeSocket;

struct SocketRig : Rig {
  SocketRig() {
    context.responses = &store;
    context.response_pool = &pool;
  }
  // Connects; the answer's socket is the connection.
  std::shared_ptr<Answered> connect(std::vector<HttpHeader> headers = {}, bool accepts = true) {
    HttpRequest request;
    request.method = "GET";
    request.path = "/v1/responses";
    request.headers = std::move(headers);
    request.headers.push_back({"Upgrade", "websocket"});
    request.received_at = clock.now();
    auto answered = std::make_shared<Answered>();
    if (accepts) answered->socket = std::make_shared<FakeSocket>(clock);
    gate.start(gateway.handle(std::make_unique<FakeExchange>(std::move(request), answered)));
    clock.run();
    return answered;
  }
  void say(const std::shared_ptr<Answered>& at, std::string message) {
    REQUIRE(at->socket->messages.push(std::move(message)));
    clock.run();
  }
  void ask(const std::shared_ptr<Answered>& at, const std::string& extra = {}) {
    say(at, R"({"type":"response.create","model":"nano","input":"Hi")" + extra + "}");
  }
  void leave(const std::shared_ptr<Answered>& at) {
    at->socket->messages.close();
    if (at->disconnect) at->disconnect();
    clock.run();
  }
  testing::MemoryResponses store;
};

// What was sent since the last call, as the events of a stream.
std::string events_of(const std::shared_ptr<Answered>& at) {
  std::string out;
  for (const std::string& message : at->socket->sent) {
    const auto object = boost::json::parse(message).as_object();
    out += "event: " + std::string(object.at("type").as_string()) + "\ndata: " + message + "\n\n";
  }
  at->socket->sent.clear();
  return out + "data: [DONE]\n\n";
}

boost::json::object last_message(const std::shared_ptr<Answered>& at) {
  REQUIRE(!at->socket->sent.empty());
  auto object = boost::json::parse(at->socket->sent.back()).as_object();
  at->socket->sent.clear();
  return object;
}

std::string error_code(const boost::json::object& message) {
  CHECK(message.at("type") == "error");
  CHECK(message.at("status") == 400);
  const auto& code = message.at("error").at("code");
  return code.is_null() ? std::string() : std::string(code.as_string());
}

std::string prompt_of(FakeEngines& engines) {
  return nano_tokenizer()->decode(*engines.open()[0].request.prompt, Tokenizer::Special::kKeep);
}

}  // namespace

TEST_CASE("each message of a socket is answered with the events of a stream, in order") {
  SocketRig rig;
  const auto at = rig.connect();
  CHECK(at->status == 101);
  CHECK(!at->header("x-request-id").empty());
  rig.ask(at, R"(,"stream":true,"store":true)");
  rig.ask(at);  // waits for the first
  CHECK(rig.engines.open().size() == 1);
  rig.emit_text("One");
  rig.emit_text(" answer.", FinishReason::kStop);
  auto folded = protocol::ResponseFolder().fold(events_of(at));
  CHECK(folded.problem == "");
  CHECK(folded.whole.at("status") == "completed");
  const std::string id(folded.whole.at("id").as_string());
  CHECK(boost::json::parse(rig.store.all.at(id).first.body) == folded.whole);
  CHECK(rig.last().route == "/v1/responses");
  CHECK(rig.last().status == 200);
  CHECK(rig.last().usage.completion_tokens > 0);
  REQUIRE(rig.engines.open().size() == 1);
  rig.emit_text("Two", FinishReason::kLength);
  folded = protocol::ResponseFolder().fold(events_of(at));
  CHECK(folded.problem == "");
  CHECK(folded.whole.at("status") == "incomplete");
  CHECK(rig.recorder.started == 3);
  rig.leave(at);
  CHECK(rig.last().status == 101);
  CHECK(rig.recorder.records.size() == 3);
  CHECK(at->socket->close_code == 1001);
}

TEST_CASE("a chain of responses that are not stored lives as long as its socket") {
  SocketRig rig;
  const auto at = rig.connect();
  rig.ask(at, R"(,"store":false)");
  rig.emit_text("First words. x", FinishReason::kStop);
  std::string id(last_message(at).at("response").at("id").as_string());
  for (int turn = 0; turn < 2; ++turn) {
    rig.ask(at, R"(,"store":false,"previous_response_id":")" + id + "\"");
    CHECK(contains(prompt_of(rig.engines), "First words."));
    CHECK(contains(prompt_of(rig.engines), "More.") == (turn == 1));
    rig.emit_text("More. x", FinishReason::kStop);
    id = last_message(at).at("response").at("id").as_string();
  }
  CHECK(rig.store.all.empty());
  // Another connection knows nothing of it, nor does a request.
  const auto other = rig.connect();
  rig.ask(other, R"(,"previous_response_id":")" + id + "\"");
  CHECK(error_code(last_message(other)) == "previous_response_not_found");
  // Only the last one can be gone on from; an answer that fails ends the chain.
  rig.ask(at, R"(,"store":false,"previous_response_id":"resp_older")");
  CHECK(error_code(last_message(at)) == "previous_response_not_found");
  rig.ask(at, R"(,"store":false,"previous_response_id":")" + id + "\"");
  rig.emit_text("Half");
  rig.engines.fail({ErrorCode::kInternal, "the kernel broke", {}, {}});
  rig.clock.run();
  CHECK(last_message(at).at("type") == "response.failed");
  rig.ask(at, R"(,"store":false,"previous_response_id":")" + id + "\"");
  CHECK(error_code(last_message(at)) == "previous_response_not_found");
  CHECK(rig.engines.open().empty());
  rig.leave(at);
  rig.leave(other);
}

TEST_CASE("a continuation that is refused ends an unstored chain too") {
  SocketRig rig;
  const auto at = rig.connect();
  rig.ask(at, R"(,"store":false)");
  rig.emit_text("x", FinishReason::kStop);
  const std::string id(last_message(at).at("response").at("id").as_string());
  rig.ask(at, R"(,"temperature":9,"previous_response_id":")" + id + "\"");
  CHECK(last_message(at).at("error").at("param") == "temperature");
  rig.ask(at, R"(,"previous_response_id":")" + id + "\"");
  CHECK(error_code(last_message(at)) == "previous_response_not_found");
  rig.leave(at);
}

TEST_CASE("a stored chain goes on from any connection, until it is deleted") {
  SocketRig rig;
  const auto at = rig.connect();
  rig.ask(at);
  rig.emit_text("Kept words. x", FinishReason::kStop);
  const std::string id(last_message(at).at("response").at("id").as_string());
  rig.leave(at);
  const auto later = rig.connect();
  const std::string next = R"(,"previous_response_id":")" + id + "\"";
  rig.ask(later, next);
  CHECK(contains(prompt_of(rig.engines), "Kept words."));
  rig.emit_text("x", FinishReason::kStop);
  later->socket->sent.clear();
  rig.store.all.erase(id);
  rig.ask(later, next);
  CHECK(error_code(last_message(later)) == "previous_response_not_found");
  rig.leave(later);
}

TEST_CASE("a message that generates nothing only gets its input ready") {
  SocketRig rig;
  const auto at = rig.connect();
  rig.say(at,
          R"({"type":"response.create","model":"nano","input":"Remember me","generate":false})");
  auto folded = protocol::ResponseFolder().fold(events_of(at));
  CHECK(folded.problem == "");
  CHECK(folded.whole.at("output").as_array().empty());
  CHECK(rig.engines.submitted == 0);
  CHECK(rig.last().usage.prompt_tokens == 0);
  const std::string id(folded.whole.at("id").as_string());
  CHECK(rig.store.all.empty());
  rig.ask(at, R"(,"previous_response_id":")" + id + "\"");
  CHECK(contains(prompt_of(rig.engines), "Remember me"));
  rig.emit_text("x", FinishReason::kStop);
  CHECK(last_message(at).at("response").at("status") == "completed");
  rig.leave(at);
}

TEST_CASE("a client that leaves a socket after any number of events frees the engine") {
  for (int events = 0; events < 3; ++events) {
    CAPTURE(events);
    SocketRig rig;
    const auto at = rig.connect();
    rig.ask(at);
    for (int i = 0; i < events; ++i)
      rig.emit_text("Some text");
    rig.leave(at);
    CHECK(rig.engines.open().empty());
    CHECK(rig.gateway.in_flight() == 0);
    REQUIRE(rig.recorder.records.size() == 2);
    CHECK(rig.recorder.records[0].status == 499);
    CHECK(rig.recorder.records[1].status == 101);
    CHECK(rig.gate.running() == 0);
  }
}

TEST_CASE("an engine that fails after any number of events is told on the socket, which goes on") {
  for (int events = 0; events < 3; ++events) {
    CAPTURE(events);
    SocketRig rig;
    const auto at = rig.connect();
    rig.ask(at);
    for (int i = 0; i < events; ++i)
      rig.emit_text("Some text");
    rig.engines.fail({ErrorCode::kInternal, "the kernel broke", {}, {}});
    rig.clock.run();
    if (events == 0) {
      const auto message = last_message(at);
      CHECK(message.at("type") == "error");
      CHECK(message.at("status") == 500);
    } else {
      const auto folded = protocol::ResponseFolder().fold(events_of(at));
      CHECK(folded.problem == "");
      CHECK(folded.whole.at("status") == "failed");
    }
    rig.ask(at);
    rig.emit_text("x", FinishReason::kStop);
    CHECK(last_message(at).at("type") == "response.completed");
    rig.leave(at);
  }
}

TEST_CASE("messages that are no request are refused by name, and the socket goes on") {
  SocketRig rig;
  const auto at = rig.connect();
  struct Case {
    const char* message;
    const char* part;
  };
  for (const Case& c : {
           Case{"not json", "invalid_json"},
           Case{"[]", "response.create"},
           Case{R"({"model":"nano","input":"Hi"})", R"("param":"type")"},
           Case{R"({"type":"response.cancel"})", R"("param":"type")"},
           Case{R"({"type":"response.create","input":"Hi"})", R"("param":"model")"},
           Case{R"({"type":"response.create","model":"no","input":"Hi"})", R"("status":404)"},
           Case{R"({"type":"response.create","model":"nano","input":"Hi","background":true})",
                R"("param":"background")"},
           Case{R"({"type":"response.create","model":"nano","input":"Hi","stream_id":"a"})",
                R"("param":"stream_id")"},
           Case{R"({"type":"response.create","model":"nano","input":"Hi","generate":1})",
                R"("param":"generate")"},
       }) {
    CAPTURE(c.message);
    rig.say(at, c.message);
    REQUIRE(at->socket->sent.size() == 1);
    CHECK_MESSAGE(contains(at->socket->sent[0], c.part), at->socket->sent[0]);
    CHECK(last_message(at).at("type") == "error");
    CHECK(rig.last().status >= 400);
  }
  std::string longer;
  for (int i = 0; i < 5000; ++i)
    longer += "7 ";
  rig.say(at, R"({"type":"response.create","model":"nano","input":")" + longer + "\"}");
  CHECK(last_message(at).at("error").at("param") == "input");
  CHECK(rig.engines.submitted == 0);
  rig.say(at, "{\"type\":\"\xFF\"}");
  CHECK(at->socket->close_code == 1007);
}

TEST_CASE("a socket ends with its hour, and with the server") {
  {
    SocketRig rig;
    const auto at = rig.connect();
    rig.clock.advance(std::chrono::minutes(61));
    CHECK(error_code(last_message(at)) == "websocket_connection_limit_reached");
    CHECK(at->socket->close_code == 1000);
    CHECK(rig.gate.running() == 0);
  }
  SocketRig rig;
  const auto at = rig.connect();
  rig.ask(at);
  rig.gateway.begin_drain();
  at->socket->going_away = true;
  at->socket->messages.close();
  rig.emit_text("to the end", FinishReason::kStop);
  CHECK(last_message(at).at("type") == "response.completed");
  CHECK(at->socket->close_code == 1001);
}

TEST_CASE(
    "who may open a socket: a key is needed as anywhere, a web page needs a server with keys") {
  SocketRig rig;
  const auto page = rig.connect({{"Origin", "https://example.com"}});
  CHECK(page->status == 403);
  CHECK(contains(page->body, R"("param":"origin")"));
  const auto old = rig.connect({}, false);
  CHECK(old->status == 426);
  CHECK(old->header("sec-websocket-version") == "13");
  CHECK(rig.send("GET", "/v1/responses")->status == 405);
  rig.context.authenticate = [](std::string_view key) {
    return key == "good" ? std::optional<std::string>("team") : std::nullopt;
  };
  CHECK(rig.connect({{"Authorization", "Bearer bad"}})->status == 401);
  const auto at = rig.connect({{"Authorization", "Bearer good"}, {"Origin", "https://a"}});
  CHECK(at->status == 101);
  rig.ask(at);
  rig.emit_text("x", FinishReason::kStop);
  CHECK(rig.last().key_name == "team");
  CHECK(rig.store.all.begin()->second.first.owner == "team");
  rig.leave(at);
}

}  // namespace penstock::gateway
