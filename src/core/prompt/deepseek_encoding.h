// The chat encodings of DeepSeek V3, V3.2, V4 and V4.1: see docs/protocol/chat-encodings.md for the
// layout.
//
// V3: system text, "<｜User｜>" text, "<｜Assistant｜>" answer, end token; no tools.
// V3.2: as V4, but results of calls follow the answer that called, each question has its own answer
// header, and reasoning stays only behind the last question.
// V4: adds "</think>" or "<think>" after "<｜Assistant｜>", a tools section after the system text,
// DSML tool calls, and tool results inside the next user turn, in the order of the calls. Reasoning
// of turns before the last user turn is dropped unless the conversation has tools.
// V4.1: marks system messages with "<｜System｜>", where the effort of thinking stands too, and
// spells the tags of calls with a space.
//
// Invariants, errors, concurrency: as ChatEncoding.
#pragma once

#include <memory>

#include "core/prompt/chat_encoding.h"

namespace penstock::prompt {

std::unique_ptr<ChatEncoding> make_deepseek_v3();
std::unique_ptr<ChatEncoding> make_deepseek_v3_2();
std::unique_ptr<ChatEncoding> make_deepseek_v4();
std::unique_ptr<ChatEncoding> make_deepseek_v4_1();

}  // namespace penstock::prompt
