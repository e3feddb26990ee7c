#include <boost/json.hpp>
#include <set>
#include <string>

#include "core/prompt/prompt_testing.h"
#include "tests/support/cases.h"

#include <doctest/doctest.h>

namespace penstock::prompt {
namespace {

using testing::conversation_of;

std::unique_ptr<ChatEncoding> encoding_of(const std::string& name) {
  auto encoding = make_chat_encoding(name);
  REQUIRE(encoding);
  return std::move(*encoding);
}

// Input: a request in the shape of the Chat API. Expected: the prompt.
void run_prompts(const std::string& name) {
  const auto encoding = encoding_of(name);
  test::run_cases("prompt/" + name + "_prompts.txt", [&](const std::string& input) {
    return testing::show(encoding->render(conversation_of(boost::json::parse(input).as_object())));
  });
}

// Input: a line with the request and "stop", then the answer, "↵" for the end of a line that would
// else be lost. Expected: what it is read as.
void run_answers(const std::string& name) {
  const auto encoding = encoding_of(name);
  test::run_cases("prompt/" + name + "_answers.txt", [&](const std::string& input) {
    const std::size_t line = std::min(input.find('\n'), input.size());
    const auto request = boost::json::parse(input.substr(0, line)).as_object();
    const Conversation conversation = conversation_of(request);
    std::vector<std::string> stop;
    if (const auto* strings = request.if_contains("stop")) {
      for (const auto& string : strings->as_array())
        stop.emplace_back(string.as_string());
    }
    std::string answer = input.substr(std::min(line + 1, input.size()));
    const std::string_view mark = "↵";
    for (std::size_t at = 0; (at = answer.find(mark, at)) != std::string::npos;)
      answer.replace(at, mark.size(), "\n");
    return testing::read_with_all_cuts([&] { return encoding->make_parser(conversation, stop); },
                                       answer);
  });
}

std::string detected(const std::set<std::string_view>& tokens, std::string_view model_type = {}) {
  const auto encoding = detect_chat_encoding(
      [&](std::string_view token) { return tokens.contains(token); }, model_type);
  return encoding ? std::string((*encoding)->name()) : to_string(encoding.error());
}

}  // namespace

TEST_CASE("prompts of Qwen 3") {
  run_prompts("qwen3");
}
TEST_CASE("answers of Qwen 3") {
  run_answers("qwen3");
}

TEST_CASE("prompts of Llama 3 and 3.1") {
  run_prompts("llama3");
  run_prompts("llama3_1");
}
TEST_CASE("answers of Llama 3.1") {
  run_answers("llama3_1");
}
TEST_CASE("prompts of gpt-oss") {
  run_prompts("gpt_oss");
}
TEST_CASE("answers of gpt-oss") {
  run_answers("gpt_oss");
}
TEST_CASE("prompts of DeepSeek V3") {
  run_prompts("deepseek_v3");
}
TEST_CASE("prompts of DeepSeek V3.2") {
  run_prompts("deepseek_v3_2");
}
TEST_CASE("answers of DeepSeek V3.2") {
  run_answers("deepseek_v3_2");
}
TEST_CASE("prompts of DeepSeek V4.1") {
  run_prompts("deepseek_v4_1");
}

TEST_CASE("the family follows from the vocabulary") {
  std::set<std::string_view> qwen = {"<|im_start|>",    "<|im_end|>",      "<think>",
                                     "</think>",        "<tool_call>",     "</tool_call>",
                                     "<tool_response>", "</tool_response>"};
  CHECK(detected(qwen) == "qwen3");
  qwen.erase("<think>");
  CHECK(detected(qwen).find("fit no chat encoding") != std::string::npos);
  std::set<std::string_view> deepseek = {"<｜begin▁of▁sentence｜>", "<｜User｜>",
                                         "<｜Assistant｜>"};
  CHECK(detected(deepseek) == "deepseek_v3");
  CHECK(detected(deepseek, "deepseek_v32") == "deepseek_v3");  // the experimental ones
  deepseek.insert({"｜DSML｜", "</think>"});
  CHECK(detected(deepseek) == "deepseek_v4");
  CHECK(detected(deepseek, "deepseek_v32") == "deepseek_v3_2");
  deepseek.insert("<｜System｜>");
  CHECK(detected(deepseek) == "deepseek_v4");
  deepseek.insert("<｜deepseek_image｜>");
  CHECK(detected(deepseek) == "deepseek_v4_1");
  std::set<std::string_view> llama = {"<|begin_of_text|>", "<|start_header_id|>",
                                      "<|end_header_id|>", "<|eot_id|>"};
  CHECK(detected(llama) == "llama3");
  llama.insert({"<|python_tag|>", "<|eom_id|>"});
  CHECK(detected(llama) == "llama3_1");
  CHECK(detected({"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>",
                  "<|return|>", "<|call|>"}) == "gpt_oss");
  CHECK(!make_chat_encoding("nonsense"));
}

}  // namespace penstock::prompt
