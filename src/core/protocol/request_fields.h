// Fields that the requests of several wire formats share. Internal to core/protocol; errors as in
// json_fields.h. Concurrency: pure.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/protocol/chat_request.h"
#include "core/protocol/json_fields.h"

namespace penstock::protocol {

inline constexpr std::size_t kUserIdBytesMax = 512;
inline constexpr std::int64_t kTokenIdMax = std::numeric_limits<TokenId>::max();

// 1 to `bytes_max` of [A-Za-z0-9_-].
bool is_function_name(std::string_view name, std::size_t bytes_max = 64);
// An error at `list` when two tools have one name.
Status check_tool_names(JsonRef list, const std::vector<ToolDefinition>& tools);

// temperature, top_p, min_p and the penalties.
Status read_numbers(JsonRef body, SamplingParams& out);
// The numbers above, top_k, seed, n, ignore_eos and logit_bias: what both OpenAI's older APIs have.
Status read_sampling(JsonRef body, const ChatLimits& limits, ChatRequest& request);
Status read_stop_token_ids(JsonRef body, const ChatLimits& limits, SamplingParams& out);
// stream and stream_options.
Status read_stream(JsonRef body, ChatRequest& request);
// The value of reasoning_effort or reasoning.effort; "none" turns thinking off.
Status read_effort(JsonRef effort, ChatRequest& request);
// response_format of Chat Completions, with name and schema in `json_schema`, or text.format of
// Responses, with both at its own level.
Status read_answer_format(JsonRef format, ChatRequest& request);
// One stop string, or an array of them.
Status read_stop_strings(JsonRef value, const ChatLimits& limits, std::vector<std::string>& out);
Status read_model(JsonRef body, ChatRequest& request);
// model, who asks (user_id, safety_identifier, user), prompt_cache_key, cache_class, service_tier,
// verbosity and metadata.
Status read_identity(JsonRef body, ChatRequest& request);

}  // namespace penstock::protocol
