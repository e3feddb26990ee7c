// Folds the chunks of a Completions stream into the whole answer, as a client does. For tests only.
//
// Checks on the way what a stream promises: the same identity in every chunk, one finish a choice
// and nothing after it, [DONE] last. `problem` says what is wrong, empty when nothing is.
#pragma once

#include <boost/json.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/protocol/sse.h"

namespace penstock::protocol {

struct FoldedCompletion {
  boost::json::object whole;  // what no chunk had entries of is missing: logprobs, usage
  std::string problem;
  std::string error;  // of an error event
  bool done = false;
};

inline FoldedCompletion fold_completion(std::string_view bytes) {
  using Object = boost::json::object;
  FoldedCompletion out;
  std::map<std::uint64_t, Object> choices;
  const auto complain = [&](const std::string& what) {
    if (out.problem.empty()) out.problem = what;
  };
  const auto take_choice = [&](const Object& choice) {
    auto& state = choices[choice.at("index").to_number<std::uint64_t>()];
    if (state.contains("finish_reason")) complain("a chunk after the finish");
    auto& text = state["text"];
    if (!text.is_string()) text = "";
    text.as_string() += choice.at("text").as_string();
    if (choice.at("logprobs").is_object()) {
      Object& all = state["logprobs"].is_object() ? state["logprobs"].as_object()
                                                  : state["logprobs"].emplace_object();
      for (const auto& [name, list] : choice.at("logprobs").as_object()) {
        auto& whole = all[name];
        if (!whole.is_array()) whole = boost::json::array();
        for (const auto& item : list.as_array())
          whole.as_array().push_back(item);
      }
    }
    if (!choice.at("finish_reason").is_null()) state["finish_reason"] = choice.at("finish_reason");
  };
  std::vector<std::string> events;
  if (!SseReader().feed(bytes, events)) complain("unreadable events");
  for (const auto& event : events) {
    if (out.done || !out.error.empty()) complain("an event after the end");
    if (event == "[DONE]") {
      out.done = true;
      continue;
    }
    const Object chunk = boost::json::parse(event).as_object();
    if (chunk.contains("error")) {
      out.error = chunk.at("error").at("type").as_string();
      continue;
    }
    for (const char* key : {"id", "object", "created", "model"}) {
      const auto [at, added] = out.whole.emplace(key, chunk.at(key));
      if (!added && at->value() != chunk.at(key)) complain("identity changed");
    }
    for (const auto& choice : chunk.at("choices").as_array())
      take_choice(choice.as_object());
    if (chunk.contains("usage") && chunk.at("usage").is_object())
      out.whole["usage"] = chunk.at("usage");
  }
  auto& list = out.whole["choices"].emplace_array();
  for (auto& [index, state] : choices) {
    state["index"] = index;
    if (out.done && !state.contains("finish_reason")) complain("a choice without its finish");
    list.push_back(std::move(state));
  }
  return out;
}

// The whole answer as the folding has it.
inline boost::json::object comparable_completion(std::string_view body) {
  auto whole = boost::json::parse(body).as_object();
  for (auto& choice : whole.at("choices").as_array()) {
    auto& object = choice.as_object();
    if (object.at("logprobs").is_null()) object.erase("logprobs");
  }
  return whole;
}

}  // namespace penstock::protocol
