// `penstock bench engine`: prefill against OpenBLAS, decode against a plain read of the same bytes.
//
// Prefill: every matrix product of a 512-row chunk, with the engine's kernels and packed weights,
// on one thread, against cblas_sgemm of the same shapes on one thread; once for the model's shapes,
// once for larger ones; and the whole forward pass of a chunk against sgemm of its products.
// Decode: bytes of weights and KV that a step touches, per second, against reading as many bytes
// with the same threads. Both sides take turns and each keeps its best time, so a busy machine
// disturbs both alike.
#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>
#include <thread>

#include <fmt/format.h>

#include "base/rng.h"
#include "bench.h"
#include "engine/engine.h"
#include "engine/model.h"
#include "engine/testing/random_checkpoint.h"

namespace penstock::bench {
namespace {

using namespace penstock::engine;

constexpr std::uint32_t kRows = 512;
constexpr double kPrefillAim = 0.4;
constexpr double kDecodeAim = 0.5;

enum class Meter : std::uint8_t { kWall, kThreadCpu };

double seconds(Meter meter, const std::function<void()>& work) {
  const clockid_t clock = meter == Meter::kWall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
  timespec start{};
  timespec end{};
  clock_gettime(clock, &start);
  work();
  clock_gettime(clock, &end);
  return static_cast<double>(end.tv_sec - start.tv_sec) +
         static_cast<double>(end.tv_nsec - start.tv_nsec) * 1e-9;
}

// Best times of two works that take turns for about `budget` seconds.
struct BestTimes {
  double ours = std::numeric_limits<double>::infinity();
  double theirs = std::numeric_limits<double>::infinity();
};
BestTimes race(Meter meter, double budget, const std::function<void()>& ours,
               const std::function<void()>& theirs) {
  BestTimes best;
  double spent = 0;
  for (int round = 0; round < 3 || spent < budget; ++round) {
    const double a = seconds(meter, ours);
    const double b = seconds(meter, theirs);
    spent += a + b;
    if (round == 0) continue;  // warms caches and pages
    best.ours = std::min(best.ours, a);
    best.theirs = std::min(best.theirs, b);
  }
  return best;
}

class OpenBlas {
 public:
  using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int,
                         float, float*, int);

  OpenBlas() {
    // An OpenBLAS older than the CPU falls back to kernels of 2004; a fair opponent uses the best
    // that it has for this machine. A choice made outside stands.
    const bool wide = supported(InstructionSet::kAvx512);
    if (wide || supported(InstructionSet::kAvx2)) {
      setenv("OPENBLAS_CORETYPE", wide ? "SkylakeX" : "Haswell", 0);
    }
    library_ = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return;
    sgemm_ = reinterpret_cast<Sgemm>(dlsym(library_, "cblas_sgemm"));
    const auto threads =
        reinterpret_cast<void (*)(int)>(dlsym(library_, "openblas_set_num_threads"));
    const auto core = reinterpret_cast<char* (*)()>(dlsym(library_, "openblas_get_corename"));
    if (threads != nullptr) threads(1);
    if (core != nullptr) name_ = fmt::format("OpenBLAS sgemm ({}), 1 thread", core());
  }
  OpenBlas(const OpenBlas&) = delete;
  OpenBlas& operator=(const OpenBlas&) = delete;

  bool present() const { return sgemm_ != nullptr; }
  const std::string& name() const { return name_; }
  // c[rows, outputs] = a[rows, inputs] * transposed(w[outputs, inputs])
  void multiply(const float* a, const float* w, float* c, std::uint32_t rows, std::uint32_t outputs,
                std::uint32_t inputs) const {
    constexpr int kRowMajor = 101;
    constexpr int kPlain = 111;
    constexpr int kTransposed = 112;
    const auto m = static_cast<int>(rows);
    const auto n = static_cast<int>(outputs);
    const auto k = static_cast<int>(inputs);
    sgemm_(kRowMajor, kPlain, kTransposed, m, n, k, 1, a, k, w, k, 0, c, n);
  }

