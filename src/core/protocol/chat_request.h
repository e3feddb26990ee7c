// Chat Completions request: bytes in, a checked ChatRequest out. A ChatRequest is what every wire
// format asks for in the end; the other formats' parsers fill in the same.
//
// Reads what changes the answer, refuses what would change it but is not supported (kUnsupported:
// images, audio, custom tools, legacy `functions`), and ignores every field it
// does not know. null means absent for every optional field. Whether the model exists, how long the
// context is and which token ids are in the vocabulary is the service's to check.
//
// Invariants of a returned request: at least one message; all text is valid UTF-8; every number is
// in the range domain/sampling.h states, except that max_tokens 0 means the client gave none, and a
// seed must be drawn unless has_seed; a named or allowed tool exists. Errors: kInvalidArgument or
// kUnsupported; `field` is the path ("messages[2].content[0].type") and `openai_code` one of
// invalid_json, duplicate_key, missing_required_parameter, invalid_type, invalid_value,
// unsupported_parameter. Memory: proportional to the body. Concurrency: pure. Source:
// facts/api.md 3.2 and 3.7; docs/protocol/api.md lists the test of each line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "core/protocol/json_document.h"
#include "domain/constraint.h"
#include "domain/conversation.h"
#include "domain/sampling.h"

namespace penstock::protocol {

struct ChatLimits {
  JsonLimits json;
  std::uint32_t choices_max = 128;
  std::uint32_t stop_strings_max = 16;
  std::uint32_t stop_string_bytes_max = 4096;
  std::uint32_t stop_token_ids_max = 256;
  std::uint32_t logit_bias_max = 1024;
  std::uint32_t tools_max = 1024;
};

enum class ToolChoiceMode : std::uint8_t { kAuto, kNone, kRequired, kNamed };

struct ToolChoice {
  ToolChoiceMode mode = ToolChoiceMode::kAuto;
  std::string name = {};                  // kNamed
  std::vector<std::string> allowed = {};  // allowed_tools: may only call these; empty = all

  bool operator==(const ToolChoice&) const = default;
};

enum class ReasoningEffort : std::uint8_t {
  kDefault,
  kNone,
  kMinimal,
  kLow,
  kMedium,
  kHigh,
  kXhigh,
  kMax
};

struct ChatRequest {
  std::string model;
  Conversation conversation;
  SamplingParams sampling;                           // max_tokens 0 = not given
  std::string_view max_tokens_field = "max_tokens";  // or "max_completion_tokens": what was sent
  std::string_view prompt_field = "messages";        // or "prompt": where the prompt came from
  bool fit_max_tokens = false;  // a max_tokens beyond the context's end means up to that end
  bool truncates = false;       // of what doesn't fit the context the oldest turns may be dropped
  bool has_seed = false;
  bool stream = false;
  bool include_usage = false;
  std::vector<std::string> stop;  // non-empty strings
  Constraint constraint;          // as sent; where reasoning ends is the service's to add
  std::string_view constraint_field = "response_format";  // or "text.format": what was sent
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  ReasoningEffort reasoning_effort = ReasoningEffort::kDefault;
  std::string user_id;  // of user_id, safety_identifier, user: the first that is given
  std::string prompt_cache_key;
  std::string cache_class;   // how long its KV is kept, by class; empty: the server decides
  std::string service_tier;  // as asked for; empty if not
  std::vector<std::pair<std::string, std::string>> metadata;

  bool logprobs() const { return sampling.top_logprobs >= 0; }
};

Result<ChatRequest> parse_chat_request(std::string_view body, const ChatLimits& limits = {});

}  // namespace penstock::protocol
