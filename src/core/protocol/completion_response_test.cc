#include "core/protocol/completion_response.h"

#include <cmath>
#include <string>

#include "core/protocol/completion_fold.h"

#include <doctest/doctest.h>

namespace penstock::protocol {
namespace {

// The same events into both writers.
struct Both {
  explicit Both(const CompletionAnswer& answer)
      : streaming(make_completion_stream(answer)), collecting(make_completion_collector(answer)) {
    each([](AnswerWriter& writer, std::string& out) { writer.start({}, out); });
  }
  template <typename Call>
  void each(Call call) {
    call(*streaming, stream);
    call(*collecting, whole);
  }
  void add(std::uint32_t choice, std::string_view text, std::vector<LogprobEntry> logprobs = {}) {
    each([&](AnswerWriter& writer, std::string& out) {
      writer.add({.choice = choice, .content = text, .logprobs = logprobs}, out);
    });
  }
  void finish(std::uint32_t choice, FinishReason reason) {
    each([&](AnswerWriter& writer, std::string& out) {
      writer.finish(choice, {.reason = reason}, out);
    });
  }
  void end() {
    each([](AnswerWriter& writer, std::string& out) { writer.end({10, 3, 7, 0}, out); });
  }

  std::unique_ptr<AnswerWriter> streaming;
  std::unique_ptr<AnswerWriter> collecting;
  std::string stream;
  std::string whole;
};

const CompletionAnswer kAnswer = {.id = "cmpl-1", .created = 7, .model = "nano"};

}  // namespace

TEST_CASE("the bytes of a completion, streamed and whole") {
  Both both(kAnswer);
  both.add(0, "Hi \"you\"\n");
  both.finish(0, FinishReason::kStop);
  both.end();
  const std::string head =
      R"({"id":"cmpl-1","object":"text_completion","created":7,"model":"nano","choices":[{"text":)";
  CHECK(both.stream ==
        "data: " + head + R"("Hi \"you\"\n","index":0,"logprobs":null,"finish_reason":null}]})" +
            "\n\ndata: " + head + R"("","index":0,"logprobs":null,"finish_reason":"stop"}]})" +
            "\n\ndata: [DONE]\n\n");
  CHECK(both.whole ==
        head + R"("Hi \"you\"\n","index":0,"logprobs":null,"finish_reason":"stop"}],)" +
            R"("usage":{"prompt_tokens":10,"completion_tokens":7,"total_tokens":17,)" +
            R"("prompt_tokens_details":{"cached_tokens":3},)" +
            R"("completion_tokens_details":{"reasoning_tokens":0},)" +
            R"("prompt_cache_hit_tokens":3,"prompt_cache_miss_tokens":7}})");
}

TEST_CASE("choices, an echo and usage: a stream folds into the whole") {
  CompletionAnswer answer = kAnswer;
  answer.choices = 2;
  answer.echoes = {"Once \u00e9"};
  answer.include_usage = true;
  Both both(answer);
  both.add(1, " upon");
  both.add(0, " a");
  both.add(1, " time");
  both.finish(1, FinishReason::kLength);
  both.finish(0, FinishReason::kStop);
  both.end();
  const auto folded = fold_completion(both.stream);
  CHECK(folded.problem == "");
  CHECK(folded.done);
  CHECK(folded.whole == comparable_completion(both.whole));
  const auto& choices = folded.whole.at("choices").as_array();
  CHECK(choices.at(0).at("text") == "Once \u00e9 a");
  CHECK(choices.at(1).at("text") == "Once \u00e9 upon time");
  CHECK(choices.at(1).at("finish_reason") == "length");
}

TEST_CASE("logprobs in the older shape: in step, offsets in characters, every key once") {
  CompletionAnswer answer = kAnswer;
  answer.top_logprobs = 2;
  Both both(answer);
  both.add(0, "\u00e9t", {{{"\u00e9t", -0.5F}, {{"\u00e9t", -0.5F}, {"a", -1.5F}}}});
  // A character in two tokens: the text comes with the second.
  both.add(0, "\u20ac!",
           {{{"\xe2\x82", -2.0F}, {{"b", -0.25F}, {"b", -3.0F}}},
            {{"\xac!", -0.25F}, {{"\xac!", -0.25F}, {"c", -INFINITY}}}});
  both.add(0, "", {{{"z", -1.0F}, {}}});
  both.finish(0, FinishReason::kLength);
  both.end();
  const auto folded = fold_completion(both.stream);
  CHECK(folded.problem == "");
  auto whole = comparable_completion(both.whole);
  whole.erase("usage");
  CHECK(folded.whole == whole);
  const auto& logprobs = whole.at("choices").at(0).at("logprobs");
  CHECK(logprobs == boost::json::parse(R"({
    "tokens":["ét","bytes:\\xe2\\x82","bytes:\\xac\\x21","z"],
    "token_logprobs":[-0.5,-2.0,-0.25,-1.0],
    "top_logprobs":[{"ét":-0.5,"a":-1.5},{"b":-0.25,"bytes:\\xe2\\x82":-2.0},
                    {"bytes:\\xac\\x21":-0.25,"c":-9999.0},{"z":-1.0}],
    "text_offset":[0,2,2,4]})"));
}

TEST_CASE("a stream that failed never looks finished") {
  Both both(kAnswer);
  both.add(0, "Hi");
  both.streaming->fail({ErrorCode::kUnavailable, "the worker is gone", {}, {}}, both.stream);
  const auto folded = fold_completion(both.stream);
  CHECK(folded.problem == "");
  CHECK(!folded.done);
  CHECK(!folded.error.empty());
  CHECK(!folded.whole.at("choices").at(0).as_object().contains("finish_reason"));
}

}  // namespace penstock::protocol