 private:
  void* library_ = nullptr;  // stays loaded: its threads may outlive us
  Sgemm sgemm_ = nullptr;
  std::string name_ = "OpenBLAS sgemm, 1 thread";
};

struct Shape {
  std::uint32_t rows;
  std::uint32_t outputs;
  std::uint32_t inputs;
  double flops() const { return 2.0 * rows * outputs * inputs; }
};

// The products of one chunk of kRows rows through the whole model.
std::vector<Shape> prefill_shapes(const ModelConfig& c) {
  std::vector<Shape> shapes;
  for (std::uint32_t layer = 0; layer < c.layers; ++layer) {
    const std::uint32_t queries = c.q_lora_rank == 0 ? c.query_width() : c.q_lora_rank;
    shapes.push_back({kRows, queries + c.row_width(), c.hidden_size});
    if (c.q_lora_rank != 0) shapes.push_back({kRows, c.query_width(), c.q_lora_rank});
    for (std::uint32_t h = 0; h < c.heads; ++h) {
      shapes.push_back({kRows, c.kv_lora_rank, c.nope_width});
      shapes.push_back({kRows, c.value_width, c.kv_lora_rank});
    }
    shapes.push_back({kRows, c.hidden_size, c.heads * c.value_width});
    if (layer < c.dense_layers) {
      shapes.push_back({kRows, 2 * c.dense_width, c.hidden_size});
      shapes.push_back({kRows, c.hidden_size, c.dense_width});
      continue;
    }
    shapes.push_back({kRows, c.experts, c.hidden_size});
    const std::uint32_t shared = c.shared_experts * c.expert_width;
    if (shared > 0) {
      shapes.push_back({kRows, 2 * shared, c.hidden_size});
      shapes.push_back({kRows, c.hidden_size, shared});
    }
    const std::uint32_t each = std::max(1U, kRows * c.experts_per_token / c.experts);
    for (std::uint32_t e = 0; e < c.experts; ++e) {
      shapes.push_back({each, 2 * c.expert_width, c.hidden_size});
      shapes.push_back({each, c.hidden_size, c.expert_width});
    }
  }
  return shapes;
}

// Operands of a list of products, for both sides.
struct Workload {
  std::vector<Shape> shapes;
  double flops = 0;
  std::vector<PackedMatrix> packed;
  std::vector<std::vector<float>> plain;
  std::vector<float> a;
  std::vector<float> c;

  Workload(std::vector<Shape> list, WeightType type) : shapes(std::move(list)) {
    std::size_t inputs = 0;
    std::size_t outputs = 0;
    Rng rng(1);
    for (const Shape& s : shapes) {
      flops += s.flops();
      inputs = std::max(inputs, std::size_t{s.rows} * s.inputs);
      outputs = std::max(outputs, std::size_t{s.rows} * s.outputs);
      PackedMatrix matrix(s.outputs, s.inputs, type);
      std::vector<float> weights(std::size_t{s.outputs} * s.inputs);
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const auto value = static_cast<float>(rng.uniform() - 0.5);
        const std::uint32_t bits = std::bit_cast<std::uint32_t>(value) & 0xFFFF0000U;
        weights[i] = std::bit_cast<float>(bits);
        matrix.set(static_cast<std::uint32_t>(i / s.inputs),
                   static_cast<std::uint32_t>(i % s.inputs),
                   type == WeightType::kBf16 ? bits >> 16 : bits);
      }
      packed.push_back(std::move(matrix));
      plain.push_back(std::move(weights));
    }
    a.resize(inputs);
    for (float& x : a)
      x = static_cast<float>(rng.uniform() - 0.5);
    c.resize(outputs);
  }
};

