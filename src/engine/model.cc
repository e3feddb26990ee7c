#include "engine/model.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "engine/numeric.h"

namespace penstock::engine {
namespace {

constexpr std::uint32_t kRowsPerItem = 8;

std::uint32_t items_of(std::uint32_t rows) {
  return (rows + kRowsPerItem - 1) / kRowsPerItem;
}

// Nearest bfloat16, ties to even; NaN stays NaN.
std::uint16_t round_to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

// Turns the pairs of `in` by the row's angles.
void rotate(const float* in, const float* turns, std::uint32_t width, RopePairs pairs, float* out) {
  const std::uint32_t half = width / 2;
  for (std::uint32_t i = 0; i < half; ++i) {
    const std::uint32_t a = pairs == RopePairs::kInterleaved ? 2 * i : i;
    const std::uint32_t b = pairs == RopePairs::kInterleaved ? 2 * i + 1 : i + half;
    const float cosine = turns[2 * i];
    const float sine = turns[2 * i + 1];
    const float first = in[a] * cosine - in[b] * sine;
    const float second = in[a] * sine + in[b] * cosine;
    out[a] = first;
    out[b] = second;
  }
}

}  // namespace

Model::Model(const ModelConfig& config, const Weights& weights, const Kernels& kernels,
             ThreadPool& pool, KvPool& kv, std::uint32_t max_rows, std::uint32_t max_logit_rows)
    : config_(config),
      weights_(weights),
      kernels_(kernels),
      pool_(pool),
      kv_(kv),
      attention_(config, kernels, pool, kv, max_rows),
      experts_(config, kernels, pool, max_rows) {
  const std::size_t rows = max_rows;
  const std::size_t half = config.rope_width / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const double exponent = static_cast<double>(2 * i) / config.rope_width;
    const double log_theta = stable_log(static_cast<double>(config.rope_theta));
    frequencies_.push_back(static_cast<float>(stable_exp(-exponent * log_theta)));
  }
  turns_ = FloatBuffer(rows * half * 2);
  row_block_.resize(rows);
  row_slot_.resize(rows);
  x_ = FloatBuffer(rows * config.hidden_size);
  normed_ = FloatBuffer(std::max<std::size_t>(rows, max_logit_rows) * config.hidden_size);
  projected_ = FloatBuffer(rows * weights.layers[0].attention_in.outputs());
  if (config.q_lora_rank != 0) {
    q_low_ = FloatBuffer(rows * config.q_lora_rank);
    q_ = FloatBuffer(rows * config.query_width());
  }
  q_latent_ = FloatBuffer(rows * config.heads * config.row_width());
  attended_ = FloatBuffer(rows * config.heads * config.kv_lora_rank);
  values_ = FloatBuffer(rows * config.heads * config.value_width);
  logits_ = FloatBuffer(std::size_t{max_logit_rows} * config.vocab_size);
  products_.reserve(config.heads);
  expert_layers_.assign(config.moe_layers(), ExpertLayer(config.experts));
}

std::uint64_t Model::activation_bytes(const ModelConfig& c, std::uint32_t max_rows,
                                      std::uint32_t max_logit_rows) {
  // The limits of config.cc keep these sums far from overflow.
  const std::uint64_t hidden = c.hidden_size;
  const std::uint64_t heads = c.heads;
  const std::uint64_t attention = heads * (c.row_width() + c.kv_lora_rank + c.value_width) +
                                  2 * heads * (c.nope_width + c.rope_width) + c.row_width() +
                                  2 * std::uint64_t{c.q_lora_rank} + 2 * c.rope_width;
  const std::uint64_t expert = 2 * hidden + 3 * std::uint64_t{c.expert_width};
  const std::uint64_t shared = std::uint64_t{c.shared_experts} * c.expert_width;
  const std::uint64_t feed = c.experts_per_token * expert + c.experts +
                             3 * std::max<std::uint64_t>(c.dense_width, shared) + hidden;
  return sizeof(float) * (max_rows * (3 * hidden + attention + feed) +
                          std::uint64_t{max_logit_rows} * c.vocab_size);
}

