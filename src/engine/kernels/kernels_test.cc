// Every instruction set must give the bits of the plain definitions written here.
#include "engine/kernels/kernels.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "engine/kernels/packed_matrix.h"

#include <doctest/doctest.h>

namespace penstock::engine {
namespace {

std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> all;
  for (const InstructionSet set :
       {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (supported(set)) {
      all.push_back(&kernels(set));
    } else {
      MESSAGE("not tested on this CPU: ", to_string(set));
    }
  }
  return all;
}

std::vector<float> random_floats(Rng& rng, std::size_t n, double spread = 2) {
  std::vector<float> v(n);
  for (float& x : v)
    x = static_cast<float>((2 * rng.uniform() - 1) * spread);
  return v;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

float bf16(float x) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xFFFF0000U);
}

}  // namespace

TEST_CASE("matrix products are one chain of fused multiply-adds per output") {
  Rng rng(1);
  struct Shape {
    std::uint32_t rows, outputs, inputs;
  };
  for (const Shape s : {Shape{1, 1, 1},
                        {1, 300, 600},
                        {1, 32, 7},
                        {3, 33, 5},
                        {13, 64, 300},
                        {14, 70, 257},
                        {15, 31, 64},
                        {29, 96, 513},
                        {130, 40, 20}}) {
    for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
      for (const Accumulate accumulate : {Accumulate::kOverwrite, Accumulate::kAdd}) {
        const std::vector<float> a = random_floats(rng, std::size_t{s.rows} * s.inputs);
        std::vector<float> w = random_floats(rng, std::size_t{s.outputs} * s.inputs);
        const std::vector<float> start = random_floats(rng, std::size_t{s.rows} * s.outputs);
        PackedMatrix packed(s.outputs, s.inputs, type);
        for (std::uint32_t o = 0; o < s.outputs; ++o) {
          for (std::uint32_t i = 0; i < s.inputs; ++i) {
            float& x = w[o * s.inputs + i];
            if (type == WeightType::kBf16) x = bf16(x);
            const auto bits = std::bit_cast<std::uint32_t>(x);
            packed.set(o, i, type == WeightType::kBf16 ? bits >> 16 : bits);
          }
        }
        std::vector<float> expected = start;
        for (std::uint32_t r = 0; r < s.rows; ++r) {
          for (std::uint32_t o = 0; o < s.outputs; ++o) {
            float sum = accumulate == Accumulate::kAdd ? start[r * s.outputs + o] : 0.0F;
            for (std::uint32_t i = 0; i < s.inputs; ++i) {
              sum = std::fma(a[r * s.inputs + i], w[o * s.inputs + i], sum);
            }
            expected[r * s.outputs + o] = sum;
          }
        }
        for (const Kernels* k : all_kernels()) {
          for (const std::uint32_t threads : {1U, 3U}) {
            ThreadPool pool(threads);
            std::vector<float> c = start;
            const Product p{&packed, a.data(), s.inputs, c.data(), s.outputs, s.rows, accumulate};
            multiply(*k, pool, {&p, 1});
            CAPTURE(to_string(k->set));
            CAPTURE(s.rows);
            CAPTURE(s.outputs);
            CHECK(same_bits(c, expected));
          }
        }
      }
    }
  }
}

TEST_CASE("element-wise kernels and reductions agree over instruction sets, tails included") {
  Rng rng(2);
  const Kernels& reference = kernels(InstructionSet::kPortable);
  for (const std::size_t n : {1U, 5U, 16U, 31U, 48U, 100U, 257U}) {
    const std::vector<float> x = random_floats(rng, n, 40);
    const std::vector<float> y = random_floats(rng, n);
    for (const Kernels* k : all_kernels()) {
      CAPTURE(to_string(k->set));
      CAPTURE(n);
      const auto agree = [&](auto run) {
        std::vector<float> expected(n, 1.0F);
        std::vector<float> got(n, 1.0F);
        run(reference, expected.data());
        run(*k, got.data());
        CHECK(same_bits(expected, got));
      };
      agree([&](const Kernels& t, float* out) { t.rms_norm(x.data(), y.data(), 1e-6F, n, out); });
      agree([&](const Kernels& t, float* out) { t.silu_multiply(x.data(), y.data(), n, out); });
      agree([&](const Kernels& t, float* out) { t.sigmoid(x.data(), n, out); });
      agree([&](const Kernels& t, float* out) { t.multiply_add(0.3F, x.data(), n, out); });
      agree([&](const Kernels& t, float* out) { t.exp_scaled(x.data(), 3, 1.7F, n, out); });
      CHECK(k->max_value(x.data(), n) == *std::max_element(x.begin(), x.end()));
    }
  }
}

TEST_CASE("exp is good to an ulp or two, saturates, and keeps NaN") {
  const Kernels& k = kernels(best_instruction_set());
  Rng rng(3);
  for (int i = 0; i < 100000; ++i) {
    const auto x = static_cast<float>(rng.uniform() * 174 - 87);
    float y = 0;
    k.exp_scaled(&x, 0, 1, 1, &y);
    const double exact = std::exp(static_cast<double>(x));
    REQUIRE(std::abs(static_cast<double>(y) - exact) <= exact * 1.8e-7);
  }
  const float infinity = std::numeric_limits<float>::infinity();
  const float in[] = {-infinity, -1000, -87.4F, 0, infinity, std::nanf("")};
  float out[6];
  k.exp_scaled(in, 0, 1, 6, out);
  CHECK(out[0] == 0);
  CHECK(out[1] == 0);
  CHECK(out[2] == 0);
  CHECK(out[3] == 1);
  CHECK(std::isfinite(out[4]));
  CHECK(std::isnan(out[5]));
}

