// Weight matrices packed for the kernels, and matrix products over them on all threads.
//
// A matrix of `outputs` x `inputs` (as checkpoints store it) becomes panels of 32 outputs, each
// k-major, so that the lanes of a register are outputs and a product streams every weight once per
// tile of rows. bfloat16 stays bfloat16 in memory and is widened (exactly) in registers.
//
// Units and shapes: panels [ceil(outputs / 32)][inputs][32]; unused outputs of the last panel are
// 0. Invariants: see kernels.h; how products are split over threads does not change a bit.
// Concurrency: a PackedMatrix is immutable after packing; multiply() is called by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/kernels/kernels.h"
#include "engine/kernels/thread_pool.h"

namespace penstock::engine {

// Memory on a cache line boundary, zeroed.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes);
  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

// float32 scratch of a fixed size.
class FloatBuffer {
 public:
  FloatBuffer() = default;
  explicit FloatBuffer(std::size_t count) : buffer_(count * sizeof(float)) {}
  float* data() const { return reinterpret_cast<float*>(buffer_.data()); }
  std::size_t size() const { return buffer_.size() / sizeof(float); }

 private:
  AlignedBuffer buffer_;
};

class PackedMatrix {
 public:
  PackedMatrix() = default;
  PackedMatrix(std::uint32_t outputs, std::uint32_t inputs, WeightType type);

  std::uint32_t outputs() const { return outputs_; }
  std::uint32_t inputs() const { return inputs_; }
  WeightType type() const { return type_; }
  std::size_t bytes() const { return data_.size(); }
  std::uint32_t panels() const { return (outputs_ + kPanelWidth - 1) / kPanelWidth; }
  const std::byte* panel(std::uint32_t i) const {
    return data_.data() + std::size_t{i} * inputs_ * kPanelWidth * element_bytes();
  }
  // Sets one element while packing; `bits` are those of the type (bfloat16 in the low half).
  void set(std::uint32_t output, std::uint32_t input, std::uint32_t bits);

 private:
  std::size_t element_bytes() const { return type_ == WeightType::kBf16 ? 2 : 4; }

  std::uint32_t outputs_ = 0;
  std::uint32_t inputs_ = 0;
  WeightType type_ = WeightType::kBf16;
  AlignedBuffer data_;
};

enum class Accumulate : std::uint8_t { kOverwrite, kAdd };

// c[rows, outputs] = (kAdd ? c : 0) + a[rows, inputs] * weights
struct Product {
  const PackedMatrix* weights;
  const float* a;  // [rows, inputs], stride lda
  std::size_t lda;
  float* c;  // [rows, outputs], stride ldc
  std::size_t ldc;
  std::uint32_t rows;
  Accumulate accumulate = Accumulate::kOverwrite;
};

// Runs independent products, all in one parallel region.
void multiply(const Kernels& kernels, ThreadPool& pool, std::span<const Product> products);

}  // namespace penstock::engine
