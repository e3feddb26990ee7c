// Law 3 as a property: whatever the batch, chunking, threads, instruction set, preemption, loaded
// prefix, point of continuation or place of the experts, a request gets the logits, as bits, that
// it gets alone.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>

#include "base/hash.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "engine/testing/memory_cache.h"
#include "engine/testing/random_checkpoint.h"

#include <doctest/doctest.h>

namespace penstock::engine {
namespace {

// Ids from here on are of requests that only share the engine with those compared.
constexpr std::uint64_t kStrangers = 1000;

// (request, choice, position) -> checksum of the logits; and the tokens of each choice.
struct Trace {
  std::map<std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>, std::uint64_t> logits;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<OutputToken>> tokens;
  std::map<std::pair<std::uint64_t, std::uint32_t>, FinishReason> finish;
  std::uint32_t preempted = 0;
  std::uint32_t loads = 0;
  std::uint64_t maps = 0;  // of experts, applied between steps
};

std::uint32_t below(Rng& rng, std::uint32_t n) {
  return static_cast<std::uint32_t>(rng.below(n));
}

CheckpointShape random_shape(Rng& rng) {
  CheckpointShape s;
  s.hidden_size = 24 + 8 * below(rng, 4);
  s.heads = 1 + below(rng, 4);
  s.layers = 2 + below(rng, 2);
  s.kv_lora_rank = 8 + below(rng, 40);
  s.rope_width = 2 + 2 * below(rng, 6);
  s.nope_width = 3 + below(rng, 20);
  s.value_width = 3 + below(rng, 20);
  s.q_lora_rank = rng.below(2) == 0 ? 0 : 5 + below(rng, 20);
  s.experts = 4 + 2 * below(rng, 3);
  s.expert_groups = 2;
  s.groups_kept = 1 + below(rng, 2);
  s.shared_experts = below(rng, 3);
  s.interleaved = rng.below(2) == 0;
  s.tied_embeddings = rng.below(2) == 0;
  s.type = rng.below(2) == 0 ? StoredType::kBf16 : StoredType::kF32;
  if (rng.below(2) == 0) {
    s.window = 1 + below(rng, 100);
    s.window_layers = {below(rng, s.layers)};
  }
  return s;
}

EngineRequest random_request(Rng& rng, std::uint64_t id, const CheckpointShape& shape) {
  EngineRequest r;
  r.id = RequestId(id);
  std::vector<TokenId> prompt(1 + below(rng, rng.below(3) == 0 ? 200 : 40));
  for (TokenId& t : prompt)
    t = below(rng, shape.vocab_size);
  r.prompt = std::make_shared<const std::vector<TokenId>>(std::move(prompt));
  SamplingParams& p = r.sampling;
  p.max_tokens = 1 + below(rng, 30);
  p.seed = rng.next_u64();
  p.ignore_eos = true;
  p.choices = rng.below(3) == 0 ? 1 + below(rng, 3) : 1;
  p.temperature = rng.below(3) == 0 ? 0.0F : static_cast<float>(rng.uniform() * 2);
  if (rng.below(2) == 0) p.top_k = 1 + static_cast<std::int32_t>(rng.below(50));
  if (rng.below(2) == 0) p.top_p = static_cast<float>(0.3 + 0.7 * rng.uniform());
  if (rng.below(3) == 0) p.min_p = static_cast<float>(0.2 * rng.uniform());
  if (rng.below(3) == 0) p.presence_penalty = static_cast<float>(rng.uniform());
  if (rng.below(3) == 0) p.frequency_penalty = static_cast<float>(rng.uniform());
  if (rng.below(3) == 0) p.repetition_penalty = static_cast<float>(0.5 + rng.uniform());
  if (rng.below(2) == 0) p.top_logprobs = static_cast<std::int32_t>(rng.below(4));
  if (rng.below(4) == 0) p.logit_bias = {{below(rng, shape.vocab_size), 3.0F}};
  return r;
}

void watch(Engine& engine, Trace& trace) {
  engine.set_logits_observer([&trace](RequestId id, std::uint32_t choice, std::uint32_t position,
                                      std::span<const float> logits) {
    trace.logits[{id.value, choice, position}] = checksum64(std::as_bytes(logits));
  });
}

void take(Trace& trace, const StepOutputs& step) {
  trace.preempted += step.stats.preempted;
  for (const EngineOutput& o : step.outputs) {
    auto& tokens = trace.tokens[{o.request.value, o.choice}];
    tokens.insert(tokens.end(), o.tokens.begin(), o.tokens.end());
    if (o.finish) trace.finish[{o.request.value, o.choice}] = *o.finish;
  }
}

// Each request alone, in one chunk, on one thread, with the plainest instruction set.
// All blocks that it computes are kept in `cache`.
struct Alone {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<MemoryCache> cache;
  Trace trace;
};
Alone run_alone(const EngineOptions& base, const std::vector<EngineRequest>& requests) {
  EngineOptions options = base;
  options.threads = 1;
  options.instruction_set = InstructionSet::kPortable;
  auto engine = Engine::open(options);
  REQUIRE(engine);
  Alone alone{std::move(*engine), nullptr, {}};
  alone.cache = std::make_unique<MemoryCache>(alone.engine->pool(), alone.engine->config());
  alone.engine->set_block_sink(alone.cache.get());
  watch(*alone.engine, alone.trace);
  for (const EngineRequest& r : requests) {
    REQUIRE(alone.engine->submit(r));
    while (alone.engine->has_work())
      take(alone.trace, alone.engine->step());
  }
  return alone;
}

// A prefix of the request from the cache: any length of what is there, late or wrong at times.
std::shared_ptr<PrefixLoad> random_load(const MemoryCache& cache, Engine& engine,
                                        const EngineRequest& r, Rng& rng) {
  std::vector<TokenId> tokens = *r.prompt;
  tokens.insert(tokens.end(), r.emitted.begin(), r.emitted.end());
  const auto most = static_cast<std::uint32_t>((tokens.size() - 1) / kBlockTokens);
  MemoryCache::LoadPlan plan;
  plan.blocks = below(rng, std::min(cache.held(tokens), most) + 1);
  if (plan.blocks == 0) return nullptr;
  if (rng.below(2) == 0) plan.polls_late = below(rng, 8);
  // Cutting a prefix moves the point where it resumes, and the windows were brought for another
  // one.
  const bool has_windows = std::ranges::any_of(engine.config().window, std::identity());
  if (rng.below(3) == 0) {
    plan.wrong_layer = below(rng, engine.config().layers);
    plan.wrong_block = has_windows ? 0 : below(rng, plan.blocks);
  }
  return cache.load(engine.pool(), tokens, plan);
}

// The experts in any order on some ranks, hot ones or not with copies.
ExpertMap random_map(Rng& rng, const ModelConfig& config, std::uint64_t version) {
  ExpertMap map;
  map.version = version;
  map.layers = config.moe_layers();
  map.experts = config.experts;
  map.slots_per_rank = 1 + below(rng, config.experts);
  map.ranks = (config.experts + map.slots_per_rank - 1) / map.slots_per_rank + below(rng, 4);
  for (std::uint32_t layer = 0; layer < map.layers; ++layer) {
    // Rounds of all experts: no rank has more slots than a round.
    const std::uint32_t first = below(rng, map.experts);
    const std::uint32_t stride = rng.below(2) == 0 ? 1 : map.experts - 1;
    for (std::uint32_t s = 0; s < map.layer_slots(); ++s)
      map.slots.push_back(static_cast<std::uint16_t>((first + s * stride) % map.experts));
  }
  return map;
}

// All of them at random times under random conditions, with strangers that come and go.
Trace run_mixed(const EngineOptions& base, std::vector<EngineRequest> requests, Rng& rng,
                const CheckpointShape& shape, const MemoryCache& cache) {
  EngineOptions options = base;
  options.threads = 1 + below(rng, 3);
  const InstructionSet sets[] = {InstructionSet::kPortable, InstructionSet::kAvx2,
                                 InstructionSet::kAvx512};
  options.instruction_set = sets[rng.below(3)];
  if (!supported(*options.instruction_set)) options.instruction_set = best_instruction_set();
  const std::uint32_t batches[] = {1, 3, 17, 64, 200, 512};
  options.max_batch_tokens = batches[rng.below(6)];
  options.max_sequences = 1 + below(rng, 8);
  options.kv_blocks = 4 + below(rng, 8);
  auto engine = Engine::open(options);
  REQUIRE(engine);
  Trace trace;
  watch(**engine, trace);
  std::uint64_t stranger = kStrangers;
  for (int steps = 0; !requests.empty() || (*engine)->has_work(); ++steps) {
    REQUIRE(steps < 20000);
    if (!requests.empty() && rng.below(3) == 0) {
      const std::size_t pick = rng.below(requests.size());
      std::shared_ptr<PrefixLoad> load;
      if (rng.below(2) == 0) load = random_load(cache, **engine, requests[pick], rng);
      if (load) ++trace.loads;
      REQUIRE((*engine)->submit(requests[pick], load));
      requests.erase(requests.begin() + static_cast<std::ptrdiff_t>(pick));
    }
    if (stranger < kStrangers + 10 && rng.below(8) == 0) {
      REQUIRE((*engine)->submit(random_request(rng, stranger++, shape)));
    }
    if (rng.below(12) == 0) (*engine)->cancel(RequestId(kStrangers + rng.below(10)));
    if (rng.below(10) == 0)
      REQUIRE((*engine)->set_expert_map(random_map(rng, (*engine)->config(), ++trace.maps)));
    take(trace, (*engine)->step());
  }
  CHECK((*engine)->load().kv_tokens_used == Tokens(0));
  return trace;
}

// Everything that `requests` give alone must be there in `mixed`, and nothing else. A continued
// request reports, and samples, only what comes after its emitted tokens.
void compare(const Trace& alone, const Trace& mixed, const std::vector<EngineRequest>& requests) {
  std::size_t answers = 0;
  for (const EngineRequest& r : requests) {
    for (std::uint32_t choice = 0; choice < r.sampling.choices; ++choice, ++answers) {
      CAPTURE(r.id.value);
      CAPTURE(choice);
      const std::pair key{r.id.value, choice};
      const auto expected = alone.tokens.find(key);
      const auto got = mixed.tokens.find(key);
      REQUIRE(expected != alone.tokens.end());
      REQUIRE(got != mixed.tokens.end());
      REQUIRE(expected->second.size() == r.sampling.max_tokens);
      const std::size_t emitted = r.emitted.size();
      REQUIRE(got->second.size() == expected->second.size() - emitted);
      REQUIRE(std::equal(got->second.begin(), got->second.end(),
                         expected->second.begin() + static_cast<std::ptrdiff_t>(emitted)));
      REQUIRE(alone.finish.contains(key));
      REQUIRE(mixed.finish.contains(key));
      REQUIRE(mixed.finish.at(key) == alone.finish.at(key));
      for (std::size_t i = emitted; i < expected->second.size(); ++i) {
        const auto position = static_cast<std::uint32_t>(r.prompt->size() + i);
        CAPTURE(position);
        REQUIRE(mixed.logits.contains({r.id.value, choice, position}));
      }
    }
  }
  REQUIRE(alone.tokens.size() == answers);
  for (const auto& [key, checksum] : mixed.logits) {
    if (std::get<0>(key) >= kStrangers) continue;
    const auto found = alone.logits.find(key);
    REQUIRE(found != alone.logits.end());
    REQUIRE(found->second == checksum);
  }
  for (const auto& [key, tokens] : mixed.tokens) {
    REQUIRE((key.first >= kStrangers || alone.tokens.contains(key)));
  }
}

}  // namespace

TEST_CASE("logits are the same bits on every path") {
  std::uint32_t preempted = 0;
  std::uint32_t loads = 0;
  std::uint64_t maps = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    const CheckpointShape shape = random_shape(rng);
    const TemporaryFolder folder;
    REQUIRE(write_checkpoint(folder.path(), shape, seed));
    EngineOptions options;
    options.checkpoint_dir = folder.path();
    options.kv_dtype = rng.below(2) == 0 ? KvDtype::kBf16 : KvDtype::kF32;
    std::vector<EngineRequest> requests;
    for (std::uint64_t id = 1; id <= 6; ++id)
      requests.push_back(random_request(rng, id, shape));
    const Alone lone = run_alone(options, requests);
    const Trace& alone = lone.trace;
    for (int round = 0; round < 5; ++round) {
      CAPTURE(round);
      std::vector<EngineRequest> again = requests;
      for (EngineRequest& r : again) {
        // Some streams go on elsewhere after part of the answer.
        const auto& tokens = alone.tokens.at({r.id.value, 0});
        if (r.sampling.choices != 1 || rng.below(2) == 0) continue;
        for (std::size_t n = rng.below(tokens.size()); r.emitted.size() < n;) {
          r.emitted.push_back(tokens[r.emitted.size()].token);
        }
      }
      const Trace mixed = run_mixed(options, again, rng, shape, *lone.cache);
      preempted += mixed.preempted;
      loads += mixed.loads;
      maps += mixed.maps;
      compare(alone, mixed, again);
    }
  }
  CHECK(preempted > 0);
  CHECK(loads > 20);
  CHECK(maps > 100);
}

// What names the KV of an engine changes with the arithmetic, so that a cache never mixes two. When
// this fails because a kernel changed its results on purpose: raise kArithmeticVersion, then take
// the new value.
TEST_CASE("the probe of a fixed checkpoint is the same on every machine and build") {
  const TemporaryFolder folder;
  REQUIRE(write_checkpoint(folder.path(), CheckpointShape{}, 1));
  for (const std::uint32_t batch : {512U, 64U, 7U, 1U}) {
    for (const InstructionSet set :
         {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
      if (!supported(set)) continue;
      EngineOptions options;
      options.checkpoint_dir = folder.path();
      options.max_batch_tokens = batch;
      options.instruction_set = set;
      const auto engine = Engine::open(options);
      REQUIRE(engine);
      CHECK((*engine)->description().kv.engine_build ==
            "embedded arithmetic 1 probe 8b7aedd4ff19371a");
    }
  }
}

}  // namespace penstock::engine
