// Mapping: shared memory that unmaps itself, and others' memory mapped to read.
//
// Memory of others is accepted only as a memfd that can't shrink, so that its owner can't make a
// reader fault. Invariants: a mapping stays readable as long as the object, whatever its owner
// does; forked children don't inherit what map_to_read() made.
// Units and shapes: bytes. Errors: kIo with the system's reason; kInvalidArgument for memory that
// is no fit. Concurrency: values that move; the memory itself is synchronised by whoever shares it.
// Source: design.md section 4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/result.h"

namespace penstock {

class Mapping {
 public:
  Mapping() = default;
  explicit Mapping(std::span<std::byte> memory) : memory_(memory) {}
  ~Mapping();
  Mapping(Mapping&& other) noexcept : memory_(std::exchange(other.memory_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  std::span<std::byte> memory() const { return memory_; }

 private:
  std::span<std::byte> memory_;
};

// Maps the first `bytes` of somebody's memfd to read. The mapping's memory must not be written.
Result<Mapping> map_to_read(int fd, std::uint64_t bytes);

}  // namespace penstock
