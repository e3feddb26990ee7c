#include "tests/sim/bodies.h"

#include <array>

#include <fmt/format.h>

#include "base/rng.h"

namespace penstock::simulated {
namespace {

constexpr std::array kWords = {"river", "stone", "light", "of",    "the", "seven",  "wheel",
                               "turns", "slow",  "water", "under", "and", "bridge", "falls"};

std::string words(std::uint64_t seed, std::uint32_t n) {
  Rng rng(seed);
  std::string out;
  for (std::uint32_t i = 0; i < n; ++i) {
    if (i > 0) out += ' ';
    out += kWords[rng.below(kWords.size())];
  }
  return out;
}

std::string request(const std::string& prompt, const BodyOptions& options) {
  return fmt::format(
      R"({{"model":"nano","messages":[{{"role":"user","content":"{}"}}],"max_tokens":{},"stream":{}{}}})",
      prompt, options.max_tokens, options.stream, options.extra);
}

}  // namespace

std::string body(const BodyOptions& options) {
  return request(words(17, options.words), options);
}

std::string body(std::uint64_t number) {
  Rng rng(number * 7 + 3);
  const std::uint64_t shared = rng.below(4);  // whose beginning it has
  const std::uint32_t lengths[] = {3, 12, 60, 150};
  std::string prompt = words(shared, lengths[rng.below(4)]);
  prompt += ' ' + words(100 + number, 1 + static_cast<std::uint32_t>(rng.below(10)));
  BodyOptions options;
  options.max_tokens = 1 + static_cast<std::uint32_t>(rng.below(rng.below(3) == 0 ? 4 : 50));
  options.stream = rng.below(5) != 0;
  std::string& extra = options.extra;
  extra.clear();
  if (rng.below(2) == 0)
    extra += R"(,"temperature":0)";
  else
    extra += fmt::format(R"(,"temperature":0.8,"seed":{})", rng.below(1000));
  if (rng.below(2) == 0) extra += R"(,"reasoning_effort":"none")";
  if (rng.below(4) == 0)
    extra += fmt::format(R"(,"logprobs":true,"top_logprobs":{})", rng.below(3));
  if (rng.below(4) == 0) extra += R"(,"frequency_penalty":0.5)";
  if (rng.below(6) == 0) extra += R"(,"logit_bias":{"300":5})";
  if (rng.below(6) == 0) extra += R"(,"stop":["on","ea t"])";
  if (rng.below(6) == 0) extra += fmt::format(R"(,"n":{})", 2 + rng.below(2));
  if (options.stream && rng.below(2) == 0) extra += R"(,"stream_options":{"include_usage":true})";
  return request(prompt, options);
}

}  // namespace penstock::simulated