Figure race_products(const std::string& name, std::vector<Shape> shapes, WeightType type,
                     const OpenBlas& blas, double budget) {
  if (!blas.present()) {
    return skipped(name, "GFLOP/s", blas.name(), kPrefillAim,
                   "libopenblas.so.0 is not installed (package libopenblas0-pthread)");
  }
  Workload w(std::move(shapes), type);
  ThreadPool pool(1);
  const Kernels& table = kernels(best_instruction_set());
  const BestTimes best = race(
      Meter::kThreadCpu, budget,
      [&] {
        for (std::size_t i = 0; i < w.shapes.size(); ++i) {
          const Shape& s = w.shapes[i];
          const Product p{&w.packed[i], w.a.data(), s.inputs, w.c.data(), s.outputs, s.rows};
          multiply(table, pool, {&p, 1});
        }
      },
      [&] {
        for (std::size_t i = 0; i < w.shapes.size(); ++i) {
          const Shape& s = w.shapes[i];
          blas.multiply(w.a.data(), w.plain[i].data(), w.c.data(), s.rows, s.outputs, s.inputs);
        }
      });
  return more_is_better(name, w.flops / best.ours / 1e9, "GFLOP/s", blas.name(),
                        w.flops / best.theirs / 1e9, kPrefillAim);
}

// The whole forward pass of one chunk, attention and all, against sgemm of its products alone.
Result<Figure> race_forward(const std::string& model_dir, const OpenBlas& blas, double budget) {
  const std::string name = "prefill, whole forward pass of the model";
  if (!blas.present()) {
    return skipped(name, "GFLOP/s", blas.name(), kPrefillAim, "libopenblas.so.0 is not installed");
  }
  TRY(const ModelConfig config, load_config(model_dir));
  TRY(const Weights weights, load_weights(model_dir, config));
  const std::uint32_t rows = std::min(kRows, config.context_length);
  const std::uint32_t count = (rows + kBlockTokens - 1) / kBlockTokens;
  TRY(const auto kv,
      KvPool::open({config.layers, config.kv_lora_rank, config.rope_width, KvDtype::kBf16}, count));
  std::vector<BlockId> blocks;
  for (std::uint32_t i = 0; i < count; ++i)
    blocks.push_back(*kv->allocate());
  Batch batch;
  for (std::uint32_t i = 0; i < rows; ++i)
    batch.tokens.push_back(i * 31 % config.vocab_size);
  batch.chunks.push_back({0, rows, 0, blocks});
  ThreadPool pool(1);
  Model model(config, weights, kernels(best_instruction_set()), pool, *kv, rows, 1);
  Workload w(prefill_shapes(config), WeightType::kBf16);
  const BestTimes best = race(
      Meter::kThreadCpu, budget, [&] { model.forward(batch); },
      [&] {
        for (std::size_t i = 0; i < w.shapes.size(); ++i) {
          const Shape& s = w.shapes[i];
          blas.multiply(w.a.data(), w.plain[i].data(), w.c.data(), s.rows, s.outputs, s.inputs);
        }
      });
  return more_is_better(name, w.flops / best.ours / 1e9, "GFLOP/s", blas.name(),
                        w.flops / best.theirs / 1e9, kPrefillAim);
}

// Reads all bytes of the buffer once, spread over the threads.
std::uint64_t read_all(ThreadPool& pool, const std::vector<std::uint64_t>& words) {
  constexpr std::size_t kPiece = 1U << 15;
  std::vector<std::uint64_t> sums(pool.size(), 0);
  const auto pieces = static_cast<std::uint32_t>((words.size() + kPiece - 1) / kPiece);
  pool.parallel_for(pieces, [&](std::uint32_t piece, std::uint32_t thread) {
    const std::uint64_t* p = words.data() + piece * kPiece;
    const std::size_t n = std::min(kPiece, words.size() - piece * kPiece);
    std::uint64_t lanes[16] = {};
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) {
      for (std::size_t j = 0; j < 16; ++j)
        lanes[j] ^= p[i + j];
    }
    for (; i < n; ++i)
      lanes[0] ^= p[i];
    for (const std::uint64_t lane : lanes)
      sums[thread] ^= lane;
  });
  std::uint64_t all = 0;
  for (const std::uint64_t s : sums)
    all ^= s;
  return all;
}

