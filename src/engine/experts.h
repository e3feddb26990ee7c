// The mixture-of-experts layer: choosing experts, and running them over a batch.
//
// Choice: scores = sigmoid(router logits); ranking uses score + bias; with groups, a group counts
// as much as its two best experts and only the best groups stay. Weights are the scores without
// bias, normalised over the chosen when the config says so, times routed_scale. Every chosen expert
// runs (no capacity limit). Rows are gathered per slot, a copy of an expert on a logical rank
// (expert_layer.h), and each row's results are summed in the order of expert ids, so neither the
// other rows of the batch nor the place where an expert runs matter.
//
// Invariants: ties go to the lower id; the chosen ids of a row are ascending and distinct.
// Concurrency: one caller; inside, all threads of the pool.
// Source: DeepSeek-V3 technical report, section 2.1.2; design.md section 8.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/config.h"
#include "engine/expert_layer.h"
#include "engine/kernels/packed_matrix.h"
#include "engine/weights.h"

namespace penstock::engine {

// Chooses experts from scores [experts] (after sigmoid) into ids and weights [experts_per_token].
// `ranks` is scratch [experts].
void choose_experts(const ModelConfig& config, const float* scores, const float* bias, float* ranks,
                    std::uint32_t* ids, float* weights);

class Experts {
 public:
  Experts(const ModelConfig& config, const Kernels& kernels, ThreadPool& pool,
          std::uint32_t max_rows);

  // Adds to residual [rows][hidden] the shared and routed experts of `input` [rows][hidden]; the
  // counts of `places` grow by the rows that experts and ranks got.
  void run(const LayerWeights& layer, const float* input, std::uint32_t rows, float* residual,
           ExpertLayer& places);
  // Adds down(silu(gate) * up) of a plain feed-forward; used for dense layers.
  void run_dense(const FeedForward& layer, const float* input, std::uint32_t rows, float* residual);

 private:
  void route(const LayerWeights& layer, const float* input, std::uint32_t rows);
  void gather(const float* input, std::uint32_t rows, ExpertLayer& places);
  void activate(const float* gate_up, float* out, std::uint32_t rows, std::uint32_t width);
  void combine(const LayerWeights& layer, std::uint32_t rows, float* residual);

  const ModelConfig& config_;
  const Kernels& kernels_;
  ThreadPool& pool_;
  FloatBuffer scores_;                 // [rows][experts], logits then scores
  FloatBuffer ranks_;                  // [threads][experts]
  std::vector<std::uint32_t> ids_;     // [rows][k]: experts, then their slots
  std::vector<float> weights_;         // [rows][k]
  std::vector<std::uint32_t> slots_;   // [rows][k]: where the row lies among the gathered rows
  std::vector<std::uint32_t> starts_;  // [slots + 1]: first gathered row of each slot
  FloatBuffer gathered_;               // [rows * k][hidden]
  FloatBuffer gate_up_;                // [rows * k][2 * expert_width]
  FloatBuffer active_;                 // [rows * k][expert_width]
  FloatBuffer results_;                // [rows * k][hidden]
  FloatBuffer dense_gate_up_;          // [rows][2 * dense or shared width]
  FloatBuffer dense_active_;           // [rows][dense or shared width]
  FloatBuffer shared_;                 // [rows][hidden]
  std::vector<Product> products_;
};

}  // namespace penstock::engine
