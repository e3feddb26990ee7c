#include "tests/sim/toy_engine.h"

#include <algorithm>
#include <utility>

namespace penstock::simulated {
namespace {

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15U + b * 0xC2B2AE3D27D4EB4FU + 0x165667B19E3779F9U;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9U;
  x ^= x >> 32;
  return x;
}

std::uint32_t tokens_of(const EngineRequest& request) {
  return static_cast<std::uint32_t>(request.prompt->size() + request.emitted.size());
}

double seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}

constexpr Duration kIdleStep = std::chrono::microseconds(10);  // blocks taken back, a pull begun
constexpr std::uint64_t kEndOneIn = 60;                        // draws

}  // namespace

ToyEngine::ToyEngine(std::string model, const ToyVocabulary& vocabulary, const ToyProfile& profile)
    : vocabulary_(vocabulary), profile_(profile), memory_(profile.blocks) {
  description_.name = std::move(model);
  description_.context_length = profile.context_length;
  description_.vocab_size = vocabulary.size;
  description_.bit_exact = true;
  description_.kv = {"toy", "toy 1", "toy", kToyBlockTokens, 0};
  description_.kv_token_bytes = kToyLayers * kToyRowBytes;
}

std::uint32_t ToyEngine::blocks_per_choice(const EngineRequest& request) const {
  if (request.handoff.leg == Leg::kPrefill) return toy_blocks(tokens_of(request));
  return toy_blocks(request.prompt->size() + request.sampling.max_tokens);
}

std::uint32_t ToyEngine::blocks_needed(const EngineRequest& request) const {
  const bool alone = request.handoff.leg == Leg::kPrefill;
  return blocks_per_choice(request) * (alone ? 1 : request.sampling.choices);
}

Status ToyEngine::submit(EngineRequest request) {
  if (request.prompt->empty() || request.emitted.size() >= request.sampling.max_tokens)
    return fail(ErrorCode::kInvalidArgument, "nothing to compute, or nothing left to say");
  if (tokens_of(request) >= profile_.context_length || blocks_needed(request) > memory_.blocks())
    return fail(ErrorCode::kContextLengthExceeded, "the pool can never hold it");
  if (request.handoff.leg != Leg::kWhole && port_ == nullptr)
    return fail(ErrorCode::kInvalidArgument, "no part in handoffs", "handoff");
  if (request.handoff.leg == Leg::kPrefill) port_->announce(request.handoff.id, description_.name);
  Sequence s;
  s.tokens = *request.prompt;
  s.tokens.insert(s.tokens.end(), request.emitted.begin(), request.emitted.end());
  s.choices.resize(request.sampling.choices);
  s.choices[0].generated = request.emitted;
  s.request = std::move(request);
  sequences_.push_back(std::move(s));
  return {};
}

void ToyEngine::cancel(RequestId request) {
  const auto found =
      std::ranges::find(sequences_, request, [](const Sequence& s) { return s.request.id; });
  if (found == sequences_.end()) return;
  free(*found, "the prefill leg was cancelled");
  sequences_.erase(found);
}

bool ToyEngine::has_work() const {
  if (news_) return true;
  for (const Sequence& s : sequences_) {
    if (s.phase == Phase::kPrefill || s.phase == Phase::kDecode) return true;
    // First come, first served: nobody behind it is admitted before it.
    if (s.phase == Phase::kWaiting) return blocks_needed(s.request) <= memory_.free_blocks();
  }
  return false;
}

Duration ToyEngine::step_cost() const {
  std::int64_t rows = 0;
  std::int64_t prompt = 0;
  for (const Sequence& s : sequences_) {
    if (s.phase == Phase::kDecode) rows += std::ranges::count(s.choices, false, &Choice::finished);
    if (s.phase == Phase::kPrefill)
      prompt += static_cast<std::int64_t>(s.tokens.size()) - s.choices[0].computed;
  }
  rows += std::min<std::int64_t>(prompt, profile_.chunk_tokens);
  if (rows == 0) return kIdleStep;
  return profile_.step_base + rows * profile_.step_token;
}

EngineLoad ToyEngine::load() const {
  EngineLoad load;
  for (const Sequence& s : sequences_) {
    const bool runs = s.phase == Phase::kPrefill || s.phase == Phase::kDecode;
    runs ? ++load.running : ++load.waiting;
    if (s.phase == Phase::kWaiting || s.phase == Phase::kPrefill) {
      if (s.request.handoff.leg != Leg::kDecode || s.pull != nullptr)
        load.prompt_tokens_waiting += s.tokens.size() - s.choices[0].computed;
    }
  }
  load.kv_tokens_used = Tokens(std::int64_t{blocks_used()} * kToyBlockTokens);
  load.kv_tokens_total = Tokens(std::int64_t{memory_.blocks()} * kToyBlockTokens);
  const double chunk = profile_.chunk_tokens;
  load.prefill = {seconds(profile_.step_base),
                  seconds(profile_.step_token) + seconds(profile_.step_base) / chunk, 0};
  return load;
}

