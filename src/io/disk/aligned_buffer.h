// AlignedBuffer: memory for O_DIRECT, aligned to 4 KiB, owned. Concurrency: a value.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>

#include "base/check.h"

namespace penstock::disk {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // `bytes` is a multiple of 4096; the content is undefined.
  explicit AlignedBuffer(std::size_t bytes)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(4096, bytes))), size_(bytes) {
    ENSURE(memory_ != nullptr && bytes % 4096 == 0);
  }
  std::span<std::byte> span() const { return {memory_.get(), size_}; }
  bool empty() const { return size_ == 0; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace penstock::disk
