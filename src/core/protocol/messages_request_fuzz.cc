// Bytes as a Messages request, to be answered and to be counted. Checks: no crash; an accepted
// request has texts in UTF-8, ranges as its header promises, and results only of calls that were
// made; whoever may be answered may be counted.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "core/protocol/errors.h"
#include "core/protocol/json_document.h"
#include "core/protocol/json_writer.h"
#include "core/protocol/messages_request.h"

namespace penstock::protocol {
namespace {

void check_request(const ChatRequest& r) {
  const auto& s = r.sampling;
  ENSURE(!r.model.empty());
  ENSURE(s.temperature >= 0 && s.temperature <= 1 && s.top_p > 0 && s.top_p <= 1 && s.top_k >= 0);
  ENSURE(s.choices == 1 && s.top_logprobs == -1 && !r.has_seed);
  const auto& messages = r.conversation.messages;
  const std::vector<ToolCall>* calls = nullptr;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto& m = messages[i];
    ENSURE(find_invalid_utf8(m.text) == std::string_view::npos);
    ENSURE(find_invalid_utf8(m.reasoning) == std::string_view::npos);
    ENSURE(i == 0 || m.role == Role::kTool || m.role != messages[i - 1].role);
    if (m.role == Role::kAssistant) calls = &m.tool_calls;
    if (m.role == Role::kTool) {
      ENSURE(calls != nullptr &&
             std::ranges::find(*calls, m.tool_call_id, &ToolCall::id) != calls->end());
    }
    for (const auto& call : m.tool_calls)
      ENSURE(JsonDocument::parse(call.arguments)->root().is_object());
  }
  ENSURE(!r.conversation.continue_last_assistant || messages.back().role == Role::kAssistant);
  for (const auto& tool : r.conversation.tools) {
    const auto schema = JsonDocument::parse(tool.schema);
    ENSURE(schema && schema->root().find("name").equals(tool.name));
  }
}

}  // namespace
}  // namespace penstock::protocol

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::protocol;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto counted = parse_messages_request(body, MessagesCall::kCountTokens);
  if (counted) check_request(*counted);
  if (const auto request = parse_messages_request(body, MessagesCall::kAnswer)) {
    ENSURE(counted.has_value() && request->sampling.max_tokens > 0);
    check_request(*request);
  } else {
    const auto answer = error_answer(request.error(), ErrorShape::kAnthropic, "req-1");
    ENSURE(answer.status >= 400 && answer.status < 500);
    ENSURE(JsonDocument::parse(answer.body).has_value());
  }
  return 0;
}
