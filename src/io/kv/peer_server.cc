#include "io/kv/peer_server.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "io/kv/peer_wire.h"

namespace penstock::kv {
namespace {

using peer::Op;

constexpr int kEventsMax = 64;
constexpr std::size_t kReadBytes = std::size_t{16} << 10;
constexpr std::size_t kPartsMax = 64;                           // of one sendmsg
constexpr std::size_t kTurnBytes = std::size_t{8} << 20;        // sent to one peer before the next
constexpr std::size_t kHoldingBytesMax = std::size_t{1} << 20;  // queued, then events are held back
// Sessions of peers are numbered from here, beyond those of KvServer's sockets.
constexpr std::uint64_t kFirstSession = std::uint64_t{1} << 62;
constexpr std::uint64_t kListener = 0;
constexpr std::uint64_t kTimer = 1;

// A frame that waits to be sent, and the pinned payload behind it.
struct Part {
  std::string head;
  std::span<const std::byte> payload;
  std::uint64_t number = 0;  // of the block that is pinned for it; 0: none
};

struct Connection {
  enum class State : std::uint8_t { kNew, kChallenged, kOpen };
  Descriptor socket;
  State state = State::kNew;
  std::string name = "unknown";
  peer::Nonce client{};
  peer::Nonce server{};
  std::string input;
  std::deque<Part> output;
  std::size_t output_bytes = 0;
  std::size_t sent = 0;      // of output's first
  std::uint32_t events = 0;  // watched for
  Instant progressed{};      // bytes went out, or nothing was queued
  std::set<std::uint64_t> fetching;
  bool in_snapshot = false;
  bool congested = false;
  bool leaving = false;  // goodbye is queued
  bool dead = false;
};

}  // namespace

struct PeerServer::State {
  State(PeerServerOptions o, Descriptor l)
      : options(std::move(o)),
        proofs(options.secret),
        listener(std::move(l)),
        epoll(::epoll_create1(EPOLL_CLOEXEC)),
        timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
    ENSURE(epoll.get() >= 0 && timer.get() >= 0);
    watch(EPOLL_CTL_ADD, listener.get(), kListener, EPOLLIN);
    watch(EPOLL_CTL_ADD, timer.get(), kTimer, EPOLLIN);
  }

  void watch(int operation, int fd, std::uint64_t name, std::uint32_t events) const {
    epoll_event event{};
    event.events = events;
    event.data.u64 = name;
    ENSURE(::epoll_ctl(epoll.get(), operation, fd, &event) == 0);
  }
  void log(std::string_view text) const {
    if (options.log) options.log(text);
  }

  void accept(TierNow now);
  void set_timer() const;
  void check_time(TierNow now);
  void read(std::uint64_t id, Connection& c, TierNow now);
  Status take_frames(std::uint64_t id, Connection& c, TierNow now);
  Status take_frame(std::uint64_t id, Connection& c, const peer::Header& header,
                    std::string_view body, TierNow now);
  void greet(std::uint64_t id, TierNow now);
  void say(Connection& c, Op op, std::uint64_t request, std::string_view body);
  void refuse(Connection& c, std::string_view why);
  void tell(std::uint64_t id, Connection& c, const Events& events);
  void send(std::uint64_t id, Connection& c, TierNow now);
  void sent(std::uint64_t id, Connection& c, std::size_t bytes, TierNow now);
  std::map<std::uint64_t, Connection>::iterator end(
      std::map<std::uint64_t, Connection>::iterator at, TierNow now);

  PeerServerOptions options;
  peer::PeerProofs proofs;
  Descriptor listener;
  Descriptor epoll;
  Descriptor timer;
  service::KvDaemon* daemon = nullptr;
  BlockKey key_check;
  std::uint64_t epoch = 0;
  std::map<std::uint64_t, Connection> connections;
  std::set<std::uint64_t> touched;  // have something to send, or are at their end
  std::uint64_t next_session = kFirstSession;
};

Result<std::unique_ptr<PeerServer>> PeerServer::listen(PeerServerOptions options) {
  TRY(const sockets::TcpAddress address, sockets::resolve(options.listen));
  TRY(Descriptor listener, sockets::listen_on(address));
  return std::unique_ptr<PeerServer>(
      new PeerServer(std::make_unique<State>(std::move(options), std::move(listener))));
}

