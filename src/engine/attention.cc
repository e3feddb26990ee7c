#include "engine/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace penstock::engine {
namespace {

static_assert(kAttentionBlock == kBlockTokens);

// Rows (query, head) of a tile: enough that loading a block costs little beside using it.
constexpr std::uint32_t kTileRows = 64;

std::uint32_t group_size(std::uint32_t heads) {
  const std::uint32_t groups = (heads + kTileRows - 1) / kTileRows;
  return (heads + groups - 1) / groups;
}

}  // namespace

Attention::Attention(const ModelConfig& config, const Kernels& kernels, ThreadPool& pool,
                     KvPool& kv, std::uint32_t max_rows)
    : config_(config),
      kernels_(kernels),
      pool_(pool),
      kv_(kv),
      latent_stride_((config.kv_lora_rank + kPanelWidth - 1) / kPanelWidth * kPanelWidth),
      heads_per_tile_(group_size(config.heads)),
      // Rows of a tile must lie at one stride, so heads are cut only for single queries.
      queries_per_tile_(heads_per_tile_ < config.heads
                            ? 1
                            : std::max<std::uint32_t>(1, kTileRows / config.heads)),
      scale_(1.0F / std::sqrt(static_cast<float>(config.nope_width + config.rope_width))) {
  const std::size_t rows = std::size_t{heads_per_tile_} * queries_per_tile_;
  for (std::uint32_t i = 0; i < pool.size(); ++i) {
    Scratch s;
    s.transposed = FloatBuffer(std::size_t{config.row_width()} * kBlockTokens);
    s.latents = FloatBuffer(latent_stride_ * kBlockTokens);
    s.scores = FloatBuffer(rows * kBlockTokens);
    s.output = FloatBuffer(rows * latent_stride_);
    s.maximum.resize(rows);
    s.sum.resize(rows);
    s.first.resize(rows);
    s.last.resize(rows);
    scratch_.push_back(std::move(s));
  }
  tiles_.reserve(std::size_t{max_rows} * ((config.heads + heads_per_tile_ - 1) / heads_per_tile_));
}

void Attention::plan(std::span<const Chunk> chunks) {
  chunks_ = chunks;
  tiles_.clear();
  work_ = 0;
  for (std::uint32_t c = 0; c < chunks.size(); ++c) {
    const Chunk& chunk = chunks[c];
    const std::uint64_t keys = std::uint64_t{chunk.position} + chunk.rows;
    work_ += keys * chunk.rows * config_.heads * 2 * config_.row_width();
    for (std::uint32_t query = 0; query < chunk.rows; query += queries_per_tile_) {
      const std::uint32_t queries = std::min(queries_per_tile_, chunk.rows - query);
      for (std::uint32_t head = 0; head < config_.heads; head += heads_per_tile_) {
        tiles_.push_back(
            {c, query, queries, head, std::min(heads_per_tile_, config_.heads - head)});
      }
    }
  }
}

void Attention::run(std::uint32_t layer, const float* q, float* out) {
  pool_.for_each(static_cast<std::uint32_t>(tiles_.size()), work_,
                 [&](std::uint32_t item, std::uint32_t thread) {
                   // Late tiles of a long chunk see the most keys: start with them.
                   run_tile(tiles_[tiles_.size() - 1 - item], layer, q, out, scratch_[thread]);
                 });
}

void Attention::run_tile(const Tile& tile, std::uint32_t layer, const float* q, float* out,
                         Scratch& s) {
  const Chunk& chunk = chunks_[tile.chunk];
  const std::uint32_t rows = tile.queries * tile.heads;
  const std::uint32_t window = config_.window[layer];
  const std::uint32_t first_position = chunk.position + tile.query;
  const std::uint32_t end = first_position + tile.queries;  // keys that the last query sees
  const auto window_start = [&](std::uint32_t position) {
    return window == 0 || position + 1 <= window ? 0 : position + 1 - window;
  };
  std::fill_n(s.maximum.begin(), rows, -std::numeric_limits<float>::infinity());
  std::fill_n(s.sum.begin(), rows, 0.0F);
  std::fill_n(s.output.data(), rows * latent_stride_, 0.0F);

  const std::size_t row = std::size_t{chunk.row} + tile.query;
  AttendArgs args{};
  args.q = q + (row * config_.heads + tile.head) * config_.row_width();
  args.q_stride = config_.row_width();
  args.rows = rows;
  args.width = config_.row_width();
  args.scale = scale_;
  args.transposed = s.transposed.data();
  args.latents = s.latents.data();
  args.latent_stride = latent_stride_;
  args.first = s.first.data();
  args.last = s.last.data();
  args.scores = s.scores.data();
  args.maximum = s.maximum.data();
  args.sum = s.sum.data();
  args.output = s.output.data();
  const WeightType type =
      kv_.layout().dtype == KvDtype::kBf16 ? WeightType::kBf16 : WeightType::kF32;

  for (std::uint32_t base = window_start(first_position) / kBlockTokens * kBlockTokens; base < end;
       base += kBlockTokens) {
    for (std::uint32_t i = 0; i < tile.queries; ++i) {
      const std::uint32_t position = first_position + i;
      const std::uint32_t low = window_start(position);
      const std::uint32_t first = std::min(low > base ? low - base : 0, kBlockTokens);
      const std::uint32_t last =
          std::min(position + 1 > base ? position + 1 - base : 0, kBlockTokens);
      std::fill_n(s.first.begin() + i * tile.heads, tile.heads, first);
      std::fill_n(s.last.begin() + i * tile.heads, tile.heads, last);
    }
    kernels_.load_block({.slice = kv_.slice(chunk.blocks[base / kBlockTokens], layer),
                         .type = type,
                         .tokens = std::min(kBlockTokens, end - base),
                         .width = config_.row_width(),
                         .latent = config_.kv_lora_rank,
                         .latent_stride = latent_stride_,
                         .transposed = s.transposed.data(),
                         .latents = s.latents.data()});
    kernels_.attend_block(args);
  }

  for (std::uint32_t r = 0; r < rows; ++r) {
    const std::size_t index = (row + r / tile.heads) * config_.heads + tile.head + r % tile.heads;
    float* to = out + index * config_.kv_lora_rank;
    const float* from = s.output.data() + r * latent_stride_;
    const float factor = 1.0F / s.sum[r];
    for (std::uint32_t i = 0; i < config_.kv_lora_rank; ++i)
      to[i] = from[i] * factor;
  }
}

}  // namespace penstock::engine
