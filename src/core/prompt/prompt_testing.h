// For tests of chat encodings and parsers: conversations out of JSON in the shape of the Chat API,
// prompts and events as text, and answers cut at every byte.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/prompt/chat_encoding.h"

namespace penstock::prompt::testing {

inline Conversation conversation_of(const boost::json::object& body) {
  const auto text = [](const boost::json::object& from, std::string_view key) {
    const auto* value = from.if_contains(key);
    return value != nullptr && value->is_string() ? std::string(value->get_string())
                                                  : std::string();
  };
  constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  Conversation out;
  for (const auto& item : body.at("messages").as_array()) {
    const auto& from = item.as_object();
    Message message;
    for (std::size_t i = 0; i < std::size(kRoles); ++i) {
      if (text(from, "role") == kRoles[i]) message.role = static_cast<Role>(i);
    }
    message.text = text(from, "content");
    message.reasoning = text(from, "reasoning_content");
    message.tool_call_id = text(from, "tool_call_id");
    if (const auto* calls = from.if_contains("tool_calls")) {
      for (const auto& call : calls->as_array()) {
        const auto& function = call.at("function").as_object();
        message.tool_calls.push_back({text(call.as_object(), "id"), text(function, "name"),
                                      boost::json::serialize(function.at("arguments"))});
      }
    }
    out.messages.push_back(std::move(message));
  }
  if (const auto* tools = body.if_contains("tools")) {
    for (const auto& tool : tools->as_array()) {
      const auto& function = tool.at("function").as_object();
      out.tools.push_back({text(function, "name"), boost::json::serialize(function)});
    }
  }
  if (const auto* thinking = body.if_contains("thinking")) {
    out.thinking = thinking->as_bool() ? Thinking::kEnabled : Thinking::kDisabled;
  }
  out.continue_last_assistant = body.contains("continue");
  return out;
}

// Special tokens in guillemets, so a case shows which text became a token; ends of lines marked.
inline std::string show(const Result<std::vector<PromptSpan>>& spans) {
  if (!spans) return to_string(spans.error()) + " [" + spans.error().field + "]";
  std::string text;
  for (const PromptSpan& span : *spans)
    text += span.kind == SpanKind::kSpecial ? "«" + span.text + "»" : span.text;
  std::string out;
  for (const char c : text)
    out += c == '\n' ? "↵\n" : std::string(1, c);
  return out;
}

// The events, one a line, neighbours of one kind joined.
inline std::string fold(const std::vector<OutputEvent>& events) {
  constexpr std::string_view kLabels[] = {"reasoning ", "content ", "call ", "arguments ", "end"};
  std::string out;
  const OutputEvent* before = nullptr;
  for (const OutputEvent& event : events) {
    const bool joins = before != nullptr && before->kind == event.kind &&
                       event.kind != OutputEvent::Kind::kToolBegin;
    if (!joins) {
      if (before != nullptr) out += '\n';
      out += kLabels[static_cast<std::size_t>(event.kind)];
    }
    for (const char c : event.text)
      out += c == '\n' ? "↵" : std::string(1, c);
    before = &event;
  }
  if (before != nullptr) out += '\n';
  return out;
}

inline std::string read_answer(OutputParser& parser, const std::vector<std::string_view>& pieces) {
  std::vector<OutputEvent> events;
  for (const std::string_view piece : pieces)
    parser.feed(piece, events);
  parser.finish(events);
  return fold(events) + (parser.stop_string().empty() ? "" : "stopped\n");
}

// What the answer is read as, whole, in two pieces cut at every byte, and byte by byte;
// "depends on cuts: ..." when they differ. `make` makes a parser.
template <typename Make>
std::string read_with_all_cuts(const Make& make, std::string_view answer) {
  const std::string whole = read_answer(*make(), {answer});
  std::vector<std::string_view> bytes;
  for (std::size_t i = 0; i < answer.size(); ++i)
    bytes.push_back(answer.substr(i, 1));
  const std::string by_byte = read_answer(*make(), bytes);
  if (by_byte != whole) return "depends on cuts: " + whole + "by bytes: " + by_byte;
  for (std::size_t cut = 1; cut < answer.size(); ++cut) {
    const std::string in_two = read_answer(*make(), {answer.substr(0, cut), answer.substr(cut)});
    if (in_two != whole) {
      return "depends on cuts: " + whole + "cut at " + std::to_string(cut) + ": " + in_two;
    }
  }
  return whole;
}

}  // namespace penstock::prompt::testing
