#include "core/protocol/completion_request.h"

#include <fmt/format.h>

#include <string>

#include <doctest/doctest.h>

namespace penstock::protocol {
namespace {

Result<CompletionRequest> parse(std::string_view members) {
  return parse_completion_request(fmt::format(R"({{"model":"m",{}}})", members));
}

}  // namespace

TEST_CASE("a prompt is a text or ids, alone or in a list") {
  for (const char* prompt : {R"("Hi")", R"(["Hi"])"}) {
    const auto request = parse(fmt::format(R"("prompt":{})", prompt));
    REQUIRE(request);
    REQUIRE(request->prompts.size() == 1);
    CHECK(request->prompts[0].text == "Hi");
    CHECK(!request->prompts[0].ids);
    CHECK(!request->echo);
    const ChatRequest& chat = request->chat;
    CHECK(chat.model == "m");
    CHECK(chat.sampling.max_tokens == 16);
    CHECK(chat.sampling.choices == 1);
    CHECK(chat.sampling.top_logprobs == -1);
    CHECK(chat.conversation.messages.empty());
  }
  for (const char* prompt : {"[7,0,4294967295]", "[[7,0,4294967295]]"}) {
    const auto request = parse(fmt::format(R"("prompt":{})", prompt));
    REQUIRE(request);
    REQUIRE(request->prompts.size() == 1);
    CHECK(request->prompts[0].ids == std::vector<TokenId>{7, 0, 4294967295U});
  }
  const auto several = parse(R"("prompt":["Hi",[3,4],""])");
  REQUIRE(several);
  REQUIRE(several->prompts.size() == 3);
  CHECK(several->prompts[0].text == "Hi");
  CHECK(several->prompts[1].ids == std::vector<TokenId>{3, 4});
  CHECK(!several->prompts[2].ids);
  const std::string many = [] {
    std::string list = "\"a\"";
    for (int i = 1; i < 64; ++i)
      list += ",\"a\"";
    return list;
  }();
  CHECK(parse(R"("n":2,"prompt":[)" + many + "]"));
  CHECK(!parse(R"("n":2,"prompt":[)" + many + ",\"a\"]"));
}

TEST_CASE("fields of a completion, unknown ones and nulls among them") {
  const auto request = parse(
      R"("prompt":"Hi","max_tokens":3,"n":2,"best_of":2,"stop":["a","b"],"logprobs":5,"temperature":0,
         "top_p":0.5,"top_k":4,"seed":9,"presence_penalty":1,"frequency_penalty":-1,"user":"u",
         "logit_bias":{"5":2},"stream":true,"stream_options":{"include_usage":true},"echo":false,
         "suffix":null,"tool_things":{"a":[1]},"response_format":{"type":"text"},
         "stop_token_ids":[1],"ignore_eos":true)");
  REQUIRE(request);
  const ChatRequest& chat = request->chat;
  CHECK(chat.sampling.max_tokens == 3);
  CHECK(chat.sampling.choices == 2);
  CHECK(chat.sampling.top_logprobs == 5);
  CHECK(chat.sampling.temperature == 0);
  CHECK(chat.sampling.top_p == 0.5F);
  CHECK(chat.sampling.top_k == 4);
  CHECK(chat.sampling.seed == 9);
  CHECK(chat.has_seed);
  CHECK(chat.sampling.presence_penalty == 1);
  CHECK(chat.sampling.frequency_penalty == -1);
  CHECK(chat.sampling.logit_bias.size() == 1);
  CHECK(chat.sampling.stop_token_ids.size() == 1);
  CHECK(chat.sampling.ignore_eos);
  CHECK(chat.stop == std::vector<std::string>{"a", "b"});
  CHECK(chat.user_id == "u");
  CHECK(chat.stream);
  CHECK(chat.include_usage);
  const auto zero = parse(R"("prompt":"Hi","logprobs":0)");
  REQUIRE(zero);
  CHECK(zero->chat.sampling.top_logprobs == 0);
  const auto echo = parse(R"("prompt":"Hi","logprobs":null,"echo":true)");
  REQUIRE(echo);
  CHECK(echo->echo);
}

TEST_CASE("what a completion can't be is refused by name") {
  struct Case {
    const char* members;
    const char* field;
    const char* code;
  };
  for (const Case& c : {
           Case{R"("n":1)", "prompt", "missing_required_parameter"},
           Case{R"("prompt":null)", "prompt", "missing_required_parameter"},
           Case{R"("prompt":7)", "prompt", "invalid_type"},
           Case{R"("prompt":{})", "prompt", "invalid_type"},
           Case{R"("prompt":[])", "prompt", "invalid_value"},
           Case{R"("prompt":[[]])", "prompt[0]", "invalid_value"},
           Case{R"("prompt":[true])", "prompt[0]", "invalid_type"},
           Case{R"("prompt":[1,"a"])", "prompt[1]", "invalid_type"},
           Case{R"("prompt":[1,-1])", "prompt[1]", "invalid_value"},
           Case{R"("prompt":[[1,2.5]])", "prompt[0][1]", "invalid_value"},
           Case{R"("prompt":[4294967296])", "prompt[0]", "invalid_value"},
           Case{R"("prompt":["a",7])", "prompt[1]", "invalid_type"},
           Case{R"("prompt":[[1],[]])", "prompt[1]", "invalid_value"},
           Case{R"("prompt":["a",null])", "prompt[1]", "invalid_type"},
           Case{R"("n":128,"prompt":["a","b"])", "prompt", "invalid_value"},
           Case{R"("prompt":[1],"suffix":"b")", "suffix", "unsupported_parameter"},
           Case{R"("prompt":["a",[1]],"suffix":"b")", "suffix", "unsupported_parameter"},
           Case{R"("prompt":"a","suffix":7)", "suffix", "invalid_type"},
           Case{R"("prompt":"a","best_of":2)", "best_of", "unsupported_parameter"},
           Case{R"("prompt":"a","n":3,"best_of":2)", "best_of", "invalid_value"},
           Case{R"("prompt":"a","best_of":0)", "best_of", "invalid_value"},
           Case{R"("prompt":"a","echo":true,"logprobs":0)", "echo", "unsupported_parameter"},
           Case{R"("prompt":"a","echo":"yes")", "echo", "invalid_type"},
           Case{R"("prompt":"a","logprobs":6)", "logprobs", "invalid_value"},
           Case{R"("prompt":"a","logprobs":-1)", "logprobs", "invalid_value"},
           Case{R"("prompt":"a","logprobs":true)", "logprobs", "invalid_type"},
           Case{R"("prompt":"a","max_tokens":0)", "max_tokens", "invalid_value"},
           Case{R"("prompt":"a","temperature":3)", "temperature", "invalid_value"},
           Case{R"("prompt":"a","stop":[""])", "stop[0]", "invalid_value"},
           Case{R"("prompt":"a","stream":"true")", "stream", "invalid_type"},
           Case{R"("prompt":"a","stream_options":{})", "stream_options", "invalid_value"},
           Case{R"("prompt":"a","prompt_logprobs":1)", "prompt_logprobs", "unsupported_parameter"},
           Case{R"("prompt":"a","guided_regex":"x")", "guided_regex", "unsupported_parameter"},
           Case{R"("prompt":"a","response_format":{"type":"json_object"})", "response_format",
                "unsupported_parameter"},
       }) {
    CAPTURE(c.members);
    const auto request = parse(c.members);
    REQUIRE(!request);
    CHECK(request.error().field == c.field);
    CHECK(request.error().openai_code == c.code);
  }
  CHECK(!parse_completion_request(R"({"prompt":"a"})"));
  CHECK(!parse_completion_request("[]"));
}

}  // namespace penstock::protocol