void ToyEngine::step(std::vector<EngineOutput>& outputs) {
  news_ = false;
  if (port_ != nullptr) {
    for (const std::uint32_t block : port_->take_freed())
      memory_.release(block);
  }
  take_arrivals(outputs);
  admit();
  std::uint32_t budget = profile_.chunk_tokens;
  for (Sequence& s : sequences_) {
    if (s.phase == Phase::kDecode) {
      for (std::uint32_t i = 0; i < s.choices.size(); ++i) {
        Choice& choice = s.choices[i];
        if (choice.finished) continue;
        // A token from afar came without its KV, as every token drawn here.
        if (choice.computed < s.request.prompt->size() + choice.generated.size())
          compute(choice, choice.generated.back());
        draw(s, i, outputs);
      }
    } else if (s.phase == Phase::kPrefill && budget > 0) {
      const auto left = static_cast<std::uint32_t>(s.tokens.size()) - s.choices[0].computed;
      const std::uint32_t now = std::min(left, budget);
      budget -= now;
      prefill(s, now, outputs);
    }
  }
  sweep();
}

void ToyEngine::admit() {
  for (Sequence& s : sequences_) {
    if (s.phase != Phase::kWaiting) continue;
    if (blocks_needed(s.request) > memory_.free_blocks()) return;
    const std::uint32_t each = blocks_per_choice(s.request);
    const bool alone = s.request.handoff.leg == Leg::kPrefill;
    for (std::size_t i = 0; i < (alone ? 1 : s.choices.size()); ++i)
      s.choices[i].blocks = memory_.allocate(each);
    if (s.request.handoff.leg != Leg::kDecode) {
      s.phase = Phase::kPrefill;
      continue;
    }
    std::vector<std::uint32_t> to = s.choices[0].blocks;
    to.resize(toy_blocks(s.tokens.size()));
    for (const std::uint32_t block : to)
      memory_.retain(block);
    s.pull = port_->pull(s.request.handoff, description_.name,
                         static_cast<std::uint32_t>(s.tokens.size()), std::move(to));
    s.phase = Phase::kPulling;
  }
}

void ToyEngine::take_arrivals(std::vector<EngineOutput>& outputs) {
  for (Sequence& s : sequences_) {
    if (s.phase != Phase::kPulling || s.pull->state() == Pull::State::kRunning) continue;
    if (s.pull->state() == Pull::State::kFailed) {
      s.phase = Phase::kPrefill;
      continue;
    }
    ENSURE(s.pull->tokens() == s.tokens.size());
    s.choices[0].computed = s.pull->tokens();
    const auto& first = s.pull->first_output();
    if (!first || first->tokens.size() != 1 || s.choices.size() != 1) {
      end_prompt(s, outputs);
      continue;
    }
    EngineOutput output = *first;
    output.request = s.request.id;
    if (output.finish == FinishReason::kHandedOff) output.finish.reset();
    s.choices[0].generated.push_back(output.tokens[0].token);
    s.choices[0].finished = output.finish.has_value();
    s.phase = Phase::kDecode;
    outputs.push_back(std::move(output));
  }
  sweep();
}

void ToyEngine::compute(Choice& choice, TokenId token) {
  const std::uint32_t at = choice.computed++;
  const std::uint32_t block = choice.blocks[at / kToyBlockTokens];
  for (std::uint32_t layer = 0; layer < kToyLayers; ++layer) {
    const std::uint64_t before = at == 0 ? layer
                                         : memory_.row(choice.blocks[(at - 1) / kToyBlockTokens],
                                                       layer, (at - 1) % kToyBlockTokens);
    memory_.set_row(block, layer, at % kToyBlockTokens,
                    mix(before, (std::uint64_t{token} << 32) + at));
  }
}

void ToyEngine::prefill(Sequence& s, std::uint32_t tokens, std::vector<EngineOutput>& outputs) {
  Choice& first = s.choices[0];
  for (std::uint32_t i = 0; i < tokens; ++i)
    compute(first, s.tokens[first.computed]);
  if (s.request.handoff.leg == Leg::kPrefill) publish(s);
  if (first.computed == s.tokens.size()) end_prompt(s, outputs);
}

