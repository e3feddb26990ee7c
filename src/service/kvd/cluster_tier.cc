#include "service/kvd/cluster_tier.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"

namespace penstock::service {
namespace {

constexpr std::size_t kNamesPerLookUp = 64;
constexpr std::size_t kWindowsMax = 32;  // of one look-up, the deepest
constexpr Duration kBusyTick = std::chrono::milliseconds(10);
constexpr Duration kIdleTick = std::chrono::seconds(1);
constexpr Duration kAskUseEvery = std::chrono::minutes(1);
constexpr TimeSlice kAnySlice = ~TimeSlice{0} >> 1;

MissReason look_up_reason(MissReason reason) {
  return reason == MissReason::kTierOff ? reason : MissReason::kTooSlow;
}

}  // namespace

StoreBuffer ClusterTier::make_buffer(std::size_t bytes) {
  StoreBuffer buffer{std::make_shared_for_overwrite<std::byte[]>(bytes), {}};
  buffer.bytes = {buffer.owner.get(), bytes};
  return buffer;
}

// Where a chain's look-up has got to: extents from the far end on, then single blocks.
struct ClusterTier::Chain {
  std::vector<BlockKey> keys;
  std::vector<std::uint32_t> windows;
  std::size_t from = 0;
  KvLayoutSpec layout;
  std::uint32_t per_extent = 0;
  std::size_t first_extent = 0;  // of those to ask for
  std::size_t extents_end = 0;   // those before are still to be asked
  std::size_t found_end = 0;     // blocks in extents that are there
  Done done;
};

ClusterTier::ClusterTier(BlockStore& store, ClusterTierOptions options)
    : store_(store),
      options_(std::move(options)),
      breaker_(options_.breaker),
      known_(options_.known_max) {
  ENSURE(options_.slice.count() > 0);
  if (!options_.gc_owner.empty()) gc_.emplace(store_, gc_options());
}

ClusterGcOptions ClusterTier::gc_options() const {
  ClusterGcOptions wanted;
  wanted.classes = options_.classes;
  wanted.slice = options_.slice;
  wanted.bytes_max = options_.bytes_max;
  wanted.owner = options_.gc_owner;
  return wanted;
}

StoreName ClusterTier::extent_object(const BlockName& last, std::uint32_t blocks) {
  return {StorePool::kExtents, kvcache::extent_name(last, blocks)};
}

StoreName ClusterTier::single_object(const BlockName& name) {
  return {StorePool::kSmall, kvcache::extent_name(name, 1)};
}

TimeSlice ClusterTier::slice_of(UnixSeconds wall) const {
  return static_cast<TimeSlice>(std::max<std::int64_t>(wall.value, 0) / options_.slice.count());
}

Instant ClusterTier::end_of(TimeSlice slice) const {
  constexpr std::chrono::seconds kFar = std::chrono::hours(24 * 365);
  const TimeSlice slices = std::max(slice + 1, slice_) - slice_;
  if (slices > static_cast<TimeSlice>(kFar / options_.slice)) return now_.now + kFar;
  return now_.now + static_cast<std::int64_t>(slices) * options_.slice;
}

TimeSlice ClusterTier::last_slice(TtlClass ttl_class) const {
  if (ttl_class >= options_.classes.size()) return slice_ + 1;
  const auto ttl = options_.classes[ttl_class].ttl.count();
  return slice_ +
         static_cast<TimeSlice>((ttl + options_.slice.count() - 1) / options_.slice.count());
}

void ClusterTier::later(Done done, MissReason reason) {
  ended_.emplace_back(std::move(done), reason);
}

void ClusterTier::judge(MissReason reason) {
  --under_way_;
  if (reason == MissReason::kTierOff) {
    breaker_.off(now_.now);
  } else if (reason == MissReason::kTooSlow || reason == MissReason::kIoError) {
    if (reason == MissReason::kIoError) ++stats_.io_errors;
    breaker_.failed(now_.now);
  } else if (breaker_.closed()) {
    breaker_.succeeded();
  }
}

// --- what is there

void ClusterTier::ask(std::vector<StoreName> names,
                      std::function<void(MissReason, std::vector<StoreFound>)> done) {
  ++under_way_;
  store_.look_up({std::move(names), now_.now + options_.fetch_limit,
                  [this, done = std::move(done)](MissReason reason, std::vector<StoreFound> found) {
                    judge(reason);
                    done(reason, std::move(found));
                  }});
}

void ClusterTier::look_up(const ChainLookUp& chain, TierNow now, Done done) {
  now_ = now;
  if (!breaker_.closed()) {
    ++cluster_.look_ups_slow;
    return later(std::move(done), closed_reason());
  }
  ++cluster_.look_ups;
  const auto asked = std::make_shared<Chain>();
  asked->keys.assign(chain.keys.begin(), chain.keys.end());
  asked->windows.assign(chain.windows.begin(), chain.windows.end());
  asked->from = chain.from;
  asked->layout = chain.layout;
  asked->per_extent = kvcache::extent_blocks(chain.layout.bytes(KvGroup::kHistory));
  asked->first_extent = chain.from / asked->per_extent;
  asked->extents_end = chain.keys.size() / asked->per_extent;
  asked->done = std::move(done);
  ask_extents(asked);
}

void ClusterTier::ask_extents(const std::shared_ptr<Chain>& chain) {
  if (chain->extents_end <= chain->first_extent) return ask_singles(chain);
  const std::size_t count = std::min(kNamesPerLookUp, chain->extents_end - chain->first_extent);
  const std::size_t first = chain->extents_end - count;
  std::vector<StoreName> names;
  for (std::size_t extent = first; extent < chain->extents_end; ++extent)
    names.push_back(extent_object(
        {chain->keys[(extent + 1) * chain->per_extent - 1], KvGroup::kHistory}, chain->per_extent));
  chain->extents_end = first;
  ask(std::move(names), [this, chain, first](MissReason reason, std::vector<StoreFound> found) {
    if (reason != MissReason::kNone) {
      ++cluster_.look_ups_slow;
      return later(std::move(chain->done), look_up_reason(reason));
    }
    bool any = false;
    const auto bytes = static_cast<std::uint32_t>(chain->layout.bytes(KvGroup::kHistory));
    const auto add = [&](std::size_t extent, std::uint64_t object_bytes, TimeSlice slice) {
      const std::size_t begin = extent * chain->per_extent;
      const auto object = std::make_shared<Object>(
          extent_object({chain->keys[begin + chain->per_extent - 1], KvGroup::kHistory},
                        chain->per_extent),
          object_bytes);
      for (std::size_t i = begin; i < begin + chain->per_extent; ++i)
        remember({chain->keys[i], KvGroup::kHistory}, object, bytes, slice);
    };
    // One that was there, as its last block tells, and is no more.
    const auto forget = [&](std::size_t extent) {
      const std::size_t begin = extent * chain->per_extent;
      if (!known_.contains({chain->keys[begin + chain->per_extent - 1], KvGroup::kHistory})) return;
      for (std::size_t i = begin; i < begin + chain->per_extent; ++i)
        known_.gone({chain->keys[i], KvGroup::kHistory});
    };
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i].bytes == 0) {
        forget(first + i);
        continue;
      }
      any = true;
      add(first + i, found[i].bytes, found[i].slice);
      chain->found_end = std::max(chain->found_end, (first + i + 1) * chain->per_extent);
    }
    if (!any) return ask_extents(chain);
    // Those before one that is there are there, too, as far as a hint goes.
    const std::uint64_t usual =
        kvcache::extent_bytes(chain->layout, KvGroup::kHistory, chain->per_extent);
    for (std::size_t extent = chain->first_extent; extent < first; ++extent)
      add(extent, usual, slice_);
    ask_singles(chain);
  });
}

