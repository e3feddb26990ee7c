// What the KV cache service speaks of, as values: block names, layouts, classes, miss reasons.
//
// A block is the KV of `block_tokens` consecutive tokens of one chain, an opaque payload cut into
// slices (one per layer) with a checksum each. Its name is (key, group): the key is a keyed hash
// chained over all blocks before it (core/kvcache/key_chain.h), the group says which state it is:
// history (needed from the whole chain) or window (the state of sliding-window layers at the end
// of that block; needed only where a hit resumes).
//
// Units and shapes: depth counts blocks from the start of the chain, so block i covers tokens
// [i * block_tokens, (i + 1) * block_tokens). Checksums are XXH3-64 of a slice's bytes.
// Concurrency: values. Source: design.md section 6; docs/design/0005-kv-cache.md.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/units.h"

namespace penstock {

using BlockKey = Hash128;

enum class KvGroup : std::uint8_t { kHistory = 0, kWindow = 1 };

struct BlockName {
  BlockKey key;
  KvGroup group = KvGroup::kHistory;
  auto operator<=>(const BlockName&) const = default;
};

enum class KvTier : std::uint8_t { kDevice, kHost, kDisk, kPeer, kCluster };

// Index into the configured TTL classes; 0 is the default class.
using TtlClass = std::uint8_t;
struct TtlClassSpec {
  std::string name;  // "default", "chat", "agent"
  std::chrono::seconds ttl{};
};

// How a worker's KV is laid out; equal fingerprints mean that bytes may be exchanged.
struct KvLayoutSpec {
  std::uint32_t block_tokens = 64;
  std::vector<std::uint32_t> history_slices;  // bytes of each history slice, by layer
  std::vector<std::uint32_t> window_slices;   // bytes of each window slice; empty: no such layers
  std::uint32_t window_tokens = 0;  // tokens a window slice covers; multiple of block_tokens

  const std::vector<std::uint32_t>& slices(KvGroup group) const {
    return group == KvGroup::kHistory ? history_slices : window_slices;
  }
  std::uint64_t bytes(KvGroup group) const {
    std::uint64_t total = 0;
    for (const std::uint32_t slice : slices(group))
      total += slice;
    return total;
  }
  bool operator==(const KvLayoutSpec&) const = default;
};

struct SliceSum {
  std::uint32_t bytes = 0;
  std::uint64_t checksum = 0;
  bool operator==(const SliceSum&) const = default;
};

// What travels with a block's bytes, in memory and on disk.
struct BlockInfo {
  BlockName name;
  BlockKey parent;          // of the block before it in the chain; the root key at depth 0
  BlockKey root;            // the chain's root key: names scope, build and layout
  std::uint32_t depth = 0;  // blocks before it
  TtlClass ttl_class = 0;
  std::uint64_t tenant = 0;  // checksum64 of the tenant's name; for shares and statistics
  std::vector<SliceSum> slices;

  std::uint64_t bytes() const {
    std::uint64_t total = 0;
    for (const SliceSum& slice : slices)
      total += slice.bytes;
    return total;
  }
};

// Why a block was not served, or why it went. Each has its text in to_string and a counter.
enum class MissReason : std::uint8_t {
  kNone,             // it was served
  kNeverStored,      // nothing known of it
  kNotAdmitted,      // seen once, kept out of the disk (admission on second use), gone from memory
  kExpired,          // its class's time since last use was over
  kEvictedHost,      // memory was needed; no lower tier had it
  kEvictedDisk,      // its segment was worth least when space was needed
  kEvictedShare,     // its tenant was above its share
  kParentGone,       // a block before it in its chain went first
  kOtherScope,       // the same tokens are stored, in a scope that this request may not read
  kOtherBuild,       // the same tokens are stored by another engine build, layout or model
  kTooSlow,          // the fetch's budget ended first
  kRecomputeFaster,  // computing it again was predicted to be faster
  kCorrupt,          // a checksum did not match; the copy is quarantined
  kIoError,          // the device failed to read it
  kTierOff,          // the tier that holds it is out of service
  kNoDaemon,         // no KV daemon answered
  kRemoved,          // removed by hand (gc, import of another version)
};
inline constexpr std::size_t kMissReasons = 17;
std::string_view to_string(MissReason reason);
std::string_view to_string(KvTier tier);

// How long an engine takes to compute `fresh` tokens after `context` ones, in seconds:
// base + per_token * fresh + per_pair * fresh * (context + fresh / 2). All 0: not known.
struct PrefillCoefficients {
  double base = 0;
  double per_token = 0;
  double per_pair = 0;

  double seconds(double context, double fresh) const {
    return base + per_token * fresh + per_pair * fresh * (context + fresh / 2);
  }
  bool operator==(const PrefillCoefficients&) const = default;
};

// Wall time in seconds since 1970, for lifetimes that outlive a process; comes in as a value.
using UnixSeconds = Quantity<struct UnixSecondsTag>;

}  // namespace penstock

template <>
struct std::hash<penstock::BlockName> {
  std::size_t operator()(const penstock::BlockName& name) const noexcept {
    return std::hash<penstock::Hash128>{}(name.key) ^ static_cast<std::size_t>(name.group);
  }
};
