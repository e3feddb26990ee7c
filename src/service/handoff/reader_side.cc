#include "service/handoff/reader_side.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "base/check.h"

namespace penstock::service {
namespace {

using handoff::Event;
using handoff::Reason;
using handoff::SliceEnd;

SliceEnd slice_end(ReadEnd end) {
  switch (end) {
    case ReadEnd::kDone:
      return SliceEnd::kDone;
    case ReadEnd::kStale:
      return SliceEnd::kStale;
    case ReadEnd::kCorrupt:
      return SliceEnd::kCorrupt;
    case ReadEnd::kRefused:
      return SliceEnd::kRefused;
    case ReadEnd::kGone:
      return SliceEnd::kGone;
    case ReadEnd::kDeadline:
      return SliceEnd::kDeadline;
  }
  return SliceEnd::kRefused;
}

}  // namespace

ReaderSide::ReaderSide(Transport& transport, PeerOutbox& outbox, const HandoffOptions& options,
                       HandoffCounters& counters, std::function<void()> news)
    : transport_(transport),
      outbox_(outbox),
      options_(options),
      counters_(counters),
      news_(std::move(news)),
      last_tick_(transport.clock().now()) {}

ReaderSide::~ReaderSide() {
  while (!pulls_.empty()) {
    const auto& [number, pull] = *pulls_.begin();
    pulls_.begin()->second.machine.stop(effects_);
    apply(number);
  }
  while (!links_.empty())
    close_link(links_.begin()->first);
}

void ReaderSide::add_rank(const RankMemory& memory, const handoff::Layout& layout, RankPort& port) {
  ranks_.push_back({memory.payloads, memory.pool.blocks, layout, &port});
}

void ReaderSide::run(std::size_t rank_number, PullCommand command) {
  Rank& rank = ranks_[rank_number];
  ++counters_.pulls_started;
  std::string why;
  if (pulls_.size() >= options_.pulls_max)
    why = fmt::format("{} pulls are running, the limit", options_.pulls_max);
  if (command.tokens == 0) why = "no tokens";
  if (!command.to.empty()) {
    if (std::string bad = misfit(rank, command.tokens, command.to); !bad.empty())
      why = std::move(bad);
  }
  if (!why.empty()) {
    (void)counters_.hits.take(handoff::State::kNone, Event::kRefusePull);
    ++counters_.pulls_failed[static_cast<std::size_t>(Reason::kLimit)];
    command.result->fail("the pull was refused here: " + why);
    rank.port->give_back(command.to);
    rank.port->wake();
    return;
  }
  const std::uint64_t number = ++last_number_;
  command.result->number = number;
  handoff::PullSpec spec{command.from.id, number,      command.from.source_epoch, command.tokens,
                         command.model,   rank.layout, !command.to.empty()};
  pulls_.emplace(number,
                 Running{command.result,
                         rank_number,
                         std::move(command.to),
                         command.from.source,
                         PeerId{},
                         handoff::Reader(now(), std::move(spec), options_.reader, counters_.hits),
                         {}});
  counters_.pulls_running = pulls_.size();
  connect(number);
}

std::string ReaderSide::misfit(const Rank& rank, std::uint32_t tokens,
                               const std::vector<std::uint32_t>& to) {
  const std::uint32_t block_tokens = rank.layout.block_tokens;
  if (to.size() != (std::uint64_t{tokens} + block_tokens - 1) / block_tokens)
    return fmt::format("{} tokens into {} blocks of {}", tokens, to.size(), block_tokens);
  for (const std::uint32_t block : to)
    if (block >= rank.blocks) return fmt::format("block {} of a pool of {}", block, rank.blocks);
  return {};
}

void ReaderSide::run(std::size_t rank_number, FillCommand command) {
  Rank& rank = ranks_[rank_number];
  const auto found = pulls_.find(command.result->number);
  if (found == pulls_.end()) {  // over already
    rank.port->give_back(command.to);
    rank.port->wake();
    return;
  }
  const std::uint64_t number = found->first;
  Running& pull = found->second;
  if (!pull.to.empty() || !misfit(rank, pull.machine.tokens(), command.to).empty()) {
    rank.port->give_back(command.to);
    pull.machine.broken("blocks that don't fit the pull", effects_);
    apply(number);
    return;
  }
  pull.to = std::move(command.to);
  pull.machine.room();
  if (const auto link = links_.find(pull.peer); link != links_.end()) {
    link->second.hungry.insert(number);
    feed(pull.peer);
  }
}

void ReaderSide::run(const StopCommand& command) {
  const auto pull = pulls_.find(command.result->number);
  if (pull == pulls_.end()) return;
  pull->second.machine.stop(effects_);
  apply(pull->first);
}

void ReaderSide::connect(std::uint64_t number) {
  Running& pull = pulls_.at(number);
  auto known = by_address_.find(pull.source);
  if (known == by_address_.end()) {
    const Result<PeerId> peer = transport_.connect(pull.source, now() + options_.reader.connect);
    if (!peer) {
      pull.machine.lost(now(), peer.error().message, effects_);
      apply(number);
      return;
    }
    known = by_address_.emplace(pull.source, *peer).first;
    Link link;
    link.address = pull.source;
    links_.emplace(*peer, std::move(link));
    counters_.links = links_.size();
  }
  pull.peer = known->second;
  Link& link = links_.at(pull.peer);
  // While nobody listened, the owner had no reason to speak.
  if (link.pulls.empty()) link.heard = now();
  link.pulls.insert(number);
  if (!link.open) return;
  pull.machine.opened(now(), effects_);
  apply(number);
}

void ReaderSide::opened(PeerId peer) {
  Link& link = links_.at(peer);
  link.open = true;
  link.heard = link.idle_since = now();
  const std::set<std::uint64_t> numbers = link.pulls;
  for (const std::uint64_t number : numbers) {
    pulls_.at(number).machine.opened(now(), effects_);
    apply(number);
  }
}

bool ReaderSide::message(PeerId peer, handoff::Message message) {
  Link& link = links_.at(peer);
  link.heard = now();
  std::uint64_t number = 0;
  const auto machine = [&](std::uint64_t pull) -> handoff::Reader* {
    // Others are over; their messages crossed with the end.
    if (!link.pulls.contains(pull)) return nullptr;
    number = pull;
    return &pulls_.at(pull).machine;
  };
  bool known = true;
  std::visit(
      [&](auto& m) {
        using M = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<M, handoff::Attached>) {
          if (auto* reader = machine(m.pull)) reader->attached(m, effects_);
        } else if constexpr (std::is_same_v<M, handoff::Renewed>) {
          if (auto* reader = machine(m.pull)) reader->renewed(m);
        } else if constexpr (std::is_same_v<M, handoff::Part>) {
          if (auto* reader = machine(m.pull)) reader->part(std::move(m), effects_);
        } else if constexpr (std::is_same_v<M, handoff::Closed>) {
          if (auto* reader = machine(m.pull)) reader->closed(std::move(m), effects_);
        } else if constexpr (std::is_same_v<M, handoff::Ended>) {
          if (auto* reader = machine(m.pull)) reader->ended(m, effects_);
        } else {
          known = std::is_same_v<M, handoff::Alive>;
        }
      },
      message);
  if (number != 0) {
    link.hungry.insert(number);
    apply(number);
    feed(peer);
  }
  return known;
}

