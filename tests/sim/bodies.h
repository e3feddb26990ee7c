// Bodies of chat requests for simulated lives: a fixed number of them, so that what each one's
// answer is alone is computed once. Short and long, with prefixes in common, greedy and seeded,
// with log-probabilities, penalties, biases, stop strings and several choices.
#pragma once

#include <cstdint>
#include <string>

namespace penstock::simulated {

inline constexpr std::uint64_t kBodies = 240;
std::string body(std::uint64_t number);

struct BodyOptions {
  std::uint32_t words = 40;  // of the prompt
  std::uint32_t max_tokens = 24;
  bool stream = true;
  std::string extra = R"(,"temperature":0)";  // more fields
};
std::string body(const BodyOptions& options);

}  // namespace penstock::simulated
