// The chat encoding of gpt-oss, harmony: messages with headers, answers in channels; see
// docs/protocol/chat-encodings.md for the layout.
//
// System and developer messages are the developer's instructions; tools stand there as TypeScript
// types. Reasoning is the channel "analysis", kept behind the last finished answer only. Calls and
// results name the function in the header. No date is written, as the format allows, so that the
// prompt of a conversation is the same every day.
//
// Invariants, errors, concurrency: as ChatEncoding. Source: the public harmony format guide and
// its renderer.
#pragma once

#include <memory>

#include "core/prompt/chat_encoding.h"

namespace penstock::prompt {

// Whether the vocabulary has every token that the encoding writes or reads.
bool is_harmony(const HasToken& has_token);
std::unique_ptr<ChatEncoding> make_harmony();

}  // namespace penstock::prompt
