#include "engine/sampler.h"

#include <cmath>
#include <limits>
#include <map>

#include <doctest/doctest.h>

namespace penstock::engine {
namespace {

const Kernels& table() {
  return kernels(best_instruction_set());
}

TokenId one(const std::vector<float>& logits, const SamplingParams& params,
            std::vector<TokenId> prompt = {}, std::vector<TokenId> generated = {},
            std::uint32_t position = 0) {
  Sampler sampler(table(), static_cast<std::uint32_t>(logits.size()));
  const auto out = sampler.sample(logits, {&params, 0, position, prompt, generated});
  REQUIRE(out);
  return out->token;
}

SamplingParams greedy() {
  SamplingParams p;
  p.temperature = 0;
  return p;
}

// How often each token comes in many draws at different positions.
std::map<TokenId, double> shares(const std::vector<float>& logits, SamplingParams params) {
  constexpr int kDraws = 20000;
  Sampler sampler(table(), static_cast<std::uint32_t>(logits.size()));
  std::map<TokenId, double> out;
  for (std::uint32_t i = 0; i < kDraws; ++i) {
    const auto token = sampler.sample(logits, {&params, 0, i, {}, {}});
    REQUIRE(token);
    out[token->token] += 1.0 / kDraws;
  }
  return out;
}

}  // namespace

TEST_CASE("greedy takes the highest, the lowest id on ties, after penalties and bias") {
  CHECK(one({1, 3, 2}, greedy()) == 1);
  CHECK(one({1, 3, 3}, greedy()) == 1);
  CHECK(one({-5, -3, -4}, greedy()) == 1);
  CHECK(one({std::nanf(""), 1, 2}, greedy()) == 2);
  SamplingParams p = greedy();
  p.logit_bias = {{2, 5.0F}};
  CHECK(one({1, 3, 2}, p) == 2);
  p = greedy();
  p.presence_penalty = 1.5F;
  CHECK(one({1, 3, 2}, p, {}, {1, 1}) == 2);
  CHECK(one({1, 3, 2}, p, {1, 1}, {}) == 1);  // over generated tokens only
  p = greedy();
  p.frequency_penalty = 0.6F;
  CHECK(one({1, 3, 2}, p, {}, {1}) == 1);
  CHECK(one({1, 3, 2}, p, {}, {1, 1}) == 2);
  p = greedy();
  p.repetition_penalty = 2;
  CHECK(one({1, 3, 2}, p, {1}, {}) == 2);
  CHECK(one({-1, -0.6F, -2}, p, {1, 1}, {1}) == 0);  // once, however often it occurred
}

TEST_CASE("draws follow the probabilities of what the filters keep") {
  const std::vector<float> logits = {std::log(0.1F), std::log(0.4F), std::log(0.2F),
                                     std::log(0.3F)};
  struct Case {
    const char* name;
    SamplingParams params;
    std::map<TokenId, double> expected;
  };
  std::vector<Case> cases(7);
  cases[0] = {"all", {}, {{0, .1}, {1, .4}, {2, .2}, {3, .3}}};
  cases[1] = {"top_k 2", {}, {{1, 4. / 7}, {3, 3. / 7}}};
  cases[1].params.top_k = 2;
  cases[2] = {"top_p 0.6", {}, {{1, 4. / 7}, {3, 3. / 7}}};
  cases[2].params.top_p = 0.6F;
  cases[3] = {"top_p tiny", {}, {{1, 1.}}};
  cases[3].params.top_p = 1e-6F;
  cases[4] = {"min_p 0.6", {}, {{1, 4. / 7}, {3, 3. / 7}}};
  cases[4].params.min_p = 0.6F;
  cases[5] = {"top_k 3 then top_p 0.5", {}, {{1, 4. / 7}, {3, 3. / 7}}};
  cases[5].params.top_k = 3;
  cases[5].params.top_p = 0.5F;
  cases[6] = {"temperature 0.5", {}, {{0, .01 / .3}, {1, .16 / .3}, {2, .04 / .3}, {3, .09 / .3}}};
  cases[6].params.temperature = 0.5F;
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const auto got = shares(logits, c.params);
    REQUIRE(got.size() == c.expected.size());
    for (const auto& [token, share] : got) {
      CHECK(std::abs(share - c.expected.at(token)) < 0.015);
    }
  }
  SamplingParams cold;
  cold.temperature = 1e-38F;
  CHECK(shares(logits, cold).size() == 1);
}

