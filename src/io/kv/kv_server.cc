#include "io/kv/kv_server.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "io/files/files.h"
#include "io/kv/arena.h"
#include "io/kv/kv_codec.h"
#include "io/kv/tier_clock.h"
#include "io/sockets/unix_socket.h"
#include "service/kvd/cluster_tier.h"

namespace penstock::kv {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr std::size_t kTurnBytes = std::size_t{1} << 20;  // read from one session before the next
constexpr int kEventsMax = 64;
// Names in the epoll set; sessions are numbered from kFirstSession on.
constexpr std::uint64_t kListener = 0;
constexpr std::uint64_t kStop = 1;
constexpr std::uint64_t kTiers = 2;  // the disk or the peers have something
constexpr std::uint64_t kPeerServer = 3;
constexpr std::uint64_t kFirstSession = 16;
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

struct Session {
  Descriptor socket;
  Descriptor process;  // pidfd of the peer
  FrameBuffer input;
  std::vector<Descriptor> descriptors;  // arrived, not yet used
  sockets::SendQueue output;
  bool wants_write = false;  // in the epoll set; the daemon holds events back meanwhile
  bool ended = false;        // goodbye is said, or the peer has gone
};

// A name for the peer's process that can't be reused.
Descriptor peer_process(int socket) {
  int fd = -1;
  socklen_t size = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) return Descriptor(fd);
  ucred peer{};
  size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return Descriptor();
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
}

