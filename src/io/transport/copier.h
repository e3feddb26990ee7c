// Copier: copies slices out of mapped pools, a piece per turn of the loop, and verifies them.
//
// Jobs run one after the other. Each is a sequence lock's read: the generation word, the bytes, the
// word again; then the checksum, which was computed from the very bytes that were copied
// (HashedCopy). Pages that were never touched are mapped 2 MiB at a time, which costs a sixth of
// faulting them in one by one.
//
// Units: kTurnBytes a turn, about a tenth of a millisecond. Errors: the job's ReadEnd.
// Concurrency: the loop's thread. Source: port/transport.h; shared facts on transports, section 2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/hashed_copy.h"
#include "io/files/mapping.h"
#include "io/transport/event_loop.h"
#include "io/transport/pool_table.h"

namespace penstock::transport {

// A peer's pool, mapped to read.
class PoolImage {
 public:
  // Precondition: `view` is of the mapping's memory and valid.
  PoolImage(Mapping mapping, PoolView view);
  const PoolView& view() const { return view_; }
  // Makes the pages of these bytes present.
  void populate(std::span<const std::byte> bytes);

 private:
  Mapping mapping_;
  PoolView view_;
  std::vector<bool> present_;  // by parts of 2 MiB
};

class Copier {
 public:
  struct Job {
    std::uint64_t read = 0;
    const void* owner = nullptr;  // for remove_all()
    std::shared_ptr<PoolImage> image;
    RemoteSlice slice;
    std::byte* into = nullptr;
  };

  Copier(EventLoop& loop, std::function<void()> between_looks,
         std::function<void(std::uint64_t read, ReadEnd)> ended);

  void add(Job job);
  void remove(std::uint64_t read);
  void remove_all(const void* owner);

 private:
  static constexpr std::size_t kTurnBytes = std::size_t{1} << 20;
  static constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

  bool work();
  // One piece of the first job; its end when that was the last.
  std::optional<ReadEnd> step(std::size_t& budget);

  EventLoop& loop_;
  std::function<void()> between_looks_;
  std::function<void(std::uint64_t, ReadEnd)> ended_;
  std::deque<Job> jobs_;
  std::size_t done_bytes_ = 0;  // of the first job
  HashedCopy copy_;
};

}  // namespace penstock::transport
