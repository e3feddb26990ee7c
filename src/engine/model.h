// The forward pass: tokens of a batch in, KV rows written, logits of the wanted rows out.
//
// Per layer: norm, one product for queries and the KV row, rotary turn, KV rounded to the cache's
// dtype and written before anything reads it, queries absorbed into latent space, attention over
// the paged cache (the same code for prompt chunks and single tokens), values expanded, output;
// then the feed-forward or the experts. All buffers are allocated at construction.
//
// Units and shapes: activations float32; see weights.h. Rotary frequencies and angles are float32,
// sine and cosine are exact to float32 (numeric.h). Invariants: logits are a function of the
// sequence's tokens and the KV dtype only (0003). Errors: none; a broken model gives NaN logits,
// which the sampler reports. Concurrency: one caller; inside, all threads of the pool. Source:
// design.md section 8; DeepSeek-V2 report section 2.1 (absorbed latent attention).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/attention.h"
#include "engine/batch.h"
#include "engine/config.h"
#include "engine/experts.h"
#include "engine/kernels/packed_matrix.h"
#include "engine/weights.h"

namespace penstock::engine {

class Model {
 public:
  // References must outlive the model. Batches have at most max_rows rows, of which at most
  // max_logit_rows ask for logits.
  Model(const ModelConfig& config, const Weights& weights, const Kernels& kernels, ThreadPool& pool,
        KvPool& kv, std::uint32_t max_rows, std::uint32_t max_logit_rows);

  // Bytes that a model of this shape allocates for its activations.
  static std::uint64_t activation_bytes(const ModelConfig& config, std::uint32_t max_rows,
                                        std::uint32_t max_logit_rows);

  void forward(const Batch& batch);
  // Logits [vocab] of batch.logit_rows[i]; valid until the next forward().
  std::span<const float> logits(std::size_t i) const {
    return {logits_.data() + i * config_.vocab_size, config_.vocab_size};
  }
  std::span<float> logits(std::size_t i) {
    return {logits_.data() + i * config_.vocab_size, config_.vocab_size};
  }
  // [moe_layers]: where experts run and what they got since construction or reset.
  std::vector<ExpertLayer>& expert_layers() { return expert_layers_; }

 private:
  void embed(const Batch& batch);
  void normalize(const float* in, const std::vector<float>& weight, std::uint32_t rows);
  void attend(const LayerWeights& layer, std::uint32_t index, const Batch& batch);
  // Rotates and stores the KV row; rotates the queries' rope parts.
  void finish_row(const LayerWeights& layer, std::uint32_t index, std::uint32_t row,
                  const float* query);
  void write_kv(std::uint32_t layer, std::uint32_t row, const float* values);
  void compute_logits(const Batch& batch);

  const ModelConfig& config_;
  const Weights& weights_;
  const Kernels& kernels_;
  ThreadPool& pool_;
  KvPool& kv_;
  Attention attention_;
  Experts experts_;

  std::vector<float> frequencies_;       // [rope_width / 2]
  FloatBuffer turns_;                    // [rows][rope_width / 2][cosine, sine]
  std::vector<BlockId> row_block_;       // [rows]: block and slot of the row's KV
  std::vector<std::uint32_t> row_slot_;  // [rows]
  FloatBuffer x_;                        // [rows][hidden], the residual stream
  FloatBuffer normed_;                   // [rows][hidden]
  FloatBuffer projected_;                // [rows][outputs of attention_in]
  FloatBuffer q_low_;                    // [rows][q_lora_rank]
  FloatBuffer q_;                        // [rows][query_width], with q_lora_rank only
  FloatBuffer q_latent_;                 // [rows][heads][row_width]
  FloatBuffer attended_;                 // [rows][heads][kv_lora_rank]
  FloatBuffer values_;                   // [rows][heads * value_width]
  FloatBuffer logits_;                   // [logit rows][vocab]
  std::vector<Product> products_;
  std::vector<ExpertLayer> expert_layers_;
};

}  // namespace penstock::engine