void ClusterTier::ask_singles(const std::shared_ptr<Chain>& chain) {
  const std::size_t begin = std::max(chain->found_end, chain->from);
  const std::size_t end = std::min(
      chain->keys.size(), begin / chain->per_extent * chain->per_extent + chain->per_extent);
  std::vector<BlockName> blocks;
  for (std::size_t depth = begin; depth < end; ++depth)
    blocks.push_back({chain->keys[depth], KvGroup::kHistory});
  std::size_t windows = 0;
  for (auto depth = chain->windows.rbegin(); depth != chain->windows.rend(); ++depth)
    if (*depth < end && windows++ < kWindowsMax && *depth < chain->keys.size())
      blocks.push_back({chain->keys[*depth], KvGroup::kWindow});
  std::vector<StoreName> names;
  for (const BlockName& block : blocks)
    names.push_back(single_object(block));
  if (names.empty()) return later(std::move(chain->done), MissReason::kNone);
  ask(std::move(names), [this, chain, blocks = std::move(blocks)](MissReason reason,
                                                                  std::vector<StoreFound> found) {
    for (std::size_t i = 0; i < found.size(); ++i)
      if (found[i].bytes > 0)
        remember(blocks[i], std::make_shared<Object>(single_object(blocks[i]), found[i].bytes),
                 static_cast<std::uint32_t>(chain->layout.bytes(blocks[i].group)), found[i].slice);
    if (reason != MissReason::kNone) {
      ++cluster_.look_ups_slow;
      reason = look_up_reason(reason);
    }
    later(std::move(chain->done), reason);
  });
}

