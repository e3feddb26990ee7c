#include "io/kv/arena.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace penstock::kv {
namespace {

constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
constexpr std::uint64_t kArenaBytesMax = std::uint64_t{1} << 46;

std::unexpected<Error> system_error(std::string_view what, std::uint64_t bytes) {
  return fail(ErrorCode::kIo, fmt::format("{} {} bytes of shared memory for KV: {}", what, bytes,
                                          std::strerror(errno)));
}

struct Memory {
  Descriptor fd;
  Mapping mapping;
};

// A huge-page mapping is reserved as a whole when it is made, so it fails here and not at a touch.
Result<Memory> make(std::uint64_t bytes, unsigned flags) {
  Descriptor fd(::memfd_create("penstock-kv-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (fd.get() < 0 || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return system_error("cannot create", bytes);
  }
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return system_error("cannot map", bytes);
  Mapping mapping({static_cast<std::byte*>(base), bytes});
  if (::fcntl(fd.get(), F_ADD_SEALS,
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    return system_error("cannot seal", bytes);
  }
  ::madvise(base, bytes, MADV_DONTFORK);
  return Memory{std::move(fd), std::move(mapping)};
}

}  // namespace

Result<Arena> Arena::create(std::uint64_t bytes) {
  if (bytes == 0 || bytes > kArenaBytesMax) {
    return fail(ErrorCode::kInvalidArgument, "the KV arena must have 1 byte to 64 TiB",
                "kvd.memory");
  }
  bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  if (auto huge = make(bytes, MFD_HUGETLB)) {
    return Arena(std::move(huge->fd), std::move(huge->mapping), true);
  }
  TRY(Memory normal, make(bytes, 0));
  ::madvise(normal.mapping.memory().data(), bytes, MADV_HUGEPAGE);
  return Arena(std::move(normal.fd), std::move(normal.mapping), false);
}

}  // namespace penstock::kv
