// What another host's daemon asks of this one, and gets: values.
//
// Concurrency: values; a Fetched's payload is the arena's, and stays as long as it is pinned.
// Source: service/kvd/fetches.h; docs/protocol/kv-peers.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "domain/kv_messages.h"

namespace penstock::service {

struct FetchBlock {
  BlockName name;
  BlockKey parent;
  std::uint32_t depth = 0;
  bool operator==(const FetchBlock&) const = default;
};

struct Fetch {
  std::uint64_t first = 0;  // the blocks have the numbers first, first + 1, ...
  BlockKey root;
  TtlClass ttl_class = 0;
  std::uint64_t tenant = 0;
  std::vector<FetchBlock> blocks;
  Duration budget{};
  bool operator==(const Fetch&) const = default;
};

struct Fetched {
  kv::SessionId session;
  std::uint64_t number = 0;
  MissReason reason = MissReason::kNone;
  // With kNone: the block and its bytes in the arena, pinned until unpin().
  BlockInfo info;
  std::span<const std::byte> payload;
};

}  // namespace penstock::service
