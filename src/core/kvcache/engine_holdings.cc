#include "core/kvcache/engine_holdings.h"

#include <algorithm>
#include <numeric>

namespace penstock::kvcache {
namespace {

constexpr std::size_t kPrefetchAhead = 8;
constexpr std::uint32_t kBlockTokensMax = 1U << 16;
constexpr std::size_t kTailBytes = 128;  // a node of the map with its bucket

std::uint32_t after(std::uint32_t at, std::uint32_t size) {
  return at + 1 == size ? 0 : at + 1;
}

std::span<const std::uint64_t> hashes_of(const EngineKvBatch& batch, const EngineKvEvent& event) {
  return std::span(batch.hashes).subspan(event.hashes.first, event.hashes.count);
}

}  // namespace

std::uint8_t tier_bit(KvTier tier) {
  switch (tier) {
    case KvTier::kDevice:
      return 1;
    case KvTier::kHost:
      return 2;
    case KvTier::kDisk:
      return 4;
    case KvTier::kPeer:
    case KvTier::kCluster:
      return 8;
  }
  return 8;
}

void EngineHoldings::apply(const EngineKvBatch& batch, std::size_t bytes_max, Outcome& out) {
  out.cleared = false;
  out.changes.clear();
  bytes_max_ = bytes_max;
  for (const EngineKvEvent& event : batch.events) {
    if (event.kind == EngineKvEvent::Kind::kCleared) {
      purge();
      ++counts_.cleared;
      out.cleared = true;
      out.changes.clear();
    } else if (!counts_for_prefix(event)) {
      ++counts_.other_groups;
    } else if (event.kind == EngineKvEvent::Kind::kStored) {
      stored(batch, event, out);
    } else {
      removed(batch, event, out);
    }
  }
}

void EngineHoldings::purge() {
  blocks_.reset();
  size_ = used_ = 0;
  tails_.clear();
  group_.reset();
}

std::size_t EngineHoldings::memory_bytes() const {
  return size_ * sizeof(Block) + tails_.size() * kTailBytes;
}

// Whether the event's group has what a prefix needs. Engines that don't say the kind of their
// groups put full attention first.
bool EngineHoldings::counts_for_prefix(const EngineKvEvent& event) {
  if (!event.group) return event.attention != EngineKvEvent::Attention::kOther;
  if (event.kind == EngineKvEvent::Kind::kStored && !group_) {
    const bool counts =
        event.attention == EngineKvEvent::Attention::kFull ||
        (event.attention == EngineKvEvent::Attention::kUnknown && *event.group == 0);
    if (counts) group_ = event.group;
  }
  return group_ == event.group && event.attention != EngineKvEvent::Attention::kOther;
}

void EngineHoldings::learn_stride(std::uint32_t block_tokens) {
  // Blocks of several sizes keep to what they have in common.
  const std::uint64_t common =
      std::lcm(std::uint64_t{std::max(stride_, kRoutingUnit)}, std::uint64_t{block_tokens});
  if (common <= kBlockTokensMax) stride_ = static_cast<std::uint32_t>(common);
}

void EngineHoldings::stored(const EngineKvBatch& batch, const EngineKvEvent& event, Outcome& out) {
  const auto hashes = hashes_of(batch, event);
  if (event.tokens.count == 0) {
    stored_again(hashes, tier_bit(event.tier), out);
    return;
  }
  const bool fits = event.block_tokens > 0 && event.block_tokens <= kBlockTokensMax &&
                    std::uint64_t{event.block_tokens} * hashes.size() == event.tokens.count;
  if (!fits) {
    ++counts_.malformed;
    return;
  }
  const auto cursor = begin(event);
  if (!cursor) {
    counts_.orphans += hashes.size();
    return;
  }
  learn_stride(event.block_tokens);
  if (event.block_tokens % kRoutingUnit == 0 && cursor->tail.count == 0) {
    walk_whole(batch, event, cursor->key, out);
  } else {
    walk_parts(batch, event, *cursor, out);
  }
}

// Blocks that go to a further tier are told by their hashes alone.
void EngineHoldings::stored_again(std::span<const std::uint64_t> hashes, std::uint8_t tier,
                                  Outcome& out) {
  for (const std::uint64_t hash : hashes) {
    const std::uint32_t at = size_ == 0 ? 0 : find(hash);
    if (size_ == 0 || blocks_[at].value == 0) {
      ++counts_.orphans;
      continue;
    }
    hold(hash, blocks_[at].value & ~kKeySpareBits, tier, !tails_.contains(hash), out);
  }
}

std::optional<EngineHoldings::Cursor> EngineHoldings::begin(const EngineKvEvent& event) const {
  Cursor cursor;
  if (!event.parent) {
    cursor.key = chain_.root(event.context);
    return cursor;
  }
  if (size_ == 0) return std::nullopt;
  const Block& parent = blocks_[find(*event.parent)];
  if (parent.value == 0) return std::nullopt;
  cursor.key = parent.value & ~kKeySpareBits;
  if (const auto tail = tails_.find(*event.parent); tail != tails_.end())
    cursor.tail = tail->second;
  return cursor;
}

void EngineHoldings::walk_whole(const EngineKvBatch& batch, const EngineKvEvent& event,
                                RoutingKey from, Outcome& out) {
  const auto hashes = hashes_of(batch, event);
  const std::size_t units = event.block_tokens / kRoutingUnit;
  chain_.extend(from, std::span(batch.tokens).subspan(event.tokens.first, event.tokens.count),
                std::span(batch.media).subspan(event.media.first, event.media.count), keys_);
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (i + kPrefetchAhead < hashes.size()) prefetch(hashes[i + kPrefetchAhead]);
    if (hold(hashes[i], keys_[(i + 1) * units - 1], tier_bit(event.tier), true, out)) continue;
    counts_.refused += hashes.size() - i;
    return;
  }
}

