// The part of 3FS's USRBIO interface that we call, as its shared library has it.
//
// An iov is memory shared with the 3FS client process; an ior is a ring of operations on it, either
// of reads or of writes. The layouts are those of the library of 2026 (hf3fs_iorcreate4).
// Concurrency: one thread prepares and reaps a ring. Source: facts of 3FS's UsrbIo.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>

namespace penstock::usrbio {

struct Iov {
  std::uint8_t* base;
  void* handle;
  char id[16];
  char mount_point[256];
  std::size_t size;
  std::size_t block_size;
  int numa;
};

struct Ior {
  Iov iov;
  void* handle;
  char mount_point[256];
  bool for_read;
  int io_depth;
  int priority;
  int timeout;
  std::uint64_t flags;
};

struct Cqe {
  std::int32_t index;
  std::int32_t reserved;
  std::int64_t result;  // bytes, or less than 0
  const void* user_data;
};

struct Functions {
  // Bytes of the mount point with its 0; -1: the path is not on 3FS.
  int (*extract_mount_point)(char* mount_point, int size, const char* path) = nullptr;
  // 0 or -errno, these two and submit_ios.
  int (*iovcreate)(Iov*, const char* mount_point, std::size_t size, std::size_t block_size,
                   int numa) = nullptr;
  int (*iorcreate4)(Ior*, const char* mount_point, int entries, bool for_read, int io_depth,
                    int timeout, int numa, std::uint64_t flags) = nullptr;
  void (*iovdestroy)(Iov*) = nullptr;
  void (*iordestroy)(Ior*) = nullptr;
  // More than 0: an errno. One that is closed without dereg_fd blocks its number for good.
  int (*reg_fd)(int fd, std::uint64_t flags) = nullptr;
  void (*dereg_fd)(int fd) = nullptr;
  // The operation's index, or -errno.
  int (*prep_io)(const Ior*, const Iov*, bool read, void* at, int fd, std::size_t offset,
                 std::uint64_t bytes, const void* user_data) = nullptr;
  int (*submit_ios)(const Ior*) = nullptr;
  // Results, or -errno; the time is the wall clock's.
  int (*wait_for_ios)(const Ior*, Cqe*, int cqes, int results_min,
                      const std::timespec* until) = nullptr;
};

}  // namespace penstock::usrbio