// One sequence decoding greedily, against reading the weights and KV bytes its step touches.
Result<Figure> race_decode(const std::string& name, const std::string& model_dir, double budget) {
  const std::uint32_t threads = std::clamp(std::thread::hardware_concurrency(), 1U, 2U);
  EngineOptions options;
  options.checkpoint_dir = model_dir;
  options.threads = threads;
  TRY(const auto opened, Engine::open(options));
  Engine& engine = *opened;
  TRY(const ModelConfig config, load_config(model_dir));
  std::size_t bytes = 0;
  {
    TRY(const Weights weights, load_weights(model_dir, config));
    bytes = weights.common_bytes() +
            config.moe_layers() * std::size_t{config.experts_per_token} * weights.expert_bytes();
  }
  const std::uint32_t prompt = std::min(256U, config.context_length / 2);
  bytes += std::size_t{prompt} * config.row_width() * 2 * config.layers;

  const auto submit = [&]() -> Status {
    EngineRequest request;
    request.id = RequestId(1);
    request.prompt = std::make_shared<const std::vector<TokenId>>(prompt, TokenId{1});
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = std::min(64U, config.context_length - prompt);
    TRY_STATUS(engine.submit(std::move(request)));
    engine.step();  // the prefill
    return {};
  };
  ThreadPool pool(threads);
  const std::vector<std::uint64_t> words(bytes / 8, 0x0123456789ABCDEFULL);
  std::uint64_t sink = 0;
  TRY_STATUS(submit());
  Status status;
  const BestTimes best = race(
      Meter::kWall, budget, [&] { engine.step(); },
      [&] {
        sink ^= read_all(pool, words);
        if (status && !engine.has_work()) status = submit();
      });
  TRY_STATUS(status);
  if (sink == 1) return fail(ErrorCode::kInternal, "the sum of equal words cannot be 1");
  const auto size = static_cast<double>(bytes);
  return more_is_better(
      fmt::format("{} ({:.1f} MB a step)", name, size / 1e6), size / best.ours / 1e9, "GB/s",
      fmt::format("plain read, {} threads", threads), size / best.theirs / 1e9, kDecodeAim);
}

// A model whose weights are far larger than the L2 cache.
CheckpointShape large_shape(bool quick) {
  CheckpointShape s;
  s.vocab_size = 4096;
  s.hidden_size = quick ? 512 : 1024;
  s.layers = 4;
  s.heads = 8;
  s.kv_lora_rank = 256;
  s.nope_width = 64;
  s.rope_width = 32;
  s.value_width = 64;
  s.dense_width = 4 * s.hidden_size;
  s.experts = 0;
  s.context_length = 1024;
  return s;
}

}  // namespace

Result<std::vector<Figure>> run_engine(const Options& options) {
  const double budget = options.quick ? 0.3 : 2.0;
  const std::string model_dir = options.model_dir.empty() ? "models/nano" : options.model_dir;
  TRY(const ModelConfig config, load_config(model_dir));
  const OpenBlas blas;
  std::vector<Figure> figures;
  figures.push_back(race_products("prefill, matrix products of the model, 512 rows",
                                  prefill_shapes(config), WeightType::kBf16, blas, budget));
  for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
    figures.push_back(
        race_products(fmt::format("prefill, 512 x 2048 x 2048 and 512 x 4096 x 1024, {} weights",
                                  type == WeightType::kBf16 ? "bfloat16" : "float32"),
                      {{512, 2048, 2048}, {512, 4096, 1024}}, type, blas, budget));
  }
  TRY(Figure forward, race_forward(model_dir, blas, budget));
  figures.push_back(std::move(forward));
  const TemporaryFolder folder;
  TRY_STATUS(write_checkpoint(folder.path(), large_shape(options.quick), 1));
  TRY(Figure large, race_decode("decode, random model larger than L2", folder.path(), budget));
  figures.push_back(std::move(large));
  TRY(Figure small, race_decode("decode, the model", model_dir, budget));
  figures.push_back(std::move(small));
  return figures;
}

}  // namespace penstock::bench
