// UringSegmentIo: segment files DIR/NNNN.seg through io_uring and O_DIRECT.
//
// open() makes the directory when it is missing and takes its lock file (DIR/LOCK, which also holds
// the store's identity), so that two daemons never share one. Files are opened when first used, by
// the ring too, and stay open; prepare() opens anew, so that a file that was unlinked meanwhile
// does not take writes that nobody finds again. Where the file system refuses O_DIRECT, access is
// buffered (one log line). Operations beyond the ring's depth wait in a queue here, and so does
// what the kernel does not take at once.
//
// Buffers are not registered with the ring: the arena belongs to the daemon, records are gathered
// from two or three places, and the pages' pinning costs little at 64 KiB and more.
//
// Errors: open() fails with kConflict (locked), kInvalidArgument (the limit of open files is too
// low), kIo (directory, lock, ring).
// Concurrency: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "io/disk/segment_io.h"

namespace penstock::disk {

struct UringOptions {
  std::string folder;
  std::uint64_t segment_bytes = std::uint64_t{64} << 20;
  std::uint32_t segments = 0;  // files that may be open at once; the limit is raised when it can be
  unsigned depth = 128;        // operations in the ring
  std::function<void(const std::string&)> log;
  std::function<int()> submit_fault;  // tests: a negative errno is the submission's result
};

// Whether this process may use io_uring at all (sandboxes forbid it).
bool uring_permitted();

Result<std::unique_ptr<SegmentIo>> open_uring_segments(UringOptions options);

}  // namespace penstock::disk
