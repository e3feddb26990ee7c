// Shared memory of the KV daemon: its arena, which only it writes, and others' memory, mapped to
// read.
//
// The arena is a memfd of huge pages when the machine has them reserved, else of normal ones
// (transparent huge pages asked for). After the daemon has mapped it, the file is sealed: nobody
// can resize it and nobody else can map it for writing, so a reader that gets the descriptor can
// neither scribble on it nor make its owner fault. Memory of others is accepted only as a memfd
// that can't shrink, for the same reason.
//
// Invariants: a mapping stays readable as long as the object, whatever its owner does. Forked
// children don't inherit mappings, so pages under DMA are never copied on write.
// Units and shapes: bytes; an arena is rounded up to 2 MiB and aligned to 4 KiB at least.
// Errors: kIo with the system's reason; kInvalidArgument for memory that is no fit.
// Concurrency: values that move; the memory itself is synchronised by whoever shares it.
// Source: design.md section 4; docs/protocol/kv.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "io/kv/kv_socket.h"

namespace penstock::kv {

// Memory that unmaps itself.
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

class Arena {
 public:
  static Result<Arena> create(std::uint64_t bytes);
  std::span<std::byte> memory() const { return mapping_.memory(); }
  int fd() const { return fd_.get(); }
  bool huge_pages() const { return huge_pages_; }

 private:
  Arena(Descriptor fd, Mapping mapping, bool huge_pages)
      : fd_(std::move(fd)), mapping_(std::move(mapping)), huge_pages_(huge_pages) {}
  Descriptor fd_;
  Mapping mapping_;
  bool huge_pages_;
};

// Maps the first `bytes` of somebody's memfd to read. The mapping's memory must not be written.
Result<Mapping> map_to_read(int fd, std::uint64_t bytes);

}  // namespace penstock::kv
