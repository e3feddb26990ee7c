// The chat encodings of DeepSeek V3 and V4: see docs/protocol/chat-encodings.md for the layout.
//
// V3: system text, "<｜User｜>" text, "<｜Assistant｜>" answer, end token; no tools.
// V4: adds "</think>" or "<think>" after "<｜Assistant｜>", a tools section after the system text,
// DSML tool calls, and tool results inside the next user turn, in the order of the calls. Reasoning
// of turns before the last user turn is dropped unless the conversation has tools.
//
// Invariants, errors, concurrency: as ChatEncoding.
#pragma once

#include <memory>

#include "core/prompt/chat_encoding.h"

namespace penstock::prompt {

std::unique_ptr<ChatEncoding> make_deepseek_v3();
std::unique_ptr<ChatEncoding> make_deepseek_v4();

}  // namespace penstock::prompt
