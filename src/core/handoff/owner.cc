#include "core/handoff/owner.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace penstock::handoff {

void Owner::add_pool(std::uint32_t pool, const Layout& layout, std::uint32_t blocks) {
  ENSURE(layout.sound());
  ENSURE(pools_.emplace(pool, Pool{layout, std::vector<std::uint32_t>(blocks), 0}).second);
}

Owner::Handoff* Owner::find(std::uint32_t pool, HandoffId id) {
  const auto live = live_.find(id);
  if (live == live_.end()) return nullptr;
  Handoff& handoff = handoffs_.at(live->second);
  return handoff.pool == pool ? &handoff : nullptr;
}

void Owner::announce(Instant now, std::uint32_t pool, HandoffId id, const std::string& model,
                     Effects& effects) {
  now_ = now;
  ENSURE(pools_.contains(pool));
  if (const auto live = live_.find(id); live != live_.end())
    end(live->second, Reason::kWithdrawn, "the id was announced again", Event::kWithdraw,
        Event::kWithdrawHeld, effects);
  if (handoffs_.size() >= options_.handoffs_max) {
    (void)hits_.take(State::kNone, Event::kRefuseAnnounce);
    ++counters_.refused;
    remember(
        now, id, Reason::kLimit,
        fmt::format("the prefill worker has {} handoffs open, its limit", options_.handoffs_max));
  } else {
    remembered_.erase(id);
    Handoff& handoff = handoffs_[++last_number_];
    handoff.id = id;
    handoff.pool = pool;
    handoff.model = model;
    take(handoff, Event::kAnnounce);
    live_.emplace(id, last_number_);
    ++counters_.announced;
    counters_.open = handoffs_.size();
  }
  std::deque<Parked> waiting;
  std::swap(waiting, parked_);
  for (Parked& parked : waiting) {
    if (parked.message.id != id) {
      parked_.push_back(std::move(parked));
      continue;
    }
    --peers_.at(parked.peer).parked;
    attach(now, parked.peer, parked.message, effects);
    forget_peer(parked.peer);
  }
  counters_.parked = parked_.size();
}

void Owner::publish(Instant now, std::uint32_t pool_number, HandoffId id, std::uint32_t first,
                    std::span<const GivenBlock> blocks, std::uint32_t tokens, Effects& effects) {
  now_ = now;
  Pool& pool = pools_.at(pool_number);
  Handoff* handoff = find(pool_number, id);
  if (handoff == nullptr) {
    give_back(pool_number, blocks, effects);
    return;
  }
  const std::uint64_t before = handoff->blocks.size();
  const std::uint64_t block_tokens = pool.layout.block_tokens;
  const std::uint64_t after = before + blocks.size();
  const bool fits_pool = std::ranges::all_of(
      blocks, [&](const GivenBlock& given) { return given.block < pool.held.size(); });
  const bool in_order =
      first == before && !blocks.empty() && fits_pool && handoff->state != State::kComplete &&
      handoff->tokens == before * block_tokens && tokens > (after - 1) * block_tokens;
  if (!in_order) {
    give_back(pool_number, blocks, effects);
    end(live_.at(id), Reason::kWithdrawn,
        fmt::format("the engine published blocks {} to {} after {} tokens", first,
                    first + blocks.size(), handoff->tokens),
        Event::kWithdraw, Event::kWithdrawHeld, effects);
    return;
  }
  for (const GivenBlock& given : blocks) {
    if (pool.held[given.block]++ == 0) ++pool.distinct;
    handoff->blocks.push_back(given);
  }
  counters_.blocks_held += blocks.size();
  const std::uint64_t limit = pool.held.size() * options_.blocks_held_percent_max / 100;
  if (pool.distinct > limit) {
    end(live_.at(id), Reason::kLimit,
        fmt::format("handoffs hold {} of {} blocks, the limit is {}", pool.distinct,
                    pool.held.size(), limit),
        Event::kWithdraw, Event::kWithdrawHeld, effects);
    return;
  }
  handoff->tokens =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(tokens, after * block_tokens));
  take(*handoff, Event::kPublish);
  if (handoff->tickets.size() == before) to_sum_.push_back(live_.at(id));
}

