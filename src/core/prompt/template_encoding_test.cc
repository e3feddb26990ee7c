#include "core/prompt/template_encoding.h"

#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "core/prompt/prompt_testing.h"
#include "tests/support/cases.h"

#include <doctest/doctest.h>

namespace penstock::prompt {
namespace {

// Cuts at the first token that begins at a place, the longest of several.
std::vector<PromptSpan> cut(std::string_view text, const std::vector<std::string>& tokens) {
  std::vector<PromptSpan> spans;
  std::string plain;
  for (std::size_t at = 0; at < text.size();) {
    std::string_view found;
    for (const std::string& token : tokens) {
      if (text.substr(at).starts_with(token) && token.size() > found.size()) found = token;
    }
    if (found.empty()) {
      plain += text[at++];
      continue;
    }
    if (!plain.empty()) spans.push_back({SpanKind::kPlain, std::exchange(plain, "")});
    spans.push_back({SpanKind::kSpecial, std::string(found)});
    at += found.size();
  }
  if (!plain.empty()) spans.push_back({SpanKind::kPlain, plain});
  return spans;
}

TemplateSupport support(std::vector<std::string> tokens) {
  return {[tokens = std::move(tokens)](std::string_view text) { return cut(text, tokens); },
          [] { return std::int64_t{1'700'000'000}; }};
}

std::unique_ptr<ChatEncoding> encoding_of(const std::string& source,
                                          std::vector<std::string> tokens = {"<think>",
                                                                             "</think>"}) {
  auto made = make_template_encoding({source, "", {}}, support(std::move(tokens)));
  REQUIRE(made);
  return std::move(*made);
}

std::string prompt_of_case(const std::string& input) {
  const auto body = boost::json::parse(input).as_object();
  std::ifstream file(
      "tests/cases/prompt/templates/" + std::string(body.at("template").as_string()) + ".jinja",
      std::ios::binary);
  ChatTemplate from;
  from.source = {std::istreambuf_iterator<char>(file), {}};
  REQUIRE(!from.source.empty());
  for (const std::string_view name : {"bos_token", "eos_token"}) {
    if (const auto* token = body.if_contains(name))
      from.special_tokens.emplace_back(name, std::string(token->as_string()));
  }
  std::vector<std::string> tokens;
  for (const auto& token : body.at("tokens").as_array())
    tokens.emplace_back(token.as_string());
  const auto made = make_template_encoding(from, support(std::move(tokens)));
  REQUIRE(made);
  return testing::show((*made)->render(testing::conversation_of(body)));
}

Conversation question() {
  Conversation conversation;
  conversation.messages.emplace_back().text = "Q";
  return conversation;
}

}  // namespace

TEST_CASE("prompts by chat templates") {
  test::run_cases("prompt/template_prompts.txt", prompt_of_case);
}

TEST_CASE("the template of a tokenizer_config.json") {
  const auto one = read_chat_template(
      R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "pad_token": null,
          "chat_template": "{{ bos_token }}x"})");
  REQUIRE(one);
  CHECK(one->source == "{{ bos_token }}x");
  CHECK(one->tool_source.empty());
  using Tokens = std::vector<std::pair<std::string, std::string>>;
  CHECK(one->special_tokens == Tokens{{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  const auto two = read_chat_template(
      R"({"chat_template": [{"name": "default", "template": "a"},
                            {"name": "tool_use", "template": "b"}]})");
  REQUIRE(two);
  CHECK(two->source == "a");
  CHECK(two->tool_source == "b");
  CHECK(read_chat_template("{}")->source.empty());
  CHECK(!read_chat_template("[]"));
  CHECK(!read_chat_template("{"));
  CHECK(!read_chat_template(R"({"chat_template": [{"name": "default"}]})"));
}

TEST_CASE("tools have a template of their own when the checkpoint has one") {
  const auto made = make_template_encoding({"plain", "with {{ tools|length }}", {}}, support({}));
  REQUIRE(made);
  Conversation conversation = question();
  CHECK(testing::show((*made)->render(conversation)) == "plain");
  conversation.tools = {{"f", R"({"name":"f"})"}};
  CHECK(testing::show((*made)->render(conversation)) == "with 1");
}

TEST_CASE("errors of templates say where") {
  const auto broken = make_template_encoding({"a\n{% if %}", "", {}}, support({}));
  REQUIRE(!broken);
  CHECK(broken.error().code == ErrorCode::kInvalidArgument);
  CHECK(broken.error().message.contains("the chat template, line 2: a value is expected"));
  const auto failing = encoding_of("a\n{{ messages[0].nothing.more }}")->render(question());
  REQUIRE(!failing);
  CHECK(failing.error().code == ErrorCode::kUnsupported);
  CHECK(failing.error().message.contains("at its line 2"));
  const auto refusing = encoding_of("{{ raise_exception('No.') }}")->render(question());
  REQUIRE(!refusing);
  CHECK(refusing.error().code == ErrorCode::kInvalidArgument);
  CHECK(refusing.error().field == "messages");
  CHECK(refusing.error().message.contains("refuses this conversation: No."));
  Conversation bad = question();
  bad.messages.emplace_back().role = Role::kAssistant;
  bad.messages.back().tool_calls = {{"1", "f", "[1]"}};
  CHECK(encoding_of("x")->render(bad).error().field ==
        "messages[1].tool_calls[0].function.arguments");
}

TEST_CASE("the prompt's end tells how an answer begins") {
  const auto answer = [](const std::string& source, Thinking thinking, std::string_view text) {
    Conversation conversation = question();
    conversation.thinking = thinking;
    conversation.tools = {{"f", R"({"name":"f"})"}};
    const auto encoding = encoding_of(source);
    return std::string(encoding->thinks(conversation) ? "thinks\n" : "") +
           testing::read_with_all_cuts([&] { return encoding->make_parser(conversation, {}); },
                                       text);
  };
  const std::string opens = "{{ messages[0].content }}<think>\n";
  CHECK(answer(opens, Thinking::kDefault, "why\n</think>\n\nyes") ==
        "thinks\nreasoning why\ncontent yes\n");
  const std::string may = "{# </think> #}{{ messages[0].content }}";
  CHECK(answer(may, Thinking::kDefault, "<think>\nwhy\n</think>\n\nyes") ==
        "reasoning why\ncontent yes\n");
  CHECK(answer(may, Thinking::kDefault, "yes") == "content yes\n");
  const std::string asked =
      "{{ messages[0].content }}{% if enable_thinking %}<think>\n{% else %}</think>{% endif %}";
  CHECK(answer(asked, Thinking::kEnabled, "why</think>yes") ==
        "thinks\nreasoning why\ncontent yes\n");
  CHECK(answer(asked, Thinking::kDisabled, "yes") == "content yes\n");
  CHECK(answer("plain", Thinking::kDefault, "<think>yes") == "content <think>yes\n");
  CHECK(answer("<tool_call>", Thinking::kDefault,
               "So:\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>") ==
        "content So:\ncall f\narguments {\"a\": 1}\nend\n");
  CHECK(answer("<|python_tag|>", Thinking::kDefault, "{\"name\": \"f\", \"parameters\": {}}") ==
        "call f\narguments {}\nend\n");
  const std::string list = "[TOOL_CALLS]";
  CHECK(answer(list, Thinking::kDefault,
               "Yes.[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": [1]}}, "
               "{\"name\": \"g\", \"arguments\": {}, \"id\": \"abcdefghi\"}]") ==
        "content Yes.\ncall f\narguments {\"a\": [1]}\nend\ncall g\narguments {}\nend\n");
  CHECK(answer(list, Thinking::kDefault, "[TOOL_CALLS]{\"name\": \"f\"}") ==
        "call f\narguments {}\nend\n");
  CHECK(answer(list, Thinking::kDefault, "[TOOL_CALLS] [oops]") == "content [TOOL_CALLS] [oops]\n");
  CHECK(answer("plain", Thinking::kDefault, "{\"name\": \"f\"}") == "content {\"name\": \"f\"}\n");
}

TEST_CASE("an answer that is to be continued") {
  Conversation conversation = question();
  conversation.messages.emplace_back().role = Role::kAssistant;
  conversation.messages.back().text = "Since ";
  conversation.continue_last_assistant = true;
  const std::string source =
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}</think>{% endfor %}"
      "{% if add_generation_prompt %}[assistant]{% endif %}";
  CHECK(testing::show(encoding_of(source)->render(conversation)) ==
        "[user]Q«</think>»[assistant]Since ");
  conversation.messages.back().text.clear();
  CHECK(testing::show(encoding_of(source)->render(conversation)) == "[user]Q«</think>»[assistant]");
  conversation.messages.back().text = "Since";
  const auto lost = encoding_of("{{ messages[0].content }}")->render(conversation);
  REQUIRE(!lost);
  CHECK(lost.error().code == ErrorCode::kUnsupported);
}

}  // namespace penstock::prompt
