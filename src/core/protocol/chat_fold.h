// Folds the chunks of a stream into the whole answer, as a client does. For tests and fuzzers only.
//
// Checks on the way what a stream promises: the same identity in every chunk, the role in the first
// delta of a choice and never again, one finish a choice and nothing after it, ids and names of
// tool calls once, [DONE] last. `problem` says what is wrong, empty when nothing is.
#pragma once

#include <boost/json.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/protocol/sse.h"

namespace penstock::protocol {

struct FoldedStream {
  boost::json::object whole;
  std::string problem;
  bool done = false;
};

class StreamFolder {
 public:
  FoldedStream fold(std::string_view bytes) {
    std::vector<std::string> events;
    if (!SseReader().feed(bytes, events)) complain("unreadable events");
    for (const auto& event : events) {
      if (out_.done) complain("an event after [DONE]");
      if (event == "[DONE]") {
        out_.done = true;
        continue;
      }
      boost::json::error_code error;
      const auto chunk = boost::json::parse(event, error);
      if (error || !chunk.is_object()) {
        complain("a chunk is not a JSON object: " + event);
        break;
      }
      take_chunk(chunk.get_object());
    }
    finish();
    return std::move(out_);
  }

 private:
  using Object = boost::json::object;

  void complain(const std::string& what) {
    if (out_.problem.empty()) out_.problem = what;
  }

  void take_chunk(const Object& chunk) {
    for (const auto& [key, value] : chunk) {
      if (key == "choices" || key == "object") continue;
      if (key == "usage") {
        if (value.is_object()) out_.whole["usage"] = value;
        continue;
      }
      auto [at, added] = out_.whole.emplace(key, value);
      if (!added && at->value() != value) complain("identity changed: " + std::string(key));
    }
    if (!chunk.contains("choices")) {
      complain("a chunk without choices");
      return;
    }
    const auto& choices = chunk.at("choices").as_array();
    if (choices.empty() && !chunk.contains("usage")) complain("a chunk that says nothing");
    for (const auto& choice : choices)
      take_choice(choice.as_object());
  }

  void take_choice(const Object& choice) {
    const auto index = choice.at("index").to_number<std::uint64_t>();
    const bool first = !choices_.contains(index);
    auto& state = choices_[index];
    if (state.contains("finish_reason")) complain("a chunk after the finish");
    const auto& delta = choice.at("delta").as_object();
    if (delta.contains("role") != first) complain("the role must be in the first delta only");
    if (delta.contains("reasoning_content") && delta.contains("content") &&
        !delta.at("content").as_string().empty()) {
      complain("reasoning and content in one chunk");
    }
    for (const char* key : {"content", "reasoning_content"}) {
      if (!delta.contains(key)) continue;
      auto& text = state[key];
      if (!text.is_string()) text = "";
      text.as_string() += delta.at(key).as_string();
    }
    if (delta.contains("tool_calls")) {
      const auto& calls = delta.at("tool_calls").as_array();
      if (calls.empty()) complain("empty tool_calls");
      for (const auto& piece : calls)
        take_tool(state, piece.as_object());
    }
    if (const auto& logprobs = choice.at("logprobs"); logprobs.is_object()) {
      auto& all = state["logprobs"];
      if (!all.is_array()) all = boost::json::array();
      for (const auto& e : logprobs.at("content").as_array())
        all.as_array().push_back(e);
    }
    if (!choice.at("finish_reason").is_null()) {
      if (!delta.empty()) complain("the finish chunk has a delta");
      state["finish_reason"] = choice.at("finish_reason");
    }
  }

  void take_tool(Object& state, const Object& piece) {
    auto& list = state["tool_calls"];
    if (!list.is_array()) list = boost::json::array();
    auto& calls = list.as_array();
    const auto index = piece.at("index").to_number<std::uint64_t>();
    const auto& function = piece.at("function").as_object();
    const bool opens = piece.contains("id");
    if (opens != (index == calls.size()) || opens != function.contains("name")) {
      complain("id and name belong to the first piece of a call");
      return;
    }
    if (opens) {
      calls.push_back(Object{{"id", piece.at("id")},
                             {"type", piece.at("type")},
                             {"function", {{"name", function.at("name")}, {"arguments", ""}}}});
      if (!function.at("arguments").as_string().empty()) complain("arguments in the first piece");
    }
    auto& arguments = calls[index].at("function").at("arguments").as_string();
    arguments += function.at("arguments").as_string();
  }

  void finish() {
    boost::json::array choices;
    for (auto& [index, state] : choices_) {
      if (!state.contains("finish_reason")) complain("a choice did not finish");
      Object message{{"role", "assistant"}, {"refusal", nullptr}};
      message["content"] = state.contains("content") ? state["content"] : "";
      const bool calls = state.contains("tool_calls");
      if (calls && message["content"].as_string().empty()) message["content"] = nullptr;
      if (calls) message["tool_calls"] = state["tool_calls"];
      if (state.contains("reasoning_content")) {
        message["reasoning_content"] = state["reasoning_content"];
      }
      choices.push_back(Object{{"index", index},
                               {"message", std::move(message)},
                               {"logprobs", state["logprobs"]},
                               {"finish_reason", state["finish_reason"]}});
    }
    out_.whole["choices"] = std::move(choices);
  }

  FoldedStream out_;
  std::map<std::uint64_t, Object> choices_;
};

// The whole answer in the folder's terms: logprobs as a plain array or null, no "object".
inline boost::json::object normalize_whole(std::string_view body) {
  auto whole = boost::json::parse(body).as_object();
  whole.erase("object");
  for (auto& choice : whole.at("choices").as_array()) {
    auto& logprobs = choice.at("logprobs");
    if (!logprobs.is_object()) continue;
    auto content = logprobs.at("content").as_array();
    if (content.empty()) {
      logprobs = nullptr;
    } else {
      logprobs = std::move(content);
    }
  }
  return whole;
}

}  // namespace penstock::protocol
