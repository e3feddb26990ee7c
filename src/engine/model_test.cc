// The fast forward pass against the slow one of testing/reference_model.h, over shapes.
#include "engine/model.h"

#include <cmath>

#include "base/rng.h"
#include "engine/testing/random_checkpoint.h"
#include "engine/testing/reference_model.h"

#include <doctest/doctest.h>

namespace penstock::engine {
namespace {

struct Variant {
  const char* name;
  CheckpointShape shape;
};

std::vector<Variant> variants() {
  std::vector<Variant> all(9);
  all[0].name = "plain";
  all[1].name = "query rank, halves, tied, float32";
  all[1].shape.q_lora_rank = 14;
  all[1].shape.interleaved = false;
  all[1].shape.tied_embeddings = true;
  all[1].shape.type = StoredType::kF32;
  all[2].name = "groups, scaled, not normalised";
  all[2].shape.experts = 8;
  all[2].shape.expert_groups = 4;
  all[2].shape.groups_kept = 2;
  all[2].shape.experts_per_token = 3;
  all[2].shape.routed_scale = 2.5;
  all[2].shape.normalize_weights = false;
  all[3].name = "no experts, half precision";
  all[3].shape.experts = 0;
  all[3].shape.type = StoredType::kF16;
  all[4].name = "no shared expert, all layers sparse";
  all[4].shape.shared_experts = 0;
  all[4].shape.dense_layers = 0;
  all[5].name = "sliding windows beside full layers";
  all[5].shape.window = 70;
  all[5].shape.window_layers = {0, 2};
  all[6].name = "a window smaller than a block";
  all[6].shape.window = 5;
  all[6].shape.window_layers = {0, 1, 2};
  all[7].name = "many heads";
  all[7].shape.heads = 70;
  all[7].shape.nope_width = 4;
  all[7].shape.rope_width = 2;
  all[7].shape.value_width = 3;
  all[8].name = "two shared experts, widths that fill registers";
  all[8].shape.shared_experts = 2;
  all[8].shape.hidden_size = 64;
  all[8].shape.kv_lora_rank = 64;
  all[8].shape.rope_width = 16;
  all[8].shape.nope_width = 32;
  all[8].shape.value_width = 32;
  return all;
}

}  // namespace

TEST_CASE("logits match the reference at every position") {
  constexpr std::uint32_t kLength = 150;
  for (const Variant& v : variants()) {
    for (const KvDtype dtype : {KvDtype::kF32, KvDtype::kBf16}) {
      CAPTURE(v.name);
      const TemporaryFolder folder;
      REQUIRE(write_checkpoint(folder.path(), v.shape, 11));
      const auto config = load_config(folder.path());
      REQUIRE(config);
      const auto weights = load_weights(folder.path(), *config);
      REQUIRE(weights);
      Rng rng(12);
      Batch batch;
      for (std::uint32_t i = 0; i < kLength; ++i) {
        batch.tokens.push_back(static_cast<TokenId>(rng.below(config->vocab_size)));
        batch.logit_rows.push_back(i);
      }
      const auto expected = reference_logits(folder.path(), batch.tokens, dtype);
      REQUIRE(expected);

      auto kv = KvPool::open({config->layers, config->kv_lora_rank, config->rope_width, dtype}, 3);
      REQUIRE(kv);
      const std::vector<BlockId> blocks = {*(*kv)->allocate(), *(*kv)->allocate(),
                                           *(*kv)->allocate()};
      batch.chunks.push_back({0, kLength, 0, blocks});
      ThreadPool pool(2);
      Model model(*config, *weights, kernels(best_instruction_set()), pool, **kv, kLength, kLength);
      model.forward(batch);
      // Routing and bfloat16 rounding are discontinuous: a position where two experts score alike
      // may come out differently in the two arithmetics, and those after it a little.
      std::uint32_t far = 0;
      for (std::uint32_t i = 0; i < kLength; ++i) {
        double worst = 0;
        double scale = 0;
        for (std::uint32_t t = 0; t < config->vocab_size; ++t) {
          worst = std::max(worst,
                           std::abs(static_cast<double>(model.logits(i)[t]) - (*expected)[i][t]));
          scale = std::max(scale, std::abs((*expected)[i][t]));
        }
        CAPTURE(i);
        CAPTURE(worst / scale);
        if (worst > 1e-3 * scale) ++far;
        CHECK(worst < 0.5 * scale);
      }
      CHECK(far <= (dtype == KvDtype::kF32 ? 2 : 6));
    }
  }
}

}  // namespace penstock::engine
