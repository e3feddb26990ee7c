// The chat encoding of Qwen 3: ChatML turns, <think> blocks, Hermes tool calls; see
// docs/protocol/chat-encodings.md for the layout.
//
// Reasoning is kept in the turns after the last user message, as the template has it. Without word
// on thinking the model decides; disabled, an empty block stands at the start of the answer.
//
// Invariants, errors, concurrency: as ChatEncoding.
#pragma once

#include <memory>

#include "core/prompt/chat_encoding.h"

namespace penstock::prompt {

// Whether the vocabulary has every token that the encoding writes.
bool is_qwen3(const HasToken& has_token);
std::unique_ptr<ChatEncoding> make_qwen3();

}  // namespace penstock::prompt