TEST_CASE("log-probabilities are of the raw logits, most likely first") {
  SamplingParams p = greedy();
  p.logit_bias = {{0, 100.0F}};
  p.top_logprobs = 2;
  const std::vector<float> logits = {std::log(0.1F), std::log(0.4F), std::log(0.1F),
                                     std::log(0.4F)};
  Sampler sampler(table(), 4);
  const auto out = sampler.sample(logits, {&p, 0, 0, {}, {}});
  REQUIRE(out);
  CHECK(out->token == 0);
  CHECK(out->logprob == doctest::Approx(std::log(0.1)));
  REQUIRE(out->top.size() == 2);
  CHECK(out->top[0].token == 1);
  CHECK(out->top[1].token == 3);
  CHECK(out->top[0].logprob == doctest::Approx(std::log(0.4)));
}

TEST_CASE("logits without a number are an error, not a token") {
  const float nan = std::nanf("");
  const float infinity = std::numeric_limits<float>::infinity();
  SamplingParams p;
  Sampler sampler(table(), 2);
  CHECK(!sampler.sample(std::vector<float>{nan, nan}, {&p, 0, 0, {}, {}}));
  CHECK(!sampler.sample(std::vector<float>{infinity, 0}, {&p, 0, 0, {}, {}}));
  CHECK(!sampler.sample(std::vector<float>{-infinity, -infinity}, {&p, 0, 0, {}, {}}));
}

TEST_CASE("parameters out of range are refused by name") {
  struct Case {
    const char* field;
    void (*spoil)(SamplingParams&);
  };
  for (const Case& c : std::vector<Case>{
           {"temperature", [](SamplingParams& p) { p.temperature = 2.5F; }},
           {"temperature", [](SamplingParams& p) { p.temperature = std::nanf(""); }},
           {"top_p", [](SamplingParams& p) { p.top_p = 0; }},
           {"top_k", [](SamplingParams& p) { p.top_k = -2; }},
           {"min_p", [](SamplingParams& p) { p.min_p = 1.1F; }},
           {"presence_penalty", [](SamplingParams& p) { p.presence_penalty = -3; }},
           {"frequency_penalty", [](SamplingParams& p) { p.frequency_penalty = 3; }},
           {"repetition_penalty", [](SamplingParams& p) { p.repetition_penalty = 0; }},
           {"top_logprobs", [](SamplingParams& p) { p.top_logprobs = 21; }},
           {"choices", [](SamplingParams& p) { p.choices = 0; }},
           {"choices", [](SamplingParams& p) { p.choices = 1000000000; }},
           {"max_tokens", [](SamplingParams& p) { p.max_tokens = 0; }},
           {"stop_token_ids", [](SamplingParams& p) { p.stop_token_ids = {50}; }},
           {"logit_bias", [](SamplingParams& p) { p.logit_bias = {{50, 1}}; }},
           {"logit_bias", [](SamplingParams& p) { p.logit_bias = {{5, 101}}; }},
       }) {
    SamplingParams p;
    p.max_tokens = 1;
    REQUIRE(check_sampling(p, 50));
    c.spoil(p);
    CAPTURE(c.field);
    const Status status = check_sampling(p, 50);
    REQUIRE(!status);
    CHECK(status.error().field == c.field);
  }
}

}  // namespace penstock::engine
