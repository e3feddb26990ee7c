#include "engine/sampler.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/rng.h"
#include "engine/numeric.h"

namespace penstock::engine {
namespace {

constexpr std::uint32_t kChoicesMax = 128;
constexpr std::int32_t kTopLogprobsMax = 20;
constexpr std::size_t kStopTokensMax = 256;
constexpr std::size_t kBiasesMax = 4096;

Status in_range(const char* field, float value, float low, float high, bool low_open = false) {
  // Written so that NaN fails.
  if ((low_open ? value > low : value >= low) && value <= high) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} must lie in {}{}, {}], it is {}", field, low_open ? "(" : "[", low,
                          high, value),
              field);
}

Status token_in_range(const char* field, TokenId token, std::uint32_t vocab_size) {
  if (token < vocab_size) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} holds token {}, the vocabulary has {}", field, token, vocab_size),
              field);
}

}  // namespace

Status check_sampling(const SamplingParams& p, std::uint32_t vocab_size) {
  TRY_STATUS(in_range("temperature", p.temperature, 0, 2));
  TRY_STATUS(in_range("top_p", p.top_p, 0, 1, true));
  TRY_STATUS(in_range("min_p", p.min_p, 0, 1));
  TRY_STATUS(in_range("presence_penalty", p.presence_penalty, -2, 2));
  TRY_STATUS(in_range("frequency_penalty", p.frequency_penalty, -2, 2));
  TRY_STATUS(in_range("repetition_penalty", p.repetition_penalty, 0, 2, true));
  if (p.top_k < -1) return fail(ErrorCode::kInvalidArgument, "top_k must be -1 or more", "top_k");
  if (p.top_logprobs < -1 || p.top_logprobs > kTopLogprobsMax) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("top_logprobs must lie in [-1, {}]", kTopLogprobsMax), "top_logprobs");
  }
  if (p.choices < 1 || p.choices > kChoicesMax) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("n must lie in [1, {}]", kChoicesMax),
                "choices");
  }
  if (p.max_tokens < 1) {
    return fail(ErrorCode::kInvalidArgument, "max_tokens must be 1 or more", "max_tokens");
  }
  if (p.stop_token_ids.size() > kStopTokensMax || p.logit_bias.size() > kBiasesMax) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("more than {} stop tokens or {} biases", kStopTokensMax, kBiasesMax),
                p.logit_bias.size() > kBiasesMax ? "logit_bias" : "stop_token_ids");
  }
  for (const TokenId token : p.stop_token_ids) {
    TRY_STATUS(token_in_range("stop_token_ids", token, vocab_size));
  }
  for (const auto& [token, bias] : p.logit_bias) {
    TRY_STATUS(token_in_range("logit_bias", token, vocab_size));
    TRY_STATUS(in_range("logit_bias", bias, -100, 100));
  }
  return {};
}

Sampler::Sampler(const Kernels& kernels, std::uint32_t vocab_size) : kernels_(kernels) {
  logits_.resize(vocab_size);
  mass_.resize(vocab_size);
  counts_.resize(vocab_size);
  candidates_.reserve(vocab_size);
}

void Sampler::adjust(std::span<const float> logits, const SampleInput& input) {
  const SamplingParams& p = *input.params;
  std::ranges::copy(logits, logits_.begin());
  // counts_ doubles as the list of what was treated, so a token is treated once; it is cleared by
  // walking the same tokens again.
  if (p.repetition_penalty != 1.0F) {
    for (const auto tokens : {input.prompt, input.generated}) {
      for (const TokenId token : tokens) {
        if (counts_[token]++ != 0) continue;
        float& logit = logits_[token];
        logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
      }
    }
    for (const TokenId token : input.prompt)
      counts_[token] = 0;
    for (const TokenId token : input.generated)
      counts_[token] = 0;
  }
  if (p.presence_penalty != 0 || p.frequency_penalty != 0) {
    for (const TokenId token : input.generated)
      ++counts_[token];
    for (const TokenId token : input.generated) {
      const std::uint32_t count = std::exchange(counts_[token], 0);
      if (count == 0) continue;
      const float frequency = static_cast<float>(count) * p.frequency_penalty;
      logits_[token] = (logits_[token] - frequency) - p.presence_penalty;
    }
  }
  for (const auto& [token, bias] : p.logit_bias)
    logits_[token] += bias;
  if (input.allowed.empty()) return;
  for (TokenId token = 0; token < logits_.size(); ++token) {
    if ((input.allowed[token / 64] >> (token % 64) & 1) == 0)
      logits_[token] = -std::numeric_limits<float>::infinity();
  }
}

std::optional<OutputToken> Sampler::sample(std::span<const float> logits,
                                           const SampleInput& input) {
  const SamplingParams& p = *input.params;
  adjust(logits, input);
  const float highest = kernels_.max_value(logits_.data(), logits_.size());
  const float infinity = std::numeric_limits<float>::infinity();
  if (highest == -infinity || highest == infinity) return std::nullopt;
  OutputToken out;
  if (p.temperature == 0) {
    out.token = static_cast<TokenId>(std::ranges::find(logits_, highest) - logits_.begin());
  } else {
    out.token = draw(input, highest);
  }
  if (p.top_logprobs >= 0) report(logits, p.top_logprobs, out);
  return out;
}

