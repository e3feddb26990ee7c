// PoolTable: the pools that this process has published, and the looks at their generation words.
//
// Source: port/transport.h; engine/kv_pool.h for the shape of the memory. Errors: values.
// Concurrency: the transport's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "port/transport.h"

namespace penstock::transport {

// Where blocks and their generation words lie in memory that is mapped.
struct PoolView {
  std::span<const std::byte> memory;
  std::size_t payload_offset = 0;
  std::size_t block_bytes = 0;
  std::uint32_t blocks = 0;

  // Whether the parts fit into the memory, and words are aligned.
  bool valid() const;
  // The bytes that a slice names; nullopt when there is no such place.
  std::optional<std::span<const std::byte>> place(const RemoteSlice& slice) const;
  // The generation of a block that exists, before anything that is read after.
  std::uint64_t generation(std::uint32_t block) const;
  // The generation, after everything that was read before.
  std::uint64_t generation_after_reading(std::uint32_t block) const;
};

class PoolTable {
 public:
  // Precondition: the pool's parts fit into its memory.
  std::uint32_t add(const PublishedPool& pool);
  std::uint32_t size() const { return static_cast<std::uint32_t>(pools_.size()); }
  const PublishedPool& pool(std::uint32_t number) const { return pools_.at(number); }
  // nullopt: no such pool.
  std::optional<PoolView> view(std::uint32_t number) const;

 private:
  std::vector<PublishedPool> pools_;
};

}  // namespace penstock::transport