void Model::embed(const Batch& batch) {
  const std::size_t hidden = config_.hidden_size;
  const std::size_t half = frequencies_.size();
  for (const Chunk& chunk : batch.chunks) {
    for (std::uint32_t i = 0; i < chunk.rows; ++i) {
      const std::uint32_t position = chunk.position + i;
      row_block_[chunk.row + i] = chunk.blocks[position / kBlockTokens];
      row_slot_[chunk.row + i] = position % kBlockTokens;
      float* turns = turns_.data() + (chunk.row + i) * half * 2;
      for (std::size_t f = 0; f < half; ++f) {
        // The angle is rounded to float32, as where such models are trained.
        const float angle = static_cast<float>(position) * frequencies_[f];
        const SineCosine turn = stable_sincos(static_cast<double>(angle));
        turns[2 * f] = static_cast<float>(turn.cosine);
        turns[2 * f + 1] = static_cast<float>(turn.sine);
      }
    }
  }
  for (std::uint32_t r = 0; r < batch.rows(); ++r) {
    float* out = x_.data() + r * hidden;
    const std::byte* table = weights_.embedding.data();
    ENSURE(batch.tokens[r] < config_.vocab_size);
    if (weights_.embedding_type == WeightType::kF32) {
      std::memcpy(out, table + batch.tokens[r] * hidden * 4, hidden * 4);
      continue;
    }
    for (std::size_t i = 0; i < hidden; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, table + (batch.tokens[r] * hidden + i) * 2, 2);
      out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }
  }
}

void Model::normalize(const float* in, const std::vector<float>& weight, std::uint32_t rows) {
  const std::size_t hidden = config_.hidden_size;
  pool_.for_each(items_of(rows), std::uint64_t{rows} * hidden * 2,
                 [&](std::uint32_t item, std::uint32_t) {
                   const std::uint32_t end = std::min(rows, (item + 1) * kRowsPerItem);
                   for (std::size_t r = item * kRowsPerItem; r < end; ++r) {
                     kernels_.rms_norm(in + r * hidden, weight.data(), config_.norm_epsilon, hidden,
                                       normed_.data() + r * hidden);
                   }
                 });
}

void Model::write_kv(std::uint32_t layer, std::uint32_t row, const float* values) {
  const std::size_t width = config_.row_width();
  std::byte* slice = kv_.slice(row_block_[row], layer);
  if (kv_.layout().dtype == KvDtype::kF32) {
    std::memcpy(slice + row_slot_[row] * width * 4, values, width * 4);
    return;
  }
  std::byte* out = slice + row_slot_[row] * width * 2;
  for (std::size_t i = 0; i < width; ++i) {
    const std::uint16_t half = round_to_bf16(values[i]);
    std::memcpy(out + i * 2, &half, 2);
  }
}

void Model::finish_row(const LayerWeights& layer, std::uint32_t index, std::uint32_t row,
                       const float* query) {
  const std::uint32_t rank = config_.kv_lora_rank;
  const std::uint32_t rope = config_.rope_width;
  const float* turns = turns_.data() + std::size_t{row} * rope;
  const std::size_t outputs = layer.attention_in.outputs();
  float* kv = projected_.data() + row * outputs + (outputs - config_.row_width());
  kernels_.rms_norm(kv, layer.kv_norm.data(), config_.norm_epsilon, rank, kv);
  rotate(kv + rank, turns, rope, config_.rope_pairs, kv + rank);
  write_kv(index, row, kv);
  for (std::uint32_t h = 0; h < config_.heads; ++h) {
    const float* in = query + std::size_t{h} * (config_.nope_width + rope) + config_.nope_width;
    float* out =
        q_latent_.data() + (std::size_t{row} * config_.heads + h) * config_.row_width() + rank;
    rotate(in, turns, rope, config_.rope_pairs, out);
  }
}

