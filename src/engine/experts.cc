#include "engine/experts.h"

#include <algorithm>
#include <cstring>

namespace penstock::engine {
namespace {

constexpr std::uint32_t kRowsPerItem = 8;
// Keeps a sum of zero scores from dividing by zero, as the published model does.
constexpr float kSmallestSum = 1e-20F;
constexpr float kTaken = -3e38F;

// Index of the largest value, the first one on ties.
std::uint32_t best_of(const float* values, std::uint32_t n) {
  std::uint32_t best = 0;
  for (std::uint32_t i = 1; i < n; ++i) {
    if (values[i] > values[best]) best = i;
  }
  return best;
}

float two_best(const float* values, std::uint32_t n) {
  float first = values[0];
  float second = kTaken;
  for (std::uint32_t i = 1; i < n; ++i) {
    if (values[i] > first) {
      second = first;
      first = values[i];
    } else if (values[i] > second) {
      second = values[i];
    }
  }
  return n == 1 ? first : first + second;
}

// Leaves only the experts of the best groups rankable.
void keep_groups(const ModelConfig& config, float* ranks) {
  const std::uint32_t groups = config.expert_groups;
  const std::uint32_t size = config.experts / groups;
  // A group is dropped when at least groups_kept others are better, or equal and of lower id.
  for (std::uint32_t dropped = groups; dropped > config.groups_kept; --dropped) {
    std::uint32_t worst = groups;
    float worst_score = 0;
    for (std::uint32_t g = 0; g < groups; ++g) {
      if (ranks[g * size] == kTaken) continue;
      const float score = two_best(ranks + g * size, size);
      if (worst == groups || !(score > worst_score)) {
        worst = g;
        worst_score = score;
      }
    }
    std::fill_n(ranks + std::size_t{worst} * size, size, kTaken);
  }
}

}  // namespace

void choose_experts(const ModelConfig& config, const float* scores, const float* bias, float* ranks,
                    std::uint32_t* ids, float* weights) {
  const std::uint32_t k = config.experts_per_token;
  for (std::uint32_t e = 0; e < config.experts; ++e) {
    const float rank = scores[e] + bias[e];
    // NaN and absurd biases must still leave distinct, valid ids.
    ranks[e] = rank > -1e38F ? rank : -1e38F;
  }
  if (config.groups_kept < config.expert_groups) keep_groups(config, ranks);
  for (std::uint32_t i = 0; i < k; ++i) {
    ids[i] = best_of(ranks, config.experts);
    ranks[ids[i]] = kTaken;
  }
  std::sort(ids, ids + k);
  float sum = 0;
  for (std::uint32_t i = 0; i < k; ++i)
    sum = sum + scores[ids[i]];
  for (std::uint32_t i = 0; i < k; ++i) {
    const float share =
        config.normalize_weights ? scores[ids[i]] / (sum + kSmallestSum) : scores[ids[i]];
    weights[i] = share * config.routed_scale;
  }
}

Experts::Experts(const ModelConfig& config, const Kernels& kernels, ThreadPool& pool,
                 std::uint32_t max_rows)
    : config_(config), kernels_(kernels), pool_(pool) {
  const std::size_t rows = max_rows;
  const std::size_t hidden = config.hidden_size;
  std::size_t dense_width = config.dense_layers > 0 ? config.dense_width : 0;
  if (config.moe_layers() > 0) {
    const std::size_t routed = rows * config.experts_per_token;
    scores_ = FloatBuffer(rows * config.experts);
    ranks_ = FloatBuffer(std::size_t{pool.size()} * config.experts);
    ids_.resize(routed);
    weights_.resize(routed);
    slots_.resize(routed);
    gathered_ = FloatBuffer(routed * hidden);
    gate_up_ = FloatBuffer(routed * 2 * config.expert_width);
    active_ = FloatBuffer(routed * config.expert_width);
    results_ = FloatBuffer(routed * hidden);
    shared_ = FloatBuffer(rows * hidden);
    dense_width = std::max<std::size_t>(dense_width,
                                        std::size_t{config.shared_experts} * config.expert_width);
  }
  dense_gate_up_ = FloatBuffer(rows * 2 * dense_width);
  dense_active_ = FloatBuffer(rows * dense_width);
}

void Experts::activate(const float* gate_up, float* out, std::uint32_t rows, std::uint32_t width) {
  const std::uint32_t items = (rows + kRowsPerItem - 1) / kRowsPerItem;
  // An exponential and a division cost about as much as 16 multiply-adds.
  pool_.for_each(items, std::uint64_t{rows} * width * 16, [&](std::uint32_t item, std::uint32_t) {
    const std::uint32_t end = std::min(rows, (item + 1) * kRowsPerItem);
    for (std::size_t r = item * kRowsPerItem; r < end; ++r) {
      const float* gate = gate_up + r * 2 * width;
      kernels_.silu_multiply(gate, gate + width, width, out + r * width);
    }
  });
}

void Experts::run_dense(const FeedForward& layer, const float* input, std::uint32_t rows,
                        float* residual) {
  const std::size_t hidden = config_.hidden_size;
  const std::size_t width = layer.width;
  const Product in{&layer.gate_up, input, hidden, dense_gate_up_.data(), 2 * width, rows};
  multiply(kernels_, pool_, {&in, 1});
  activate(dense_gate_up_.data(), dense_active_.data(), rows, layer.width);
  const Product out{&layer.down, dense_active_.data(), width, residual, hidden,
                    rows,        Accumulate::kAdd};
  multiply(kernels_, pool_, {&out, 1});
}

void Experts::route(const LayerWeights& layer, const float* input, std::uint32_t rows) {
  const std::size_t experts = config_.experts;
  const std::uint32_t k = config_.experts_per_token;
  const Product logits{&layer.router, input, config_.hidden_size, scores_.data(), experts, rows};
  multiply(kernels_, pool_, {&logits, 1});
  const std::uint32_t items = (rows + kRowsPerItem - 1) / kRowsPerItem;
  pool_.for_each(items, std::uint64_t{rows} * experts * (k + 16),
                 [&](std::uint32_t item, std::uint32_t thread) {
                   const std::uint32_t end = std::min(rows, (item + 1) * kRowsPerItem);
                   for (std::size_t r = item * kRowsPerItem; r < end; ++r) {
                     float* scores = scores_.data() + r * experts;
                     kernels_.sigmoid(scores, experts, scores);
                     choose_experts(config_, scores, layer.router_bias.data(),
                                    ranks_.data() + thread * experts, ids_.data() + r * k,
                                    weights_.data() + r * k);
                   }
                 });
}

// Sorts the (row, choice) pairs by slot, rows in order, and copies the rows there.
void Experts::gather(const float* input, std::uint32_t rows, ExpertLayer& places) {
  const std::uint32_t k = config_.experts_per_token;
  const std::size_t hidden = config_.hidden_size;
  const std::size_t slots = places.slots.size();
  starts_.assign(slots + 1, 0);
  for (std::size_t i = 0; i < std::size_t{rows} * k; ++i) {
    ids_[i] = places.take(ids_[i]);
    ++starts_[ids_[i] + 1];
  }
  for (std::size_t s = 0; s < slots; ++s)
    starts_[s + 1] += starts_[s];
  for (std::size_t i = 0; i < std::size_t{rows} * k; ++i)
    slots_[i] = starts_[ids_[i]]++;
  for (std::size_t s = slots; s > 0; --s)
    starts_[s] = starts_[s - 1];
  starts_[0] = 0;
  places.count_pass(starts_);
  const std::uint32_t items = (rows + kRowsPerItem - 1) / kRowsPerItem;
  pool_.for_each(items, std::uint64_t{rows} * k * hidden, [&](std::uint32_t item, std::uint32_t) {
    const std::uint32_t end = std::min(rows, (item + 1) * kRowsPerItem);
    for (std::size_t r = item * kRowsPerItem; r < end; ++r) {
      for (std::uint32_t i = 0; i < k; ++i) {
        std::memcpy(gathered_.data() + slots_[r * k + i] * hidden, input + r * hidden,
                    hidden * sizeof(float));
      }
    }
  });
}

void Experts::combine(const LayerWeights& layer, std::uint32_t rows, float* residual) {
  const std::uint32_t k = config_.experts_per_token;
  const std::size_t hidden = config_.hidden_size;
  const std::uint32_t items = (rows + kRowsPerItem - 1) / kRowsPerItem;
  pool_.for_each(
      items, std::uint64_t{rows} * (k + 2) * hidden, [&](std::uint32_t item, std::uint32_t) {
        const std::uint32_t end = std::min(rows, (item + 1) * kRowsPerItem);
        for (std::size_t r = item * kRowsPerItem; r < end; ++r) {
          float* sum = shared_.data() + r * hidden;
          if (layer.dense.width == 0) std::fill_n(sum, hidden, 0.0F);
          for (std::uint32_t i = 0; i < k; ++i) {
            kernels_.multiply_add(weights_[r * k + i], results_.data() + slots_[r * k + i] * hidden,
                                  hidden, sum);
          }
          kernels_.multiply_add(1.0F, sum, hidden, residual + r * hidden);
        }
      });
}

void Experts::run(const LayerWeights& layer, const float* input, std::uint32_t rows,
                  float* residual, ExpertLayer& places) {
  const std::size_t hidden = config_.hidden_size;
  const std::size_t width = config_.expert_width;
  const std::size_t shared_width = layer.dense.width;
  route(layer, input, rows);
  gather(input, rows, places);

  products_.clear();
  if (shared_width > 0) {
    products_.push_back(
        {&layer.dense.gate_up, input, hidden, dense_gate_up_.data(), 2 * shared_width, rows});
  }
  for (std::size_t s = 0; s < places.slots.size(); ++s) {
    const std::uint32_t n = starts_[s + 1] - starts_[s];
    if (n == 0) continue;
    products_.push_back({&layer.experts[places.slots[s]].gate_up,
                         gathered_.data() + starts_[s] * hidden, hidden,
                         gate_up_.data() + starts_[s] * 2 * width, 2 * width, n});
  }
  multiply(kernels_, pool_, products_);
  if (shared_width > 0) {
    activate(dense_gate_up_.data(), dense_active_.data(), rows, layer.dense.width);
  }
  activate(gate_up_.data(), active_.data(), rows * config_.experts_per_token, config_.expert_width);

  products_.clear();
  if (shared_width > 0) {
    products_.push_back(
        {&layer.dense.down, dense_active_.data(), shared_width, shared_.data(), hidden, rows});
  }
  for (std::size_t s = 0; s < places.slots.size(); ++s) {
    const std::uint32_t n = starts_[s + 1] - starts_[s];
    if (n == 0) continue;
    products_.push_back({&layer.experts[places.slots[s]].down, active_.data() + starts_[s] * width,
                         width, results_.data() + starts_[s] * hidden, hidden, n});
  }
  multiply(kernels_, pool_, products_);
  combine(layer, rows, residual);
}

}  // namespace penstock::engine
