#include "io/transport/hub.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#if PENSTOCK_UCX
#include "io/transport/ucx_worker.h"
#endif

namespace penstock::transport {

Result<std::unique_ptr<Transport>> open_transport(TransportOptions options) {
  return Hub::open(std::move(options));
}

Hub::Hub(TransportOptions options)
    : options_(std::move(options)),
      copier_(loop_, options_.between_looks,
              [this](std::uint64_t read, ReadEnd end) { read_ended(read, end); }) {}

Result<std::unique_ptr<Hub>> Hub::open(TransportOptions options) {
  const TransportLimits& limits = options.limits;
  if (limits.connections_max == 0 || limits.reads_max == 0 || limits.reads_max > kReadsMax ||
      limits.tcp_streams == 0 || limits.tcp_streams > kStreamsMax ||
      limits.queued_bytes_max < kMessageBytesMax) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a transport takes 1 or more connections, 1 to {} reads, 1 to {} "
                            "streams and {} or more queued bytes",
                            kReadsMax, kStreamsMax, kMessageBytesMax));
  }
  std::unique_ptr<Hub> hub(new Hub(std::move(options)));
  TRY(hub->drivers_, Drivers::open(*hub, hub->options_.listen));
  hub->address_ = hub->drivers_->address();
  return hub;
}

Hub::~Hub() {
  ENSURE(thread_.get_id() != std::this_thread::get_id());
  if (thread_.joinable()) {
    loop_.stop();
    thread_.join();
  }
  for (auto& [id, peer] : peers_)
    peer.connection->shut("the process ends");
  peers_.clear();
  drivers_.reset();
}

#if PENSTOCK_UCX
Result<UcxWorker*> Hub::ucx() {
  if (!ucx_) {
    TRY(ucx_, UcxWorker::open(loop_));
  }
  return ucx_.get();
}
#else
Result<UcxWorker*> Hub::ucx() {
  return fail(ErrorCode::kUnsupported, "this build has no UCX");
}
#endif

Status Hub::start_ucx() {
  TRY([[maybe_unused]] const UcxWorker* worker, ucx());
  return {};
}

void Hub::set_events(TransportEvents events) {
  ENSURE(!thread_.joinable());
  events_ = std::move(events);
  drivers_->start();
  thread_ = std::thread([this] { loop_.run(); });
  ::pthread_setname_np(thread_.native_handle(), "transport");
}

std::uint32_t Hub::publish(const PublishedPool& pool) {
  const std::uint32_t number = pools_.add(pool);
  for (auto& [id, peer] : peers_)
    peer.connection->published(number);
  return number;
}

std::size_t Hub::count(bool ours) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(peers_, [ours](const auto& p) { return p.second.ours == ours; }));
}

Hub::Peer& Hub::add_peer(bool ours, Driver driver) {
  const PeerId id(++last_peer_);
  Peer& peer = peers_[id];
  peer.ours = ours;
  peer.announced = ours;
  peer.connection = std::make_unique<Connection>(
      *this, id, ours ? Connection::Side::kConnected : Connection::Side::kAccepted, driver);
  return peer;
}

Result<PeerId> Hub::connect(const std::string& address, Instant deadline) {
  if (count(true) >= options_.limits.connections_max)
    return fail(ErrorCode::kOverloaded, "too many connections to other processes");
  TRY(const Target target, Drivers::parse(address));
  Peer& peer = add_peer(true, target.driver);
  const PeerId id = peer.connection->peer();
  peer.timer = loop_.call_at(
      deadline, [this, id] { broken(id, "the peer did not answer before the deadline"); });
  if (Status started = drivers_->connect(*peer.connection, target); !started) {
    loop_.cancel(peer.timer);
    peers_.erase(id);
    return std::unexpected(std::move(started).error());
  }
  return id;
}

Connection* Hub::connection(PeerId id) {
  const auto at = peers_.find(id);
  return at == peers_.end() || at->second.ending ? nullptr : at->second.connection.get();
}

Connection* Hub::admit(Driver driver) {
  if (count(false) >= options_.limits.connections_max) return nullptr;
  Peer& peer = add_peer(false, driver);
  const PeerId id = peer.connection->peer();
  peer.timer = loop_.call_at(loop_.now() + options_.limits.greeting_max,
                             [this, id] { broken(id, "the peer did not say who it is"); });
  return peer.connection.get();
}

void Hub::opened(PeerId id) {
  Peer& peer = peers_.at(id);
  if (peer.ending) return;
  peer.open = true;
  loop_.cancel(peer.timer);
  if (events_.opened) events_.opened(id);
}

void Hub::accepted(PeerId id) {
  Peer& peer = peers_.at(id);
  if (peer.ending) return;
  peer.open = peer.announced = true;
  loop_.cancel(peer.timer);
  if (events_.accepted) events_.accepted(id);
}

void Hub::message(PeerId id, std::string_view bytes) {
  if (!peers_.at(id).ending && events_.message) events_.message(id, bytes);
}

