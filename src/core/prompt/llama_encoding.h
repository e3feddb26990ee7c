// The chat encodings of Llama 3 and 3.1: headers with the role, calls as bare JSON objects; see
// docs/protocol/chat-encodings.md for the layout.
//
// Llama 3 has no tools. 3.1 (and later models of that vocabulary) always has a system turn, lists
// the tools in the first user turn, and reads results as the role "ipython".
//
// Invariants, errors, concurrency: as ChatEncoding.
#pragma once

#include <memory>

#include "core/prompt/chat_encoding.h"

namespace penstock::prompt {

// Whether the vocabulary has every token that the encoding writes or reads.
bool is_llama3(const HasToken& has_token);
bool is_llama3_1(const HasToken& has_token);
std::unique_ptr<ChatEncoding> make_llama3();
std::unique_ptr<ChatEncoding> make_llama3_1();

}  // namespace penstock::prompt