void ToyEngine::publish(Sequence& s) {
  const Choice& choice = s.choices[0];
  const bool all = choice.computed == s.tokens.size();
  const std::uint32_t ready =
      all ? static_cast<std::uint32_t>(choice.blocks.size()) : choice.computed / kToyBlockTokens;
  if (ready <= s.published || port_ == nullptr) return;
  std::vector<HandoffBlock> fresh;
  for (std::uint32_t i = s.published; i < ready; ++i) {
    memory_.retain(choice.blocks[i]);
    fresh.push_back({choice.blocks[i], memory_.generation(choice.blocks[i])});
  }
  port_->publish(s.request.handoff.id, std::exchange(s.published, ready), fresh,
                 all ? choice.computed : ready * kToyBlockTokens);
}

// All KV of prompt and emitted is there: every choice goes on by itself, here or at the other leg.
void ToyEngine::end_prompt(Sequence& s, std::vector<EngineOutput>& outputs) {
  const bool hands_off = s.request.handoff.leg == Leg::kPrefill;
  s.phase = Phase::kDecode;
  if (hands_off && s.choices.size() > 1) {
    for (std::uint32_t i = 0; i < s.choices.size(); ++i) {
      EngineOutput output;
      output.request = s.request.id;
      output.choice = i;
      output.finish = FinishReason::kHandedOff;
      outputs.push_back(std::move(output));
      s.choices[i].finished = true;
    }
    if (port_ != nullptr) port_->close(s.request.handoff.id, std::nullopt);
    return;
  }
  for (std::uint32_t i = 1; i < s.choices.size(); ++i) {
    for (std::uint32_t b = 0; b < toy_blocks(s.tokens.size()); ++b)
      memory_.copy(s.choices[0].blocks[b], s.choices[i].blocks[b]);
    s.choices[i].computed = s.choices[0].computed;
  }
  for (std::uint32_t i = 0; i < s.choices.size(); ++i)
    draw(s, i, outputs);
}

void ToyEngine::draw(Sequence& s, std::uint32_t index, std::vector<EngineOutput>& outputs) {
  Choice& choice = s.choices[index];
  const SamplingParams& sampling = s.request.sampling;
  std::uint64_t state = choice.computed;
  for (std::uint32_t at = 0; at < choice.computed; ++at)
    for (std::uint32_t layer = 0; layer < kToyLayers; ++layer)
      state =
          mix(state, memory_.row(choice.blocks[at / kToyBlockTokens], layer, at % kToyBlockTokens));
  for (const auto& [token, bias] : sampling.logit_bias)
    state = mix(state, token);
  if (sampling.frequency_penalty != 0)
    for (const TokenId token : choice.generated)
      state = mix(state, token + 7);
  if (sampling.temperature > 0) state = mix(mix(state, sampling.seed), index);

  OutputToken token;
  const bool ends = !sampling.ignore_eos && (state >> 8) % kEndOneIn == 0;
  token.token = ends ? vocabulary_.end : vocabulary_.words[state % vocabulary_.words.size()];
  if (sampling.top_logprobs >= 0) token.logprob = -static_cast<float>((state >> 16) % 64) / 8;
  for (std::int32_t i = 0; i < sampling.top_logprobs; ++i) {
    const std::uint64_t other = mix(state, static_cast<std::uint64_t>(i));
    token.top.push_back(
        {vocabulary_.words[other % vocabulary_.words.size()], -static_cast<float>(i)});
  }
  EngineOutput output;
  output.request = s.request.id;
  output.choice = index;
  choice.generated.push_back(token.token);
  if (ends)
    output.finish = FinishReason::kStop;
  else if (choice.generated.size() >= sampling.max_tokens)
    output.finish = FinishReason::kLength;
  else if (s.request.handoff.leg == Leg::kPrefill)
    output.finish = FinishReason::kHandedOff;
  output.tokens.push_back(std::move(token));
  choice.finished = output.finish.has_value();
  if (s.request.handoff.leg == Leg::kPrefill && port_ != nullptr)
    port_->close(s.request.handoff.id, output);
  outputs.push_back(std::move(output));
}

void ToyEngine::free_choice(Choice& choice) {
  for (const std::uint32_t block : std::exchange(choice.blocks, {}))
    memory_.release(block);
}

void ToyEngine::free(Sequence& s, const char* why) {
  const bool over = std::ranges::all_of(s.choices, &Choice::finished);
  if (port_ != nullptr && s.request.handoff.leg == Leg::kPrefill && !over)
    port_->withdraw(s.request.handoff.id, why);
  if (port_ != nullptr && s.pull != nullptr) port_->stop(s.pull);
  for (Choice& choice : s.choices)
    free_choice(choice);
}

void ToyEngine::sweep() {
  for (Sequence& s : sequences_)
    for (Choice& choice : s.choices)
      if (choice.finished) free_choice(choice);
  std::erase_if(sequences_, [this](Sequence& s) {
    if (!std::ranges::all_of(s.choices, &Choice::finished)) return false;
    free(s, "");
    return true;
  });
}

}  // namespace penstock::simulated
