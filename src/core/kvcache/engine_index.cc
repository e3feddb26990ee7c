#include "core/kvcache/engine_index.h"

#include <algorithm>
#include <utility>

namespace penstock::kvcache {
namespace {

// What counts at each level of RankMatch.
constexpr std::array<std::uint8_t, 3> kLevelBits = {1, 1 | 2, 1 | 2 | 4 | 8};

}  // namespace

EngineIndex::SourceId EngineIndex::add(RankOfWorker rank) {
  const SourceId id = next_source_++;
  sources_[id].rank = rank;
  return id;
}

void EngineIndex::remove(SourceId source) {
  purge(source);
  sources_.erase(source);
}

void EngineIndex::purge(SourceId source) {
  const auto found = sources_.find(source);
  if (found == sources_.end()) return;
  for (const HolderTable::Feed feed : found->second.feeds)
    table_.drop_feed(feed);
  found->second.feeds.clear();
}

void EngineIndex::begin_generation(Source& source) {
  source.feeds.insert(source.feeds.begin(), table_.add_feed());
}

void EngineIndex::set_stride(SourceId source, std::uint32_t tokens) {
  if (const auto found = sources_.find(source); found != sources_.end())
    found->second.stride = tokens;
}

void EngineIndex::apply(SourceId id, std::span<const HoldingChange> changes) {
  constexpr std::size_t kAhead = 8;
  table_.sweep();
  const auto found = sources_.find(id);
  if (found == sources_.end()) return;
  Source& source = found->second;
  if (source.feeds.empty()) begin_generation(source);
  for (std::size_t i = 0; i < changes.size(); ++i) {
    if (i + kAhead < changes.size()) table_.prefetch(changes[i + kAhead].key);
    const HoldingChange& change = changes[i];
    const HolderTable::Holder holder{source.feeds.front(), change.tiers};
    if (change.stored) {
      table_.store(change.key, holder);
    } else {
      table_.remove(change.key, holder);
    }
  }
}

void EngineIndex::placed(SourceId id, std::span<const RoutingKey> keys) {
  const auto found = sources_.find(id);
  if (found == sources_.end()) return;
  Source& source = found->second;
  table_.sweep();
  if (source.feeds.empty()) begin_generation(source);
  const std::uint32_t units = std::max(source.stride, kRoutingUnit) / kRoutingUnit;
  make_room(source, keys.size() / units);
  for (std::size_t i = units; i <= keys.size(); i += units) {
    if (!table_.store(keys[i - 1], {source.feeds.front(), tier_bit(KvTier::kDevice)})) break;
  }
}

// Nearly full: the oldest placements go before their time, and are swept while half of the room
// that is left fills.
void EngineIndex::make_room(Source& source, std::size_t blocks) {
  const std::size_t most = blocks_max(bytes_max_);
  if (table_.blocks() < most / 8 * 7) return;
  if (!table_.has_to_sweep()) {
    begin_generation(source);
    if (source.feeds.size() > 2) drop_oldest(source);
  }
  const std::size_t sweeps = HolderTable::kSweepsOfPass * blocks / (most / 16 + 1) + 1;
  for (std::size_t i = 0; i < std::min(sweeps, HolderTable::kSweepsOfPass); ++i)
    table_.sweep();
}

void EngineIndex::drop_oldest(Source& source) {
  table_.drop_feed(source.feeds.back());
  source.feeds.pop_back();
}

void EngineIndex::corrected(SourceId id, std::span<const RoutingKey> keys,
                            std::uint32_t cached_tokens) {
  const auto found = sources_.find(id);
  if (found == sources_.end()) return;
  Source& source = found->second;
  const std::uint32_t units = std::max(source.stride, kRoutingUnit) / kRoutingUnit;
  const std::size_t first = (cached_tokens / kRoutingUnit / units + 1) * units;
  if (first > keys.size()) return;
  // The newest of the older generations that hold the first missing block. None: it was last used
  // in the present one, so all of them are older. The present one stays: this prompt is in it too,
  // and the engine has computed it since.
  std::size_t evicted = source.feeds.size();
  table_.visit(keys[first - 1], [&](HolderTable::Holder holder) {
    for (std::size_t i = 1; i < evicted; ++i) {
      if (source.feeds[i] == holder.feed) evicted = i;
    }
  });
  if (evicted == source.feeds.size()) evicted = 1;
  while (source.feeds.size() > evicted)
    drop_oldest(source);
}

void EngineIndex::age(SourceId id) {
  const auto found = sources_.find(id);
  if (found == sources_.end()) return;
  Source& source = found->second;
  begin_generation(source);
  while (source.feeds.size() > kGenerations)
    drop_oldest(source);
}

// --- match

void EngineIndex::probe(RoutingKey key, Scratch& scratch) const {
  for (const HolderTable::Feed feed : scratch.touched)
    scratch.held[feed] = 0;
  scratch.touched.clear();
  table_.visit(key, [&](HolderTable::Holder holder) {
    scratch.held[holder.feed] = holder.bits;
    scratch.touched.push_back(holder.feed);
  });
}

// All items hold `held` blocks and don't hold `missing`; sets the depths between.
void EngineIndex::halve(std::uint32_t units, std::span<const RoutingKey> keys, Items items,
                        std::uint32_t held, std::uint32_t missing, Scratch& scratch) const {
  while (!items.empty() && missing - held > 1) {
    const std::uint32_t middle = held + (missing - held) / 2;
    probe(keys[std::size_t{middle} * units - 1], scratch);
    const auto without = std::ranges::partition(items, [&](const Scratch::Item& item) {
      return (scratch.held[item.feed] & kLevelBits[item.level]) != 0;
    });
    const Items with = items.first(items.size() - without.size());
    for (Scratch::Item& item : with)
      item.depth = middle;
    halve(units, keys, with, middle, missing, scratch);
    items = items.last(without.size());
    missing = middle;
  }
}

void EngineIndex::match_stride(std::uint32_t stride, std::span<const RoutingKey> keys,
                               Scratch& scratch) const {
  const std::uint32_t units = stride / kRoutingUnit;
  const auto blocks = static_cast<std::uint32_t>(keys.size() / units);
  scratch.items.clear();
  for (const auto& [id, source] : sources_) {
    if (source.stride != stride) continue;
    for (const HolderTable::Feed feed : source.feeds) {
      for (std::uint8_t level = 0; level < kLevelBits.size(); ++level)
        scratch.items.push_back({id, feed, level, 0});
    }
  }
  Items items(scratch.items);
  for (std::uint32_t held = 0; !items.empty() && held < blocks;) {
    const std::uint32_t next = std::min(std::max(2 * held, held + 1), blocks);
    probe(keys[std::size_t{next} * units - 1], scratch);
    const auto without = std::ranges::partition(items, [&](const Scratch::Item& item) {
      return (scratch.held[item.feed] & kLevelBits[item.level]) != 0;
    });
    const Items with = items.first(items.size() - without.size());
    for (Scratch::Item& item : with)
      item.depth = next;
    halve(units, keys, items.last(without.size()), held, next, scratch);
    items = with;
    held = next;
  }
}

std::span<const RankMatch> EngineIndex::match(std::span<const RoutingKey> keys,
                                              Scratch& scratch) const {
  scratch.result.clear();
  scratch.held.assign(table_.feed_numbers(), 0);
  scratch.touched.clear();
  std::vector<std::uint32_t> strides;
  for (const auto& [id, source] : sources_) {
    if (source.stride != 0 && std::ranges::find(strides, source.stride) == strides.end())
      strides.push_back(source.stride);
  }
  for (const std::uint32_t stride : strides) {
    match_stride(stride, keys, scratch);
    for (const Scratch::Item& item : scratch.items) {
      if (item.depth == 0) continue;
      const RankOfWorker rank = sources_.at(item.source).rank;
      auto found = std::ranges::find(scratch.result, rank, &RankMatch::rank);
      if (found == scratch.result.end())
        found = scratch.result.insert(scratch.result.end(), RankMatch{rank, 0, 0, 0});
      std::uint32_t& tokens = item.level == 0   ? found->device
                              : item.level == 1 ? found->host
                                                : found->any;
      tokens = std::max(tokens, item.depth * stride);
    }
  }
  std::ranges::sort(scratch.result, {}, &RankMatch::rank);
  return scratch.result;
}

}  // namespace penstock::kvcache
