// One tensor of a checkpoint in memory, as float32 or bfloat16 bits; and the reader that checks it.
//
// Invariants: bytes.size() equals the product of the shape times the element size.
// Errors: as in weights.h. Concurrency: one thread.
#pragma once

#include <cstring>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "engine/kernels/packed_matrix.h"
#include "engine/safetensors.h"

namespace penstock::engine {

struct Tensor {
  WeightType type = WeightType::kBf16;
  std::vector<std::byte> bytes;

  // The element's bits in its own type.
  std::uint32_t bits(std::size_t index) const {
    if (type == WeightType::kF32) {
      std::uint32_t word = 0;
      std::memcpy(&word, bytes.data() + index * 4, 4);
      return word;
    }
    std::uint16_t half = 0;
    std::memcpy(&half, bytes.data() + index * 2, 2);
    return half;
  }
  // The element's bits as float32.
  std::uint32_t wide_bits(std::size_t index) const {
    return type == WeightType::kF32 ? bits(index) : bits(index) << 16;
  }
};

// Hands out the tensors of one file by name and keeps count of those nobody asked for.
class TensorReader {
 public:
  explicit TensorReader(TensorFile file) : file_(std::move(file)) {}

  // Checks that the tensor is there with this shape and a floating dtype.
  Status expect(const std::string& name, std::initializer_list<std::uint64_t> shape);
  // expect() and read.
  Result<Tensor> read(const std::string& name, std::initializer_list<std::uint64_t> shape);
  // read() of a vector, widened.
  Result<std::vector<float>> read_floats(const std::string& name, std::uint64_t count);
  // Fails when a tensor was never expected, unless its name starts with one of `ignored`.
  Status check_all_used(const std::vector<std::string>& ignored) const;

 private:
  TensorFile file_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace penstock::engine
