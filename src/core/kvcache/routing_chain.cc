#include "core/kvcache/routing_chain.h"

#include "base/unit_hash.h"

namespace penstock::kvcache {
namespace {

static_assert(kRoutingUnit * sizeof(TokenId) == kHashUnitBytes);

RoutingKey key_of(std::uint64_t hash) {
  return link_without(kKeySpareBits, hash);
}

}  // namespace

RoutingKey RoutingChain::root(std::uint64_t context) const {
  return key_of(mix64(seed_, context));
}

void RoutingChain::extend(RoutingKey from, std::span<const TokenId> tokens,
                          std::span<const EngineKvMedia> media,
                          std::vector<RoutingKey>& out) const {
  out.resize(tokens.size() / kRoutingUnit);
  if (media.empty())
    return chain_units(tokens.data(), out.size(), {seed_, kKeySpareBits}, from, out.data());
  hash_units(tokens.data(), out.size(), seed_, out.data());
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint64_t unit = out[i];
    for (; !media.empty() && media.front().token < (i + 1) * kRoutingUnit; media = media.subspan(1))
      unit = mix64(unit, media.front().digest + media.front().token % kRoutingUnit);
    from = key_of(mix64(from, unit));
    out[i] = from;
  }
}

}  // namespace penstock::kvcache
