#include "service/handoff/owner_side.h"

#include <span>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/hash.h"

namespace penstock::service {

OwnerSide::OwnerSide(Transport& transport, PeerOutbox& outbox, const HandoffOptions& options,
                     HandoffCounters& counters)
    : transport_(transport),
      outbox_(outbox),
      sum_bytes_max_(options.sum_bytes_max),
      counters_(counters),
      owner_(options.epoch, options.owner, counters.hits) {}

void OwnerSide::add_rank(const RankMemory& memory, std::uint32_t pool,
                         const handoff::Layout& layout, RankPort& port) {
  ENSURE(pool == ranks_.size());
  owner_.add_pool(pool, layout, memory.pool.blocks);
  ranks_.push_back({memory.payloads, layout, &port});
}

void OwnerSide::run(std::uint32_t pool, const AnnounceCommand& command) {
  owner_.announce(transport_.clock().now(), pool, command.id, command.model, effects_);
  apply();
}

void OwnerSide::run(std::uint32_t pool, const PublishCommand& command) {
  owner_.publish(transport_.clock().now(), pool, command.id, command.first, command.blocks,
                 command.tokens, effects_);
  apply();
}

void OwnerSide::run(std::uint32_t pool, CloseCommand command) {
  owner_.close(transport_.clock().now(), pool, command.id, std::move(command.output), effects_);
  apply();
}

void OwnerSide::run(std::uint32_t pool, const WithdrawCommand& command) {
  owner_.withdraw(transport_.clock().now(), pool, command.id, command.why, effects_);
  apply();
}

bool OwnerSide::message(PeerId peer, const handoff::Message& message) {
  const Instant now = transport_.clock().now();
  if (const auto* attach = std::get_if<handoff::Attach>(&message))
    owner_.attach(now, peer, *attach, effects_);
  else if (const auto* renew = std::get_if<handoff::Renew>(&message))
    owner_.renew(now, peer, *renew, effects_);
  else if (const auto* ack = std::get_if<handoff::Ack>(&message))
    owner_.ack(peer, *ack);
  else if (const auto* release = std::get_if<handoff::Release>(&message))
    owner_.release(now, peer, *release, effects_);
  else
    return false;
  apply();
  return true;
}

void OwnerSide::lost(PeerId peer) {
  owner_.lost(transport_.clock().now(), peer, effects_);
  apply();
}

bool OwnerSide::work() {
  std::size_t bytes = 0;
  auto task = owner_.next_sum();
  for (; task && bytes < sum_bytes_max_; task = owner_.next_sum()) {
    const Rank& rank = ranks_[task->pool];
    const handoff::Layout& layout = rank.layout;
    const std::byte* payload =
        rank.payloads + std::size_t{task->block} * layout.layers * layout.slice_bytes;
    const std::size_t used = task->rows * layout.row_bytes();
    std::vector<std::uint64_t> checksums(layout.layers);
    for (std::uint32_t layer = 0; layer < layout.layers; ++layer)
      checksums[layer] = checksum64(std::span(payload + layer * layout.slice_bytes, used));
    bytes += used * layout.layers;
    owner_.summed(std::move(checksums));
  }
  owner_.pump(effects_);
  apply();
  return task.has_value();
}

void OwnerSide::tick() {
  owner_.tick(transport_.clock().now(), effects_);
  apply();
}

void OwnerSide::apply() {
  counters_.owner = owner_.counters();
  if (effects_.send.empty() && effects_.freed.empty()) return;  // most turns: a read has ended
  const handoff::OwnerEffects effects = std::exchange(effects_, {});
  for (const auto& [peer, message] : effects.send)
    outbox_.send(peer, handoff::encode(message));
  std::vector<std::vector<std::uint32_t>> freed(ranks_.size());
  for (const auto& [pool, block] : effects.freed)
    freed[pool].push_back(block);
  for (std::size_t pool = 0; pool < freed.size(); ++pool) {
    if (freed[pool].empty()) continue;
    ranks_[pool].port->give_back(freed[pool]);
    ranks_[pool].port->wake();
  }
}

}  // namespace penstock::service
