#include "core/protocol/chat_request.h"

#include <fmt/format.h>

#include <limits>

#include "core/protocol/chat_messages.h"
#include "core/protocol/json_fields.h"
#include "core/protocol/request_fields.h"

namespace penstock::protocol {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

// Fields that would change the answer and are not supported yet. Everything unknown is ignored.
constexpr std::string_view kUnsupportedFields[] = {
    "functions",    "audio",         "web_search_options", "guided_json",
    "guided_regex", "guided_choice", "guided_grammar",     "structured_outputs",
};

Status refuse_unsupported(JsonRef body) {
  for (const auto name : kUnsupportedFields) {
    if (const auto value = optional_member(body, name)) {
      return unsupported(value, name == "functions" ? "is not supported here, use tools"
                                                    : "is not supported here");
    }
  }
  if (const auto modalities = optional_member(body, "modalities")) {
    TRY_STATUS(expect_array(modalities));
    for (auto item = modalities.first_child(); item; item = item.next_sibling()) {
      if (!item.equals("text")) return unsupported(item, "only text is supported here");
    }
  }
  return {};
}

Status read_logprobs(JsonRef body, SamplingParams& out) {
  bool wanted = false;
  if (const auto logprobs = optional_member(body, "logprobs")) {
    TRY(wanted, read_bool(logprobs));
  }
  if (wanted) out.top_logprobs = 0;
  if (const auto top = optional_member(body, "top_logprobs")) {
    TRY(const auto count, read_integer(top, {0, 20}));
    if (!wanted && count > 0) return invalid_value(top, "needs \"logprobs\": true");
    if (wanted) out.top_logprobs = static_cast<std::int32_t>(count);
  }
  return {};
}

Status read_max_tokens(JsonRef body, ChatRequest& request) {
  for (const std::string_view name : {"max_tokens", "max_completion_tokens"}) {
    const auto value = optional_member(body, name);
    if (!value) continue;
    TRY(const auto count, read_integer(value, {1, kInt32Max}));
    request.sampling.max_tokens = static_cast<std::uint32_t>(count);
    request.max_tokens_field = name;  // the second, newer name wins
  }
  return {};
}

Status read_thinking(JsonRef body, ChatRequest& request) {
  if (const auto effort = optional_member(body, "reasoning_effort")) {
    TRY_STATUS(read_effort(effort, request));
  }
  if (const auto thinking = optional_member(body, "thinking")) {
    TRY_STATUS(expect_object(thinking));
    TRY(const auto type, required_member(thinking, "type"));
    TRY(const auto index, read_choice(type, {"enabled", "disabled", "adaptive"}));
    constexpr Thinking kModes[] = {Thinking::kEnabled, Thinking::kDisabled, Thinking::kDefault};
    request.conversation.thinking = kModes[index];
  }
  return {};
}

}  // namespace

Result<ChatRequest> parse_chat_request(std::string_view body, const ChatLimits& limits) {
  TRY(const auto document, JsonDocument::parse(body, limits.json));
  const auto root = document.root();
  TRY_STATUS(expect_object(root));
  ChatRequest request;
  TRY_STATUS(read_identity(root, request));
  if (const auto format = optional_member(root, "response_format"))
    TRY_STATUS(read_answer_format(format, request));
  TRY_STATUS(refuse_unsupported(root));
  TRY_STATUS(read_messages(root, request.conversation));
  TRY_STATUS(read_tools(root, limits, request));
  TRY_STATUS(read_sampling(root, limits, request));
  TRY_STATUS(read_logprobs(root, request.sampling));
  TRY_STATUS(read_max_tokens(root, request));
  if (const auto stop = optional_member(root, "stop")) {
    TRY_STATUS(read_stop_strings(stop, limits, request.stop));
  }
  TRY_STATUS(read_stop_token_ids(root, limits, request.sampling));
  TRY_STATUS(read_stream(root, request));
  TRY_STATUS(read_thinking(root, request));
  return request;
}

}  // namespace penstock::protocol
