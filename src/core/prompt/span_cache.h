// SpanCache: encoded prompt spans by their text, in bounded memory.
//
// Agents resend the same hundred kilobytes at every turn; hashing and comparing run at ten GB/s,
// encoding at 20 to 200 MB/s. A span is found by XXH3 of its text, seeded with a secret drawn at
// start so that nobody can aim at another's place; its text is kept and compared, so nobody gets
// another text's ids. Least recently used spans go first. A short span is stored when it comes the
// second time: chats that never come again would push out what agents resend.
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
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "domain/tokens.h"

namespace penstock {

struct SpanCacheLimits {
  std::size_t bytes_max = std::size_t{96} << 20;  // texts and ids
  std::size_t span_bytes_min = 64;                // below, encoding is as cheap as looking up
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
  // A span of the tokenizer with this fingerprint; `place` is what place() gives.
  struct Span {
    std::uint64_t place = 0;
    std::uint64_t tokenizer = 0;
    std::string_view text;
  };

  explicit SpanCache(std::span<const std::uint8_t, 32> secret, Limits limits = {});

  // Whether a span of this size is looked up and stored at all.
  bool wants(std::size_t text_bytes) const { return text_bytes >= limits_.span_bytes_min; }
  Span place(std::uint64_t tokenizer_fingerprint, std::string_view text) const;
  // Returns the ids and makes the span the most recently used, or null; counts a hit or a miss.
  TokenIds find(const Span& span);
  // Stores a copy, evicting what was used least recently and a span in the same place; does nothing
  // when it would not fit, is there already, or is short and comes the first time.
  void insert(const Span& span, std::span<const TokenId> ids);

  const Counters& counters() const { return counters_; }
  std::size_t bytes() const { return bytes_; }
  std::size_t size() const { return index_.size(); }

 private:
  struct Entry {
    std::uint64_t place = 0;
    std::uint64_t tokenizer = 0;
    std::string text;
    TokenIds ids;

    bool holds(const Span& span) const { return tokenizer == span.tokenizer && text == span.text; }
  };
  using Entries = std::list<Entry>;
  static constexpr std::size_t kComeOnce = std::size_t{1} << 14;  // short spans remembered

  static std::size_t cost(std::size_t text_bytes, std::size_t id_count);
  bool came_before(std::uint64_t place);
  void erase(Entries::iterator entry);

  std::uint64_t seed_ = 0;
  Limits limits_;
  Counters counters_;
  std::size_t bytes_ = 0;
  Entries entries_;                                             // most recently used first
  std::unordered_map<std::uint64_t, Entries::iterator> index_;  // by place
  std::vector<std::uint64_t> come_once_;  // places of short spans, by their low bits
};

}  // namespace penstock