void Model::attend(const LayerWeights& layer, std::uint32_t index, const Batch& batch) {
  const ModelConfig& c = config_;
  const std::uint32_t rows = batch.rows();
  const std::size_t hidden = c.hidden_size;
  const std::size_t outputs = layer.attention_in.outputs();
  normalize(x_.data(), layer.attention_norm, rows);
  const Product in{&layer.attention_in, normed_.data(), hidden, projected_.data(), outputs, rows};
  multiply(kernels_, pool_, {&in, 1});

  const float* q = projected_.data();
  std::size_t q_stride = outputs;
  if (c.q_lora_rank != 0) {
    for (std::size_t r = 0; r < rows; ++r) {
      kernels_.rms_norm(projected_.data() + r * outputs, layer.q_norm.data(), c.norm_epsilon,
                        c.q_lora_rank, q_low_.data() + r * c.q_lora_rank);
    }
    q_stride = c.query_width();
    const Product up{&layer.q_out, q_low_.data(), c.q_lora_rank, q_.data(), q_stride, rows};
    multiply(kernels_, pool_, {&up, 1});
    q = q_.data();
  }
  pool_.for_each(items_of(rows), std::uint64_t{rows} * (c.row_width() + c.heads * c.rope_width) * 4,
                 [&](std::uint32_t item, std::uint32_t) {
                   const std::uint32_t end = std::min(rows, (item + 1) * kRowsPerItem);
                   for (std::uint32_t r = item * kRowsPerItem; r < end; ++r) {
                     finish_row(layer, index, r, q + r * q_stride);
                   }
                 });

  const std::size_t latent_stride = std::size_t{c.heads} * c.row_width();
  products_.clear();
  for (std::uint32_t h = 0; h < c.heads; ++h) {
    products_.push_back({&layer.key_absorb[h], q + std::size_t{h} * (c.nope_width + c.rope_width),
                         q_stride, q_latent_.data() + std::size_t{h} * c.row_width(), latent_stride,
                         rows});
  }
  multiply(kernels_, pool_, products_);
  for (const Chunk& chunk : batch.chunks) {
    if (chunk.load != nullptr) chunk.load->wait_layer(index);
  }
  attention_.run(index, q_latent_.data(), attended_.data());

  const std::size_t value_stride = std::size_t{c.heads} * c.value_width;
  products_.clear();
  for (std::uint32_t h = 0; h < c.heads; ++h) {
    products_.push_back({&layer.value_expand[h], attended_.data() + std::size_t{h} * c.kv_lora_rank,
                         std::size_t{c.heads} * c.kv_lora_rank,
                         values_.data() + std::size_t{h} * c.value_width, value_stride, rows});
  }
  multiply(kernels_, pool_, products_);
  const Product out{&layer.attention_out, values_.data(), value_stride, x_.data(), hidden, rows,
                    Accumulate::kAdd};
  multiply(kernels_, pool_, {&out, 1});
}

void Model::forward(const Batch& batch) {
  embed(batch);
  attention_.plan(batch.chunks);
  for (std::uint32_t i = 0; i < config_.layers; ++i) {
    const LayerWeights& layer = weights_.layers[i];
    attend(layer, i, batch);
    normalize(x_.data(), layer.feed_norm, batch.rows());
    if (i < config_.dense_layers) {
      experts_.run_dense(layer.dense, normed_.data(), batch.rows(), x_.data());
    } else {
      experts_.run(layer, normed_.data(), batch.rows(), x_.data(),
                   expert_layers_[i - config_.dense_layers]);
    }
  }
  compute_logits(batch);
}

void Model::compute_logits(const Batch& batch) {
  const std::size_t hidden = config_.hidden_size;
  const auto rows = static_cast<std::uint32_t>(batch.logit_rows.size());
  for (std::size_t i = 0; i < rows; ++i) {
    kernels_.rms_norm(x_.data() + batch.logit_rows[i] * hidden, weights_.final_norm.data(),
                      config_.norm_epsilon, hidden, normed_.data() + i * hidden);
  }
  const Product head{&weights_.head, normed_.data(),     hidden,
                     logits_.data(), config_.vocab_size, rows};
  multiply(kernels_, pool_, {&head, 1});
}

}  // namespace penstock::engine
