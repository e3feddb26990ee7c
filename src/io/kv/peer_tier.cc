#include "io/kv/peer_tier.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace penstock::kv {
namespace {

constexpr int kFailuresMax = 2;
constexpr int kEventsMax = 64;
// Names in the epoll set; connection c of peer p is kFirstLink + p * kLinksMax + c.
constexpr std::uint64_t kTimer = 0;
constexpr std::uint64_t kWake = 1;
constexpr std::uint64_t kNames = 2;
constexpr std::uint64_t kFirstLink = 16;
constexpr std::uint64_t kLinksMax = 64;

void add(int epoll, int fd, std::uint64_t name) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = name;
  ENSURE(::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
}

}  // namespace

Result<std::unique_ptr<PeerTier>> PeerTier::open(PeerTierOptions options, TierNow now) {
  if (options.connections < 1 || options.connections > kLinksMax)
    return fail(ErrorCode::kInvalidArgument, "1 to 64 connections to a KV peer are possible");
  for (const std::string& peer : options.peers) {
    const std::size_t colon = peer.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == peer.size()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("\"{}\" is no HOST:PORT, such as 10.0.0.7:7400", peer));
    }
  }
  std::unique_ptr<PeerTier> tier(new PeerTier(std::move(options)));
  std::vector<TierRemoval> none;
  tier->poll(now, none);
  return tier;
}

PeerTier::PeerTier(PeerTierOptions options)
    : options_(std::move(options)),
      proofs_(options_.secret),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      names_(options_.resolve) {
  ENSURE(epoll_.get() >= 0 && timer_.get() >= 0);
  add(epoll_.get(), timer_.get(), kTimer);
  add(epoll_.get(), wake_.fd(), kWake);
  add(epoll_.get(), names_.event_fd(), kNames);
  for (const std::string& text : options_.peers) {
    Peer& peer = peers_.emplace_back();
    peer.number = peers_.size() - 1;
    peer.text = text;
    peer.connections.resize(options_.connections);
    peer.pause = options_.pause_min;
  }
}

PeerTier::~PeerTier() = default;

void PeerTier::log(std::string_view text) const {
  if (options_.log) options_.log(text);
}

std::uint64_t PeerTier::Peer::under_way() const {
  std::uint64_t bytes = 0;
  for (const Connection& connection : connections)
    bytes += connection.batch_bytes +
             (connection.link != nullptr ? connection.link->outstanding_bytes() : 0);
  return bytes;
}

std::optional<std::uint32_t> PeerTier::size_of(const BlockName& name) const {
  for (const Peer& peer : peers_) {
    if (!peer.ready) continue;
    const auto found = peer.blocks.find(name);
    if (found != peer.blocks.end()) return found->second;
  }
  return std::nullopt;
}

PeerTier::Peer* PeerTier::best_for(const BlockName& name) {
  Peer* best = nullptr;
  for (Peer& peer : peers_) {
    if (!peer.ready || !peer.blocks.contains(name)) continue;
    if (best == nullptr || peer.under_way() < best->under_way()) best = &peer;
  }
  return best;
}

void PeerTier::read(TierRead read) {
  ++stats_.reads;
  wake_.wake();
  Peer* const peer = best_for(read.name);
  if (peer == nullptr) return end(std::move(read), MissReason::kTierOff, {});
  peer->waiting.push_back(std::move(read));
}

void PeerTier::write(TierWrite write) {
  ENSURE(write.done);
  TierRead ended;
  ended.done = [done = std::move(write.done)](MissReason reason, const BlockInfo&) {
    done(reason);
  };
  end(std::move(ended), MissReason::kTierOff, {});
  wake_.wake();
}

void PeerTier::remove(const BlockName& name, MissReason) {
  for (Peer& peer : peers_)
    peer.blocks.erase(name);
}

void PeerTier::end(TierRead read, MissReason reason, BlockInfo info) {
  ended_.push_back({std::move(read), reason, std::move(info)});
}

void PeerTier::connect(Peer& peer, std::size_t number, Instant now) {
  Connection& connection = peer.connections[number];
  auto link = PeerLink::start(peer.address, options_.name, proofs_, number == 0, now);
  if (!link) return eject(peer, link.error().message, now);
  connection.link = std::move(*link);
  connection.since = now;
  connection.watches_write = true;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLOUT;
  event.data.u64 = kFirstLink + peer.number * kLinksMax + number;
  ENSURE(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.link->fd(), &event) == 0);
}

void PeerTier::looked_up(NameLookup::Answer answer, Instant now) {
  Peer& peer = peers_[answer.number];
  peer.looking_up = false;
  if (!answer.address)
    return eject(peer, fmt::format("KV peer {}: {}", peer.text, answer.address.error().message),
                 now);
  peer.address = std::move(*answer.address);
  connect(peer, 0, now);
}

void PeerTier::watch(Peer& peer, std::size_t number) {
  Connection& connection = peer.connections[number];
  if (connection.link == nullptr || connection.watches_write == connection.link->wants_write())
    return;
  connection.watches_write = !connection.watches_write;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | (connection.watches_write ? std::uint32_t{EPOLLOUT} : 0U);
  event.data.u64 = kFirstLink + peer.number * kLinksMax + number;
  ENSURE(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.link->fd(), &event) == 0);
}

