// The KV daemon's arena: shared memory that only it writes.
//
// It is a memfd of huge pages when the machine has them reserved, else of normal ones
// (transparent huge pages asked for). After the daemon has mapped it, the file is sealed: nobody
// can resize it and nobody else can map it for writing, so a reader that gets the descriptor can
// neither scribble on it nor make its owner fault.
//
// Invariants: forked children don't inherit the mapping, so pages under DMA are never copied on
// write.
// Units and shapes: bytes; an arena is rounded up to 2 MiB and aligned to 4 KiB at least.
// Errors: kIo with the system's reason; kInvalidArgument for a size that is none.
// Concurrency: a value that moves; the memory itself is synchronised by whoever shares it.
// Source: design.md section 4; docs/protocol/kv.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "io/files/descriptor.h"
#include "io/files/mapping.h"

namespace penstock::kv {

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

}  // namespace penstock::kv
