#include "service/kvd/fetches.h"

#include "base/check.h"

namespace penstock::service {

void Fetches::start(kv::SessionId session, const Fetch& fetch, TierNow now) {
  const Instant deadline = now.now + fetch.budget;
  std::vector<BlockName> path;
  for (std::size_t i = 0; i < fetch.blocks.size(); ++i) {
    const FetchBlock& wanted = fetch.blocks[i];
    const Key key{session, fetch.first + i};
    BlockInfo info;
    info.name = wanted.name;
    info.parent = wanted.parent;
    info.root = fetch.root;
    info.depth = wanted.depth;
    info.ttl_class = fetch.ttl_class;
    info.tenant = fetch.tenant;
    const MissReason reason = start_one(key, info, deadline, now);
    if (reason == MissReason::kNone) {
      path.push_back(wanted.name);
    } else {
      answers_.push_back({session, key.second, reason, {}, {}});
    }
  }
  if (holdings_.disk() != nullptr && !path.empty())
    holdings_.disk()->touch(path, fetch.ttl_class, now);
}

MissReason Fetches::start_one(const Key& key, const BlockInfo& info, Instant deadline,
                              TierNow now) {
  HostTier& host = holdings_.host();
  const auto used = pinned_bytes_.find(key.first);
  if (used != pinned_bytes_.end() && used->second >= host.usage().arena_bytes / 8)
    return MissReason::kTooSlow;
  auto block = host.find(info.name);
  if (!block) {
    if (!holdings_.on_disk(info.name)) return holdings_.why_missing(info.name);
    if (loads_.full()) return MissReason::kTooSlow;
    const auto loading = loads_.load(info, now);
    if (!loading) return loading.error();
    block = *loading;
  }
  const BlockInfo& held = host.at(*block).info;
  if (held.root != info.root || held.depth != info.depth) return MissReason::kNeverStored;
  if (host.sealed(*block)) {
    host.touch(*block, host.next_tick(), now.now);
    serve(key, *block);
    return MissReason::kNone;
  }
  // It is on its way here from another host: whoever asks should ask there.
  if (loads_.from(*block) == KvTier::kPeer) return MissReason::kNeverStored;
  loads_.wait(*block, {key.first, key.second, info.name.group, 0});
  const bool is_new = waiting_.emplace(key, Wait{*block, deadline}).second;
  ENSURE(is_new);
  deadlines_.emplace(deadline, key);
  return MissReason::kNone;
}

void Fetches::serve(const Key& key, HostBlock block) {
  HostTier& host = holdings_.host();
  host.pin(block);
  const bool is_new = pinned_.emplace(key, block).second;
  ENSURE(is_new);
  pinned_bytes_[key.first] += host.at(block).bytes;
  answers_.push_back(
      {key.first, key.second, MissReason::kNone, host.at(block).info, holdings_.bytes(block)});
}

void Fetches::unpin(kv::SessionId session, std::uint64_t number) {
  const auto found = pinned_.find({session, number});
  if (found == pinned_.end()) return;
  std::uint64_t& bytes = pinned_bytes_[session];
  bytes -= holdings_.host().at(found->second).bytes;
  if (bytes == 0) pinned_bytes_.erase(session);
  holdings_.host().unpin(found->second);
  pinned_.erase(found);
}

void Fetches::close(kv::SessionId session) {
  for (auto it = pinned_.lower_bound({session, 0});
       it != pinned_.end() && it->first.first == session; it = pinned_.erase(it))
    holdings_.host().unpin(it->second);
  pinned_bytes_.erase(session);
  for (auto it = waiting_.lower_bound({session, 0});
       it != waiting_.end() && it->first.first == session; it = waiting_.erase(it))
    deadlines_.erase({it->second.deadline, it->first});
  std::erase_if(answers_, [&](const Fetched& answer) { return answer.session == session; });
}

void Fetches::loaded(const std::vector<LoadEnded>& ended) {
  for (const LoadEnded& load : ended) {
    for (const LoadWaiter& waiter : load.waiters) {
      const auto wait = waiting_.find({waiter.session, waiter.lease});
      if (wait != waiting_.end() && wait->second.block == load.block)
        stop_waiting(wait, load.reason);
    }
  }
}

void Fetches::expire(TierNow now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now.now)
    stop_waiting(waiting_.find(deadlines_.begin()->second), MissReason::kTooSlow);
}

void Fetches::stop_waiting(std::map<Key, Wait>::iterator wait, MissReason reason) {
  ENSURE(wait != waiting_.end());
  const auto [key, state] = *wait;
  deadlines_.erase({state.deadline, key});
  waiting_.erase(wait);
  // A block that arrived in the turn in which its ancestor was found damaged went with it.
  HostTier& host = holdings_.host();
  if (reason == MissReason::kNone && !(host.valid(state.block) && host.sealed(state.block)))
    reason = MissReason::kParentGone;
  if (reason == MissReason::kNone) {
    serve(key, state.block);
  } else {
    answers_.push_back({key.first, key.second, reason, {}, {}});
  }
}

std::optional<Instant> Fetches::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

}  // namespace penstock::service
