#include "io/transport/pool_table.h"

#include <atomic>

#include "base/check.h"

namespace penstock::transport {
namespace {

const std::uint64_t& word(const PoolView& view, std::uint32_t block) {
  return reinterpret_cast<const std::uint64_t*>(view.memory.data())[block];
}

std::uint64_t load(const std::uint64_t& from, std::memory_order order) {
  // The word is only read here; atomic_ref of this standard wants it without const.
  return std::atomic_ref(const_cast<std::uint64_t&>(from)).load(order);
}

}  // namespace

bool PoolView::valid() const {
  std::size_t payloads = 0;
  std::size_t end = 0;
  return blocks > 0 && block_bytes > 0 &&
         reinterpret_cast<std::uintptr_t>(memory.data()) % sizeof(std::uint64_t) == 0 &&
         payload_offset >= std::size_t{blocks} * sizeof(std::uint64_t) &&
         !__builtin_mul_overflow(block_bytes, std::size_t{blocks}, &payloads) &&
         !__builtin_add_overflow(payload_offset, payloads, &end) && end <= memory.size();
}

std::optional<std::span<const std::byte>> PoolView::place(const RemoteSlice& slice) const {
  if (slice.block >= blocks || slice.length == 0 || slice.length > block_bytes ||
      slice.offset > block_bytes - slice.length) {
    return std::nullopt;
  }
  return memory.subspan(payload_offset + slice.block * block_bytes + slice.offset, slice.length);
}

std::uint64_t PoolView::generation(std::uint32_t block) const {
  return load(word(*this, block), std::memory_order_acquire);
}

std::uint64_t PoolView::generation_after_reading(std::uint32_t block) const {
  // A sequence lock's reader: the payload's loads may not sink below the second look.
#if defined(__has_feature) && __has_feature(thread_sanitizer)
  // The sanitizer knows no fences; a read-modify-write would need memory that may be written.
#else
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
  return load(word(*this, block), std::memory_order_acquire);
}

std::uint32_t PoolTable::add(const PublishedPool& pool) {
  pools_.push_back(pool);
  const std::uint32_t number = size() - 1;
  ENSURE(view(number)->valid());
  return number;
}

std::optional<PoolView> PoolTable::view(std::uint32_t number) const {
  if (number >= pools_.size()) return std::nullopt;
  const PublishedPool& pool = pools_[number];
  return PoolView{{pool.base, pool.bytes}, pool.payload_offset, pool.block_bytes, pool.blocks};
}

}  // namespace penstock::transport
