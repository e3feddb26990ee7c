// SegmentIo: the disk tier's access to its segment files, asynchronous; a door for faults in tests.
//
// Every operation ends with one call of its Done, made inside poll() or wait(), never inside the
// call that starts it. No call but wait() blocks, whatever the file system does. A Done owns what
// its operation needs (buffers are captured in it), so memory lives until the device has answered.
//
// Invariants: operations of one segment may complete in any order.
// Errors: errno values, 0 for success; a transfer may be short. Concurrency: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <sys/uio.h>

#include "base/hash.h"
#include "base/units.h"

namespace penstock::disk {

// Up to three pieces of memory, each 4 KiB aligned and a multiple of it, read or written in order.
struct IoVector {
  std::array<iovec, 3> parts{};
  unsigned count = 0;

  IoVector() = default;
  explicit IoVector(std::span<const std::byte> memory) { add(memory); }
  void add(std::span<const std::byte> memory) {
    if (memory.empty()) return;
    parts[count++] = {const_cast<std::byte*>(memory.data()), memory.size()};
  }
  std::size_t bytes() const {
    std::size_t total = 0;
    for (unsigned i = 0; i < count; ++i)
      total += parts[i].iov_len;
    return total;
  }
};

struct SegmentFile {
  std::uint32_t number = 0;
  std::uint64_t bytes = 0;
};

class SegmentIo {
 public:
  using Done = std::move_only_function<void(int error, std::size_t bytes)>;

  virtual ~SegmentIo() = default;
  virtual Hash128 store() const = 0;                   // identity of the directory
  virtual std::vector<SegmentFile> files() const = 0;  // that exist
  // Creates it and allocates its space; nothing else of the segment is under way.
  virtual void prepare(std::uint32_t segment, Done) = 0;
  virtual void read(std::uint32_t segment, std::uint64_t offset, IoVector to, Done) = 0;
  virtual void write(std::uint32_t segment, std::uint64_t offset, IoVector from, Done) = 0;
  virtual void sync(std::uint32_t segment, Done) = 0;
  virtual std::size_t in_flight() const = 0;  // operations whose Done is still to come
  virtual void poll() = 0;                    // runs the Dones of what is complete
  // poll(), after blocking until something is; false: nothing was within `max`. Needs in_flight() >
  // 0.
  virtual bool wait(Duration max) = 0;
  virtual int event_fd() const = 0;
  virtual void wake() = 0;  // makes event_fd() readable until the next poll()
};

}  // namespace penstock::disk
