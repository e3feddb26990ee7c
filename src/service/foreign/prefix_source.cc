#include "service/foreign/prefix_source.h"

#include <algorithm>
#include <cstring>

namespace penstock::foreign {

std::vector<kvcache::RoutingKey> text_keys(const kvcache::RoutingChain& chain,
                                           std::uint64_t context, std::string_view text) {
  static_assert(sizeof(TokenId) == kBytesPerToken);
  std::vector<TokenId> units(std::min(text.size(), kTextMax) / kBytesPerToken);
  if (units.empty()) return {};
  std::memcpy(units.data(), text.data(), units.size() * kBytesPerToken);
  std::vector<kvcache::RoutingKey> keys;
  chain.extend(chain.root(context), units, {}, keys);
  return keys;
}

}  // namespace penstock::foreign
