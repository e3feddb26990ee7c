#include "engine/kv_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"

namespace penstock::engine {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t round_up(std::size_t n, std::size_t unit) {
  return (n + unit - 1) / unit * unit;
}

}  // namespace

Result<std::unique_ptr<KvPool>> KvPool::open(const KvLayout& layout, std::uint32_t blocks) {
  if (blocks == 0 || layout.block_bytes() == 0) {
    return fail(ErrorCode::kInvalidArgument, "the KV pool needs at least one block", "kv_blocks");
  }
  std::unique_ptr<KvPool> pool(new KvPool);
  pool->layout_ = layout;
  pool->payload_offset_ = round_up(std::size_t{blocks} * sizeof(std::uint64_t), kPage);
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(std::size_t{blocks}, layout.block_bytes(), &bytes) ||
      bytes > (std::size_t{1} << 46)) {
    return fail(ErrorCode::kInvalidArgument, "the KV pool would be larger than 64 TiB",
                "kv_blocks");
  }
  pool->mapped_bytes_ = round_up(pool->payload_offset_ + bytes, kPage);
  pool->fd_ = memfd_create("penstock-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (pool->fd_ < 0 || ftruncate(pool->fd_, static_cast<off_t>(pool->mapped_bytes_)) != 0) {
    return fail(ErrorCode::kIo, fmt::format("creating {} bytes of shared memory for KV: {}",
                                            pool->mapped_bytes_, std::strerror(errno)));
  }
  // A KV daemon maps only what can't shrink under it.
  ENSURE(fcntl(pool->fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  void* base = mmap(nullptr, pool->mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, pool->fd_, 0);
  if (base == MAP_FAILED) {
    return fail(ErrorCode::kIo, fmt::format("mapping {} bytes of shared memory for KV: {}",
                                            pool->mapped_bytes_, std::strerror(errno)));
  }
  pool->base_ = static_cast<std::byte*>(base);
  pool->payloads_ = pool->base_ + pool->payload_offset_;
  pool->references_.assign(blocks, 0);
  pool->free_.reserve(blocks);
  for (std::uint32_t i = blocks; i > 0; --i)
    pool->free_.push_back(BlockId{i - 1});
  return pool;
}

KvPool::~KvPool() {
  if (base_ != nullptr) munmap(base_, mapped_bytes_);
  if (fd_ >= 0) close(fd_);
}

std::optional<BlockId> KvPool::allocate() {
  if (free_.empty()) return std::nullopt;
  const BlockId block = free_.back();
  free_.pop_back();
  references_[block.value] = 1;
  auto* words = reinterpret_cast<std::uint64_t*>(base_);
  // Readers compare the word before and after they copy; the bump must be visible before the first
  // byte of the new content is.
  std::atomic_ref(words[block.value]).fetch_add(1, std::memory_order_seq_cst);
  return block;
}

void KvPool::retain(BlockId block) {
  ENSURE(block.value < references_.size() && references_[block.value] > 0);
  ++references_[block.value];
}

void KvPool::release(BlockId block) {
  ENSURE(block.value < references_.size() && references_[block.value] > 0);
  if (--references_[block.value] == 0) free_.push_back(block);
}

std::uint32_t KvPool::references(BlockId block) const {
  ENSURE(block.value < references_.size());
  return references_[block.value];
}

std::uint64_t KvPool::generation(BlockId block) const {
  ENSURE(block.value < references_.size());
  auto* words = reinterpret_cast<std::uint64_t*>(base_);
  return std::atomic_ref(words[block.value]).load(std::memory_order_acquire);
}

void KvPool::copy(BlockId from, BlockId to) {
  ENSURE(from != to);
  std::memcpy(payload(to).data(), payload(from).data(), layout_.block_bytes());
}

std::span<std::byte> KvPool::payload(BlockId block) {
  ENSURE(block.value < references_.size());
  return {slice(block, 0), layout_.block_bytes()};
}

}  // namespace penstock::engine
