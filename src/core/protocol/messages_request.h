// Anthropic Messages request: bytes in, a checked ChatRequest out.
//
// Reads what changes the answer, refuses what would change it but is not supported (kUnsupported:
// images, documents and other blocks that are not text, tools or thinking; MCP servers), and
// ignores what it does not know: cache_control on anything, context_management, container, betas.
// null means absent for every optional field.
//
// Turns: consecutive turns of one role are one. Texts of one user or system turn are joined by a
// blank line, those of an assistant's by nothing. Results of tools become messages of their own,
// in their place. A last turn of the assistant is the beginning of the answer. Signatures and
// redacted thinking carry nothing for our models and are dropped. Typed tools (bash, web search,
// ...) stand for knowledge or servers that our models don't have; they are left out.
//
// Invariants and errors: as chat_request.h, with stop strings from stop_sequences; max_tokens is
// above 0 unless tokens are only counted, and ends with the context (fit_max_tokens); the result
// of a tool answers a call of the assistant's turn before it. thinking.budget_tokens is checked
// and not applied. Concurrency: pure. Source: facts/api.md 3.4; docs/protocol/api.md lists the
// test of each line.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/protocol/chat_request.h"

namespace penstock::protocol {

// Counting takes the same body without max_tokens.
enum class MessagesCall : std::uint8_t { kAnswer, kCountTokens };

Result<ChatRequest> parse_messages_request(std::string_view body, MessagesCall call,
                                           const ChatLimits& limits = {});

}  // namespace penstock::protocol
