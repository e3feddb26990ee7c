// The weights of a model, read from a checkpoint folder, checked and packed for the kernels.
//
// Tensor names are those of DeepseekV3ForCausalLM. Matrices that read the same input are packed as
// one (queries beside the KV projection, gate beside up). kv_b_proj is split per head: its key half
// is packed transposed, so that queries are brought into latent space once ("absorbed") and
// attention runs over the cached latents alone; its value half brings the attended latent out
// again.
//
// Units and shapes: see each member; [outputs, inputs] as in the checkpoint.
// Invariants: every tensor the model needs was there with exactly the shape that config.json
// implies, as F32, BF16 or F16 (widened to float32); no tensor of the file was left unexplained.
// Errors: the first fault found, with file, tensor, what was expected and what is there.
// Concurrency: immutable after loading.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/config.h"
#include "engine/kernels/packed_matrix.h"

namespace penstock::engine {

// One SwiGLU feed-forward: down(silu(gate x) * up x).
struct FeedForward {
  PackedMatrix gate_up;  // [2 * width, hidden]: gate rows, then up rows
  PackedMatrix down;     // [hidden, width]
  std::uint32_t width = 0;
};

struct LayerWeights {
  std::vector<float> attention_norm;  // [hidden]
  PackedMatrix attention_in;   // [q_lora_rank or query_width, then kv_lora_rank + rope; hidden]
  std::vector<float> q_norm;   // [q_lora_rank], empty without
  PackedMatrix q_out;          // [query_width, q_lora_rank], empty without
  std::vector<float> kv_norm;  // [kv_lora_rank]
  std::vector<PackedMatrix> key_absorb;    // per head [kv_lora_rank, nope_width]
  std::vector<PackedMatrix> value_expand;  // per head [value_width, kv_lora_rank]
  PackedMatrix attention_out;              // [hidden, heads * value_width]

  std::vector<float> feed_norm;    // [hidden]
  FeedForward dense;               // the whole layer, or the shared experts; width 0 = none
  PackedMatrix router;             // [experts, hidden], MoE layers only
  std::vector<float> router_bias;  // [experts], e_score_correction_bias
  std::vector<FeedForward> experts;
};

struct Weights {
  WeightType embedding_type = WeightType::kBf16;
  std::vector<std::byte> embedding;  // [vocab, hidden] of embedding_type, row-major
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [hidden]
  PackedMatrix head;              // [vocab, hidden]

  // Bytes that every token reads (all but embedding and routed experts), and of one routed expert.
  std::size_t common_bytes() const;
  std::size_t expert_bytes() const;
};

// Bytes of memory of this machine.
std::uint64_t physical_memory();
// Reads checkpoint_dir/config.json.
Result<ModelConfig> load_config(const std::string& checkpoint_dir);
// A hash of the bytes of config.json and model.safetensors, in hexadecimal.
Result<std::string> weights_digest(const std::string& checkpoint_dir);
// Reads checkpoint_dir/model.safetensors for that config.
Result<Weights> load_weights(const std::string& checkpoint_dir, const ModelConfig& config);

}  // namespace penstock::engine
