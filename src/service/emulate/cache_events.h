// What an emulated rank publishes of its cache: messages of KV events in either encoding.
//
// Arrays by position have hashes as integers, maps have them as 32 bytes, as the engines send them
// before and after June 2026. Concurrency: pure. Source: facts/engines.md 4.5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "domain/tokens.h"
#include "service/emulate/block_cache.h"

namespace penstock::emulate {

struct CacheEvents {
  double unix_seconds = 0;
  std::size_t rank = 0;
  bool maps = true;
  std::string salt;  // cache_salt of the request; empty: none
};

// Of a prompt whose use of the cache brought this about; nothing when nothing has changed.
std::optional<std::string> cache_events(const CacheEvents& how, std::span<const TokenId> prompt,
                                        const BlockCache::Used& used);

}  // namespace penstock::emulate