Status Hub::send(PeerId id, std::string_view message) {
  const auto at = peers_.find(id);
  if (at == peers_.end() || at->second.ending)
    return fail(ErrorCode::kUnavailable, "the peer is not connected");
  return at->second.connection->send(message);
}

void Hub::close(PeerId id) {
  const auto at = peers_.find(id);
  if (at == peers_.end()) return;
  at->second.silent = true;
  if (!at->second.ending) begin_end(id, at->second, "the peer has closed the connection");
}

void Hub::broken(PeerId id, const std::string& why) {
  const auto at = peers_.find(id);
  if (at != peers_.end() && !at->second.ending) begin_end(id, at->second, why);
}

void Hub::begin_end(PeerId id, Peer& peer, const std::string& why) {
  peer.ending = true;
  loop_.cancel(peer.timer);
  peer.connection->shut(why);
  loop_.call_at(Instant{}, [this, id, why] { finish_end(id, why); });
}

void Hub::finish_end(PeerId id, const std::string& why) {
  // Each of these may cancel others, or start some, which end at once in their turn.
  for (const std::uint64_t read : reads_where([id](const Read& r) { return r.peer == id; }))
    finish_read(read, ReadEnd::kGone);
  const auto at = peers_.find(id);
  const bool tell = at->second.announced && !at->second.silent;
  peers_.erase(at);
  if (tell && events_.closed) events_.closed(id, why);
}

ReadId Hub::read(PeerId peer, const RemoteSlice& slice, std::byte* into, Instant deadline,
                 ReadDone done) {
  const std::uint64_t id = ++last_read_;
  const auto at = peers_.find(peer);
  const bool open = at != peers_.end() && !at->second.ending && at->second.open;
  if (!open || !at->second.ours || at->second.reads >= options_.limits.reads_max) {
    const ReadEnd end = open ? ReadEnd::kRefused : ReadEnd::kGone;
    reads_.emplace(id, Read{PeerId(0), std::move(done), Instant::max()});
    loop_.call_at(Instant{}, [this, id, end] { finish_read(id, end); });
    return ReadId(id);
  }
  ++at->second.reads;
  reads_.emplace(id, Read{peer, std::move(done), deadline});
  if (deadline < expires_) {
    loop_.cancel(expiry_);
    expires_ = deadline;
    expiry_ = loop_.call_at(deadline, [this] { expire(); });
  }
  at->second.connection->start_read(id, slice, into);
  return ReadId(id);
}

// In the order in which they were asked for.
std::vector<std::uint64_t> Hub::reads_where(const std::function<bool(const Read&)>& wanted) const {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, read] : reads_)
    if (wanted(read)) ids.push_back(id);
  std::ranges::sort(ids);
  return ids;
}

void Hub::expire() {
  const Instant now = loop_.now();
  expires_ = Instant::max();
  for (const std::uint64_t id : reads_where([now](const Read& r) { return r.deadline <= now; })) {
    const auto at = reads_.find(id);
    if (at == reads_.end()) continue;  // cancelled by one before
    // A peer that is ending has ended its part already.
    if (const auto of = peers_.find(at->second.peer); of != peers_.end())
      of->second.connection->abandon(id);
    finish_read(id, ReadEnd::kDeadline);
  }
  Instant earliest = expires_;  // of those that were started meanwhile
  for (const auto& [id, read] : reads_)
    earliest = std::min(earliest, read.deadline);
  if (earliest >= expires_) return;
  loop_.cancel(expiry_);
  expires_ = earliest;
  expiry_ = loop_.call_at(earliest, [this] { expire(); });
}

void Hub::cancel(ReadId read) {
  const auto at = reads_.find(read.value);
  if (at == reads_.end()) return;
  const PeerId peer = at->second.peer;
  reads_.erase(at);
  if (const auto of = peers_.find(peer); of != peers_.end()) {
    of->second.connection->abandon(read.value);
    --of->second.reads;
  }
}

void Hub::read_ended(std::uint64_t read, ReadEnd end) {
  finish_read(read, end);
}

void Hub::finish_read(std::uint64_t id, ReadEnd end) {
  const auto at = reads_.find(id);
  if (at == reads_.end()) return;
  const ReadDone done = std::move(at->second.done);
  if (const auto of = peers_.find(at->second.peer); of != peers_.end()) --of->second.reads;
  reads_.erase(at);
  done(end);
}

Hub::Look Hub::look(PeerId peer, const RemoteSlice& slice) const {
  const auto view = pools_.view(slice.pool);
  if (!view) return {};
  const auto bytes = view->place(slice);
  if (!bytes) return {};
  if (!events_.readable || !events_.readable(peer, slice.pool, slice.block, slice.generation))
    return {};
  if (view->generation(slice.block) != slice.generation) return {ReadEnd::kStale, {}};
  return {ReadEnd::kDone, *bytes};
}

ReadEnd Hub::look_again(const RemoteSlice& slice) const {
  if (options_.between_looks) options_.between_looks();
  const auto view = pools_.view(slice.pool);
  return view->generation_after_reading(slice.block) == slice.generation ? ReadEnd::kDone
                                                                         : ReadEnd::kStale;
}

}  // namespace penstock::transport
