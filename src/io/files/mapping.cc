#include "io/files/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace penstock {
namespace {

std::unexpected<Error> system_error(std::string_view what, std::uint64_t bytes) {
  return fail(ErrorCode::kIo, fmt::format("{} {} bytes of shared memory for KV: {}", what, bytes,
                                          std::strerror(errno)));
}

}  // namespace

Mapping::~Mapping() {
  if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
}

Result<Mapping> map_to_read(int fd, std::uint64_t bytes) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "shared memory for KV must be a memfd with F_SEAL_SHRINK");
  }
  struct stat status{};
  if (::fstat(fd, &status) != 0) return system_error("cannot look at", bytes);
  if (bytes == 0 || static_cast<std::uint64_t>(status.st_size) < bytes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("shared memory said to have {} bytes has {}", bytes, status.st_size));
  }
  void* base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return system_error("cannot map", bytes);
  ::madvise(base, bytes, MADV_DONTFORK);
  return Mapping({static_cast<std::byte*>(base), bytes});
}

}  // namespace penstock
