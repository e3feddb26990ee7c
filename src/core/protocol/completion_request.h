// Completions request (the older API of OpenAI): a bare prompt, a text or token ids, and how to go
// on from it.
//
// max_tokens is 16 when it is not given, as in OpenAI's API. Several prompts in one request are
// answered with n choices each; together as many as one prompt may ask for. Refused, since they
// change the answer: suffix (no model here fills
// in the middle), best_of above n, echo with logprobs (those of the prompt are not computed), an
// answer format, and what asks for the prompt's own logprobs. Unknown fields are ignored.
//
// Invariants: as chat_request.h, but that there is no message; token ids are below 2^32. Errors and
// concurrency: as chat_request.h. Source: facts/api.md 3.5.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/protocol/chat_request.h"
#include "domain/tokens.h"

namespace penstock::protocol {

struct CompletionPrompt {
  std::string text = {};
  std::optional<std::vector<TokenId>> ids = {};  // not empty; instead of the text
};

struct CompletionRequest {
  ChatRequest chat;                       // without a conversation
  std::vector<CompletionPrompt> prompts;  // not empty
  std::string suffix;                     // what the answer leads to; empty: it only goes on
  bool echo = false;                      // the prompt goes before the answer
};

Result<CompletionRequest> parse_completion_request(std::string_view body,
                                                   const ChatLimits& limits = {});

}  // namespace penstock::protocol
