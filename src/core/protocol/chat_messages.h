// The messages and tools of a Chat Completions request. Internal to core/protocol; see
// chat_request.h.
#pragma once

#include "core/protocol/chat_request.h"

namespace penstock::protocol {

// `messages`, with roles, parts, tool calls and results, reasoning and a prefix at the end.
Status read_messages(JsonRef body, Conversation& conversation);
// `tools`, `tool_choice` and `parallel_tool_calls`.
Status read_tools(JsonRef body, const ChatLimits& limits, ChatRequest& request);

}  // namespace penstock::protocol