// Hands what waits to the connections, the one with the least under way first, and asks for it.
void PeerTier::ask(Peer& peer, Instant now) {
  std::uint64_t under_way = peer.under_way();
  while (!peer.waiting.empty() && (under_way == 0 || under_way < options_.under_way_max)) {
    Connection* best = nullptr;
    const auto load = [](const Connection& connection) {
      return connection.batch_bytes + connection.link->outstanding_bytes();
    };
    for (Connection& connection : peer.connections) {
      if (connection.link == nullptr || !connection.link->open()) continue;
      if (best == nullptr || load(connection) < load(*best)) best = &connection;
    }
    if (best == nullptr) return;
    TierRead read = std::move(peer.waiting.front());
    peer.waiting.pop_front();
    under_way += read.destination.size();
    best->batch_bytes += read.destination.size();
    best->batch.push_back(std::move(read));
  }
  for (std::size_t i = 0; i < peer.connections.size(); ++i) {
    Connection& connection = peer.connections[i];
    if (connection.batch.empty()) continue;
    if (connection.link->outstanding() == 0) connection.since = now;
    connection.batch_bytes = 0;
    std::vector<TierRead> batch = std::exchange(connection.batch, {});
    for (auto begin = batch.begin(); begin != batch.end();) {  // one request a chain
      const BlockInfo asked = begin->asked;
      const auto end = std::find_if(begin, batch.end(), [&](const TierRead& read) {
        return read.asked.root != asked.root || read.asked.tenant != asked.tenant ||
               read.asked.ttl_class != asked.ttl_class;
      });
      connection.link->ask({std::make_move_iterator(begin), std::make_move_iterator(end)},
                           options_.progress_max, now);
      begin = end;
    }
    step(peer, i, now);
  }
}

void PeerTier::step(Peer& peer, std::size_t number, Instant now) {
  Connection& connection = peer.connections[number];
  if (connection.link == nullptr) return;
  PeerLink::News news;
  const bool was_open = connection.link->open();
  const Status status = connection.link->step(now, news);
  const bool is_idle = connection.link->outstanding() == 0;
  take(peer, *connection.link, news);
  if (!status) return fail_link(peer, number, MissReason::kIoError, status.error().message, now);
  if (!was_open && connection.link->open()) {
    // The others follow the first.
    for (std::size_t i = 1; number == 0 && i < peer.connections.size(); ++i)
      if (peer.connections[i].link == nullptr) connect(peer, i, now);
  }
  if (is_idle) connection.since = now;
  watch(peer, number);
}

void PeerTier::take(Peer& peer, PeerLink& link, PeerLink::News& news) {
  stats_.read_bytes += news.bytes;
  for (peer::Holdings& list : news.holdings) {
    if (list.replaces) peer.blocks.clear();
    for (const peer::Holding& holding : list.blocks) {
      if (holding.bytes == 0) {
        peer.blocks.erase(holding.name);
      } else if (peer.blocks.size() < options_.names_max || peer.blocks.contains(holding.name)) {
        peer.blocks[holding.name] = holding.bytes;
      }
    }
    if (!std::exchange(peer.ready, true)) {
      peer.told = false;
      log(fmt::format("KV peer {} answers", peer.text));
    }
  }
  for (PeerLink::Arrival& arrival : news.arrivals) {
    if (arrival.reason == MissReason::kNone) {
      peer.failures = 0;
      peer.pause = options_.pause_min;
    } else if (arrival.reason != MissReason::kTooSlow) {
      peer.blocks.erase(arrival.read.name);
    }
    if (arrival.reason == MissReason::kCorrupt) {
      ++stats_.corrupt;
      log(
          fmt::format("KV peer {} sent a block whose bytes are wrong; it is told, and the block is "
                      "computed again",
                      peer.text));
      if (link.open()) link.report(arrival.read.name);
    }
    ended_.push_back(std::move(arrival));
  }
}

void PeerTier::fail_link(Peer& peer, std::size_t number, MissReason reason, std::string_view why,
                         Instant now) {
  Connection& connection = peer.connections[number];
  const std::unique_ptr<PeerLink> link = std::exchange(connection.link, nullptr);
  std::vector<TierRead> reads = link->give_up();
  for (TierRead& read : std::exchange(connection.batch, {}))
    reads.push_back(std::move(read));
  connection.batch_bytes = 0;
  if (!reads.empty()) ++peer.failures;
  stats_.io_errors += reads.size();
  for (TierRead& read : reads)
    end(std::move(read), reason, {});
  // Without the first connection nobody tells what the peer holds.
  if (number == 0 || peer.failures >= kFailuresMax || reason == MissReason::kTooSlow)
    eject(peer, why, now);
}

