// SamplePool: a KV pool with known contents, for tests and benches of transports.
//
// Block b of generation g holds bytes that follow from (b, g) alone, so that a reader in another
// process knows what to expect. Concurrency: one thread writes.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "base/hash.h"
#include "io/files/descriptor.h"
#include "io/files/mapping.h"
#include "port/transport.h"

namespace penstock::transport {

inline void sample_bytes(std::uint32_t block, std::uint64_t generation, std::span<std::byte> to) {
  std::uint64_t word = (generation << 32 | block) * 0x9e3779b97f4a7c15 + 1;
  for (std::size_t at = 0; at < to.size(); at += sizeof word) {
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    std::memcpy(to.data() + at, &word, std::min(sizeof word, to.size() - at));
  }
}

inline constexpr std::uint64_t kFirstGeneration = 1;

class SamplePool {
 public:
  SamplePool(std::uint32_t blocks, std::size_t block_bytes)
      : blocks_(blocks),
        block_bytes_(block_bytes),
        payload_offset_((blocks * sizeof(std::uint64_t) + 4095) / 4096 * 4096),
        fd_(::memfd_create("sample-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    const std::size_t bytes = payload_offset_ + blocks * block_bytes;
    ENSURE(::ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0);
    ENSURE(::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    ENSURE(base != MAP_FAILED);
    mapping_ = Mapping({static_cast<std::byte*>(base), bytes});
    for (std::uint32_t b = 0; b < blocks; ++b) {
      set_generation(b, kFirstGeneration);
      sample_bytes(b, kFirstGeneration, payload(b));
    }
  }

  PublishedPool published() const {
    return {fd_.get(),
            mapping_.memory().data(),
            mapping_.memory().size(),
            payload_offset_,
            block_bytes_,
            blocks_};
  }
  std::span<std::byte> payload(std::uint32_t block) const {
    return mapping_.memory().subspan(payload_offset_ + block * block_bytes_, block_bytes_);
  }
  void set_generation(std::uint32_t block, std::uint64_t generation) const {
    auto* words = reinterpret_cast<std::uint64_t*>(mapping_.memory().data());
    std::atomic_ref(words[block]).store(generation, std::memory_order_seq_cst);
  }
  // A slice, with the checksum of what it holds now.
  RemoteSlice slice(std::uint32_t block, std::uint32_t offset, std::uint32_t length) const {
    const std::span<const std::byte> bytes = payload(block);
    return {0, block, kFirstGeneration, offset, length, checksum64(bytes.subspan(offset, length))};
  }

 private:
  std::uint32_t blocks_;
  std::size_t block_bytes_;
  std::size_t payload_offset_;
  Descriptor fd_;
  Mapping mapping_;
};

}  // namespace penstock::transport