void EngineHoldings::walk_parts(const EngineKvBatch& batch, const EngineKvEvent& event,
                                Cursor cursor, Outcome& out) {
  const auto hashes = hashes_of(batch, event);
  auto media = std::span(batch.media).subspan(event.media.first, event.media.count);
  std::array<TokenId, kRoutingUnit> unit{};
  std::vector<EngineKvMedia> in_unit;
  std::uint32_t token = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    for (std::uint32_t j = 0; j < event.block_tokens; ++j, ++token) {
      const TokenId id = batch.tokens[event.tokens.first + token];
      for (; !media.empty() && media.front().token == token; media = media.subspan(1))
        in_unit.push_back({cursor.tail.count, media.front().digest});
      if (cursor.tail.count < cursor.tail.tokens.size()) {
        cursor.tail.tokens[cursor.tail.count++] = id;
        continue;
      }
      std::ranges::copy(cursor.tail.tokens, unit.begin());
      unit.back() = id;
      chain_.extend(cursor.key, unit, in_unit, keys_);
      cursor.key = keys_[0];
      cursor.tail.count = 0;
      in_unit.clear();
    }
    const bool keyed = cursor.tail.count == 0;
    if (!hold(hashes[i], cursor.key, tier_bit(event.tier), keyed, out)) {
      counts_.refused += hashes.size() - i;
      return;
    }
    if (!keyed) tails_[hashes[i]] = cursor.tail;
  }
}

void EngineHoldings::removed(const EngineKvBatch& batch, const EngineKvEvent& event, Outcome& out) {
  const auto hashes = hashes_of(batch, event);
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (i + kPrefetchAhead < hashes.size()) prefetch(hashes[i + kPrefetchAhead]);
    const std::uint32_t at = size_ == 0 ? 0 : find(hashes[i]);
    const std::uint8_t tier = tier_bit(event.tier);
    if (size_ == 0 || (blocks_[at].value & tier) == 0) {
      ++counts_.orphans;
      continue;
    }
    ++counts_.removed;
    Block& block = blocks_[at];
    block.value &= ~std::uint64_t{tier};
    const auto tail = tails_.empty() ? tails_.end() : tails_.find(hashes[i]);
    if (tail == tails_.end()) out.changes.push_back({block.value & ~kKeySpareBits, tier, false});
    if ((block.value & kKeySpareBits) != 0) continue;
    if (tail != tails_.end()) tails_.erase(tail);
    erase(at);
  }
}

// --- the table of blocks

std::uint32_t EngineHoldings::home_of(std::uint64_t hash) const {
  // Engines' hashes are uniform, but nothing says that they must be.
  const std::uint64_t spread = hash * 0x9E3779B97F4A7C15 >> 32;
  return static_cast<std::uint32_t>(spread * size_ >> 32);
}

void EngineHoldings::prefetch(std::uint64_t hash) const {
  if (size_ != 0) __builtin_prefetch(blocks_.get() + home_of(hash));
}

std::uint32_t EngineHoldings::find(std::uint64_t hash) const {
  std::uint32_t at = home_of(hash);
  while (blocks_[at].value != 0 && blocks_[at].hash != hash)
    at = after(at, size_);
  return at;
}

bool EngineHoldings::hold(std::uint64_t hash, RoutingKey key, std::uint8_t tier, bool keyed,
                          Outcome& out) {
  std::uint32_t at = size_ == 0 ? 0 : find(hash);
  const bool is_new = size_ == 0 || blocks_[at].value == 0;
  if (is_new) {
    if (memory_bytes() >= bytes_max_) return false;
    if ((used_ + 1) * std::uint64_t{8} > size_ * std::uint64_t{7}) {
      grow();
      at = find(hash);
    }
    ++used_;
    blocks_[at] = {hash, key};
  }
  Block& block = blocks_[at];
  const RoutingKey before = block.value & ~kKeySpareBits;
  const bool was_keyed = tails_.empty() || !tails_.contains(hash);
  if (!is_new && (before != key || was_keyed != keyed)) {
    // The engine has given the name to another block.
    const auto tiers = static_cast<std::uint8_t>(block.value & kKeySpareBits);
    if (was_keyed) out.changes.push_back({before, tiers, false});
    tails_.erase(hash);
    block.value = key;
  }
  ++counts_.stored;
  if ((block.value & tier) != 0) return true;
  block.value |= tier;
  if (keyed) out.changes.push_back({key, tier, true});
  return true;
}

void EngineHoldings::grow() {
  const std::uint32_t size = std::max(size_ + 64, size_ + size_ / 4);
  const auto old = std::move(blocks_);
  const std::uint32_t old_size = size_;
  blocks_ = std::make_unique<Block[]>(size);
  size_ = size;
  for (std::uint32_t i = 0; i < old_size; ++i) {
    if (old[i].value != 0) blocks_[find(old[i].hash)] = old[i];
  }
}

void EngineHoldings::erase(std::uint32_t at) {
  const auto distance = [&](std::uint32_t from, std::uint32_t to) {
    return to >= from ? to - from : to + size_ - from;
  };
  std::uint32_t hole = at;
  for (std::uint32_t i = after(at, size_); blocks_[i].value != 0; i = after(i, size_)) {
    // A block may move back to the hole unless its home lies behind it.
    if (distance(home_of(blocks_[i].hash), i) < distance(hole, i)) continue;
    blocks_[hole] = blocks_[i];
    hole = i;
  }
  blocks_[hole] = {};
  --used_;
}

}  // namespace penstock::kvcache