void ClusterTier::remember(const BlockName& name, const std::shared_ptr<Object>& object,
                           std::uint32_t block_bytes, TimeSlice slice) {
  known_.there(name, block_bytes, end_of(slice));
  if (places_.size() >= options_.names_max && !places_.contains(name)) return;
  if (fading_.size() >= 4 * options_.names_max) return;
  const Instant until = now_.now + options_.positive_life;
  places_[name] = {object, block_bytes, until};
  fading_.emplace_back(until, name);
}

void ClusterTier::discard(Object& object, MissReason reason) {
  if (std::exchange(object.is_gone, true) || reason != MissReason::kCorrupt) return;
  ++stats_.corrupt;
  noted_.erase(object.name.name);
  store_.remove(object.name, kAnySlice, now_.now + options_.write_limit,
                [](MissReason, bool, std::uint64_t) {});
}

std::optional<std::uint32_t> ClusterTier::size_of(const BlockName& name) const {
  if (!breaker_.closed()) return std::nullopt;
  const auto found = places_.find(name);
  if (found == places_.end() || found->second.object->is_gone) return std::nullopt;
  return found->second.block_bytes;
}

void ClusterTier::for_each(
    const std::function<bool(const BlockName&, std::uint32_t)>& visit) const {
  for (const auto& [name, place] : places_)
    if (!place.object->is_gone && !visit(name, place.block_bytes)) return;
}

// --- reads

void ClusterTier::read(TierRead read) {
  ++stats_.reads;
  const auto place = places_.find(read.name);
  if (!breaker_.closed() || place == places_.end()) {
    const MissReason reason = breaker_.closed() ? MissReason::kNeverStored : closed_reason();
    return later([done = std::move(read.done)](MissReason why) { done(why, {}); }, reason);
  }
  const StoreName& name = place->second.object->name;
  const auto [entry, is_new] = fetches_.try_emplace(name);
  Fetch& fetch = entry->second;
  fetch.used = ++last_use_;
  if (fetch.extent) return serve(fetch, std::move(read));
  fetch.waiting.push_back(std::move(read));
  if (!is_new) return;
  fetch.object = place->second.object;
  queue_.push_back(name);
  start_fetches();
}

// Lets extents go that nobody waits for, the longest unused first.
bool ClusterTier::make_room(std::uint64_t bytes) {
  const auto full = [&] {
    return buffer_bytes_ > 0 &&
           buffer_bytes_ + store_.stats().stranded_bytes + bytes > options_.read_bytes_max;
  };
  while (full()) {
    auto oldest = fetches_.end();
    for (auto it = fetches_.begin(); it != fetches_.end(); ++it)
      if (it->second.extent && (oldest == fetches_.end() || it->second.used < oldest->second.used))
        oldest = it;
    if (oldest == fetches_.end()) return false;
    buffer_bytes_ -= oldest->second.buffer.bytes.size();
    fetches_.erase(oldest);
  }
  return true;
}

