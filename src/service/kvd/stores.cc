#include "service/kvd/stores.h"

#include <cstring>

#include "base/check.h"
#include "base/hash.h"

namespace penstock::service {
namespace {

bool within(const kv::StoreBlock& block, const std::vector<std::uint32_t>& slices,
            std::uint64_t pool_bytes) {
  if (slices.empty() || block.slices.size() != slices.size()) return false;
  for (std::size_t i = 0; i < slices.size(); ++i)
    if (slices[i] > pool_bytes || block.slices[i] > pool_bytes - slices[i]) return false;
  return true;
}

}  // namespace

void Stores::add(kv::SessionId session, kv::Store request, const RegisteredPool* pool,
                 const KvLayoutSpec* root_layout, Outbox& outbox) {
  const std::size_t blocks = request.blocks.size();
  const bool too_many = blocks > pending_max_ - pending_;
  const bool is_other = pool != nullptr && root_layout != nullptr && *root_layout != pool->layout;
  if (is_other) statistics_.stores_other_layout += blocks;
  if (blocks == 0 || too_many || pool == nullptr || is_other) {
    const MissReason reason = is_other   ? MissReason::kOtherBuild
                              : too_many ? MissReason::kTooSlow
                                         : MissReason::kIoError;
    at(statistics_.stores_refused, reason) += blocks;
    outbox.send(session, kv::Stored{request.number, std::vector<MissReason>(blocks, reason)});
    return;
  }
  pending_ += blocks;
  queues_[session].push_back({std::move(request), pool, {}});
}

void Stores::work(TierNow now, Outbox& outbox) {
  if (queues_.empty()) return;
  auto queue = queues_.upper_bound(last_);
  if (queue == queues_.end()) queue = queues_.begin();
  last_ = queue->first;
  Job& job = queue->second.front();
  for (int looks = 0; looks < kLooksPerTurn && job.results.size() < job.request.blocks.size();
       ++looks)
    if (take(queue->first, job, now) != Step::kAnswered) break;
  if (job.results.size() < job.request.blocks.size()) return;
  outbox.send(queue->first, kv::Stored{job.request.number, std::move(job.results)});
  queue->second.pop_front();
  if (queue->second.empty()) queues_.erase(queue);
}

Stores::Step Stores::take(kv::SessionId session, Job& job, TierNow now) {
  const kv::StoreBlock& block = job.request.blocks[job.results.size()];
  const BlockInfo info{block.name,
                       block.depth == 0 ? job.request.root : block.parent,
                       job.request.root,
                       block.depth,
                       job.request.ttl_class,
                       job.request.tenant,
                       {}};
  const auto answer = [&](MissReason reason, Step step) {
    if (reason != MissReason::kNone) ++at(statistics_.stores_refused, reason);
    job.results.push_back(reason);
    --pending_;
    return step;
  };
  HostTier& host = holdings_.host();
  if (const auto held = host.find(block.name)) {
    ++statistics_.stored_already;
    if (host.sealed(*held)) {
      host.touch(*held, host.next_tick(), now.now);
      if (!holdings_.on_disk(block.name)) writes_.offer(*held);
    }
    return answer(MissReason::kNone, Step::kAnswered);
  }
  if (const MissReason reason = refuse(job, info, block); reason != MissReason::kNone)
    return answer(reason, Step::kAnswered);
  holdings_.take_evicted();
  // Its own parent must not be what makes room for it.
  const auto parent = HostTier::parent_of(info);
  const auto above = parent ? host.find(*parent) : std::nullopt;
  if (above) host.hold(*above);
  const bool room = holdings_.make_room(job.pool->layout.bytes(block.name.group), now);
  if (above) host.unhold(*above);
  if (!room) return answer(MissReason::kEvictedHost, Step::kAnswered);
  if (holdings_.take_evicted()) return Step::kRoomMade;
  return answer(copy(session, job, info, block, now), Step::kCopied);
}

MissReason Stores::refuse(const Job& job, const BlockInfo& info,
                          const kv::StoreBlock& block) const {
  if (!within(block, job.pool->layout.slices(block.name.group), job.pool->bytes))
    return MissReason::kIoError;
  const auto parent = HostTier::parent_of(info);
  if (parent && !holdings_.host().find(*parent) && !holdings_.on_disk(*parent))
    return MissReason::kParentGone;
  return holdings_.host().consistent(info) ? MissReason::kNone : MissReason::kParentGone;
}

MissReason Stores::copy(kv::SessionId session, const Job& job, const BlockInfo& info,
                        const kv::StoreBlock& block, TierNow now) {
  const KvLayoutSpec& layout = job.pool->layout;
  const std::vector<std::uint32_t>& slices = layout.slices(block.name.group);
  const std::span<const std::byte> pool = memory_.pool(session, job.request.pool);
  if (!within(block, slices, pool.size())) return MissReason::kIoError;
  const auto filling = holdings_.host().begin_fill(info, layout.bytes(block.name.group));
  ENSURE(filling);  // there was room
  std::span<std::byte> rest = holdings_.bytes(*filling);
  std::vector<SliceSum> sums;
  sums.reserve(slices.size());
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const std::span<std::byte> slice = rest.first(slices[i]);
    std::memcpy(slice.data(), pool.data() + block.slices[i], slice.size());
    sums.push_back({slices[i], checksum64(slice)});
    rest = rest.subspan(slices[i]);
  }
  if (memory_.pool(session, job.request.pool).size() != pool.size()) {
    holdings_.retire(*filling, MissReason::kIoError, now);
    return MissReason::kIoError;
  }
  holdings_.seal(*filling, std::move(sums), now);
  if (info.depth == 0 && info.name.group == KvGroup::kHistory && job.request.content_tag != 0)
    holdings_.history().first_block(job.request.content_tag, info.root, info.name.key);
  ++statistics_.stored_blocks;
  statistics_.stored_bytes += layout.bytes(block.name.group);
  ++statistics_.of(info.ttl_class, info.tenant).stored_blocks;
  writes_.offer(*filling);
  cluster_writes_.offer(*filling, now.now);
  return MissReason::kNone;
}

void Stores::close(kv::SessionId session) {
  const auto queue = queues_.find(session);
  if (queue == queues_.end()) return;
  for (const Job& job : queue->second) {
    const std::size_t left = job.request.blocks.size() - job.results.size();
    pending_ -= left;
    statistics_.stores_dropped += left;
  }
  queues_.erase(queue);
}

}  // namespace penstock::service
