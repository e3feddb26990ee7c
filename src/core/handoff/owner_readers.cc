// What readers do to handoffs: attach, renew, acknowledge, release, get lost.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/handoff/owner.h"

namespace penstock::handoff {

void Owner::send(PeerId peer, Message message, Effects& effects) {
  if (const auto found = peers_.find(peer); found != peers_.end()) found->second.last_sent = now_;
  effects.send.push_back({peer, std::move(message)});
}

void Owner::refuse(PeerId peer, std::uint64_t pull, Reason reason, std::string why,
                   Effects& effects) {
  ++counters_.refused;
  send(peer, Ended{pull, reason, std::move(why)}, effects);
}

Reason Owner::check(const Handoff& handoff, const Attach& message, std::string& why) const {
  const Layout& own = pools_.at(handoff.pool).layout;
  if (message.model != handoff.model) {
    why = fmt::format("the prefill worker computed it with model \"{}\", the reader has \"{}\"",
                      handoff.model, message.model);
    return Reason::kMismatch;
  }
  if (message.layout != own) {
    why = fmt::format("the prefill worker has KV of {}; the reader of {}", to_string(own),
                      to_string(message.layout));
    return Reason::kMismatch;
  }
  if (handoff.state == State::kComplete && message.tokens != handoff.tokens) {
    why = fmt::format("the prefill worker computed {} tokens, the reader wants {}", handoff.tokens,
                      message.tokens);
    return Reason::kMismatch;
  }
  if (message.received > handoff.tickets.size()) {
    why = fmt::format("the reader has {} tickets of {}", message.received, handoff.tickets.size());
    return Reason::kProtocol;
  }
  return Reason::kDone;
}

void Owner::attach(Instant now, PeerId peer, const Attach& message, Effects& effects) {
  now_ = now;
  if (message.version != kProtocolVersion)
    return refuse(peer, message.pull, Reason::kVersion,
                  fmt::format("the prefill worker speaks version {}, the reader {}",
                              kProtocolVersion, message.version),
                  effects);
  if (message.epoch != epoch_)
    return refuse(peer, message.pull, Reason::kRestarted,
                  fmt::format("the prefill worker is run {:016x}, the reader asks for {:016x}",
                              epoch_.value, message.epoch.value),
                  effects);
  const auto live = live_.find(message.id);
  if (live == live_.end()) {
    const auto over = remembered_.find(message.id);
    if (over != remembered_.end())
      return refuse(peer, message.pull, over->second.reason, over->second.why, effects);
    if (parked_.size() >= options_.parked_max)
      return refuse(peer, message.pull, Reason::kLimit,
                    fmt::format("{} readers wait for handoffs not announced yet, the limit",
                                options_.parked_max),
                    effects);
    parked_.push_back({peer, message, now + options_.parked});
    Peer& state = peers_[peer];
    if (++state.parked == 1 && state.handoffs.empty()) state.last_sent = now;
    counters_.parked = parked_.size();
    return;
  }
  const std::uint64_t number = live->second;
  Handoff& handoff = handoffs_.at(number);
  std::string why;
  if (const Reason reason = check(handoff, message, why); reason != Reason::kDone) {
    take(handoff, Event::kRefuseAttach);
    return refuse(peer, message.pull, reason, std::move(why), effects);
  }
  const bool replaces = handoff.reader.has_value();
  if (replaces) {
    if (handoff.reader->peer != peer || handoff.reader->pull != message.pull)
      send(handoff.reader->peer,
           Ended{handoff.reader->pull, Reason::kReplaced, "another reader has the id"}, effects);
    detach(number, handoff, Leaves::kMayStillRead);
  }
  peers_[peer].handoffs.insert(number);
  handoff.reader = Reader{peer, message.pull, now + options_.lease};
  next_lease_end_ = std::min(next_lease_end_, handoff.reader->until);
  allow(handoff, 0, handoff.tickets.size(), true);
  handoff.sent = message.received;
  handoff.in_flight.clear();
  handoff.close_sent = false;
  take(handoff, replaces ? Event::kReplace : Event::kAttach);
  send(peer, Attached{message.pull, handoff.pool, options_.lease}, effects);
  to_pump_.insert(number);
}

void Owner::renew(Instant now, PeerId peer, const Renew& message, Effects& effects) {
  now_ = now;
  const auto live = live_.find(message.id);
  Handoff* handoff = live == live_.end() ? nullptr : &handoffs_.at(live->second);
  // Who is not the reader any more has been told so, or is being told now.
  if (handoff == nullptr || !handoff->reader || handoff->reader->peer != peer ||
      handoff->reader->pull != message.pull)
    return;
  handoff->reader->until = now + options_.lease;
  take(*handoff, Event::kRenew);
  send(peer, Renewed{message.pull, message.sequence, options_.lease}, effects);
}

void Owner::ack(PeerId peer, const Ack& message) {
  const auto live = live_.find(message.id);
  if (live == live_.end()) return;
  Handoff& handoff = handoffs_.at(live->second);
  if (!handoff.reader || handoff.reader->peer != peer || handoff.reader->pull != message.pull)
    return;
  while (!handoff.in_flight.empty() && handoff.in_flight.front() <= message.received)
    handoff.in_flight.pop_front();
  to_pump_.insert(live->second);
}

void Owner::release(Instant now, PeerId peer, const Release& message, Effects& effects) {
  now_ = now;
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  std::erase_if(parked_, [&](const Parked& parked) {
    const bool his = parked.peer == peer && parked.message.id == message.id &&
                     parked.message.pull == message.pull;
    if (his) --found->second.parked;
    return his;
  });
  counters_.parked = parked_.size();
  const std::set<std::uint64_t> numbers = found->second.handoffs;
  for (const std::uint64_t number : numbers) {
    Handoff& handoff = handoffs_.at(number);
    if (handoff.id != message.id) continue;
    const bool former = std::erase_if(handoff.former, [&](const Reader& reader) {
                          return reader.peer == peer && reader.pull == message.pull;
                        }) > 0;
    if (handoff.reader && handoff.reader->peer == peer && handoff.reader->pull == message.pull) {
      detach(number, handoff, Leaves::kReadsNoMore);
      end(number, Reason::kReleased,
          fmt::format("its reader released it: {}", name(message.reason)), Event::kRelease,
          Event::kReleaseHeld, effects);
    } else if (former) {
      leave(number, handoff, peer);
      if (handoff.state != State::kQuarantine) continue;
      take(handoff, handoff.former.empty() ? Event::kLastReleased : Event::kHolderReleased);
      if (handoff.state == State::kGone) gone(number, effects);
    }
  }
  forget_peer(peer);
}

void Owner::lost(Instant now, PeerId peer, Effects& effects) {
  now_ = now;
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  std::erase_if(parked_, [&](const Parked& parked) { return parked.peer == peer; });
  counters_.parked = parked_.size();
  const std::set<std::uint64_t> numbers = found->second.handoffs;
  for (const std::uint64_t number : numbers) {
    Handoff& handoff = handoffs_.at(number);
    if (handoff.reader && handoff.reader->peer == peer) {
      // Never before the unclaimed time from the close, which stands there already.
      handoff.unclaimed = std::max(handoff.unclaimed, handoff.reader->until);
      detach(number, handoff, Leaves::kMayStillRead);
      take(handoff, Event::kReaderLost);
    }
    std::erase_if(handoff.former, [&](const Reader& reader) { return reader.peer == peer; });
    if (options_.quarantine_lost > Duration::zero()) {
      handoff.former.push_back({PeerId{}, 0, now + options_.quarantine_lost - options_.quarantine});
      handoff.quarantine_until = std::max(handoff.quarantine_until, now + options_.quarantine_lost);
    }
    if (handoff.state != State::kQuarantine) continue;
    take(handoff, handoff.former.empty() ? Event::kLastLost : Event::kHolderLost);
    if (handoff.state == State::kGone) gone(number, effects);
  }
  peers_.erase(peer);
}

bool Owner::readable(Instant now, PeerId peer, std::uint32_t pool, std::uint32_t block,
                     std::uint64_t generation) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || !found->second.readable.contains({pool, block, generation}))
    return false;
  if (now < next_lease_end_) return true;
  // A lease is over and tick() has not seen it yet: is there one that isn't?
  return std::ranges::any_of(found->second.handoffs, [&](std::uint64_t number) {
    const Handoff& handoff = handoffs_.at(number);
    return handoff.reader && handoff.reader->peer == peer && now < handoff.reader->until &&
           handoff.pool == pool &&
           std::ranges::any_of(
               handoff.tickets,
               [&](const TicketBlock& ticket) {
                 return ticket.block == block && ticket.generation == generation;
               });
  });
}

