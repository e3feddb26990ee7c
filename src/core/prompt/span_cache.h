// SpanCache: encoded prompt spans by keyed hash of their text, in bounded memory.
//
// Agents resend the same hundred kilobytes at every turn; hashing runs at more than 1 GB/s,
// encoding at 20 to 200 MB/s. The key is KeyedHasher over (tokenizer fingerprint, text), with a
// secret drawn at start, so that nobody can make up a text that finds another text's ids. Least
// recently used spans go first. A short span is stored when it comes the second time: chats that
// never come again would push out what agents resend.
//
// Invariants: bytes() <= limits.bytes_max. A span is stored only when it has at least
// limits.span_bytes_min bytes and takes at most a quarter of the cache. Ids are never changed.
// Errors: none.
// Concurrency: one per shard, used by one thread; no lock inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "domain/tokens.h"

namespace penstock {

struct SpanCacheLimits {
  std::size_t bytes_max = std::size_t{64} << 20;
  std::size_t span_bytes_min = 256;   // below, encoding is as cheap as looking up
  std::size_t long_bytes_min = 2048;  // from here on a span is stored when it comes first
};

class SpanCache {
 public:
  using Limits = SpanCacheLimits;
  struct Counters {
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
    std::uint64_t evictions = 0;
    std::uint64_t hit_bytes = 0;  // text that was not encoded again
  };

  explicit SpanCache(std::span<const std::uint8_t, 32> secret, Limits limits = {});

  // Whether a span of this size is looked up and stored at all.
  bool wants(std::size_t text_bytes) const { return text_bytes >= limits_.span_bytes_min; }
  // Names the span for find() and insert().
  Hash128 key(std::uint64_t tokenizer_fingerprint, std::string_view text);
  // Returns the ids and makes the span the most recently used, or null; counts a hit or a miss.
  TokenIds find(const Hash128& key, std::size_t text_bytes);
  // Stores a copy, evicting what was used least recently; does nothing when it would not fit, is
  // there already, or is short and comes the first time.
  void insert(const Hash128& key, std::size_t text_bytes, std::span<const TokenId> ids);

  const Counters& counters() const { return counters_; }
  std::size_t bytes() const { return bytes_; }
  std::size_t size() const { return index_.size(); }

 private:
  struct Entry {
    Hash128 key;
    TokenIds ids;
  };
  static constexpr std::size_t kComeOnce = std::size_t{1} << 14;  // short spans remembered

  static std::size_t cost(std::size_t id_count);
  bool came_before(const Hash128& key);

  KeyedHasher hasher_;
  Limits limits_;
  Counters counters_;
  std::size_t bytes_ = 0;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<Hash128, std::list<Entry>::iterator> index_;
  std::vector<std::size_t> come_once_;  // by their low bits: hashes of keys of short spans
};

}  // namespace penstock
