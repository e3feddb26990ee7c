#include "io/transport/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include "io/sockets/tcp_socket.h"
#include "io/transport/hub.h"

namespace penstock::transport {
namespace {

constexpr Duration kPingEvery = std::chrono::milliseconds(250);
#ifndef SO_PEERPIDFD
constexpr int kPeerPidfd = 77;  // Linux 6.5; older kernels say ENOPROTOOPT
#else
constexpr int kPeerPidfd = SO_PEERPIDFD;
#endif

// The process at the other end, as it was when it connected; -1 when it can't be had, and then the
// socket alone tells of its end.
Descriptor process_of(int socket) {
  int fd = -1;
  socklen_t size = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, kPeerPidfd, &fd, &size) == 0) return Descriptor(fd);
  ucred who{};
  size = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 || who.pid <= 0)
    return Descriptor();
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, who.pid, 0)));
}

}  // namespace

Connection::Connection(Hub& hub, PeerId peer, Side side, Driver driver)
    : hub_(hub), peer_(peer), side_(side), driver_(driver) {}

Connection::~Connection() {
  shut({});
}

void Connection::start(Descriptor socket, ControlSocket::Begin begin,
                       std::unique_ptr<DataPath> path, std::string input) {
  path_ = std::move(path);
  const bool more = !input.empty();
  control_ = std::make_unique<ControlSocket>(
      hub_.loop(), std::move(socket), begin,
      ControlSocket::Events{
          .connected = [this] { connected(); },
          .frame = [this](const Head& head, std::string_view body) { return take(head, body); },
          .ended = [this](const std::string& why) { hub_.broken(peer_, why); }},
      std::move(input));
  if (begin == ControlSocket::Begin::kConnected) connected();
  if (more) control_->take_input();
}

void Connection::connected() {
  if (driver_ == Driver::kShm) {
    watch_process();
  } else {
    sockets::no_delay(control_->fd());
    // Unanswered pings end the connection. A stopped process is no such case: its kernel answers.
    const int milliseconds = static_cast<int>(
        std::chrono::duration_cast<std::chrono::milliseconds>(hub_.limits().unreachable_after)
            .count());
    ::setsockopt(control_->fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
  }
  // The first that a listener hears.
  if (side_ == Side::kConnected) control_->push(encode(path_->hello()));
  if (driver_ != Driver::kShm) ping();
}

void Connection::watch_process() {
  process_ = process_of(control_->fd());
  if (process_.get() < 0) return;
  process_watch_ = hub_.loop().watch(process_.get(), EPOLLIN, [this](std::uint32_t) {
    hub_.broken(peer_, "the peer's process has ended");
  });
}

void Connection::ping() {
  if (control_->queued_bytes() == 0) control_->push(frame(Kind::kPing, {}));
  ping_ = hub_.loop().call_at(hub_.loop().now() + kPingEvery, [this] { ping(); });
}

Status Connection::take(const Head& head, std::string_view body) {
  if (head.kind == Kind::kPing) return {};
  if (state_ == State::kNew && side_ == Side::kAccepted && head.kind == Kind::kHello) {
    TRY(const Hello hello, decode_hello(body));
    if (hello.driver != driver_)
      return fail(ErrorCode::kInvalidArgument, "it sent a greeting of another transport");
    TRY(Welcome welcome, path_->greeted(hello));
    welcome.driver = driver_;
    control_->push(encode(welcome));
    state_ = State::kOpen;
    hub_.accepted(peer_);
    return {};
  }
  if (state_ == State::kNew && side_ == Side::kConnected && head.kind == Kind::kWelcome) {
    TRY(const Welcome welcome, decode_welcome(body));
    if (welcome.driver != driver_)
      return fail(ErrorCode::kInvalidArgument, "it sent a greeting of another transport");
    state_ = State::kGreeted;
    return path_->welcomed(welcome);
  }
  // Messages may come while the reader still makes its further connections: they are the first
  // after `opened`, so that is said now.
  if (state_ == State::kGreeted && head.kind == Kind::kMessage) ready();
  if (state_ == State::kOpen && head.kind == Kind::kMessage) {
    hub_.message(peer_, body);
    return {};
  }
  if (state_ == State::kShut) return {};
  return path_->frame(head.kind, body);
}

void Connection::ready() {
  if (state_ != State::kGreeted) return;
  state_ = State::kOpen;
  hub_.opened(peer_);
}

void Connection::fail_with(const std::string& why) {
  // A goodbye that is there already knows better.
  if (control_) control_->read_now();
  hub_.broken(peer_, why);
}

Status Connection::send(std::string_view message) {
  if (state_ != State::kOpen) return fail(ErrorCode::kUnavailable, "the peer is not connected");
  if (message.size() > kMessageBytesMax) {
    return fail(ErrorCode::kPayloadTooLarge, fmt::format("a message of {} bytes, more than {}",
                                                         message.size(), kMessageBytesMax));
  }
  if (control_->queued_bytes() + message.size() > hub_.limits().queued_bytes_max) {
    return fail(ErrorCode::kOverloaded, fmt::format("{} bytes wait to be sent to the peer already",
                                                    control_->queued_bytes()));
  }
  control_->push(frame(Kind::kMessage, message));
  return {};
}

void Connection::published(std::uint32_t pool) {
  if (side_ == Side::kAccepted && state_ == State::kOpen) path_->published(pool);
}

void Connection::shut(std::string_view why) {
  if (std::exchange(state_, State::kShut) == State::kShut) return;
  hub_.loop().cancel(ping_);
  if (process_watch_ != 0) hub_.loop().unwatch(process_watch_);
  process_ = Descriptor();
  if (control_) control_->close(why);
  if (path_) path_->shut();
}

}  // namespace penstock::transport
