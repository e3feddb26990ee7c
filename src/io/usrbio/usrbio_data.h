// The bytes of files on 3FS through its USRBIO rings, past the kernel's FUSE queue: a FileData for
// PosixStore, whose layout the store keeps ("3fs" in the configuration).
//
// Each call borrows a lane, a ring with memory of its own that the 3FS client shares: a ring is for
// one thread at a time, and for reading or for writing. Lanes are made when they are first needed,
// so opening touches no mount. What a call reads is copied out of the lane when it has arrived, so
// nothing is written into a caller's buffer behind its back. A write ends with fsync, which makes
// the file's length exact for other hosts.
//
// Invariants: a descriptor is registered for the length of a call only; a lane with an operation
// under way is not used by anybody else. A call blocks while 3FS hangs, as pread would: PosixStore
// answers for it at the deadline. Errors: errno's; ENOTSUP: the folder is not on 3FS.
// Concurrency: any number of threads; more than lanes wait for each other.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"
#include "io/posix_store/file_data.h"

namespace penstock::usrbio {

struct UsrbioOptions {
  std::string folder;  // of the store, on a mount of 3FS
  std::string library = "libhf3fs_api_shared.so";
  std::size_t lanes = 8;  // of reading, and as many of writing
  std::size_t lane_bytes = std::size_t{4} << 20;
};

// kUnavailable: the library can't be loaded, or lacks a function; kInvalidArgument: no folder, no
// lanes.
Result<std::unique_ptr<posix_store::FileData>> open_usrbio(UsrbioOptions options);

}  // namespace penstock::usrbio
