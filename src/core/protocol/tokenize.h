// POST /tokenize and /detokenize, as vLLM has them: a text or a conversation -> token ids, and
// back.
//
// A text is encoded as it stands, without special tokens before it; a conversation as Chat
// Completions would. Errors: as chat_request.h. Concurrency: pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/protocol/chat_request.h"
#include "domain/tokens.h"

namespace penstock::protocol {

struct TokenizeRequest {
  ChatRequest chat;                 // with a text, nothing but its model
  std::optional<std::string> text;  // nothing: a conversation
};
Result<TokenizeRequest> parse_tokenize_request(std::string_view body,
                                               const ChatLimits& limits = {});
// {"count":...,"tokens":[...]}
std::string tokenize_answer(std::span<const TokenId> tokens);

struct DetokenizeRequest {
  std::string model;
  std::vector<TokenId> tokens;
};
Result<DetokenizeRequest> parse_detokenize_request(std::string_view body,
                                                   const ChatLimits& limits = {});
// {"prompt":...}; what is no whole character becomes U+FFFD.
std::string detokenize_answer(std::string_view text);

}  // namespace penstock::protocol
