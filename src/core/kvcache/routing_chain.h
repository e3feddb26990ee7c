// RoutingChain: our own names of prompts' prefixes, for finding engines that hold them.
//
// Tokens are taken in units of 16, whatever blocks an engine has, so a prefix has one name for all
// engines: key(i + 1) = mix(key(i), XXH3(tokens of unit i, seed)), and the first key is made from
// what else KV depends on (adapter, salt). Media count in the unit that they begin in.
//
// These are for routing only: a collision sends a request to the wrong engine, which then computes
// it. The seed is drawn when the process starts, so nobody can prepare one.
//
// Units and shapes: the low four bits of a key are 0 (EngineHoldings keeps tiers there), and no key
// is 0. Cost: about 5 ns a unit. Concurrency: pure. Source: design.md section 2 (hashing).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"
#include "domain/engine_kv_events.h"
#include "domain/tokens.h"

namespace penstock::kvcache {

using RoutingKey = std::uint64_t;
inline constexpr std::uint32_t kRoutingUnit = 16;  // tokens
inline constexpr std::uint64_t kKeySpareBits = 15;

class RoutingChain {
 public:
  explicit RoutingChain(std::uint64_t seed) : seed_(seed) {}

  // The key of nothing, where a prompt begins. `context`: kv_context().
  RoutingKey root(std::uint64_t context) const;
  // Sets out[i] to the key after i + 1 units of the tokens; a last part of a unit is left out.
  // `media` are sorted by token.
  void extend(RoutingKey from, std::span<const TokenId> tokens,
              std::span<const EngineKvMedia> media, std::vector<RoutingKey>& out) const;

 private:
  std::uint64_t seed_;
};

}  // namespace penstock::kvcache