TEST_CASE("attention of a block: loading, ranges and the order of sums agree over sets") {
  Rng rng(4);
  constexpr std::uint32_t kRows = 17;
  constexpr std::uint32_t kWidth = 44;
  constexpr std::uint32_t kLatent = 36;
  constexpr std::size_t kStride = 64;
  const std::vector<float> keys = random_floats(rng, kAttentionBlock * kWidth);
  std::vector<std::uint16_t> half(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    half[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(keys[i]) >> 16);
  }
  const std::vector<float> q = random_floats(rng, kRows * kWidth);
  std::vector<std::uint32_t> first(kRows);
  std::vector<std::uint32_t> last(kRows);
  for (std::uint32_t r = 0; r < kRows; ++r) {
    first[r] = r < 4 ? 0 : static_cast<std::uint32_t>(rng.below(50));
    last[r] =
        r < 4 ? 50
              : std::min<std::uint32_t>(50, first[r] + static_cast<std::uint32_t>(rng.below(50)));
  }
  for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
    const void* slice = type == WeightType::kBf16 ? static_cast<const void*>(half.data())
                                                  : static_cast<const void*>(keys.data());
    std::vector<float> expected;
    for (const Kernels* k : all_kernels()) {
      std::vector<float> transposed(kWidth * kAttentionBlock, 7.0F);
      std::vector<float> latents(kAttentionBlock * kStride, 0.0F);
      k->load_block({static_cast<const std::byte*>(slice), type, 50, kWidth, kLatent, kStride,
                     transposed.data(), latents.data()});
      for (std::uint32_t t = 0; t < kAttentionBlock; ++t) {
        for (std::uint32_t i = 0; i < kWidth; ++i) {
          const float stored = keys[t * kWidth + i];
          const float value = t >= 50 ? 0.0F : type == WeightType::kBf16 ? bf16(stored) : stored;
          REQUIRE(transposed[i * kAttentionBlock + t] == value);
          if (i < kLatent) REQUIRE(latents[t * kStride + i] == value);
        }
      }
      std::vector<float> scores(kRows * kAttentionBlock);
      std::vector<float> result(kRows * (kStride + 2), 0.0F);
      float* maximum = result.data() + kRows * kStride;
      std::fill_n(maximum, kRows, -std::numeric_limits<float>::infinity());
      const AttendArgs args{
          q.data(),          kWidth,         kRows,           kWidth,       0.2F,
          transposed.data(), latents.data(), kStride,         first.data(), last.data(),
          scores.data(),     maximum,        maximum + kRows, result.data()};
      k->attend_block(args);
      k->attend_block(args);  // the same keys again: goes through the rescaling
      if (expected.empty()) expected = result;
      CAPTURE(to_string(k->set));
      CHECK(same_bits(expected, result));
    }
    // Against plain softmax in double precision; seeing all keys twice changes nothing.
    for (std::uint32_t r = 0; r < kRows; ++r) {
      if (first[r] >= last[r]) {
        CHECK(expected[r * kStride] == 0);
        continue;
      }
      double sum = 0;
      double value = 0;
      for (std::uint32_t t = first[r]; t < last[r]; ++t) {
        double dot = 0;
        const auto at = [&](std::uint32_t i) {
          const float stored = keys[t * kWidth + i];
          return static_cast<double>(type == WeightType::kBf16 ? bf16(stored) : stored);
        };
        for (std::uint32_t i = 0; i < kWidth; ++i)
          dot += static_cast<double>(q[r * kWidth + i]) * at(i);
        sum += std::exp(dot * 0.2);
        value += std::exp(dot * 0.2) * at(3);
      }
      const float got = expected[r * kStride + 3] / expected[kRows * kStride + kRows + r];
      CHECK(static_cast<double>(got) == doctest::Approx(value / sum).epsilon(1e-4));
    }
  }
}

TEST_CASE("the pool runs every item once, over many regions") {
  ThreadPool pool(4);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::atomic<int>> hits(1 + static_cast<std::size_t>(round) % 50);
    pool.parallel_for(static_cast<std::uint32_t>(hits.size()),
                      [&](std::uint32_t item, std::uint32_t thread) {
                        CHECK(thread < 4);
                        hits[item].fetch_add(1);
                      });
    for (const auto& h : hits)
      REQUIRE(h.load() == 1);
  }
}

TEST_CASE("a call beside the regions runs once, at the latest when it is waited for") {
  for (const std::uint32_t threads : {1U, 4U}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 300; ++round) {
      std::atomic<int> calls{0};
      std::atomic<int> hits{0};
      auto beside = [&] { calls.fetch_add(1); };
      pool.begin_beside(beside);
      for (int region = 0; region < round % 3; ++region)
        pool.parallel_for(7, [&](std::uint32_t, std::uint32_t) { hits.fetch_add(1); });
      pool.end_beside();
      REQUIRE(calls.load() == 1);
      REQUIRE(hits.load() == round % 3 * 7);
    }
  }
}

TEST_CASE("a call beside the regions needs nothing of its caller") {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> done{false};
    auto beside = [&] { done = true; };
    pool.begin_beside(beside);
    while (!done)  // another thread does it meanwhile, parked or not
      std::this_thread::yield();
    pool.end_beside();
  }
}

}  // namespace penstock::engine
