// A parsed request as text, one line for each thing that is not at its default. For tests only.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "core/protocol/chat_request.h"
#include "core/protocol/json_writer.h"

namespace penstock::protocol {

inline std::string quote(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

// One line for each thing that is not at its default.
class Dump {
 public:
  template <typename T>
  void line(std::string_view name, const T& value, const T& usual) {
    if (value == usual) return;
    out_ += fmt::format("{}: {}\n", name, value);
  }
  void text(std::string_view name, std::string_view value) {
    if (!value.empty()) out_ += fmt::format("{}: {}\n", name, quote(value));
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

inline void dump_sampling(Dump& out, const SamplingParams& s) {
  const SamplingParams usual;
  out.line("temperature", s.temperature, usual.temperature);
  out.line("top_p", s.top_p, usual.top_p);
  out.line("top_k", s.top_k, usual.top_k);
  out.line("min_p", s.min_p, usual.min_p);
  out.line("presence_penalty", s.presence_penalty, usual.presence_penalty);
  out.line("frequency_penalty", s.frequency_penalty, usual.frequency_penalty);
  out.line("repetition_penalty", s.repetition_penalty, usual.repetition_penalty);
  for (const auto& [id, bias] : s.logit_bias)
    out.line(fmt::format("bias {}", id), bias, NAN);
  for (const auto id : s.stop_token_ids)
    out.line("stop_token", id, ~TokenId{0});
  out.line("ignore_eos", s.ignore_eos, false);
  out.line("top_logprobs", s.top_logprobs, -1);
  out.line("choices", s.choices, 1U);
  out.line("max_tokens", s.max_tokens, 0U);
}

inline std::string dump(const ChatRequest& r) {
  constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  constexpr std::string_view kModes[] = {"auto", "none", "required", "named"};
  Dump out;
  out.text("model", r.model);
  for (const auto& m : r.conversation.messages) {
    out.text(kRoles[static_cast<int>(m.role)], m.text.empty() ? "(nothing)" : m.text);
    out.text("  reasoning", m.reasoning);
    for (const auto& call : m.tool_calls) {
      out.text("  call", call.id + " " + call.name + " " + call.arguments);
    }
    out.text("  answers", m.tool_call_id);
  }
  for (const auto& tool : r.conversation.tools)
    out.text("tool " + tool.name, tool.schema);
  out.line("thinking", static_cast<int>(r.conversation.thinking), 0);
  out.line("continue", r.conversation.continue_last_assistant, false);
  dump_sampling(out, r.sampling);
  if (r.has_seed) out.line("seed", static_cast<std::int64_t>(r.sampling.seed), std::int64_t{-99});
  out.line("stream", r.stream, false);
  out.line("include_usage", r.include_usage, false);
  for (const auto& stop : r.stop)
    out.text("stop", stop);
  constexpr std::string_view kFormats[] = {"none", "json_object", "json_schema"};
  out.line("format", kFormats[static_cast<int>(r.constraint.kind)], kFormats[0]);
  out.text("  schema", r.constraint.text);
  out.line("tool_choice", kModes[static_cast<int>(r.tool_choice.mode)], kModes[0]);
  out.text("  named", r.tool_choice.name);
  for (const auto& name : r.tool_choice.allowed)
    out.text("  allowed", name);
  out.line("parallel_tool_calls", r.parallel_tool_calls, true);
  out.line("effort", static_cast<int>(r.reasoning_effort), 0);
  out.text("user_id", r.user_id);
  out.text("prompt_cache_key", r.prompt_cache_key);
  out.text("cache_class", r.cache_class);
  out.text("service_tier", r.service_tier);
  for (const auto& [key, value] : r.metadata)
    out.text("metadata " + key, value);
  return out.take();
}

inline std::string dump(const Error& error) {
  return fmt::format("error: {} {}\nfield: {}\nmessage: {}\n", error_info(error.code).http_status,
                     error.openai_code, error.field, error.message);
}

}  // namespace penstock::protocol
