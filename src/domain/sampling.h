// How the next token is chosen, and when generation ends.
//
// Defaults are those of the OpenAI API. Ranges are checked once, at the protocol boundary
// (core/protocol) and again by the engine for requests that come over the wire; inside they hold.
//
// Invariants: `seed` is always set when a request reaches an engine; the gateway draws one when the
// client gave none, so that a stream can be continued elsewhere with the very same text (law 3).
// Concurrency: values. Source: design.md sections 1 and 8.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "domain/tokens.h"

namespace penstock {

struct SamplingParams {
  float temperature = 1.0F;         // [0, 2]; 0 is greedy: highest logit, lowest id on ties
  float top_p = 1.0F;               // (0, 1]
  std::int32_t top_k = 0;           // 0 or -1 = off
  float min_p = 0.0F;               // [0, 1]; relative to the most likely token
  float presence_penalty = 0.0F;    // [-2, 2]; over generated tokens
  float frequency_penalty = 0.0F;   // [-2, 2]; over generated tokens
  float repetition_penalty = 1.0F;  // (0, 2]; over prompt and generated tokens; 1 = off
  std::uint64_t seed = 0;
  std::vector<std::pair<TokenId, float>> logit_bias;  // added to the logits, [-100, 100]
  std::vector<TokenId> stop_token_ids;                // end the choice; not part of the text
  bool ignore_eos = false;
  std::int32_t top_logprobs = -1;  // -1 = no logprobs; 0..20 alternatives beside the chosen one
  std::uint32_t choices = 1;       // n, 1..128
  std::uint32_t max_tokens = 0;    // generated per choice, >= 1

  bool operator==(const SamplingParams&) const = default;
};

}  // namespace penstock
