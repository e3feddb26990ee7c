// POST /v1/completions through the gateway: what reaches the engine, and every way an answer ends.
#include <boost/json.hpp>

#include <fstream>
#include <iterator>
#include <string>

#include "core/protocol/completion_fold.h"
#include "tests/support/gateway_rig.h"

namespace penstock::gateway {
namespace {

std::shared_ptr<Answered> complete(Rig& rig, const std::string& members,
                                   const std::string& path = "/v1/completions") {
  return rig.send("POST", path, R"({"model":"nano",)" + members + "}");
}

std::vector<TokenId> ids_of(std::string_view text) {
  std::vector<TokenId> ids;
  REQUIRE(nano_tokenizer()->encode(text, ids));
  return ids;
}

std::string list_of(const std::vector<TokenId>& ids) {
  std::string list = "[";
  for (const TokenId id : ids)
    list += (list.size() > 1 ? "," : "") + std::to_string(id);
  return list + "]";
}

}  // namespace

TEST_CASE("a text goes to the model behind the token that begins texts, ids go as they are") {
  Rig rig;
  const auto bos = nano_tokenizer()->token_id("<｜begin▁of▁sentence｜>");
  REQUIRE(bos);
  const std::string text = "Caf\u00e9 <｜User｜> ";  // spells a special token, is none
  std::vector<TokenId> expected = ids_of(text);
  expected.insert(expected.begin(), *bos);
  for (const char* path : {"/v1/completions", "/completions", "/beta/completions"}) {
    for (const char* prompt : {R"("Caf\u00e9 <｜User｜> ")", R"(["Caf\u00e9 <｜User｜> "])"}) {
      const auto answer = complete(rig, std::string(R"("prompt":)") + prompt, path);
      const EngineRequest& request = rig.engines.open()[0].request;
      CHECK(*request.prompt == expected);
      CHECK(request.sampling.max_tokens == 16);
      rig.emit_text("x", FinishReason::kLength);
      CHECK(answer->status == 200);
      CHECK(contains(answer->body, R"("id":"cmpl-)"));
      CHECK(contains(answer->body, R"("object":"text_completion")"));
      CHECK(rig.last().route == path);
      CHECK(rig.last().usage.prompt_tokens == expected.size());
    }
  }
  const std::vector<TokenId> ids = {*nano_tokenizer()->token_id("<｜User｜>"), 300, 5};
  for (const std::string& prompt : {list_of(ids), "[" + list_of(ids) + "]"}) {
    complete(rig, R"("prompt":)" + prompt);
    CHECK(*rig.engines.open()[0].request.prompt == ids);
    rig.emit_text("x", FinishReason::kLength);
  }
  complete(rig, R"("prompt":"")");
  CHECK(*rig.engines.open()[0].request.prompt == std::vector<TokenId>{*bos});
  rig.emit_text("x", FinishReason::kLength);
}

TEST_CASE("a suffix goes behind the hole of models that fill in the middle, others refuse it") {
  std::ifstream file("models/nano/tokenizer.json");
  std::string json(std::istreambuf_iterator<char>(file), {});
  const auto rename = [&](std::string_view from, std::string_view to) {
    for (std::size_t at = json.find(from); at != json.npos; at = json.find(from, at + to.size()))
      json.replace(at, from.size(), to);
  };
  rename("<｜▁pad▁｜>", "<｜fim▁begin｜>");
  rename("<｜latest_reminder｜>", "<｜fim▁hole｜>");
  rename("｜DSML｜", "<｜fim▁end｜>");
  auto read = Tokenizer::from_json(json);
  REQUIRE(read);
  const std::shared_ptr<const Tokenizer> coder = std::move(*read);
  Rig rig;
  REQUIRE(rig.catalog.add({"coder", coder, rig.catalog.find("nano")->encoding, 1}));
  rig.engines.add_worker(2, "coder", 4096);
  const auto ask = [&](const std::string& model, const std::string& members) {
    return rig.send("POST", "/beta/completions", R"({"model":")" + model + "\"," + members + "}");
  };
  const auto prompt_of = [&](std::string_view before, std::string_view behind) {
    std::vector<TokenId> ids = {*coder->token_id("<｜begin▁of▁sentence｜>"),
                                *coder->token_id("<｜fim▁begin｜>")};
    REQUIRE(coder->encode(before, ids));
    ids.push_back(*coder->token_id("<｜fim▁hole｜>"));
    REQUIRE(coder->encode(behind, ids));
    ids.push_back(*coder->token_id("<｜fim▁end｜>"));
    return ids;
  };
  const auto whole = ask("coder", R"("prompt":"int a = ","suffix":";<｜fim▁end｜>")");
  CHECK(*rig.engines.open()[0].request.prompt == prompt_of("int a = ", ";<｜fim▁end｜>"));
  rig.emit_text("4", FinishReason::kLength);
  CHECK(whole->status == 200);
  CHECK_MESSAGE(contains(whole->body, R"("text":"4")"), whole->body);
  ask("coder", R"("prompt":["a","b"],"suffix":"c")");
  REQUIRE(rig.engines.open().size() == 2);
  CHECK(*rig.engines.open()[0].request.prompt == prompt_of("a", "c"));
  CHECK(*rig.engines.open()[1].request.prompt == prompt_of("b", "c"));
  for (std::uint32_t i = 0; i < 2; ++i)
    rig.emit_text("4", FinishReason::kLength);
  const auto refused = ask("nano", R"("prompt":"int a = ","suffix":";")");
  CHECK(refused->status == 400);
  CHECK_MESSAGE(contains(refused->body, R"("param":"suffix","code":"unsupported_parameter")"),
                refused->body);
  ask("nano", R"("prompt":"x","suffix":"")");  // nothing to lead to
  CHECK(*rig.engines.open()[0].request.prompt ==
        std::vector<TokenId>{*coder->token_id("<｜begin▁of▁sentence｜>"), ids_of("x")[0]});
  rig.emit_text("4", FinishReason::kLength);
}

TEST_CASE("a completion, streamed and whole, says the same; markup stays text") {
  for (const std::string extra :
       {"", R"(,"n":2)", R"(,"echo":true)", R"(,"logprobs":2,"n":2)", R"(,"stop":["END"])"}) {
    CAPTURE(extra);
    Rig rig;
    const bool two = contains(extra, "\"n\":2");
    const bool stops = contains(extra, "END");
    const auto play = [&](const std::string& more) {
      const auto answer = complete(rig, R"("prompt":"Once")" + extra + more);
      rig.emit_text("\nhm</think>\n\n<tool");
      if (two) rig.emit_text("second", FinishReason::kStop, 1);
      rig.emit_text(" caf\u00e9 END of it",
                    stops ? std::optional<FinishReason>() : FinishReason::kLength);
      return answer;
    };
    const auto whole = play("");
    const auto stream = play(R"(,"stream":true,"stream_options":{"include_usage":true})");
    CHECK(whole->status == 200);
    CHECK(stream->content_type == "text/event-stream; charset=utf-8");
    CHECK(stream->finished);
    auto folded = protocol::fold_completion(stream->body);
    CHECK(folded.problem == "");
    CHECK(folded.done);
    auto expected = protocol::comparable_completion(whole->body);
    const auto& first = expected.at("choices").at(0);
    const std::string echo = contains(extra, "echo") ? "Once" : "";
    CHECK(std::string(first.at("text").as_string()) ==
          echo + "\nhm</think>\n\n<tool caf\u00e9 " + (stops ? "" : "END of it"));
    CHECK(first.at("finish_reason") == (stops ? "stop" : "length"));
    CHECK(expected.at("choices").as_array().size() == (two ? 2 : 1));
    folded.whole.erase("id");
    expected.erase("id");
    CHECK(folded.whole == expected);
    CHECK(rig.engines.open().empty());
  }
}

TEST_CASE("several prompts are answered side by side, their choices numbered prompt by prompt") {
  const std::vector<TokenId> ids = {300, 5};
  const std::string members =
      R"("prompt":["Once",)" + list_of(ids) + R"(,"Then"],"n":2,"echo":true)";
  for (const bool streamed : {false, true}) {
    CAPTURE(streamed);
    Rig rig;
    const auto answer = complete(
        rig,
        members + (streamed ? R"(,"stream":true,"stream_options":{"include_usage":true})" : ""));
    REQUIRE(rig.engines.open().size() == 3);
    CHECK(*rig.engines.open()[1].request.prompt == ids);
    // Not the same draws for each: the client gave no seed.
    CHECK(rig.engines.open()[0].request.sampling.seed !=
          rig.engines.open()[2].request.sampling.seed);
    std::size_t prompt_tokens = 0;
    for (const auto& open : rig.engines.open())
      prompt_tokens += open.request.prompt->size();
    const std::vector<TokenId> word = ids_of(" a");
    // By the request submitted last: the third prompt is 0 back.
    rig.engines.emit(word, {}, 1, 2);
    rig.engines.emit(ids_of(" z"), {}, 0, 0);
    rig.engines.emit(ids_of(" y"), FinishReason::kStop, 1, 0);
    rig.clock.run();
    rig.engines.emit(ids_of(" b"), FinishReason::kLength, 1, 2);
    rig.engines.emit(ids_of(" c"), FinishReason::kStop, 0, 2);
    rig.engines.emit(ids_of(" d"), FinishReason::kLength, 0, 1);
    rig.clock.run();
    CHECK(!answer->finished);
    rig.engines.emit(ids_of(" e"), FinishReason::kLength, 1, 1);
    rig.engines.emit(ids_of("!"), FinishReason::kLength, 0, 0);
    rig.clock.run();
    REQUIRE(answer->finished);
    CHECK(answer->status == 200);
    CHECK(rig.engines.open().empty());
    CHECK(rig.gateway.in_flight() == 0);
    CHECK(rig.last().usage.prompt_tokens == prompt_tokens);
    CHECK(rig.last().usage.completion_tokens == 8);
    CHECK(rig.last().usage.cached_tokens == 6);  // 2 of each
    boost::json::object whole;
    if (streamed) {
      auto folded = protocol::fold_completion(answer->body);
      CHECK(folded.problem == "");
      CHECK(folded.done);
      whole = std::move(folded.whole);
    } else {
      whole = protocol::comparable_completion(answer->body);
    }
    const std::string middle = nano_tokenizer()->decode(ids, Tokenizer::Special::kKeep);
    // The token that stops an answer is no text of it.
    const std::string texts[] = {"Once",        "Once a b", middle + " d",
                                 middle + " e", "Then z!",  "Then"};
    const auto& choices = whole.at("choices").as_array();
    REQUIRE(choices.size() == 6);
    for (std::size_t i = 0; i < 6; ++i) {
      CHECK(choices[i].at("index") == i);
      CHECK(std::string(choices[i].at("text").as_string()) == texts[i]);
      CHECK(choices[i].at("finish_reason") == (i == 0 || i == 5 ? "stop" : "length"));
    }
    CHECK(whole.at("usage").at("prompt_tokens") == prompt_tokens);
    CHECK(whole.at("usage").at("completion_tokens") == 8);
  }
}

TEST_CASE("a seed given for several prompts is each one's; a worker that dies costs a pause") {
  Rig rig;
  rig.engines.add_worker(2, "nano", 4096);
  const auto answer = complete(rig, R"("prompt":["a","b"],"seed":7)");
  for (const auto& open : rig.engines.open())
    CHECK(open.request.sampling.seed == 7);
  const WorkerId first = rig.engines.open()[0].worker;
  rig.engines.emit(ids_of(" x"), {}, 0, 1);
  rig.clock.run();
  rig.engines.kill(first.value - 1);
  rig.clock.advance(std::chrono::milliseconds(100));
  REQUIRE(rig.engines.open().size() == 2);
  for (std::size_t back : {1U, 0U})
    rig.engines.emit(ids_of(" y"), FinishReason::kLength, 0, back);
  rig.clock.run();
  REQUIRE(answer->finished);
  CHECK(contains(answer->body, R"("text":" x y","index":0)"));
  CHECK(contains(answer->body, R"("text":" y","index":1)"));
  CHECK(rig.last().moves > 0);
}

TEST_CASE("of several prompts that wait for the engines one refusal ends all, and leaves nothing") {
  Rig rig;
  rig.context.limits.request_time_max = std::chrono::seconds(30);
  const auto answer = complete(rig, R"("prompt":["a","b","c"],"stream":true)");
  REQUIRE(rig.engines.open().size() == 3);
  rig.clock.advance(std::chrono::seconds(31));
  CHECK(answer->finished);
  CHECK(rig.engines.open().empty());
  CHECK(rig.gateway.in_flight() == 0);
  CHECK(contains(answer->body, "request_time_max"));
  rig.gateway.begin_drain();
}

TEST_CASE("the echo of ids is their text, special tokens too") {
  Rig rig;
  std::vector<TokenId> ids = ids_of("Hi");
  ids.insert(ids.begin(), *nano_tokenizer()->token_id("<｜User｜>"));
  const auto answer = complete(rig, R"("echo":true,"prompt":)" + list_of(ids));
  rig.emit_text(" you", FinishReason::kLength);
  CHECK(contains(answer->body, R"("text":"<｜User｜>Hi you")"));
}

TEST_CASE("a client that leaves a completion after any number of events frees the engine") {
  for (int events = 0; events < 3; ++events) {
    CAPTURE(events);
    Rig rig;
    const auto answer = complete(rig, R"("prompt":"Once","stream":true)");
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

TEST_CASE("an engine that fails after any number of events ends the completion in an error") {
  for (int events = 0; events < 3; ++events) {
    CAPTURE(events);
    for (const bool streamed : {true, false}) {
      CAPTURE(streamed);
      Rig rig;
      const auto answer = complete(
          rig, std::string(R"("prompt":"Once","n":2)") + (streamed ? R"(,"stream":true)" : ""));
      for (int i = 0; i < events; ++i)
        rig.emit_text("Some text");
      rig.engines.fail({ErrorCode::kInternal, "the kernel broke", {}, {}});
      rig.clock.run();
      CHECK(answer->finished);
      CHECK(rig.last().outcome == "internal");
      if (!streamed || events == 0) {
        CHECK(answer->status == 500);
        CHECK(contains(answer->body, R"({"error":{"message":)"));
      } else {
        const auto folded = protocol::fold_completion(answer->body);
        CHECK(folded.problem == "");
        CHECK(!folded.error.empty());
        CHECK(!folded.done);
        CHECK(!folded.whole.at("choices").at(0).as_object().contains("finish_reason"));
      }
    }
  }
}

TEST_CASE("refusals of a completion name what is wrong") {
  Rig rig;
  std::string longer = R"("prompt":")";
  for (int i = 0; i < 5000; ++i)
    longer += "7 ";
  std::string many = R"("prompt":[5)";
  for (int i = 0; i < 5000; ++i)
    many += ",5";
  struct Case {
    std::string members;
    int status;
    const char* part;
  };
  for (const Case& c : {
           Case{R"("prompt":[1,4000000000])", 400, R"("param":"prompt[1]")"},
           Case{R"("prompt":["a",[1,4000000000]])", 400, R"("param":"prompt[1][1]")"},
           Case{R"("n":100,"prompt":["a","b"])", 400, R"("param":"prompt","code":"invalid_value")"},
           Case{R"("prompt":["a",)" + longer.substr(9) + "\"]", 400,
                R"("param":"prompt[1]","code":"context_length_exceeded")"},
           Case{R"("prompt":[[5],)" + many.substr(9) + "]]", 400,
                R"("param":"prompt[1]","code":"context_length_exceeded")"},
           Case{R"("prompt":"a","suffix":"b")", 400, R"("param":"suffix")"},
           Case{R"("prompt":"a","max_tokens":5000)", 400, R"("param":"max_tokens")"},
           Case{longer + "\"", 400, R"("param":"prompt","code":"context_length_exceeded")"},
           Case{many + "]", 400, R"("param":"prompt","code":"context_length_exceeded")"},
       }) {
    const auto answer = complete(rig, c.members);
    CHECK(answer->status == c.status);
    CHECK_MESSAGE(contains(answer->body, c.part), answer->body);
  }
  CHECK(rig.send("POST", "/v1/completions", R"({"model":"no","prompt":"a"})")->status == 404);
  CHECK(rig.send("GET", "/v1/completions")->status == 405);
  CHECK(rig.engines.submitted == 0);
}

TEST_CASE("embeddings are refused by what is wrong, else by the model") {
  Rig rig;
  struct Case {
    const char* body;
    int status;
    const char* part;
  };
  for (const Case& c : {
           Case{R"({"model":"nano","input":["a"]})", 400, R"("param":"model")"},
           Case{R"({"model":"no","input":"a"})", 404, "model_not_found"},
           Case{R"({"model":"nano","input":[]})", 400, R"("param":"input")"},
       }) {
    for (const char* path : {"/v1/embeddings", "/embeddings"}) {
      const auto answer = rig.send("POST", path, c.body);
      CHECK(answer->status == c.status);
      CHECK_MESSAGE(contains(answer->body, c.part), answer->body);
    }
  }
  CHECK(rig.send("POST", "/v1/embeddings", "{}", {{"content-type", "text/plain"}})->status == 415);
}

TEST_CASE("completions are not stored: the field is taken, and there is nothing to get") {
  Rig rig;
  const auto answer = rig.chat(R"(,"store":true,"metadata":{"a":"b"})");
  rig.emit_text("Once", FinishReason::kStop);
  CHECK(answer->status == 200);
  const auto at = answer->body.find("chatcmpl-");
  REQUIRE(at != std::string::npos);
  const std::string id = answer->body.substr(at, answer->body.find('"', at) - at);
  for (const char* method : {"GET", "POST", "DELETE"})
    CHECK(rig.send(method, "/v1/chat/completions/" + id)->status == 404);
  CHECK(rig.send("GET", "/v1/chat/completions/" + id + "/messages")->status == 404);
  CHECK(rig.send("GET", "/v1/chat/completions")->status == 405);
}

}  // namespace penstock::gateway