void ReaderSide::lost(PeerId peer, const std::string& why) {
  const std::set<std::uint64_t> numbers = links_.at(peer).pulls;
  // First, so that who connects again does not find it.
  by_address_.erase(links_.at(peer).address);
  links_.erase(peer);
  counters_.links = links_.size();
  outbox_.drop(peer);
  for (const std::uint64_t number : numbers) {
    Running& pull = pulls_.at(number);
    ENSURE(pull.reads.empty());
    pull.peer = PeerId{};
    pull.machine.lost(now(), why, effects_);
    apply(number);
  }
}

void ReaderSide::cut(PeerId peer, const std::string& why) {
  const std::set<std::uint64_t> numbers = links_.at(peer).pulls;
  for (const std::uint64_t number : numbers) {
    Running& pull = pulls_.at(number);
    if (pull.machine.attached_or_attaching())
      pull.machine.broken(why, effects_);
    else
      pull.machine.lost(now(), why, effects_);
    apply(number);
  }
  ++counters_.peers_cut;
  close_link(peer);
}

void ReaderSide::tick() {
  // After this process itself was stopped, what its peers said meanwhile waits to be read.
  const Duration stood = now() - last_tick_;
  last_tick_ = now();
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, pull] : pulls_)
    numbers.push_back(number);
  for (const std::uint64_t number : numbers) {
    pulls_.at(number).machine.tick(now(), effects_);
    apply(number);
  }
  std::vector<PeerId> done;
  for (auto& [peer, link] : links_) {
    if (stood > 10 * handoff::kTick) link.heard = std::min(now(), link.heard + stood);
    if (!link.open) continue;
    if (link.pulls.empty() ? now() >= link.idle_since + options_.link_idle
                           : now() >= link.heard + options_.reader.silent)
      done.push_back(peer);
  }
  for (const PeerId peer : done) {
    const std::set<std::uint64_t> silent = links_.at(peer).pulls;
    for (const std::uint64_t number : silent) {
      pulls_.at(number).machine.silent(effects_);
      apply(number);
    }
    // Its owner will see the end of the connection when it goes on.
    close_link(peer);
  }
}

