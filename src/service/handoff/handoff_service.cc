#include "service/handoff/handoff_service.h"

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "service/handoff/owner_side.h"
#include "service/handoff/peer_outbox.h"
#include "service/handoff/rank_port.h"
#include "service/handoff/reader_side.h"

namespace penstock::service {

struct HandoffService::State {
  State(HandoffService& self, Transport& t, HandoffOptions o)
      : transport(t),
        options(std::move(o)),
        outbox(t),
        owner(t, outbox, options, counters),
        reader(t, outbox, options, counters, [&self] { self.turn_over(); }),
        alive(std::make_shared<bool>(true)) {}

  Transport& transport;
  const HandoffOptions options;
  HandoffCounters counters;
  PeerOutbox outbox;
  std::vector<std::unique_ptr<RankPort>> ports;  // before the sides: they give blocks back to them
  OwnerSide owner;
  ReaderSide reader;
  Clock::TimerId timer = 0;
  Instant timer_at;
  bool summing = false;         // a turn of checksums is posted
  std::shared_ptr<bool> alive;  // callbacks that the transport keeps hold it weakly
};

HandoffService::HandoffService(Transport& transport, HandoffOptions options)
    : state_(std::make_unique<State>(*this, transport, std::move(options))) {}

void HandoffService::start() {
  State& state = *state_;
  const std::weak_ptr<bool> alive = state.alive;
  TransportEvents events;
  events.accepted = [](PeerId) {};
  events.opened = [this, alive](PeerId peer) {
    if (alive.expired()) return;
    // Not there: it was given up at the same moment.
    if (state_->reader.has(peer)) state_->reader.opened(peer);
    turn_over();
  };
  events.message = [this, alive](PeerId peer, std::string_view bytes) {
    if (alive.expired()) return;
    State& s = *state_;
    auto message = handoff::decode(bytes);
    const bool made = s.reader.has(peer);
    const bool good = message && (made ? s.reader.message(peer, std::move(*message))
                                       : s.owner.message(peer, *message));
    if (!good && s.reader.has(peer)) {
      s.reader.cut(peer, message ? "a message that is a reader's" : message.error().message);
    } else if (!good && !made) {
      ++s.counters.peers_cut;
      s.outbox.drop(peer);
      s.transport.close(peer);
      s.owner.lost(peer);
    }
    turn_over();
  };
  events.closed = [this, alive](PeerId peer, const std::string& why) {
    if (alive.expired()) return;
    State& s = *state_;
    if (s.reader.has(peer)) {
      s.reader.lost(peer, why);
    } else {
      s.outbox.drop(peer);
      s.owner.lost(peer);
    }
    turn_over();
  };
  events.readable = [this, alive](PeerId peer, std::uint32_t pool, std::uint32_t block,
                                  std::uint64_t generation) {
    return !alive.expired() && state_->owner.readable(peer, pool, block, generation);
  };
  state.transport.set_events(std::move(events));
}

HandoffService::~HandoffService() {
  if (state_->timer != 0) state_->transport.clock().cancel(state_->timer);
  state_->alive.reset();
}

HandoffPort& HandoffService::add_rank(const RankMemory& memory, std::function<void()> wake) {
  State& state = *state_;
  const handoff::Layout layout{memory.layers, memory.block_tokens, memory.slice_bytes,
                               memory.kv_format};
  ENSURE(layout.sound());
  ENSURE(memory.pool.block_bytes == memory.layers * memory.slice_bytes);
  const std::size_t rank = state.ports.size();
  state.ports.push_back(std::make_unique<RankPort>(
      state.transport.clock(),
      [this, rank, alive = std::weak_ptr<bool>(state.alive)] {
        if (!alive.expired()) run_commands(rank);
      },
      std::move(wake)));
  RankPort& port = *state.ports.back();
  state.owner.add_rank(memory, state.transport.publish(memory.pool), layout, port);
  state.reader.add_rank(memory, layout, port);
  return port;
}

void HandoffService::run_commands(std::size_t rank) {
  State& state = *state_;
  const auto pool = static_cast<std::uint32_t>(rank);
  for (Command& command : state.ports[rank]->take_commands())
    std::visit(
        [&](auto& c) {
          using C = std::decay_t<decltype(c)>;
          if constexpr (std::is_same_v<C, PullCommand>)
            state.reader.run(rank, std::move(c));
          else if constexpr (std::is_same_v<C, FillCommand>)
            state.reader.run(rank, std::move(c));
          else if constexpr (std::is_same_v<C, StopCommand>)
            state.reader.run(c);
          else
            state.owner.run(pool, std::move(c));
        },
        command);
  turn_over();
}

void HandoffService::turn_over() {
  State& state = *state_;
  if (state.owner.work() && !state.summing) {
    state.summing = true;
    state.transport.clock().post([this, alive = std::weak_ptr<bool>(state.alive)] {
      if (alive.expired()) return;
      state_->summing = false;
      turn_over();
    });
  }
  for (const PeerId peer : state.outbox.take_stuck()) {
    if (state.reader.has(peer)) {
      state.reader.cut(peer, "takes no messages");
      continue;
    }
    ++state.counters.peers_cut;
    state.transport.close(peer);
    state.owner.lost(peer);
  }
  // Machines want the time often while something is under way; else only what they keep for a
  // while has to end.
  Instant next = Instant::max();
  if (!state.reader.idle() || state.counters.owner.open + state.counters.owner.parked > 0 ||
      !state.outbox.empty())
    next = state.transport.clock().now() + handoff::kTick;
  else if (state.reader.has_links() || !state.owner.idle())
    next = state.transport.clock().now() + std::chrono::seconds(1);
  if (next != Instant::max() && (state.timer == 0 || next < state.timer_at)) {
    if (state.timer != 0) state.transport.clock().cancel(state.timer);
    state.timer_at = next;
    state.timer = state.transport.clock().call_at(next, [this] { tick(); });
  }
  published_.with([&](HandoffCounters& counters) { counters = state.counters; });
}

void HandoffService::tick() {
  State& state = *state_;
  state.timer = 0;
  state.outbox.flush();
  state.reader.tick();
  state.owner.tick();
  turn_over();
}

}  // namespace penstock::service
