#include "engine/kv_pool.h"

#include <sys/mman.h>

#include <cstring>

#include <doctest/doctest.h>

namespace penstock::engine {

TEST_CASE("blocks are handed out once, counted, and freed by the last reference") {
  auto pool = KvPool::open({2, 24, 8, KvDtype::kBf16}, 3);
  REQUIRE(pool);
  KvPool& kv = **pool;
  CHECK(kv.layout().block_bytes() == 2 * 64 * 32 * 2);
  const BlockId a = *kv.allocate();
  const BlockId b = *kv.allocate();
  const BlockId c = *kv.allocate();
  CHECK(a != b);
  CHECK(b != c);
  CHECK(!kv.allocate());
  kv.retain(b);
  kv.release(b);
  CHECK(kv.free_blocks() == 0);
  const std::uint64_t before = kv.generation(b);
  kv.release(b);
  CHECK(kv.free_blocks() == 1);
  CHECK(*kv.allocate() == b);
  CHECK(kv.generation(b) == before + 1);
}

TEST_CASE("another mapping of the memfd sees generations and payloads at the declared offsets") {
  auto pool = KvPool::open({3, 16, 4, KvDtype::kF32}, 5);
  REQUIRE(pool);
  KvPool& kv = **pool;
  const BlockId block = *kv.allocate();
  const BlockId copy = *kv.allocate();
  std::memset(kv.slice(block, 2), 0x5A, kv.layout().slice_bytes());
  kv.copy(block, copy);
  auto* map = static_cast<const std::byte*>(
      mmap(nullptr, kv.mapped_bytes(), PROT_READ, MAP_SHARED, kv.fd(), 0));
  REQUIRE(map != MAP_FAILED);
  std::uint64_t generation = 0;
  std::memcpy(&generation, map + copy.value * sizeof(generation), sizeof(generation));
  CHECK(generation == kv.generation(copy));
  const std::byte* slice = map + kv.payload_offset() + copy.value * kv.layout().block_bytes() +
                           2 * kv.layout().slice_bytes();
  CHECK(slice[0] == std::byte{0x5A});
  CHECK(slice[kv.layout().slice_bytes() - 1] == std::byte{0x5A});
  CHECK(slice[-1] == std::byte{0});
  munmap(const_cast<std::byte*>(map), kv.mapped_bytes());
}

TEST_CASE("a pool of nothing, or of more than an address space, is refused") {
  CHECK(!KvPool::open({2, 24, 8, KvDtype::kBf16}, 0));
  CHECK(!KvPool::open({0, 24, 8, KvDtype::kBf16}, 4));
  CHECK(!KvPool::open({1024, 1 << 14, 1 << 14, KvDtype::kF32}, 0xFFFFFFFF));
}

}  // namespace penstock::engine
