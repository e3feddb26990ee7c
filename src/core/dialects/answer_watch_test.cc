#include "core/dialects/answer_watch.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace penstock::dialects {
namespace {

using Says = AnswerWatch::Says;

std::vector<Says> feed(AnswerWatch& watch, std::string_view stream) {
  std::vector<Says> said;
  SseSplitter splitter;
  CHECK(splitter.feed(stream, [&](const SseEvent& e) { said.push_back(watch.event(e)); }));
  return said;
}

}  // namespace

TEST_CASE("AnswerWatch: chat of vLLM, usage in the last chunk") {
  AnswerWatch watch(WireApi::kChat);
  const auto said = feed(
      watch,
      "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\\"usage\\\":{\\\"prompt_tokens"
      "\\\":9}\"},\"finish_reason\":null}]}\n\n"
      "data: "
      "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null}\n\n"
      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"total_tokens\":15,"
      "\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n"
      "data: [DONE]\n\n");
  CHECK(said == std::vector{Says::kMore, Says::kMore, Says::kUsageOnly, Says::kEnd});
  CHECK(watch.usage() == Usage{12, 8, 3, 0});
  CHECK(watch.finish() == "stop");
  CHECK(watch.ended());
  CHECK_FALSE(watch.failed());
}

TEST_CASE("AnswerWatch: a stream with running usage, and one that is cut") {
  AnswerWatch watch(WireApi::kCompletion);
  const auto said = feed(watch,
                         "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}],\"usage\":"
                         "{\"prompt_tokens\":4,\"completion_tokens\":1}}\n\n"
                         "data: {\"choices\":[{\"text\":\"b\"}],\"usage\":"
                         "{\"prompt_tokens\":4,\"completion_tokens\":2}}\n\n");
  CHECK(said == std::vector{Says::kMore, Says::kMore});
  CHECK(watch.usage() == Usage{4, 0, 2, 0});
  CHECK_FALSE(watch.ended());
}

TEST_CASE("AnswerWatch: an engine's error in a stream; the word error in a text is none") {
  AnswerWatch watch(WireApi::kChat);
  CHECK(
      feed(watch, "data: {\"choices\":[{\"delta\":{\"content\":\"error\"}}],\"error\":null}\n\n") ==
      std::vector{Says::kMore});
  CHECK(feed(watch, "data: {\"choices\":[{\"delta\":{\"tool\":{\"error\":1}}}]}\n\n") ==
        std::vector{Says::kMore});
  CHECK(feed(watch, "data: {\"error\":{\"message\":\"CUDA\",\"code\":500}}\n\n") ==
        std::vector{Says::kError});
  CHECK(watch.failed());
}

TEST_CASE("AnswerWatch: Messages") {
  AnswerWatch watch(WireApi::kMessages);
  const auto said =
      feed(watch,
           "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":"
           "{\"input_tokens\":5,\"cache_read_input_tokens\":20,\"output_tokens\":0}}}\n\n"
           "event: ping\ndata: {\"type\":\"ping\"}\n\n"
           "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":"
           "\"end_turn\"},\"usage\":{\"output_tokens\":7}}\n\n"
           "data: {\"type\":\"message_stop\"}\n\n");
  CHECK(said == std::vector{Says::kMore, Says::kMore, Says::kMore, Says::kEnd});
  CHECK(watch.usage() == Usage{25, 20, 7, 0});
  CHECK(watch.finish() == "end_turn");
  AnswerWatch bad(WireApi::kMessages);
  CHECK(feed(bad, "event: error\ndata: {\"type\":\"error\",\"error\":{}}\n\n") ==
        std::vector{Says::kError});
}

TEST_CASE("AnswerWatch: Responses") {
  AnswerWatch watch(WireApi::kResponses);
  const auto said = feed(
      watch,
      "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\"}\n\n"
      "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":"
      "{\"input_tokens\":9,\"input_tokens_details\":{\"cached_tokens\":4},\"output_tokens\":6,"
      "\"output_tokens_details\":{\"reasoning_tokens\":2}}}}\n\n");
  CHECK(said == std::vector{Says::kMore, Says::kEnd});
  CHECK(watch.usage() == Usage{9, 4, 6, 2});
  CHECK(watch.finish() == "completed");
  AnswerWatch failed(WireApi::kResponses);
  CHECK(feed(failed, "data: {\"type\":\"response.failed\",\"response\":{}}\n\n") ==
        std::vector{Says::kError});
}

TEST_CASE("AnswerWatch: whole answers, and bodies that are no JSON") {
  AnswerWatch chat(WireApi::kChat);
  chat.whole(
      R"({"choices":[{"message":{"content":"x"},"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":1}})");
  CHECK(chat.usage() == Usage{3, 0, 1, 0});
  CHECK(chat.finish() == "length");
  AnswerWatch messages(WireApi::kMessages);
  messages.whole(R"({"stop_reason":"max_tokens","usage":{"input_tokens":3,"output_tokens":1}})");
  CHECK(messages.usage() == Usage{3, 0, 1, 0});
  CHECK(messages.finish() == "max_tokens");
  AnswerWatch broken(WireApi::kChat);
  broken.whole("<html>");
  CHECK_FALSE(broken.usage().has_value());
  AnswerWatch lies(WireApi::kChat);
  lies.whole(R"({"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":99}}})");
  CHECK(lies.usage() == Usage{3, 3, 0, 0});
}

TEST_CASE("answers of llama.cpp: what was cached, by usage or by timings") {
  AnswerWatch by_timings(WireApi::kChat);
  by_timings.whole(
      R"({"choices":[{"finish_reason":"stop"}],"usage":{"completion_tokens":4,"prompt_tokens":30,"total_tokens":34},"timings":{"cache_n":21,"prompt_n":9}})");
  CHECK(by_timings.usage() == Usage{30, 21, 4, 0});
  CHECK(by_timings.cached_told());
  AnswerWatch by_usage(WireApi::kChat);
  by_usage.whole(
      R"({"choices":[],"usage":{"completion_tokens":4,"prompt_tokens":30,"prompt_tokens_details":{"cached_tokens":20}},"timings":{"cache_n":21}})");
  CHECK(by_usage.usage() == Usage{30, 20, 4, 0});
  AnswerWatch streamed(WireApi::kChat);
  SseSplitter splitter;
  CHECK(
      splitter.feed("data: "
                    "{\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2},"
                    "\"timings\":{\"cache_n\":9}}\n\n",
                    [&](const SseEvent& event) {
                      CHECK(streamed.event(event) == AnswerWatch::Says::kUsageOnly);
                    }));
  CHECK(streamed.usage() == Usage{5, 5, 2, 0});
}

}  // namespace penstock::dialects