void Owner::close(Instant now, std::uint32_t pool, HandoffId id, std::optional<EngineOutput> output,
                  Effects& effects) {
  now_ = now;
  Handoff* handoff = find(pool, id);
  if (handoff == nullptr) return;
  if (handoff->state != State::kOpen || (output && !fits(*output))) {
    end(live_.at(id), Reason::kWithdrawn,
        handoff->state == State::kOpen ? "the first output is too large"
                                       : "closed twice, or with nothing published",
        Event::kWithdraw, Event::kWithdrawHeld, effects);
    return;
  }
  handoff->output = std::move(output);
  handoff->unclaimed = now + options_.unclaimed;
  take(*handoff, Event::kClose);
  ++counters_.completed;
  to_pump_.insert(live_.at(id));
}

void Owner::withdraw(Instant now, std::uint32_t pool, HandoffId id, const std::string& why,
                     Effects& effects) {
  now_ = now;
  if (find(pool, id) == nullptr) return;
  end(live_.at(id), Reason::kWithdrawn, why, Event::kWithdraw, Event::kWithdrawHeld, effects);
}

std::optional<Owner::SumTask> Owner::next_sum() {
  while (!to_sum_.empty()) {
    const auto found = handoffs_.find(to_sum_.front());
    if (found != handoffs_.end()) {
      const Handoff& handoff = found->second;
      const std::size_t next = handoff.tickets.size();
      if (handoff.state != State::kQuarantine && next < handoff.blocks.size()) {
        const std::uint32_t block_tokens = pools_.at(handoff.pool).layout.block_tokens;
        const std::uint64_t before = std::uint64_t{next} * block_tokens;
        return SumTask{handoff.pool, handoff.blocks[next].block,
                       static_cast<std::uint32_t>(
                           std::min<std::uint64_t>(block_tokens, handoff.tokens - before))};
      }
    }
    to_sum_.pop_front();
  }
  return std::nullopt;
}

void Owner::summed(std::vector<std::uint64_t> checksums) {
  ENSURE(!to_sum_.empty());
  Handoff& handoff = handoffs_.at(to_sum_.front());
  ENSURE(checksums.size() == pools_.at(handoff.pool).layout.layers);
  const std::size_t at = handoff.tickets.size();
  const GivenBlock& given = handoff.blocks[at];
  handoff.tickets.push_back({given.block, given.generation, std::move(checksums)});
  allow(handoff, at, at + 1, true);
  to_pump_.insert(to_sum_.front());
}

void Owner::pump(Effects& effects) {
  std::set<std::uint64_t> numbers;
  std::swap(numbers, to_pump_);
  for (const std::uint64_t number : numbers)
    if (const auto found = handoffs_.find(number); found != handoffs_.end())
      pump(found->second, effects);
}

void Owner::pump(Handoff& handoff, Effects& effects) {
  if (!handoff.reader) return;
  const Layout& layout = pools_.at(handoff.pool).layout;
  const std::size_t bytes = std::min(options_.part_bytes_max, kMessageMax / 2);
  const std::size_t blocks_max =
      std::clamp<std::size_t>(bytes / part_block_bytes(layout.layers), 1, kPartBlocksMax);
  while (handoff.sent < handoff.tickets.size() &&
         handoff.in_flight.size() < options_.parts_in_flight_max) {
    const std::size_t end =
        handoff.sent + std::min(blocks_max, handoff.tickets.size() - handoff.sent);
    Part part;
    part.pull = handoff.reader->pull;
    part.first = handoff.sent;
    part.tokens = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(handoff.tokens, end * std::uint64_t{layout.block_tokens}));
    part.layers = layout.layers;
    part.blocks.assign(handoff.tickets.begin() + handoff.sent,
                       handoff.tickets.begin() + static_cast<std::ptrdiff_t>(end));
    handoff.sent = static_cast<std::uint32_t>(end);
    handoff.in_flight.push_back(handoff.sent);
    send(handoff.reader->peer, std::move(part), effects);
  }
  if (handoff.state == State::kComplete && !handoff.close_sent &&
      handoff.sent == handoff.blocks.size()) {
    handoff.close_sent = true;
    send(handoff.reader->peer, Closed{handoff.reader->pull, handoff.tokens, handoff.output},
         effects);
  }
}