void Owner::detach(std::uint64_t number, Handoff& handoff, Leaves how) {
  ENSURE(handoff.reader.has_value());
  const Reader reader = *handoff.reader;
  allow(handoff, 0, handoff.tickets.size(), false);
  handoff.reader.reset();
  if (how == Leaves::kMayStillRead) {
    const auto same = std::ranges::find(handoff.former, reader.peer, &Reader::peer);
    if (same == handoff.former.end())
      handoff.former.push_back(reader);
    else
      *same = {reader.peer, reader.pull, std::max(same->until, reader.until)};
  } else {
    leave(number, handoff, reader.peer);
  }
}

void Owner::leave(std::uint64_t number, const Handoff& handoff, PeerId peer) {
  if (handoff.reader && handoff.reader->peer == peer) return;
  if (std::ranges::find(handoff.former, peer, &Reader::peer) != handoff.former.end()) return;
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  found->second.handoffs.erase(number);
  forget_peer(peer);
}

void Owner::allow(const Handoff& handoff, std::size_t first, std::size_t end, bool yes) {
  if (!handoff.reader) return;
  auto& readable = peers_.at(handoff.reader->peer).readable;
  for (std::size_t i = first; i < end; ++i) {
    const Place place{handoff.pool, handoff.tickets[i].block, handoff.tickets[i].generation};
    if (yes)
      ++readable[place];
    else if (const auto found = readable.find(place); --found->second == 0)
      readable.erase(found);
  }
}

void Owner::forget_peer(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found != peers_.end() && found->second.handoffs.empty() && found->second.parked == 0)
    peers_.erase(found);
}

}  // namespace penstock::handoff