void ReaderSide::apply(std::uint64_t number) {
  handoff::ReaderEffects effects = std::exchange(effects_, {});
  Running& pull = pulls_.at(number);
  if (effects.over) {
    for (const auto& [slice, read] : pull.reads)
      transport_.cancel(read);
    counters_.reads_running -= pull.reads.size();
    if (const auto link = links_.find(pull.peer); link != links_.end())
      link->second.reads -= pull.reads.size();
    pull.reads.clear();
  }
  if (pull.peer != PeerId{})
    for (const handoff::Message& message : effects.send)
      outbox_.send(pull.peer, handoff::encode(message));
  if (effects.over) finish(number);
  if (effects.connect) connect(number);
}

void ReaderSide::finish(std::uint64_t number) {
  auto node = pulls_.extract(number);
  Running& pull = node.mapped();
  counters_.pulls_running = pulls_.size();
  counters_.slices_corrupt += pull.machine.corrupt();
  const PeerId peer = pull.peer;
  leave_link(number, pull);
  // A stop that is still on its way finds nothing.
  pull.result->number = 0;
  RankPort& port = *ranks_[pull.rank].port;
  if (pull.machine.state() == handoff::State::kDone) {
    ++counters_.pulls_done;
    pull.result->done(pull.machine.tokens(), std::move(pull.machine.output()));
  } else {
    ++counters_.pulls_failed[static_cast<std::size_t>(pull.machine.reason())];
    pull.result->fail(pull.machine.why());
  }
  port.give_back(pull.to);
  port.wake();
  if (peer != PeerId{}) feed(peer);
}

void ReaderSide::leave_link(std::uint64_t number, Running& pull) {
  const auto found = links_.find(pull.peer);
  if (found == links_.end()) return;
  found->second.pulls.erase(number);
  found->second.hungry.erase(number);
  if (found->second.pulls.empty()) found->second.idle_since = now();
}

void ReaderSide::feed(PeerId peer) {
  const auto found = links_.find(peer);
  if (found == links_.end() || found->second.cut) return;
  Link& link = found->second;
  // One read each in turn, so that a long pull does not keep a short one waiting.
  while (!link.hungry.empty() && link.reads < options_.link_reads_max) {
    auto next = link.hungry.upper_bound(link.fed);
    if (next == link.hungry.end()) next = link.hungry.begin();
    link.fed = *next;
    Running& pull = pulls_.at(link.fed);
    if (const auto slice = pull.machine.next_read(now()))
      start_read(link.fed, pull, link, *slice);
    else
      link.hungry.erase(next);
  }
}

void ReaderSide::start_read(std::uint64_t number, Running& pull, Link& link,
                            const handoff::SliceRead& slice) {
  const handoff::Layout& layout = ranks_[pull.rank].layout;
  RemoteSlice remote;
  remote.pool = slice.pool;
  remote.block = slice.ticket->block;
  remote.generation = slice.ticket->generation;
  remote.offset = static_cast<std::uint32_t>(slice.layer * layout.slice_bytes);
  remote.length = slice.length;
  remote.checksum = slice.ticket->checksums[slice.layer];
  std::byte* into = ranks_[pull.rank].payloads +
                    std::size_t{pull.to[slice.index]} * layout.layers * layout.slice_bytes +
                    slice.layer * layout.slice_bytes;
  ++link.reads;
  ++counters_.reads_running;
  const ReadId read = transport_.read(pull.peer, remote, into, slice.deadline,
                                      [this, number, name = slice.slice, length = slice.length](
                                          ReadEnd end) { read_ended(number, name, length, end); });
  pull.reads.emplace(slice.slice, read);
}

void ReaderSide::read_ended(std::uint64_t number, std::uint64_t slice, std::uint32_t length,
                            ReadEnd end) {
  Running& pull = pulls_.at(number);
  const PeerId peer = pull.peer;
  ENSURE(pull.reads.erase(slice) == 1);
  Link& link = links_.at(peer);
  --link.reads;
  --counters_.reads_running;
  if (end == ReadEnd::kDone) counters_.bytes_pulled += length;
  // `closed` is about to come; until then nothing new is begun.
  if (end == ReadEnd::kGone) link.cut = true;
  pull.machine.read_ended(slice, slice_end(end), effects_);
  link.hungry.insert(number);
  apply(number);
  feed(peer);
  news_();
}

void ReaderSide::close_link(PeerId peer) {
  const auto found = links_.find(peer);
  ENSURE(found->second.pulls.empty() && found->second.reads == 0);
  by_address_.erase(found->second.address);
  links_.erase(found);
  counters_.links = links_.size();
  outbox_.drop(peer);
  transport_.close(peer);
}

}  // namespace penstock::service