bool hung_up(int socket) {
  pollfd state{socket, POLLRDHUP, 0};
  return ::poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

class Memory final : public service::KvMemory {
 public:
  explicit Memory(Arena arena) : arena_(std::move(arena)) {}

  std::span<std::byte> arena() override { return arena_.memory(); }
  std::span<const std::byte> pool(SessionId session, std::uint32_t pool) override {
    const auto it = pools_.find({session.value, pool});
    if (it == pools_.end() || hung_up(it->second.socket)) return {};
    return it->second.mapping.memory();
  }

  const Arena& shared() const { return arena_; }
  std::size_t pools_of(SessionId session) const {
    const auto [first, last] = range(session);
    return static_cast<std::size_t>(std::distance(first, last));
  }
  bool add(SessionId session, std::uint32_t pool, int socket, Mapping mapping) {
    return pools_.emplace(std::pair(session.value, pool), Pool{socket, std::move(mapping)}).second;
  }
  void remove(SessionId session) {
    const auto [first, last] = range(session);
    pools_.erase(first, last);
  }

 private:
  struct Pool {
    int socket;
    Mapping mapping;
  };
  using Pools = std::map<std::pair<std::uint64_t, std::uint32_t>, Pool>;
  std::pair<Pools::const_iterator, Pools::const_iterator> range(SessionId session) const {
    return {pools_.lower_bound({session.value, 0}), pools_.lower_bound({session.value + 1, 0})};
  }

  Arena arena_;
  Pools pools_;
};

struct Counters {
  std::atomic<std::uint64_t> sessions = 0, sessions_open = 0, messages = 0, protocol_errors = 0,
                             slow_readers = 0, kills = 0;
};

void count(std::atomic<std::uint64_t>& counter) {
  counter.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

struct KvServer::State {
  State(KvServerOptions o, FileLock l, Arena arena, Descriptor listening, BlockTier* d,
        BlockTier* p, service::ClusterTier* c, std::unique_ptr<PeerServer> serving)
      : options(std::move(o)),
        lock(std::move(l)),
        memory(std::move(arena)),
        listener(std::move(listening)),
        disk(d),
        daemon(options.daemon, memory, d, p, c),
        peer_server(std::move(serving)),
        epoll(::epoll_create1(EPOLL_CLOEXEC)) {
    ENSURE(epoll.get() >= 0);
    watch(EPOLL_CTL_ADD, listener.get(), kListener, EPOLLIN);
    watch(EPOLL_CTL_ADD, stop_event.fd(), kStop, EPOLLIN);
    for (const BlockTier* tier : {d, p, static_cast<BlockTier*>(c)}) {
      if (tier != nullptr && tier->event_fd() >= 0)
        watch(EPOLL_CTL_ADD, tier->event_fd(), kTiers, EPOLLIN);
    }
    if (peer_server != nullptr) {
      peer_server->attach(daemon, options.daemon);
      watch(EPOLL_CTL_ADD, peer_server->event_fd(), kPeerServer, EPOLLIN);
    }
  }

  TierNow now() {
    const TierNow clocks = tier_now();
    last = std::max(clocks.now, last + Duration(1));
    return {last, clocks.wall};
  }

  void log(std::string_view text) const {
    if (options.log) options.log(text);
  }

  void watch(int operation, int fd, std::uint64_t name, std::uint32_t events) const {
    epoll_event event{};
    event.events = events;
    event.data.u64 = name;
    ENSURE(::epoll_ctl(epoll.get(), operation, fd, &event) == 0);
  }

  void serve();
  void wait();
  int timeout_ms();
  void accept();
  void read(std::uint64_t name);
  void take_frames(std::uint64_t name, Session& session);
  Status register_pool(std::uint64_t name, Session& session, const RegisterPool& pool);
  void refuse(std::uint64_t name, Session& session, std::string_view why);
  void deliver();
  void flush();
  void end(std::uint64_t name);
  void finish();

  KvServerOptions options;
  FileLock lock;
  Memory memory;
  Descriptor listener;
  BlockTier* disk;
  service::KvDaemon daemon;
  std::unique_ptr<PeerServer> peer_server;
  Descriptor epoll;
  sockets::WakeEvent stop_event;
  std::atomic<bool> stopping = false;
  Counters counters;
  std::map<std::uint64_t, Session> sessions;
  std::set<std::uint64_t> touched;  // have output to flush, or have ended
  std::uint64_t next_session = kFirstSession;
  Instant last{};
};

void KvServer::State::serve() {
  while (!stopping.load(std::memory_order_relaxed)) {
    wait();
    if (daemon.has_work()) {
      daemon.work(now());
      deliver();
    }
    const std::optional<Instant> deadline = daemon.next_deadline();
    const TierNow at = now();
    if (deadline && *deadline <= at.now) {
      daemon.poll(at);
      deliver();
    }
    flush();
  }
  finish();
}

int KvServer::State::timeout_ms() {
  if (daemon.has_work() || !touched.empty()) return 0;
  if (peer_server != nullptr && peer_server->has_work()) return 0;
  const std::optional<Instant> deadline = daemon.next_deadline();
  if (!deadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - now().now).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

void KvServer::State::wait() {
  epoll_event events[kEventsMax];
  const int n = ::epoll_wait(epoll.get(), events, kEventsMax, timeout_ms());
  for (int i = 0; i < n; ++i) {
    const std::uint64_t name = events[i].data.u64;
    if (name == kListener) {
      accept();
    } else if (name == kStop) {
      stop_event.clear();
    } else if (name == kTiers) {
      daemon.poll(now());
      deliver();
    } else if (name == kPeerServer) {
      peer_server->poll(now());
      deliver();
    } else {
      if ((events[i].events & EPOLLOUT) != 0) touched.insert(name);
      if ((events[i].events & ~std::uint32_t{EPOLLOUT}) != 0) read(name);
    }
  }
}

void KvServer::State::accept() {
  for (;;) {
    Descriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) return;  // none, or none that we may have now
    const std::uint64_t name = next_session++;
    watch(EPOLL_CTL_ADD, socket.get(), name, EPOLLIN | EPOLLRDHUP);
    Session& session = sessions[name];
    session.process = peer_process(socket.get());
    session.socket = std::move(socket);
    count(counters.sessions);
    counters.sessions_open.store(sessions.size(), std::memory_order_relaxed);
    daemon.open(SessionId(name), now());
    deliver();
  }
}

void KvServer::State::read(std::uint64_t name) {
  const auto it = sessions.find(name);
  if (it == sessions.end()) return;
  Session& session = it->second;
  for (std::size_t total = 0; total < kTurnBytes && !session.ended;) {
    char* to = session.input.reserve(kReadBytes);
    const auto got = sockets::receive(session.socket.get(), to, kReadBytes, session.descriptors);
    if (got && !*got) return;
    if (!got || **got == 0) {
      session.ended = true;
      touched.insert(name);
      return;
    }
    session.input.commit(**got);
    total += **got;
    take_frames(name, session);
    if (**got < kReadBytes) return;
  }
}

void KvServer::State::take_frames(std::uint64_t name, Session& session) {
  while (!session.ended) {
    const auto frame = session.input.next();
    if (frame && !*frame) break;
    auto message = frame ? decode_client(**frame) : std::unexpected(frame.error());
    if (!message) return refuse(name, session, message.error().message);
    count(counters.messages);
    if (const auto* pool = std::get_if<RegisterPool>(&*message)) {
      const Status registered = register_pool(name, session, *pool);
      if (!registered) return refuse(name, session, registered.error().message);
    }
    daemon.handle(SessionId(name), std::move(*message), now());
    deliver();
  }
  // Descriptors travel with the frame they belong to, so none is left when all frames are whole.
  if (session.descriptors.size() > sockets::kDescriptorsMax) {
    refuse(name, session, "descriptors that nothing asked for");
  }
}

Status KvServer::State::register_pool(std::uint64_t name, Session& session,
                                      const RegisterPool& pool) {
  if (session.descriptors.empty()) {
    return fail(ErrorCode::kInvalidArgument, "a pool without its memory");
  }
  const Descriptor fd = std::move(session.descriptors.front());
  session.descriptors.erase(session.descriptors.begin());
  if (memory.pools_of(SessionId(name)) >= options.pools_max) {
    return fail(ErrorCode::kOverloaded, "too many pools");
  }
  TRY(Mapping mapping, map_to_read(fd.get(), pool.bytes));
  if (!memory.add(SessionId(name), pool.pool, session.socket.get(), std::move(mapping))) {
    return fail(ErrorCode::kConflict, "a pool that is registered already");
  }
  return {};
}

void KvServer::State::refuse(std::uint64_t name, Session& session, std::string_view why) {
  log(fmt::format("KV session {} ended: {}", name, why));
  count(counters.protocol_errors);
  std::string frame;
  if (append_frame(DaemonMessage(Goodbye{std::string(why)}), frame)) session.output.push(frame);
  session.ended = true;
  touched.insert(name);
}

void KvServer::State::deliver() {
  for (service::KvOutgoing& out : daemon.take_outbox()) {
    if (peer_server != nullptr && peer_server->take(out)) continue;
    const auto it = sessions.find(out.session.value);
    if (it == sessions.end() || it->second.ended) continue;
    Session& session = it->second;
    touched.insert(it->first);
    if (out.kill_process && session.process.get() >= 0) {
      count(counters.kills);
      log(fmt::format("KV session {} holds too much in silence: its process is ended", it->first));
      ::syscall(SYS_pidfd_send_signal, session.process.get(), SIGKILL, nullptr, 0);
    }
    std::string frame;
    if (const Status encoded = append_frame(out.message, frame); !encoded) {
      log(fmt::format("KV session {} ended: {}", it->first, encoded.error().message));
      session.ended = true;
      continue;
    }
    session.output.push(frame, out.with_arena ? memory.shared().fd() : -1);
    if (out.close) {
      session.ended = true;
      count(counters.protocol_errors);
      if (const auto* goodbye = std::get_if<Goodbye>(&out.message)) {
        log(fmt::format("KV session {} ended: {}", it->first, goodbye->reason));
      }
    }
  }
}

void KvServer::State::flush() {
  if (peer_server != nullptr) {
    peer_server->flush(now());
    deliver();
  }
  // Ending a session may make the daemon answer others.
  while (!touched.empty()) {
    const std::uint64_t name = *touched.begin();
    touched.erase(touched.begin());
    const auto it = sessions.find(name);
    if (it == sessions.end()) continue;
    Session& session = it->second;
    const Result<bool> sent = session.output.flush(session.socket.get());
    if (sent && !*sent && session.output.bytes() > options.output_bytes_max) {
      log(fmt::format("KV session {} ended: {} bytes unread", name, session.output.bytes()));
      count(counters.slow_readers);
      session.ended = true;
    }
    if (!sent || session.ended) {
      end(name);
      deliver();
    } else if (session.wants_write == *sent) {
      session.wants_write = !*sent;
      watch(EPOLL_CTL_MOD, session.socket.get(), name,
            EPOLLIN | EPOLLRDHUP | (session.wants_write ? EPOLLOUT : 0U));
      daemon.set_congested(SessionId(name), session.wants_write);
      deliver();
    }
  }
}

void KvServer::State::end(std::uint64_t name) {
  daemon.close(SessionId(name), now());
  memory.remove(SessionId(name));
  sessions.erase(name);
  counters.sessions_open.store(sessions.size(), std::memory_order_relaxed);
}

void KvServer::State::finish() {
  watch(EPOLL_CTL_DEL, listener.get(), kListener, 0);
  ::unlink(options.socket.c_str());
  while (!sessions.empty())
    end(sessions.begin()->first);
  if (peer_server != nullptr) peer_server->end_all(now());
  daemon.take_outbox();
  daemon.hurry();
  const Instant until = now().now + options.settle_max;
  while (!daemon.settled() && now().now < until) {
    daemon.poll(now());
    daemon.take_outbox();
    if (daemon.has_work()) daemon.work(now());
    pollfd ready{disk != nullptr ? disk->event_fd() : -1, POLLIN, 0};
    if (!daemon.settled()) ::poll(&ready, 1, 10);
  }
  if (!daemon.settled()) log("the KV daemon stops with writes to the disk under way");
}

Result<std::unique_ptr<KvServer>> KvServer::start(KvServerOptions options, BlockTier* disk,
                                                  BlockTier* peers, service::ClusterTier* cluster) {
  TRY(FileLock lock, FileLock::acquire(options.socket + ".lock"));
  TRY(Descriptor listener, sockets::listen_at(options.socket));
  std::unique_ptr<PeerServer> peer_server;
  if (options.peer_server) {
    TRY(peer_server, PeerServer::listen(*options.peer_server));
  }
  TRY(Arena arena, Arena::create(options.arena_bytes));
  return std::unique_ptr<KvServer>(new KvServer(
      std::make_unique<State>(std::move(options), std::move(lock), std::move(arena),
                              std::move(listener), disk, peers, cluster, std::move(peer_server))));
}

KvServer::KvServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
KvServer::~KvServer() = default;

void KvServer::run() {
  state_->serve();
}

void KvServer::stop() {
  state_->stopping = true;
  state_->stop_event.wake();
}

std::span<std::byte> KvServer::arena() {
  return state_->memory.arena();
}

bool KvServer::huge_pages() const {
  return state_->memory.shared().huge_pages();
}

std::uint16_t KvServer::peer_port() const {
  return state_->peer_server != nullptr ? state_->peer_server->port() : 0;
}

KvServerCounters KvServer::counters() const {
  const Counters& c = state_->counters;
  const auto get = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  return {get(c.sessions),        get(c.sessions_open), get(c.messages),
          get(c.protocol_errors), get(c.slow_readers),  get(c.kills)};
}

}  // namespace penstock::kv
