#include "core/prompt/span_cache.h"

#include <array>
#include <utility>

namespace penstock {

SpanCache::SpanCache(std::span<const std::uint8_t, 32> secret, Limits limits)
    : hasher_(secret), limits_(limits) {}

Hash128 SpanCache::key(std::uint64_t tokenizer_fingerprint, std::string_view text) {
  std::array<std::uint8_t, 8> fingerprint{};
  for (std::size_t i = 0; i < fingerprint.size(); ++i) {
    fingerprint[i] = static_cast<std::uint8_t>(tokenizer_fingerprint >> (8 * i));
  }
  hasher_.begin();
  hasher_.add(fingerprint);
  hasher_.add_field(text);
  return hasher_.finish();
}

TokenIds SpanCache::find(const Hash128& key, std::size_t text_bytes) {
  const auto found = index_.find(key);
  if (found == index_.end()) {
    ++counters_.misses;
    return nullptr;
  }
  ++counters_.hits;
  counters_.hit_bytes += text_bytes;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->ids;
}

// One place for all keys with the same low bits, so a flood of others only makes it forget.
bool SpanCache::came_before(const Hash128& key) {
  if (come_once_.empty()) come_once_.resize(kComeOnce);
  const std::size_t hash = std::hash<Hash128>{}(key);
  return std::exchange(come_once_[hash % kComeOnce], hash) == hash;
}

void SpanCache::insert(const Hash128& key, std::size_t text_bytes, std::span<const TokenId> ids) {
  const std::size_t needed = cost(ids.size());
  if (needed > limits_.bytes_max / 4 || index_.contains(key)) return;
  if (text_bytes < limits_.long_bytes_min && !came_before(key)) return;
  while (bytes_ + needed > limits_.bytes_max) {
    bytes_ -= cost(entries_.back().ids->size());
    index_.erase(entries_.back().key);
    entries_.pop_back();
    ++counters_.evictions;
  }
  entries_.push_front({key, std::make_shared<const std::vector<TokenId>>(ids.begin(), ids.end())});
  index_.emplace(key, entries_.begin());
  bytes_ += needed;
}

std::size_t SpanCache::cost(std::size_t id_count) {
  // An entry with its list node, its vector, and its index node with about one bucket; measured on
  // libstdc++.
  constexpr std::size_t kOverhead = 192;
  return id_count * sizeof(TokenId) + kOverhead;
}

}  // namespace penstock