void ClusterTier::start_fetches() {
  while (!queue_.empty()) {
    const StoreName name = queue_.front();
    Fetch& fetch = fetches_.at(name);
    // One byte more than it should have, so that one that is longer is seen.
    const std::uint64_t bytes = fetch.object->bytes + 1;
    if (bytes > options_.read_bytes_max) {
      queue_.pop_front();
      fail(fetch, MissReason::kCorrupt);
      fetches_.erase(name);
      continue;
    }
    if (!make_room(bytes)) return;
    queue_.pop_front();
    fetch.buffer = make_buffer(bytes);
    buffer_bytes_ += bytes;
    ++under_way_;
    ++(name.pool == StorePool::kExtents ? cluster_.extents_read : cluster_.singles_read);
    store_.get({name, 0, fetch.buffer, now_.now + options_.fetch_limit,
                [this, name](MissReason reason, std::size_t got) {
                  judge(reason);
                  arrived(name, reason, got);
                }});
  }
}

void ClusterTier::arrived(const StoreName& name, MissReason reason, std::size_t bytes) {
  const auto entry = fetches_.find(name);
  ENSURE(entry != fetches_.end());
  Fetch& fetch = entry->second;
  if (reason == MissReason::kNone) {
    stats_.read_bytes += bytes;
    auto extent = kvcache::parse_extent(fetch.buffer.bytes.first(bytes));
    if (extent) {
      fetch.extent = std::move(*extent);
      for (TierRead& read : std::exchange(fetch.waiting, {}))
        serve(fetch, std::move(read));
      return;
    }
    reason = MissReason::kCorrupt;
  }
  fail(fetch, reason);
  buffer_bytes_ -= fetch.buffer.bytes.size();
  fetches_.erase(entry);
}

// Copies a block to where it is wanted, and checks it there.
void ClusterTier::serve(Fetch& fetch, TierRead read) {
  const auto& blocks = fetch.extent->blocks;
  const auto block = std::ranges::find(blocks, read.name, &BlockInfo::name);
  const auto answer = [&](MissReason reason) {
    if (reason == MissReason::kCorrupt) {
      discard(*fetch.object, reason);
      for (const BlockInfo& each : blocks)
        known_.gone(each.name);
    }
    later([done = std::move(read.done)](MissReason why) { done(why, {}); }, reason);
  };
  if (block == blocks.end()) return answer(MissReason::kCorrupt);
  if (fetch.extent->block_bytes > read.destination.size()) return answer(MissReason::kOtherBuild);
  const auto index = static_cast<std::size_t>(block - blocks.begin());
  std::size_t from = fetch.extent->offset(index);
  std::size_t to = 0;
  for (const SliceSum& slice : block->slices) {
    const auto copy = read.destination.subspan(to, slice.bytes);
    std::memcpy(copy.data(), fetch.buffer.bytes.data() + from, slice.bytes);
    if (checksum64(copy) != slice.checksum) return answer(MissReason::kCorrupt);
    from += slice.bytes;
    to += slice.bytes;
  }
  served_.emplace_back(std::move(read), *block);
}

void ClusterTier::fail(Fetch& fetch, MissReason reason) {
  if (reason != MissReason::kTooSlow) discard(*fetch.object, reason);
  for (TierRead& read : std::exchange(fetch.waiting, {}))
    later([done = std::move(read.done)](MissReason why) { done(why, {}); }, reason);
}

void ClusterTier::remove(const BlockName& name, MissReason reason) {
  const auto place = places_.find(name);
  if (place != places_.end()) discard(*place->second.object, reason);
}

// --- time

void ClusterTier::probe() {
  ++under_way_;
  // Of both pools: with too few OSDs only one of them answers.
  store_.look_up({{{StorePool::kSmall, "probe"}, {StorePool::kExtents, "probe"}},
                  now_.now + options_.fetch_limit,
                  [this](MissReason reason, std::vector<StoreFound>) {
                    --under_way_;
                    if (reason == MissReason::kNone) {
                      breaker_.succeeded();
                    } else if (reason == MissReason::kTierOff) {
                      breaker_.off(now_.now);
                    } else {
                      breaker_.failed(now_.now);
                    }
                  }});
}

void ClusterTier::ask_use() {
  ask_use_at_ = now_.now + kAskUseEvery;
  store_.use(now_.now + options_.write_limit,
             [this, alive = std::weak_ptr(alive_)](MissReason reason, const StoreUse& use) {
               if (!alive.expired() && reason == MissReason::kNone) use_ = use;
             });
}

