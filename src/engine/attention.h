// Attention over the paged latent cache, one form for prefill and decode.
//
// A query, already in latent space, walks the 64-token blocks of its sequence in order from
// position 0 (from its window's first block in sliding-window layers) with online softmax: per
// block the maximum, then the rescaled sum and output. The result of a query depends on its own
// keys only, so tiles of queries and heads are just a way to load each block once for many of them.
//
// Units and shapes: q [rows][heads][row_width], out [rows][heads][kv_lora_rank], float32.
// Invariants: keys outside a query's range never enter its arithmetic.
// Concurrency: plan() and run() from one thread; tiles run on the pool with scratch per thread.
// Source: docs/design/0003-one-arithmetic.md; online softmax: Milakov and Gimelshein 2018.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/batch.h"
#include "engine/config.h"
#include "engine/kernels/packed_matrix.h"

namespace penstock::engine {

class Attention {
 public:
  Attention(const ModelConfig& config, const Kernels& kernels, ThreadPool& pool, KvPool& kv,
            std::uint32_t max_rows);

  // Cuts the chunks into tiles; they stay valid for the layers of this pass.
  void plan(std::span<const Chunk> chunks);
  void run(std::uint32_t layer, const float* q, float* out);

 private:
  // Consecutive queries of one chunk, for a range of heads.
  struct Tile {
    std::uint32_t chunk;
    std::uint32_t query;
    std::uint32_t queries;
    std::uint32_t head;
    std::uint32_t heads;
  };
  struct Scratch {
    FloatBuffer transposed;  // [row_width][64]
    FloatBuffer latents;     // [64][latent_stride]
    FloatBuffer scores;      // [tile rows][64]
    FloatBuffer output;      // [tile rows][latent_stride]
    std::vector<float> maximum;
    std::vector<float> sum;
    std::vector<std::uint32_t> first;
    std::vector<std::uint32_t> last;
  };

  void run_tile(const Tile& tile, std::uint32_t layer, const float* q, float* out, Scratch& s);

  const ModelConfig& config_;
  const Kernels& kernels_;
  ThreadPool& pool_;
  KvPool& kv_;
  std::size_t latent_stride_;
  std::uint32_t heads_per_tile_;
  std::uint32_t queries_per_tile_;
  float scale_;
  std::span<const Chunk> chunks_;
  std::vector<Tile> tiles_;
  std::uint64_t work_ = 0;  // multiply-adds of a layer, about
  std::vector<Scratch> scratch_;
};

}  // namespace penstock::engine