PeerServer::PeerServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
PeerServer::~PeerServer() = default;

void PeerServer::attach(service::KvDaemon& daemon, const service::KvDaemonOptions& options) {
  state_->daemon = &daemon;
  state_->key_check = options.key_check;
  state_->epoch = options.epoch;
}

std::uint16_t PeerServer::port() const {
  return sockets::port_of(state_->listener);
}

bool PeerServer::has_work() const {
  return !state_->touched.empty();
}

int PeerServer::event_fd() const {
  return state_->epoll.get();
}

void PeerServer::poll(TierNow now) {
  State& s = *state_;
  epoll_event events[kEventsMax];
  const int n = ::epoll_wait(s.epoll.get(), events, kEventsMax, 0);
  for (int i = 0; i < n; ++i) {
    const std::uint64_t id = events[i].data.u64;
    if (id == kListener) {
      s.accept(now);
    } else if (id == kTimer) {
      s.check_time(now);
    } else if (const auto at = s.connections.find(id); at != s.connections.end()) {
      if ((events[i].events & EPOLLOUT) != 0) s.touched.insert(id);
      if ((events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
        at->second.dead = true;
        s.touched.insert(id);
      } else if ((events[i].events & EPOLLIN) != 0) {
        s.read(id, at->second, now);
      }
    }
  }
}

void PeerServer::State::set_timer() const {
  itimerspec at{};
  if (!connections.empty()) at.it_value.tv_sec = 1;
  ::timerfd_settime(timer.get(), 0, &at, nullptr);
}

void PeerServer::State::check_time(TierNow now) {
  for (auto& [id, c] : connections) {
    const bool waits = c.state != Connection::State::kOpen || !c.output.empty();
    if (c.dead || !waits || now.now - c.progressed < options.progress_max) continue;
    log(fmt::format("KV peer {} is cut off: it {}", c.name,
                    c.state == Connection::State::kOpen ? "does not take what it asked for"
                                                        : "does not prove itself"));
    c.dead = true;
    touched.insert(id);
  }
  set_timer();
}

void PeerServer::State::accept(TierNow now) {
  for (;;) {
    Descriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) return;
    if (connections.size() >= options.connections_max) {
      log("a KV peer is turned away: too many connections");
      continue;
    }
    sockets::no_delay(socket.get());
    const std::uint64_t id = next_session++;
    watch(EPOLL_CTL_ADD, socket.get(), id, EPOLLIN | EPOLLRDHUP);
    Connection& c = connections[id];
    c.socket = std::move(socket);
    c.events = EPOLLIN | EPOLLRDHUP;
    c.progressed = now.now;
    set_timer();
  }
}

