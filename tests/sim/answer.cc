#include "tests/sim/answer.h"

#include <boost/json.hpp>

namespace penstock::simulated {

namespace json = boost::json;

namespace {

void append(std::string& to, const json::object& from, std::string_view name) {
  if (const json::value* value = from.if_contains(name); value != nullptr && value->is_string())
    to += std::string_view(value->get_string());
}

void take(Answer& answer, const json::object& object) {
  if (const json::value* error = object.if_contains("error")) {
    append(answer.error, error->as_object(), "message");
    return;
  }
  for (const json::value& each : object.at("choices").as_array()) {
    const json::object& choice = each.as_object();
    AnswerChoice& into = answer.choices[choice.at("index").as_int64()];
    const json::value* said = choice.if_contains("delta");
    if (said == nullptr) said = choice.if_contains("message");
    if (said != nullptr) {
      append(into.reasoning, said->as_object(), "reasoning_content");
      append(into.content, said->as_object(), "content");
    }
    append(into.finish, choice, "finish_reason");
    const json::value* logprobs = choice.if_contains("logprobs");
    if (logprobs == nullptr || !logprobs->is_object()) continue;
    for (const auto& [name, list] : logprobs->as_object()) {
      if (!list.is_array()) continue;
      for (const json::value& entry : list.as_array())
        into.logprobs += json::serialize(entry);
    }
  }
  const json::value* usage = object.if_contains("usage");
  if (usage == nullptr || !usage->is_object()) return;
  answer.prompt_tokens = usage->as_object().at("prompt_tokens").as_int64();
  answer.completion_tokens = usage->as_object().at("completion_tokens").as_int64();
}

bool take_json(Answer& answer, std::string_view text) {
  boost::system::error_code failed;
  const json::value value = json::parse(text, failed);
  if (failed || !value.is_object()) return false;
  take(answer, value.as_object());
  return true;
}

}  // namespace

Answer read_answer(std::string_view bytes, bool streamed) {
  Answer answer;
  if (!streamed) {
    answer.done = take_json(answer, bytes);
    answer.broken = !answer.done;
    return answer;
  }
  constexpr std::string_view kData = "data: ";
  while (true) {
    const std::size_t end = bytes.find('\n');
    if (end == std::string_view::npos) return answer;  // the rest was cut off
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(end + 1);
    if (!line.starts_with(kData)) continue;  // the end of an event, a comment
    const std::string_view data = line.substr(kData.size());
    if (data == "[DONE]")
      answer.done = true;
    else if (answer.done || !take_json(answer, data))
      answer.broken = true;
  }
}

bool Answer::equals(const Answer& other) const {
  return done && other.done && error.empty() && other.error.empty() && choices == other.choices &&
         prompt_tokens == other.prompt_tokens && completion_tokens == other.completion_tokens;
}

bool Answer::begins(const Answer& whole) const {
  for (const auto& [index, choice] : choices) {
    const auto found = whole.choices.find(index);
    if (found == whole.choices.end()) return false;
    const AnswerChoice& all = found->second;
    if (!all.reasoning.starts_with(choice.reasoning) || !all.content.starts_with(choice.content) ||
        !all.logprobs.starts_with(choice.logprobs))
      return false;
    if (!choice.content.empty() && choice.reasoning != all.reasoning) return false;
    if (!choice.finish.empty() && choice != all) return false;
  }
  return true;
}

}  // namespace penstock::simulated