void PeerTier::eject(Peer& peer, std::string_view why, Instant now) {
  if (!std::exchange(peer.told, true))
    log(fmt::format("{}; what it holds is computed or loaded elsewhere until it answers", why));
  peer.ready = false;
  peer.blocks.clear();
  peer.failures = kFailuresMax - 1;  // when it is back, one more is enough
  peer.retry_at = now + peer.pause;
  peer.pause = std::min(2 * peer.pause, options_.pause_max);
  for (Connection& connection : peer.connections) {
    if (connection.link == nullptr) continue;
    for (TierRead& read : connection.link->give_up())
      end(std::move(read), MissReason::kIoError, {});
    for (TierRead& read : std::exchange(connection.batch, {}))
      end(std::move(read), MissReason::kIoError, {});
    connection.batch_bytes = 0;
    connection.link.reset();
  }
  for (TierRead& read : std::exchange(peer.waiting, {}))
    end(std::move(read), MissReason::kTierOff, {});
}

void PeerTier::check_time(Peer& peer, Instant now) {
  if (peer.connections[0].link == nullptr) {
    if (now >= peer.retry_at && !std::exchange(peer.looking_up, true))
      names_.ask(peer.number, peer.text);
    return;
  }
  for (std::size_t i = 0; i < peer.connections.size(); ++i) {
    const Connection& connection = peer.connections[i];
    if (connection.link == nullptr) {
      if (peer.ready && now >= peer.retry_at) {
        peer.retry_at = now + peer.pause;
        connect(peer, i, now);
      }
      continue;
    }
    const bool is_late =
        connection.link->outstanding() > 0
            ? now - connection.link->heard() >= options_.progress_max ||
                  now - connection.since >= options_.read_max
            : !connection.link->open() && now - connection.since >= options_.progress_max;
    if (!is_late) continue;
    fail_link(peer, i, MissReason::kTooSlow, fmt::format("KV peer {} is too slow", peer.text), now);
    if (peer.connections[0].link == nullptr) return;
  }
}

void PeerTier::poll(TierNow now, std::vector<TierRemoval>&) {
  for (Peer& peer : peers_)
    ask(peer, now.now);
  epoll_event events[kEventsMax];
  const int n = ::epoll_wait(epoll_.get(), events, kEventsMax, 0);
  for (int i = 0; i < n; ++i) {
    const std::uint64_t name = events[i].data.u64;
    if (name == kWake) wake_.clear();
    if (name == kTimer) {
      std::uint64_t expiries = 0;
      (void)!::read(timer_.get(), &expiries, sizeof expiries);
      armed_ = {};
    }
    if (name == kNames) {
      for (NameLookup::Answer& answer : names_.take())
        looked_up(std::move(answer), now.now);
    }
    if (name < kFirstLink) continue;
    step(peers_[(name - kFirstLink) / kLinksMax], (name - kFirstLink) % kLinksMax, now.now);
  }
  for (Peer& peer : peers_) {
    check_time(peer, now.now);
    ask(peer, now.now);
  }
  set_timer(now.now);
  for (PeerLink::Arrival& arrival : std::exchange(ended_, {}))
    arrival.read.done(arrival.reason, arrival.info);
}

void PeerTier::set_timer(Instant now) {
  std::optional<Instant> next;
  const auto consider = [&](Instant at) { next = std::min(next.value_or(at), at); };
  for (const Peer& peer : peers_) {
    for (const Connection& connection : peer.connections) {
      if (connection.link == nullptr) {
        if (peer.looking_up) continue;  // its answer wakes us
        if (peer.ready || peer.connections[0].link == nullptr) consider(peer.retry_at);
      } else if (connection.link->outstanding() > 0) {
        consider(std::min(connection.link->heard() + options_.progress_max,
                          connection.since + options_.read_max));
      } else if (!connection.link->open()) {
        consider(connection.since + options_.progress_max);
      }
    }
  }
  // Deadlines move with every byte that comes: a timer that fires too early costs one poll, setting
  // it anew each time a system call a turn.
  if (!next || (armed_ > now && armed_ <= *next)) return;
  armed_ = *next;
  const Duration left = std::max<Duration>(*next - now, std::chrono::milliseconds(1));
  itimerspec at{};
  at.it_value.tv_sec = left / std::chrono::seconds(1);
  at.it_value.tv_nsec = (left % std::chrono::seconds(1)).count();
  ::timerfd_settime(timer_.get(), 0, &at, nullptr);  // an expiry that was not read goes
}

void PeerTier::for_each(const std::function<bool(const BlockName&, std::uint32_t)>& visit) const {
  for (const Peer& peer : peers_) {
    if (!peer.ready) continue;
    for (const auto& [name, bytes] : peer.blocks)
      if (!visit(name, bytes)) return;
  }
}

std::size_t PeerTier::ready() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(peers_, [](const Peer& peer) { return peer.ready; }));
}

TierStats PeerTier::stats() const {
  TierStats stats = stats_;
  for (const Peer& peer : peers_) {
    if (!peer.ready) continue;
    stats.blocks += peer.blocks.size();
    stats.index_bytes += peer.blocks.size() * (sizeof(BlockName) + 3 * sizeof(void*));
  }
  stats.in_service = ready() == peers_.size();
  stats.state = stats.in_service
                    ? "ok"
                    : fmt::format("{} of {} peers answer; see the log", ready(), peers_.size());
  return stats;
}

}  // namespace penstock::kv
