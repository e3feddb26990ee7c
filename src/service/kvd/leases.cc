#include "service/kvd/leases.h"

#include <algorithm>

#include "base/check.h"

namespace penstock::service {

std::size_t Leases::open(kv::SessionId session) const {
  const auto found = open_.find(session);
  return found == open_.end() ? 0 : found->second;
}

std::optional<Instant> Leases::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

void Leases::acquire(kv::SessionId session, kv::Acquire request, const KvLayoutSpec& layout,
                     TierNow now) {
  const Key key{session, request.lease};
  const auto [entry, is_new] = leases_.try_emplace(key);
  ENSURE(is_new);
  ++open_[session];
  ++statistics_.acquires;
  Lease& lease = entry->second;
  lease.request = std::move(request);
  keys_open_ += lease.request.keys.size();
  lease.block_tokens = layout.block_tokens;
  lease.began = now.now;
  lease.deadline = now.now + std::clamp(lease.request.budget, Duration{}, kBudgetMax);
  deadlines_.emplace(lease.deadline, key);
  walk(key, lease);
  changed_.insert(key);
  const std::vector<BlockKey>& keys = lease.request.keys;
  if (cluster_ == nullptr || lease.history.size() == keys.size() || layout.history_slices.empty())
    return plan(key, lease, now);
  lease.looks_up = true;
  cluster_->look_up(
      {keys, lease.request.windows, lease.history.size(), layout}, now,
      [answers = answers_, key](MissReason reason) { answers->emplace_back(key, reason); });
}

void Leases::looked_up(TierNow now) {
  for (const auto& [key, reason] : std::exchange(*answers_, {})) {
    const auto found = leases_.find(key);
    if (found == leases_.end() || !found->second.looks_up) continue;
    Lease& lease = found->second;
    lease.looks_up = false;
    walk(key, lease);
    // It may have been there, whatever became of it here.
    if (reason != MissReason::kNone && lease.missing != MissReason::kNone) lease.missing = reason;
    plan(key, lease, now);
    changed_.insert(key);
  }
}

void Leases::walk(const Key& key, Lease& lease) {
  const std::vector<BlockKey>& keys = lease.request.keys;
  lease.missing = MissReason::kNone;
  for (std::size_t depth = lease.history.size(); depth < keys.size(); ++depth) {
    if (depth + Holdings::kPrefetchAhead < keys.size())
      holdings_.prefetch({keys[depth + Holdings::kPrefetchAhead], KvGroup::kHistory});
    const Part part = look(key, info_of(lease, depth, KvGroup::kHistory), depth);
    if (part.have == Have::kGone) {
      lease.missing = holdings_.why_missing({lease.request.keys[depth], KvGroup::kHistory});
      break;
    }
    lease.history.push_back(part);
  }
}

void Leases::plan(const Key& key, Lease& lease, TierNow now) {
  decide(lease, now.now);
  choose_windows(key, lease);
  start_loads(key, lease, now);
}

Tokens Leases::prompt_of(const Lease& lease) {
  return Tokens(static_cast<std::int64_t>(lease.request.keys.size() * lease.block_tokens + 1));
}

void Leases::decide(Lease& lease, Instant now) {
  const kv::Acquire& request = lease.request;
  const auto is_below = [](const Part& part) { return part.have == Have::kBelow; };
  const auto first_below = std::ranges::find_if(lease.history, is_below);
  if (request.prefill == PrefillCoefficients{} || first_below == lease.history.end()) return;
  const auto in_memory = static_cast<std::size_t>(first_below - lease.history.begin());

  // Where the hit could end: after each of some parts of what is to be loaded, or, with windows,
  // where one is held.
  const auto ends_here = [&](std::size_t blocks) {
    if (!request.windows.empty()) {
      const auto depth = static_cast<std::uint32_t>(blocks - 1);
      const BlockName window{request.keys[depth], KvGroup::kWindow};
      return std::ranges::binary_search(request.windows, depth) &&
             (holdings_.find_sealed(window) || holdings_.below(window));
    }
    const std::size_t part = std::max<std::size_t>(1, (lease.history.size() - in_memory) / 16);
    return blocks == lease.history.size() || (blocks - in_memory) % part == 0;
  };
  std::vector<kvcache::ResumeCandidate> candidates;
  kvcache::ResumeCandidate candidate;
  std::vector<std::size_t> ends;
  for (std::size_t blocks = 0; blocks <= lease.history.size(); ++blocks) {
    if (blocks > 0 && is_below(lease.history[blocks - 1])) {
      const BlockName name{request.keys[blocks - 1], KvGroup::kHistory};
      const KvTier from = lease.history[blocks - 1].from;
      candidate.bytes[static_cast<std::size_t>(from)] +=
          holdings_.tier(from)->size_of(name).value_or(0);
    }
    if (blocks == 0 || blocks < in_memory || !ends_here(blocks)) continue;
    candidate.hit = Tokens(static_cast<std::int64_t>(blocks * lease.block_tokens));
    candidates.push_back(candidate);
    ends.push_back(blocks);
  }
  lease.decision =
      model_.decide(prompt_of(lease), candidates, kvcache::PrefillModel(request.prefill),
                    loads_.bytes_under_way(), now);
  if (lease.decision->rest != MissReason::kRecomputeFaster) return;
  const std::size_t keep = lease.decision->hit.value > 0 ? ends[lease.decision->candidate] : 0;
  // What is in memory costs nothing.
  cut(lease, std::max(keep, in_memory), MissReason::kRecomputeFaster);
}

BlockInfo Leases::info_of(const Lease& lease, std::size_t depth, KvGroup group) const {
  const kv::Acquire& request = lease.request;
  BlockInfo info;
  info.name = {request.keys[depth], group};
  info.parent = depth == 0 ? request.root : request.keys[depth - 1];
  info.root = request.root;
  info.depth = static_cast<std::uint32_t>(depth);
  info.ttl_class = request.ttl_class;
  info.tenant = request.tenant;
  return info;
}

Leases::Part Leases::look(const Key& key, const BlockInfo& info, std::size_t index) {
  const auto found = holdings_.host().find(info.name);
  if (!found) {
    const auto from = holdings_.below(info.name);
    return {from ? Have::kBelow : Have::kGone, from.value_or(KvTier::kDisk), {}};
  }
  const BlockInfo& held = holdings_.host().at(*found).info;
  const bool same_chain = held.root == info.root && held.depth == info.depth &&
                          (info.name.group == KvGroup::kWindow || held.parent == info.parent);
  if (!same_chain) return {Have::kGone, KvTier::kHost, {}};
  if (holdings_.host().sealed(*found)) {
    holdings_.host().pin(*found);
    return {Have::kReady, KvTier::kHost, *found};
  }
  loads_.wait(*found, {key.first, key.second, info.name.group, index});
  return {Have::kLoading, loads_.from(*found), *found};
}

void Leases::choose_windows(const Key& key, Lease& lease) {
  const std::vector<std::uint32_t>& depths = lease.request.windows;
  bool is_deepest = true;
  for (auto depth = depths.rbegin(); depth != depths.rend(); ++depth) {
    if (*depth >= lease.history.size()) continue;
    const BlockInfo info = info_of(lease, *depth, KvGroup::kWindow);
    if (!is_deepest && !holdings_.find_sealed(info.name)) continue;
    const Part part = look(key, info, lease.windows.size());
    if (part.have == Have::kGone) continue;
    lease.windows.push_back({*depth, part, false});
    is_deepest = false;
  }
}

void Leases::start_loads(const Key& key, Lease& lease, TierNow now) {
  const auto room = [&] {
    if (!loads_.full()) return true;
    if (!std::exchange(lease.in_line, true)) line_.push_back(key);
    return false;
  };
  for (; lease.started < lease.history.size(); ++lease.started) {
    Part& part = lease.history[lease.started];
    if (part.have != Have::kBelow) continue;
    if (!room()) return;
    const BlockInfo info = info_of(lease, lease.started, KvGroup::kHistory);
    const MissReason reason = start_load(key, info, lease.started, part, now);
    if (reason != MissReason::kNone) return cut(lease, lease.started, reason);
  }
  for (std::size_t i = 0; i < lease.windows.size(); ++i) {
    Window& window = lease.windows[i];
    if (window.part.have != Have::kBelow) continue;
    if (!room()) return;
    const BlockInfo info = info_of(lease, window.depth, KvGroup::kWindow);
    if (start_load(key, info, i, window.part, now) != MissReason::kNone)
      window.part.have = Have::kGone;
  }
}

MissReason Leases::start_load(const Key& key, const BlockInfo& info, std::size_t index, Part& part,
                              TierNow now) {
  if (!holdings_.host().find(info.name)) {  // else another lease was faster
    const auto block = loads_.load(info, now);
    if (!block) return block.error();
  }
  part = look(key, info, index);
  return part.have == Have::kGone ? MissReason::kNeverStored : MissReason::kNone;
}

void Leases::cut(Lease& lease, std::size_t depth, MissReason reason) {
  ENSURE(depth >= lease.granted);
  for (std::size_t i = depth; i < lease.history.size(); ++i)
    let_go(lease.history[i]);
  lease.history.resize(depth);
  lease.missing = reason;
  lease.started = std::min(lease.started, depth);
  for (Window& window : lease.windows)
    if (window.depth >= depth) let_go(window.part);
}

void Leases::let_go(Part& part) {
  if (part.have == Have::kReady) holdings_.host().unpin(part.block);
  part.have = Have::kGone;
}

void Leases::loaded(const std::vector<LoadEnded>& ended, TierNow now) {
  for (const LoadEnded& load : ended) {
    for (const LoadWaiter& waiter : load.waiters) {
      const Key key{waiter.session, waiter.lease};
      const auto found = leases_.find(key);
      if (found == leases_.end()) continue;
      Lease& lease = found->second;
      const bool is_window = waiter.group == KvGroup::kWindow;
      if (waiter.index >= (is_window ? lease.windows.size() : lease.history.size())) continue;
      Part& part = is_window ? lease.windows[waiter.index].part : lease.history[waiter.index];
      if (part.have != Have::kLoading || part.block != load.block) continue;
      changed_.insert(key);
      // A block that arrived with its ancestor's damage known in the same turn went with it.
      const bool is_there = load.reason == MissReason::kNone &&
                            holdings_.host().valid(part.block) &&
                            holdings_.host().sealed(part.block);
      const MissReason reason =
          load.reason == MissReason::kNone ? MissReason::kParentGone : load.reason;
      if (is_there) {
        holdings_.host().pin(part.block);
        part.have = Have::kReady;
      } else if (is_window) {
        part.have = Have::kGone;
      } else {
        cut(lease, waiter.index, reason);
      }
    }
  }
  for (std::size_t turns = line_.size(); turns > 0 && !loads_.full(); --turns) {
    const Key key = line_.front();
    line_.pop_front();
    const auto found = leases_.find(key);
    if (found == leases_.end()) continue;
    found->second.in_line = false;
    if (found->second.is_final) continue;
    start_loads(key, found->second, now);
    changed_.insert(key);
  }
}

void Leases::flush(TierNow now, Outbox& outbox) {
  for (const auto& [deadline, key] : deadlines_) {
    if (deadline > now.now) break;
    changed_.insert(key);
  }
  for (const Key& key : std::exchange(changed_, {}))
    advance(key, leases_.at(key), now, outbox);
}

void Leases::advance(const Key& key, Lease& lease, TierNow now, Outbox& outbox) {
  if (lease.is_final) return;
  kv::Granted message;
  message.lease = key.second;
  for (; lease.granted < lease.history.size(); ++lease.granted) {
    const Part& part = lease.history[lease.granted];
    if (part.have != Have::kReady) break;
    if (!holdings_.host().sealed(part.block)) {  // its copy went bad while it waited
      cut(lease, lease.granted, MissReason::kCorrupt);
      break;
    }
    message.history.push_back(pinned(part));
  }
  bool complete = lease.granted == lease.history.size() && !lease.looks_up;
  for (const Window& window : lease.windows)
    if (window.part.have == Have::kBelow || window.part.have == Have::kLoading) complete = false;
  message.final = complete || now.now >= lease.deadline;
  if (message.final && std::exchange(lease.looks_up, false)) lease.missing = MissReason::kTooSlow;
  if (message.final && lease.granted < lease.history.size())
    cut(lease, lease.granted, MissReason::kTooSlow);
  for (Window& window : lease.windows) {
    if (window.part.have != Have::kReady) {
      if (message.final) window.part.have = Have::kGone;
    } else if (!window.granted && window.depth < lease.granted) {
      if (holdings_.host().sealed(window.part.block)) {
        message.windows.emplace_back(window.depth, pinned(window.part));
        window.granted = true;
      } else {
        let_go(window.part);
      }
    }
  }
  if (message.final) {
    message.missing = lease.missing;
    finish(key, lease, now);
  }
  if (message.final || !message.history.empty() || !message.windows.empty())
    outbox.send(key.first, std::move(message));
}

void Leases::finish(const Key& key, Lease& lease, TierNow now) {
  lease.is_final = true;
  deadlines_.erase({lease.deadline, key});
  const kv::Acquire& request = lease.request;
  if (lease.decision) {
    model_.record(*lease.decision, prompt_of(lease),
                  Tokens(static_cast<std::int64_t>(lease.granted * lease.block_tokens)),
                  kvcache::PrefillModel(request.prefill), now.now - lease.began);
  }
  AcquireRecord record{request.request,
                       request.root,
                       request.tenant,
                       request.content_tag,
                       now.wall,
                       request.keys.size(),
                       {},
                       {},
                       lease.missing,
                       {},
                       lease.decision,
                       now.now - lease.began};
  std::vector<BlockName> path;
  const std::uint64_t tick = holdings_.host().next_tick();
  const auto use = [&](const BlockName& name, const Part& part) {
    path.push_back(name);
    holdings_.host().touch(part.block, tick, now.now);
    if (!holdings_.on_disk(name)) writes_.offer(part.block);
  };
  TenantUse& tenant = statistics_.of(request.ttl_class, request.tenant);
  for (std::size_t depth = 0; depth < lease.granted; ++depth) {
    const Part& part = lease.history[depth];
    use({request.keys[depth], KvGroup::kHistory}, part);
    record.served.push_back(part.from);
    ++statistics_.hits.of(part.from);
    ++tenant.hits.of(part.from);
  }
  for (const Window& window : lease.windows) {
    if (!window.granted) continue;
    use({request.keys[window.depth], KvGroup::kWindow}, window.part);
    record.windows.push_back(window.depth);
    ++statistics_.hit_windows;
  }
  if (lease.granted > 0 && request.content_tag != 0)
    holdings_.history().first_block(request.content_tag, request.root, request.keys[0]);
  statistics_.hit_tokens += lease.granted * lease.block_tokens;
  tenant.hit_tokens += lease.granted * lease.block_tokens;
  tenant.miss_blocks += request.keys.size() - lease.granted;
  ++at(statistics_.misses, lease.missing);
  if (holdings_.disk() != nullptr && !path.empty())
    holdings_.disk()->touch(path, request.ttl_class, now);
  cluster_writes_.used(path, request.ttl_class, now);
  const std::size_t missed =
      std::min(request.keys.size() - lease.granted, AcquireRecords::kMissedMax);
  const auto first = request.keys.begin() + static_cast<std::ptrdiff_t>(lease.granted);
  record.missed.assign(first, first + static_cast<std::ptrdiff_t>(missed));
  records_.add(std::move(record));
}

kv::PinnedBlock Leases::pinned(const Part& part) const {
  const HostEntry& entry = holdings_.host().at(part.block);
  kv::PinnedBlock block{entry.offset, entry.generation, part.from, {}};
  for (const SliceSum& slice : entry.info.slices)
    block.checksums.push_back(slice.checksum);
  return block;
}

void Leases::stop(const Key& key, Lease& lease, TierNow now, Outbox& outbox) {
  if (lease.is_final) return;
  if (std::exchange(lease.looks_up, false)) lease.missing = MissReason::kTooSlow;
  if (lease.granted < lease.history.size()) cut(lease, lease.granted, MissReason::kTooSlow);
  for (Window& window : lease.windows)
    if (!window.granted) let_go(window.part);
  advance(key, lease, now, outbox);
}

void Leases::release(kv::SessionId session, kv::LeaseId lease, TierNow now, Outbox& outbox) {
  const auto found = leases_.find({session, lease});
  if (found == leases_.end()) return;
  stop(found->first, found->second, now, outbox);
  erase(found);
  ++statistics_.leases_ended;
}

std::optional<HostBlock> Leases::holds(kv::SessionId session, kv::LeaseId lease,
                                       const BlockName& name) const {
  const auto found = leases_.find({session, lease});
  if (found == leases_.end()) return std::nullopt;
  const Lease& held = found->second;
  if (name.group == KvGroup::kWindow) {
    for (const Window& window : held.windows)
      if (window.granted && held.request.keys[window.depth] == name.key) return window.part.block;
    return std::nullopt;
  }
  for (std::size_t depth = 0; depth < held.granted; ++depth)
    if (held.request.keys[depth] == name.key) return held.history[depth].block;
  return std::nullopt;
}

void Leases::end_waiting(kv::SessionId session, TierNow now, Outbox& outbox) {
  for (auto lease = leases_.lower_bound({session, 0});
       lease != leases_.end() && lease->first.first == session; ++lease)
    stop(lease->first, lease->second, now, outbox);
}

void Leases::close(kv::SessionId session) {
  for (auto lease = leases_.lower_bound({session, 0});
       lease != leases_.end() && lease->first.first == session;) {
    lease = erase(lease);
    ++statistics_.leases_ended;
  }
}

std::uint64_t Leases::pinned_bytes(kv::SessionId session) const {
  std::set<HostBlock> blocks;
  for (auto lease = leases_.lower_bound({session, 0});
       lease != leases_.end() && lease->first.first == session; ++lease) {
    for (const Part& part : lease->second.history)
      if (part.have == Have::kReady) blocks.insert(part.block);
    for (const Window& window : lease->second.windows)
      if (window.part.have == Have::kReady) blocks.insert(window.part.block);
  }
  std::uint64_t bytes = 0;
  for (const HostBlock& block : blocks)
    bytes += holdings_.host().at(block).bytes;
  return bytes;
}

std::map<Leases::Key, Leases::Lease>::iterator Leases::erase(std::map<Key, Lease>::iterator lease) {
  for (Part& part : lease->second.history)
    let_go(part);
  for (Window& window : lease->second.windows)
    let_go(window.part);
  deadlines_.erase({lease->second.deadline, lease->first});
  changed_.erase(lease->first);
  keys_open_ -= lease->second.request.keys.size();
  if (--open_[lease->first.first] == 0) open_.erase(lease->first.first);
  return leases_.erase(lease);
}

}  // namespace penstock::service
