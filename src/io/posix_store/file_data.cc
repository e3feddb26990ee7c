#include "io/posix_store/file_data.h"

#include <unistd.h>

#include <cerrno>

namespace penstock::posix_store {

int PlainFileData::write(int fd, std::span<const std::byte> bytes) {
  for (off_t offset = 0; !bytes.empty();) {
    const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return errno;
    if (put == 0) return EIO;
    offset += put;
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return 0;
}

std::ptrdiff_t PlainFileData::read(int fd, std::span<std::byte> to, std::uint64_t offset) {
  std::ptrdiff_t total = 0;
  while (!to.empty()) {
    const ssize_t got = ::pread(fd, to.data(), to.size(), static_cast<off_t>(offset) + total);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -errno;
    if (got == 0) break;
    total += got;
    to = to.subspan(static_cast<std::size_t>(got));
  }
  return total;
}

}  // namespace penstock::posix_store
