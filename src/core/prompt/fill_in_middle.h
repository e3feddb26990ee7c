// Filling in the middle: a text with a hole, as models trained for it read one.
//
// Families write it alike, only their marks differ: begin, what stands before the hole, hole, what
// stands behind it, end; the model then writes what belongs in the hole. Which marks a model knows
// is seen from its vocabulary.
//
// Invariants: both texts stay plain text, whatever they spell. Errors: none; nullopt for a
// vocabulary without such marks. Concurrency: pure. Source: the tokenizer files of DeepSeek V3,
// Qwen 2.5 Coder and StarCoder 2, which are named after them in the .cc.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "core/prompt/chat_encoding.h"
#include "domain/tokens.h"

namespace penstock::prompt {

// Without what begins every text of the model.
std::optional<std::vector<PromptSpan>> fill_in_middle(const HasToken& has_token,
                                                      std::string_view before,
                                                      std::string_view behind);

}  // namespace penstock::prompt
