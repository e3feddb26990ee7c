// Chooses the next token from a row of logits.
//
// Order: repetition, frequency and presence penalties, logit bias, what a constraint forbids (no
// chance at all); temperature 0 takes the highest
// (lowest id on ties). Otherwise temperature, then min-p, top-k and top-p, each over what the one
// before left, ranked by logit and then id; then one draw, walked through in that rank (in order of
// ids when nothing was cut). The draw is sampling_uniform(seed, choice, position, 0): a continued
// stream draws what the interrupted one would have drawn.
//
// Units and shapes: logits [vocab] float32. Log-probabilities are of the raw logits, natural
// logarithm. Invariants: equal inputs, equal outputs, on every machine: exp is the kernels', sums
// are sequential. Errors: nullopt when no logit is a number (a broken model). Concurrency: a
// Sampler belongs to one thread at a time; it holds only scratch. Source: design.md section 8.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "domain/engine.h"
#include "domain/sampling.h"
#include "engine/kernels/kernels.h"

namespace penstock::engine {

struct SampleInput {
  const SamplingParams* params;
  std::uint32_t choice = 0;
  std::uint32_t position = 0;                   // of the token to choose
  std::span<const TokenId> prompt;              // for the repetition penalty
  std::span<const TokenId> generated;           // emitted elsewhere or here
  std::span<const std::uint64_t> allowed = {};  // a bit per token, or empty: all
};

class Sampler {
 public:
  Sampler(const Kernels& kernels, std::uint32_t vocab_size);

  std::optional<OutputToken> sample(std::span<const float> logits, const SampleInput& input);

 private:
  struct Candidate {
    float logit;
    TokenId token;
  };

  void adjust(std::span<const float> logits, const SampleInput& input);
  TokenId draw(const SampleInput& input, float highest);
  // Leaves in candidates_ what min-p, top-k and top-p keep, by rank; returns their mass.
  double cut(const SamplingParams& params);
  void report(std::span<const float> logits, std::int32_t top, OutputToken& out);

  const Kernels& kernels_;
  std::vector<float> logits_;          // [vocab], adjusted
  std::vector<float> mass_;            // [vocab], exp of the scaled logits
  std::vector<std::uint32_t> counts_;  // [vocab], all 0 between calls
  std::vector<Candidate> candidates_;
};

// Checks ranges and token ids; `field` of the error names the parameter.
Status check_sampling(const SamplingParams& params, std::uint32_t vocab_size);

}  // namespace penstock::engine