bool ClusterTier::sweep(bool dry_run, std::function<void(const ClusterGcNumbers&)> done) {
  ENSURE(gc_);
  if (sweep_) return false;
  sweep_.emplace();
  sweep_->done = std::move(done);
  if (dry_run) {
    ClusterGcOptions wanted = gc_options();
    wanted.dry_run = true;
    sweep_->dry = std::make_unique<ClusterGc>(store_, std::move(wanted));
  } else {
    sweep_->before = gc_->numbers();
    gc_->hurry();
  }
  return true;
}

void ClusterTier::poll_sweeps(TierNow now) {
  if (!sweep_) return;
  if (sweep_->dry) sweep_->dry->poll(now);
  const ClusterGcNumbers& all = sweep_->dry ? sweep_->dry->numbers() : gc_->numbers();
  const ClusterGcNumbers& before = sweep_->before;
  const bool is_off = !sweep_->dry && !breaker_.closed();  // its run does not go on
  if (all.runs == before.runs && !is_off) return;
  ClusterGcNumbers run = all - before;
  if (is_off) ++run.failures;
  const auto done = std::move(sweep_->done);
  sweep_.reset();
  done(run);
}

void ClusterTier::poll(TierNow now, std::vector<TierRemoval>&) {
  now_ = now;
  if (const TimeSlice slice = slice_of(now.wall); slice != slice_) {
    slice_ = slice;
    noted_.clear();
  }
  while (!fading_.empty() && fading_.front().first <= now.now) {
    const auto place = places_.find(fading_.front().second);
    if (place != places_.end() && place->second.until <= now.now) places_.erase(place);
    fading_.pop_front();
  }
  if (breaker_.take_probe(now.now)) probe();
  if (gc_ && breaker_.closed()) gc_->poll(now);
  poll_sweeps(now);
  if (breaker_.closed() && now.now >= ask_use_at_) ask_use();
  known_.expire(now.now);
  flush_notes();
  store_.poll(now.now);
  flush_notes();  // those that waited for the last ones
  start_fetches();
  // One that was damaged is not kept for later reads.
  std::erase_if(fetches_, [&](const auto& entry) {
    const bool is_over = entry.second.extent && entry.second.object->is_gone;
    if (is_over) buffer_bytes_ -= entry.second.buffer.bytes.size();
    return is_over;
  });
  for (const auto& [read, info] : std::exchange(served_, {}))
    read.done(MissReason::kNone, info);
  for (const auto& [done, reason] : std::exchange(ended_, {}))
    if (done) done(reason);
}

Instant ClusterTier::next_deadline() const {
  const auto may_go = [](const auto& entry) { return entry.second.may_go(); };
  if (!served_.empty() || !ended_.empty() || std::ranges::any_of(notes_, may_go)) return now_.now;
  const bool is_busy =
      under_way_ > 0 || !queue_.empty() || !breaker_.closed() || (gc_ && gc_->busy()) || sweep_;
  return now_.now + (is_busy ? kBusyTick : kIdleTick);
}

TierStats ClusterTier::stats() const {
  TierStats stats = stats_;
  stats.blocks = places_.size();
  stats.bytes_used = use_.bytes_used;
  stats.bytes_total = use_.bytes_total;
  stats.index_bytes = places_.size() * (sizeof(BlockName) + sizeof(Place) + 3 * sizeof(void*));
  stats.in_service = breaker_.closed();
  const StoreStats store = store_.stats();
  stats.state = breaker_.closed() ? store.state
                                  : "not answering (" + store.state +
                                        "): what it holds is computed again until it does";
  return stats;
}

ClusterStats ClusterTier::cluster_stats() const {
  ClusterStats stats = cluster_;
  stats.breaker_openings = breaker_.openings();
  stats.breaker_closed = breaker_.closed();
  stats.buffer_bytes = buffer_bytes_ + store_.stats().stranded_bytes;
  stats.write_bytes_under_way = write_bytes_;
  stats.told_blocks = known_.size();
  stats.use = use_;
  return stats;
}

}  // namespace penstock::service
