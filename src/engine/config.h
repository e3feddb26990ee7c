// The shape of a model: config.json of a DeepSeek-V3-style checkpoint, checked.
//
// The file is in the public DeepseekV3ForCausalLM form. Keys that change the arithmetic in a way
// that this engine does not implement (quantisation, YaRN, attention bias, other activations) are
// refused, not ignored; keys that say nothing about inference are ignored. Ours beside the public
// keys: `sliding_window` with `layer_types` ("full_attention" or "sliding_attention" per layer),
// spelt as other model families do.
//
// Invariants: every number lies within the limits of the table in config.cc, so products of a few
// of them fit 64 bits; groups divide experts; the rope width is even; top-k experts fit the groups
// kept. Errors: kInvalidArgument or kUnsupported with the key as `field`; never a crash, whatever
// the text. Concurrency: values.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "domain/tokens.h"

namespace penstock::engine {

enum class RopePairs : std::uint8_t {
  kInterleaved,  // elements 2i and 2i + 1 turn together (DeepSeek)
  kHalves,       // elements i and i + width / 2
};

struct ModelConfig {
  std::uint32_t vocab_size = 0;
  std::uint32_t hidden_size = 0;
  std::uint32_t layers = 0;
  std::uint32_t heads = 0;
  std::uint32_t context_length = 0;  // max_position_embeddings

  std::uint32_t q_lora_rank = 0;  // 0 = one matrix from hidden to queries
  std::uint32_t kv_lora_rank = 0;
  std::uint32_t nope_width = 0;   // qk_nope_head_dim
  std::uint32_t rope_width = 0;   // qk_rope_head_dim
  std::uint32_t value_width = 0;  // v_head_dim
  float rope_theta = 10000.0F;
  RopePairs rope_pairs = RopePairs::kInterleaved;
  std::vector<std::uint32_t> window;  // per layer; 0 = attends to everything before

  std::uint32_t dense_width = 0;   // intermediate_size
  std::uint32_t dense_layers = 0;  // first_k_dense_replace; all layers when there are no experts
  std::uint32_t expert_width = 0;  // moe_intermediate_size
  std::uint32_t experts = 0;       // n_routed_experts
  std::uint32_t shared_experts = 0;
  std::uint32_t experts_per_token = 0;
  std::uint32_t expert_groups = 1;  // n_group
  std::uint32_t groups_kept = 1;    // topk_group
  bool normalize_weights = true;    // norm_topk_prob
  float routed_scale = 1.0F;        // routed_scaling_factor

  float norm_epsilon = 1e-6F;
  bool tied_embeddings = false;
  std::vector<TokenId> eos;

  std::uint32_t query_width() const { return heads * (nope_width + rope_width); }
  std::uint32_t row_width() const { return kv_lora_rank + rope_width; }  // cached per token
  std::uint32_t moe_layers() const { return layers - dense_layers; }
};

// Parses the text of a config.json. Cost: linear in the text.
Result<ModelConfig> parse_config(std::string_view json);

}  // namespace penstock::engine
