// POST /v1/completions through the gateway: what reaches the engine, and every way an answer ends.
#include <boost/json.hpp>

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
           Case{R"("prompt":["a","b"])", 400, "send a request for each"},
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

}  // namespace penstock::gateway
