// FileData: how the bytes of an open file are moved, by a thread that waits for them.
//
// Errors: as said; never an exception. Concurrency: any number of threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::posix_store {

class FileData {
 public:
  virtual ~FileData() = default;
  // Writes all of `bytes` to the beginning of a file; 0, or the errno.
  virtual int write(int fd, std::span<const std::byte> bytes) = 0;
  // Reads what there is from `offset` on, at most `to`: bytes read, or the errno, negated.
  virtual std::ptrdiff_t read(int fd, std::span<std::byte> to, std::uint64_t offset) = 0;
};

// pwrite(2) and pread(2).
class PlainFileData final : public FileData {
 public:
  int write(int fd, std::span<const std::byte> bytes) override;
  std::ptrdiff_t read(int fd, std::span<std::byte> to, std::uint64_t offset) override;
};

}  // namespace penstock::posix_store