void Owner::tick(Instant now, Effects& effects) {
  now_ = now;
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, handoff] : handoffs_)
    numbers.push_back(number);
  for (const std::uint64_t number : numbers) {
    Handoff& handoff = handoffs_.at(number);
    if (handoff.state == State::kQuarantine) {
      if (now < handoff.quarantine_until) continue;
      take(handoff, Event::kOver);
      gone(number, effects);
      continue;
    }
    // Who was replaced has stopped reading by then.
    std::vector<Reader> stopped;
    for (const Reader& former : handoff.former)
      if (now >= former.until + options_.quarantine) stopped.push_back(former);
    for (const Reader& former : stopped) {
      std::erase(handoff.former, former);
      leave(number, handoff, former.peer);
    }
    if (handoff.reader && now >= handoff.reader->until)
      end(number, Reason::kExpired, "the lease was not renewed", Event::kExpireHeld,
          Event::kExpireHeld, effects);
    else if (handoff.state == State::kComplete && !handoff.reader && now >= handoff.unclaimed)
      end(number, Reason::kExpired, "nobody came for it", Event::kExpireUnclaimed,
          Event::kExpireHeld, effects);
  }
  next_lease_end_ = Instant::max();
  for (const auto& [number, handoff] : handoffs_)
    if (handoff.reader) next_lease_end_ = std::min(next_lease_end_, handoff.reader->until);
  while (!parked_.empty() && now >= parked_.front().until) {
    const Parked parked = std::move(parked_.front());
    parked_.pop_front();
    --peers_.at(parked.peer).parked;
    refuse(parked.peer, parked.message.pull, Reason::kUnknown,
           "the prefill worker was not told of it in time", effects);
    forget_peer(parked.peer);
  }
  counters_.parked = parked_.size();
  forget_old(now);
  for (const auto& [peer, state] : peers_)
    if (now >= state.last_sent + options_.heartbeat) send(peer, Alive{}, effects);
}

void Owner::end(std::uint64_t number, Reason reason, const std::string& why, Event clean,
                Event held, Effects& effects) {
  Handoff& handoff = handoffs_.at(number);
  if (handoff.reader) {
    send(handoff.reader->peer, Ended{handoff.reader->pull, reason, why}, effects);
    detach(number, handoff, Leaves::kMayStillRead);
  }
  take(handoff, handoff.former.empty() ? clean : held);
  if (reason == Reason::kReleased) ++counters_.released;
  if (reason == Reason::kExpired) ++counters_.expired;
  if (reason == Reason::kWithdrawn || reason == Reason::kLimit) ++counters_.withdrawn;
  live_.erase(handoff.id);
  remember(now_, handoff.id, reason, why);
  handoff.tickets.clear();
  handoff.output.reset();
  if (handoff.state == State::kGone) return gone(number, effects);
  handoff.quarantine_until = Instant::min();
  for (const Reader& former : handoff.former)
    handoff.quarantine_until =
        std::max(handoff.quarantine_until, former.until + options_.quarantine);
}

void Owner::gone(std::uint64_t number, Effects& effects) {
  const auto found = handoffs_.find(number);
  Handoff& handoff = found->second;
  Pool& pool = pools_.at(handoff.pool);
  for (const GivenBlock& given : handoff.blocks)
    if (--pool.held[given.block] == 0) --pool.distinct;
  counters_.blocks_held -= handoff.blocks.size();
  give_back(handoff.pool, handoff.blocks, effects);
  const std::vector<Reader> former = std::move(handoff.former);
  handoff.former.clear();
  for (const Reader& reader : former)
    leave(number, handoff, reader.peer);
  handoffs_.erase(found);
  counters_.open = handoffs_.size();
}

void Owner::give_back(std::uint32_t pool, std::span<const GivenBlock> blocks, Effects& effects) {
  for (const GivenBlock& given : blocks)
    effects.freed.push_back({pool, given.block});
}

void Owner::remember(Instant now, HandoffId id, Reason reason, std::string why) {
  const Instant until = now + options_.remembered;
  remembered_[id] = {reason, std::move(why), until};
  remembered_order_.emplace_back(until, id);
  forget_old(now);
}

void Owner::forget_old(Instant now) {
  while (!remembered_order_.empty() && (now >= remembered_order_.front().first ||
                                        remembered_order_.size() > options_.remembered_max)) {
    const auto [until, id] = remembered_order_.front();
    remembered_order_.pop_front();
    // Ended twice: the later one stays.
    const auto found = remembered_.find(id);
    if (found != remembered_.end() && found->second.until == until) remembered_.erase(found);
  }
}

}  // namespace penstock::handoff