TokenId Sampler::draw(const SampleInput& input, float highest) {
  const SamplingParams& p = *input.params;
  // A temperature so small that its inverse overflows is still "the highest".
  const float factor = std::min(1.0F / p.temperature, 1e30F);
  kernels_.exp_scaled(logits_.data(), highest, factor, logits_.size(), mass_.data());
  for (float& m : mass_)
    m = m > 0 ? m : 0;  // NaN has no chance
  if (!input.allowed.empty()) {
    // The kernels' exp ends above zero, and forbidden is forbidden.
    for (TokenId token = 0; token < mass_.size(); ++token)
      if (logits_[token] == -std::numeric_limits<float>::infinity()) mass_[token] = 0;
  }
  const double uniform = sampling_uniform(p.seed, input.choice, input.position, 0);
  const bool uncut = p.min_p == 0 && p.top_p == 1.0F && p.top_k <= 0;
  double sum = 0;
  TokenId last = 0;
  if (uncut) {
    double total = 0;
    for (const float m : mass_)
      total = total + static_cast<double>(m);
    const double target = uniform * total;
    for (TokenId token = 0; token < mass_.size(); ++token) {
      if (mass_[token] == 0) continue;
      sum = sum + static_cast<double>(mass_[token]);
      last = token;
      if (sum > target) break;
    }
    return last;
  }
  const double target = uniform * cut(p);
  for (const Candidate& candidate : candidates_) {
    sum = sum + static_cast<double>(mass_[candidate.token]);
    last = candidate.token;
    if (sum > target) break;
  }
  return last;
}

double Sampler::cut(const SamplingParams& p) {
  candidates_.clear();
  double total = 0;
  for (TokenId token = 0; token < mass_.size(); ++token) {
    // The highest token has mass exp(0) = 1, so a mass is already relative to it.
    if (mass_[token] == 0 || mass_[token] < p.min_p) continue;
    candidates_.push_back({logits_[token], token});
    total = total + static_cast<double>(mass_[token]);
  }
  // Only the few that are kept get sorted: they are taken off a heap.
  const auto worse = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit < b.logit : a.token > b.token;
  };
  const std::size_t wanted =
      p.top_k > 0 ? std::min<std::size_t>(static_cast<std::size_t>(p.top_k), candidates_.size())
                  : candidates_.size();
  if (wanted < candidates_.size()) {
    std::ranges::nth_element(candidates_, candidates_.begin() + static_cast<std::ptrdiff_t>(wanted),
                             [&](const Candidate& a, const Candidate& b) { return worse(b, a); });
    candidates_.resize(wanted);
    std::ranges::sort(candidates_,
                      [&](const Candidate& a, const Candidate& b) { return worse(b, a); });
    total = 0;
    for (const Candidate& c : candidates_)
      total = total + static_cast<double>(mass_[c.token]);
  } else if (p.top_p < 1.0F) {
    std::ranges::make_heap(candidates_, worse);
    const double enough = static_cast<double>(p.top_p) * total;
    double sum = 0;
    auto heap_end = candidates_.end();
    while (heap_end != candidates_.begin() && sum < enough) {
      std::pop_heap(candidates_.begin(), heap_end, worse);
      --heap_end;
      sum = sum + static_cast<double>(mass_[heap_end->token]);
    }
    std::reverse(heap_end, candidates_.end());
    candidates_.erase(candidates_.begin(), heap_end);
    return sum;
  }
  if (p.top_p == 1.0F) return total;
  const double enough = static_cast<double>(p.top_p) * total;
  double sum = 0;
  std::size_t kept = 0;
  while (kept < candidates_.size() && sum < enough) {
    sum = sum + static_cast<double>(mass_[candidates_[kept++].token]);
  }
  candidates_.resize(kept);
  return sum;
}

void Sampler::report(std::span<const float> logits, std::int32_t top, OutputToken& out) {
  const float highest = kernels_.max_value(logits.data(), logits.size());
  kernels_.exp_scaled(logits.data(), highest, 1.0F, logits.size(), mass_.data());
  double total = 0;
  for (const float m : mass_)
    total = total + static_cast<double>(m > 0 ? m : 0);
  const double log_total = stable_log(total);
  const auto logprob = [&](TokenId token) {
    return static_cast<float>(static_cast<double>(logits[token]) - static_cast<double>(highest) -
                              log_total);
  };
  out.logprob = logprob(out.token);
  candidates_.clear();
  for (TokenId token = 0; token < logits.size(); ++token) {
    if (logits[token] == logits[token]) candidates_.push_back({logits[token], token});
  }
  const auto wanted = std::min(static_cast<std::size_t>(top), candidates_.size());
  std::ranges::partial_sort(candidates_, candidates_.begin() + static_cast<std::ptrdiff_t>(wanted),
                            [](const Candidate& a, const Candidate& b) {
                              return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
                            });
  for (std::size_t i = 0; i < wanted; ++i) {
    out.top.push_back({candidates_[i].token, logprob(candidates_[i].token)});
  }
}

}  // namespace penstock::engine
