#include "core/prompt/span_cache.h"

#include <cstring>
#include <iterator>
#include <utility>

#include "base/seeded_hash.h"

namespace penstock {

SpanCache::SpanCache(std::span<const std::uint8_t, 32> secret, Limits limits) : limits_(limits) {
  std::memcpy(&seed_, secret.data(), sizeof seed_);
}

SpanCache::Span SpanCache::place(std::uint64_t tokenizer_fingerprint, std::string_view text) const {
  return {seeded_hash(text, seed_ ^ tokenizer_fingerprint), tokenizer_fingerprint, text};
}

TokenIds SpanCache::find(const Span& span) {
  const auto found = index_.find(span.place);
  if (found == index_.end() || !found->second->holds(span)) {
    ++counters_.misses;
    return nullptr;
  }
  ++counters_.hits;
  counters_.hit_bytes += span.text.size();
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->ids;
}

// One slot for all places with the same low bits, so a flood of others only makes it forget.
bool SpanCache::came_before(std::uint64_t place) {
  if (come_once_.empty()) come_once_.resize(kComeOnce);
  return std::exchange(come_once_[place % kComeOnce], place) == place;
}

void SpanCache::erase(Entries::iterator entry) {
  bytes_ -= cost(entry->text.size(), entry->ids->size());
  index_.erase(entry->place);
  entries_.erase(entry);
  ++counters_.evictions;
}

void SpanCache::insert(const Span& span, std::span<const TokenId> ids) {
  const std::size_t needed = cost(span.text.size(), ids.size());
  if (needed > limits_.bytes_max / 4) return;
  const auto there = index_.find(span.place);
  if (there != index_.end() && there->second->holds(span)) return;
  if (span.text.size() < limits_.long_bytes_min && !came_before(span.place)) return;
  if (there != index_.end()) erase(there->second);
  while (bytes_ + needed > limits_.bytes_max)
    erase(std::prev(entries_.end()));
  entries_.push_front({span.place, span.tokenizer, std::string(span.text),
                       std::make_shared<const std::vector<TokenId>>(ids.begin(), ids.end())});
  index_.emplace(span.place, entries_.begin());
  bytes_ += needed;
}

std::size_t SpanCache::cost(std::size_t text_bytes, std::size_t id_count) {
  // An entry with its list node, its vector, and its index node with about one bucket; measured on
  // libstdc++.
  constexpr std::size_t kOverhead = 224;
  return text_bytes + id_count * sizeof(TokenId) + kOverhead;
}

}  // namespace penstock