void PeerServer::State::read(std::uint64_t id, Connection& c, TierNow now) {
  while (!c.dead && !c.leaving && c.output_bytes < options.output_bytes_max) {
    const std::size_t before = c.input.size();
    c.input.resize(before + kReadBytes);
    const ssize_t n = ::recv(c.socket.get(), c.input.data() + before, kReadBytes, MSG_DONTWAIT);
    const int error = errno;
    c.input.resize(before + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    if (n < 0 && (error == EAGAIN || error == EWOULDBLOCK || error == EINTR)) break;
    if (n <= 0) {
      c.dead = true;
      touched.insert(id);
      break;
    }
    if (const Status taken = take_frames(id, c, now); !taken) refuse(c, taken.error().message);
    touched.insert(id);
    if (static_cast<std::size_t>(n) < kReadBytes) break;
  }
}

Status PeerServer::State::take_frames(std::uint64_t id, Connection& c, TierNow now) {
  std::string_view rest = c.input;
  while (!c.leaving && rest.size() >= peer::kHeaderBytes) {
    TRY(const peer::Header header, peer::decode_header(rest.substr(0, peer::kHeaderBytes)));
    if (rest.size() < peer::kHeaderBytes + header.length) break;
    TRY_STATUS(take_frame(id, c, header, rest.substr(peer::kHeaderBytes, header.length), now));
    rest.remove_prefix(peer::kHeaderBytes + header.length);
  }
  c.input.erase(0, c.input.size() - rest.size());
  return {};
}

Status PeerServer::State::take_frame(std::uint64_t id, Connection& c, const peer::Header& header,
                                     std::string_view body, TierNow now) {
  using enum Connection::State;
  if (c.state == kNew && header.op == Op::kHello) {
    TRY(peer::Hello hello, peer::decode_hello(body));
    c.client = hello.nonce;
    c.name = std::move(hello.name);
    c.server = peer::random_nonce();
    c.state = kChallenged;
    say(c, Op::kChallenge, 0,
        peer::challenge_body({c.server, proofs.of_server(c.client, c.server, epoch)}));
    return {};
  }
  if (header.epoch != epoch)
    return fail(ErrorCode::kConflict, "this KV daemon has been started again since");
  if (c.state == kChallenged && header.op == Op::kProof) {
    TRY(const Hash128 proof, peer::decode_proof(body));
    if (!peer::same_proof(proof, proofs.of_client(c.client, c.server, epoch))) {
      return fail(ErrorCode::kPermissionDenied,
                  "its deployment secret differs from this KV daemon's; give both hosts the same "
                  "--kv-secret-file");
    }
    c.state = kOpen;
    greet(id, now);
    say(c, Op::kWelcome, 0, {});
    return {};
  }
  if (c.state == kOpen && header.op == Op::kSubscribe && body.empty()) {
    daemon->handle(SessionId(id), Subscribe{}, now);
    return {};
  }
  if (c.state == kOpen && header.op == Op::kDamaged) {
    TRY(const BlockName name, peer::decode_damaged(body));
    log(fmt::format(
        "KV peer {} says that a block of ours came with wrong bytes; the copy is looked "
        "at",
        c.name));
    daemon->suspect(name, now);
    return {};
  }
  if (c.state == kOpen && header.op == Op::kRead) {
    TRY(service::Fetch fetch, peer::decode_read(body, header.request));
    for (std::size_t i = 0; i < fetch.blocks.size(); ++i) {
      if (header.request + i == 0 || !c.fetching.insert(header.request + i).second)
        return fail(ErrorCode::kInvalidArgument, "it used a number while it was in use");
    }
    daemon->fetch(SessionId(id), fetch, now);
    return {};
  }
  return fail(ErrorCode::kInvalidArgument, "it does not follow the protocol");
}

void PeerServer::State::greet(std::uint64_t id, TierNow now) {
  daemon->open(SessionId(id), now);
  Hello hello;
  hello.protocol_version = kKvProtocolVersion;
  hello.role = "peer";
  hello.name = connections.at(id).name;
  hello.key_check = key_check;
  daemon->handle(SessionId(id), std::move(hello), now);
}

void PeerServer::State::say(Connection& c, Op op, std::uint64_t request, std::string_view body) {
  c.output.push_back({peer::frame({op, request, epoch, 0}, body), {}, 0});
  c.output_bytes += c.output.back().head.size();
}

void PeerServer::State::refuse(Connection& c, std::string_view why) {
  if (std::exchange(c.leaving, true)) return;
  log(fmt::format("KV peer {} is sent away: {}", c.name, why));
  say(c, Op::kGoodbye, 0, why.substr(0, peer::kNameBytesMax));
}

bool PeerServer::take(const service::KvOutgoing& outgoing) {
  if (outgoing.session.value < kFirstSession) return false;
  State& s = *state_;
  const auto at = s.connections.find(outgoing.session.value);
  if (at == s.connections.end()) return true;
  s.touched.insert(at->first);
  if (const auto* events = std::get_if<Events>(&outgoing.message)) {
    s.tell(at->first, at->second, *events);
  } else if (const auto* goodbye = std::get_if<Goodbye>(&outgoing.message)) {
    s.refuse(at->second, goodbye->reason);
  }
  return true;
}

// Says what is so by now, whatever happened in between.
void PeerServer::State::tell(std::uint64_t, Connection& c, const Events& events) {
  peer::Holdings holdings;
  holdings.replaces = events.snapshot && !c.in_snapshot;
  c.in_snapshot = events.snapshot && !events.snapshot_end;
  holdings.blocks.reserve(events.events.size());
  for (const Event& event : events.events)
    if (event.tier != KvTier::kCluster)  // it has its own way there
      holdings.blocks.push_back({event.name, daemon->bytes_of(event.name).value_or(0)});
  say(c, Op::kHoldings, 0, peer::holdings_body(holdings));
}

void PeerServer::flush(TierNow now) {
  State& s = *state_;
  for (service::Fetched& fetched : s.daemon->take_fetched()) {
    const auto at = s.connections.find(fetched.session.value);
    if (at == s.connections.end()) continue;
    Connection& c = at->second;
    c.fetching.erase(fetched.number);
    s.say(c, Op::kBlock, fetched.number, peer::block_body(fetched.reason, fetched.info));
    if (fetched.reason == MissReason::kNone) {
      c.output.back().payload = fetched.payload;
      c.output.back().number = fetched.number;
      c.output_bytes += fetched.payload.size();
    }
    s.touched.insert(at->first);
  }
  for (const std::uint64_t id : std::exchange(s.touched, {})) {
    const auto at = s.connections.find(id);
    if (at == s.connections.end()) continue;
    Connection& c = at->second;
    if (!c.dead) s.send(id, c, now);
    if (c.dead || (c.leaving && c.output.empty())) s.end(at, now);
  }
}

void PeerServer::State::send(std::uint64_t id, Connection& c, TierNow now) {
  for (std::size_t total = 0; !c.output.empty() && total < kTurnBytes;) {
    iovec parts[kPartsMax];
    std::size_t count = 0;
    std::size_t skip = c.sent;
    const auto add = [&](const void* data, std::size_t bytes) {
      const std::size_t skipped = std::min(skip, bytes);
      skip -= skipped;
      if (skipped == bytes) return;
      parts[count++] = {const_cast<char*>(static_cast<const char*>(data)) + skipped,
                        bytes - skipped};
    };
    for (const Part& part : c.output) {
      if (count + 2 > kPartsMax) break;
      add(part.head.data(), part.head.size());
      add(part.payload.data(), part.payload.size());
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t n = ::sendmsg(c.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n < 0) {
      c.dead = true;
      return;
    }
    sent(id, c, static_cast<std::size_t>(n), now);
    total += static_cast<std::size_t>(n);
  }
  if (c.output.empty()) c.progressed = now.now;
  const bool listens = !c.leaving && c.output_bytes < options.output_bytes_max;
  const std::uint32_t events = EPOLLRDHUP | (listens ? std::uint32_t{EPOLLIN} : 0U) |
                               (c.output.empty() ? 0U : std::uint32_t{EPOLLOUT});
  if (events != c.events) {
    c.events = events;
    watch(EPOLL_CTL_MOD, c.socket.get(), id, events);
  }
  const bool congested = c.output_bytes > kHoldingBytesMax;
  if (congested != c.congested) {
    c.congested = congested;
    daemon->set_congested(SessionId(id), congested);
  }
}

void PeerServer::State::sent(std::uint64_t id, Connection& c, std::size_t bytes, TierNow now) {
  c.progressed = now.now;
  c.output_bytes -= bytes;
  c.sent += bytes;
  while (!c.output.empty()) {
    const Part& part = c.output.front();
    const std::size_t whole = part.head.size() + part.payload.size();
    if (c.sent < whole) return;
    c.sent -= whole;
    if (part.number != 0) daemon->unpin(SessionId(id), part.number);
    c.output.pop_front();
  }
}

std::map<std::uint64_t, Connection>::iterator PeerServer::State::end(
    std::map<std::uint64_t, Connection>::iterator at, TierNow now) {
  if (at->second.state == Connection::State::kOpen) daemon->close(SessionId(at->first), now);
  return connections.erase(at);
}

void PeerServer::end_all(TierNow now) {
  State& s = *state_;
  s.watch(EPOLL_CTL_DEL, s.listener.get(), kListener, 0);
  for (auto at = s.connections.begin(); at != s.connections.end();)
    at = s.end(at, now);
}

}  // namespace penstock::kv
