#include "io/transport/drivers.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "io/transport/hub.h"
#include "io/transport/shm_path.h"
#include "io/transport/tcp_path.h"
#include "io/transport/ucx_path.h"

namespace penstock::transport {
namespace {

constexpr Duration kRetryEvery = std::chrono::milliseconds(5);
constexpr Duration kPause = std::chrono::milliseconds(100);
constexpr std::size_t kJoinBytes = kHeadBytes + std::tuple_size_v<Token>;

}  // namespace

Result<Target> Drivers::parse(const std::string& address) {
  const std::size_t colon = address.find(':');
  const std::string kind = address.substr(0, colon);
  Target target;
  target.text = colon == std::string::npos ? "" : address.substr(colon + 1);
  if (kind == "shm") {
    TRY([[maybe_unused]] const sockaddr_un socket, sockets::unix_address(target.text));
    return target;
  }
  if (kind != "tcp" && kind != "ucx") {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" is no address of a transport: use shm:/path, tcp:host:port or "
                            "ucx:host:port",
                            address));
  }
  target.driver = kind == "tcp" ? Driver::kTcp : Driver::kUcx;
  if (target.driver == Driver::kUcx && !has_ucx()) {
    return fail(ErrorCode::kUnsupported,
                "this build has no UCX; install libucx-dev and build again, or use tcp:host:port");
  }
  TRY(target.tcp, sockets::resolve(target.text));
  return target;
}

Result<std::unique_ptr<Drivers>> Drivers::open(Hub& hub, const std::string& listen) {
  std::unique_ptr<Drivers> drivers(new Drivers(hub));
  if (listen.empty()) return drivers;
  TRY(const Target target, parse(listen));
  drivers->driver_ = target.driver;
  drivers->address_ = listen;
  if (target.driver == Driver::kShm) {
    TRY(drivers->listener_, sockets::listen_at(target.text));
    drivers->path_ = target.text;
    return drivers;
  }
  if (target.driver == Driver::kUcx) TRY_STATUS(hub.start_ucx());
  TRY(drivers->listener_, sockets::listen_on(target.tcp));
  drivers->address_ = fmt::format("{}:{}", listen.substr(0, listen.rfind(':')),
                                  sockets::port_of(drivers->listener_));
  return drivers;
}

Drivers::~Drivers() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

void Drivers::start() {
  if (listener_.get() < 0) return;
  watch_ = hub_.loop().watch(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept(); });
}

void Drivers::accept() {
  for (;;) {
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) pause();
      return;
    }
    if (driver_ == Driver::kShm) {
      begin(std::move(socket), {});
      continue;
    }
    // A reader may have its streams waiting here beside its first connection.
    if (guests_.size() >= hub_.limits().connections_max * (1 + kStreamsMax)) continue;
    const std::uint64_t id = ++last_guest_;
    Guest& guest = guests_[id];
    guest.socket = std::move(socket);
    guest.watch =
        hub_.loop().watch(guest.socket.get(), EPOLLIN, [this, id](std::uint32_t) { welcome(id); });
    guest.timer = hub_.loop().call_at(hub_.loop().now() + hub_.limits().greeting_max,
                                      [this, id] { dismiss(id); });
  }
}

// No descriptors, or no memory: others may give some back.
void Drivers::pause() {
  hub_.loop().change(watch_, 0);
  hub_.loop().call_at(hub_.loop().now() + kPause, [this] { hub_.loop().change(watch_, EPOLLIN); });
}

void Drivers::dismiss(std::uint64_t id) {
  Guest& guest = guests_.at(id);
  hub_.loop().cancel(guest.timer);
  hub_.loop().unwatch(guest.watch);
  guests_.erase(id);
}

// Reads what tells a greeting from a joining, and no byte more.
void Drivers::welcome(std::uint64_t id) {
  Guest& guest = guests_.at(id);
  char bytes[kJoinBytes];
  const std::size_t wanted =
      (guest.input.size() < kHeadBytes ? kHeadBytes : kJoinBytes) - guest.input.size();
  const ssize_t n = ::recv(guest.socket.get(), bytes, wanted, 0);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (n <= 0) return dismiss(id);
  guest.input.append(bytes, static_cast<std::size_t>(n));
  const auto head = decode_head(guest.input);
  if (!head) return dismiss(id);
  if (!*head) return;
  const bool joins = (*head)->kind == Kind::kJoin && driver_ == Driver::kTcp;
  if (!joins && (*head)->kind != Kind::kHello) return dismiss(id);
  if (joins && guest.input.size() < kJoinBytes) return;
  Descriptor socket = std::exchange(guest.socket, Descriptor());
  std::string input = std::move(guest.input);
  hub_.loop().cancel(guest.timer);
  // Watched by its new owner from now on.
  hub_.loop().unwatch(guest.watch);
  guests_.erase(id);
  if (!joins) return begin(std::move(socket), std::move(input));
  const auto join = decode_join(std::string_view(input).substr(kHeadBytes));
  const auto at = join ? expected_.find(join->token) : expected_.end();
  if (at == expected_.end()) return;
  const Joined joined = at->second;
  joined(std::move(socket));
}

void Drivers::begin(Descriptor socket, std::string input) {
  Connection* connection = hub_.admit(driver_);
  if (connection == nullptr) {
    const std::string why = frame(Kind::kGoodbye, "too many connections to this process");
    (void)!::send(socket.get(), why.data(), why.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return;
  }
  connection->start(std::move(socket), ControlSocket::Begin::kConnected, owner(*connection),
                    std::move(input));
}

std::unique_ptr<DataPath> Drivers::owner(Connection& connection) {
  switch (driver_) {
    case Driver::kShm:
      return shm_owner(connection);
    case Driver::kTcp:
      return tcp_owner(connection, *this);
    case Driver::kUcx:
      return ucx_owner(connection);
  }
  return nullptr;
}

Status Drivers::connect(Connection& connection, const Target& target) {
  if (target.driver == Driver::kShm) {
    connect_shm(connection.peer(), target.text);
    return {};
  }
  if (target.driver == Driver::kUcx) TRY_STATUS(hub_.start_ucx());
  auto path =
      target.driver == Driver::kTcp ? tcp_reader(connection, target.tcp) : ucx_reader(connection);
  Result<Descriptor> socket = sockets::start_connecting(target.tcp);
  if (!socket) {
    hub_.broken(connection.peer(), socket.error().message);
    return {};
  }
  connection.start(std::move(*socket), ControlSocket::Begin::kConnecting, std::move(path));
  return {};
}

// A listener that is busy is asked again until the connection's deadline.
void Drivers::connect_shm(PeerId peer, const std::string& path) {
  Connection* connection = hub_.connection(peer);
  if (connection == nullptr) return;
  Result<Descriptor> socket = sockets::connect_to(path);
  if (socket) {
    connection->start(std::move(*socket), ControlSocket::Begin::kConnected,
                      shm_reader(*connection));
  } else if (socket.error().code == ErrorCode::kOverloaded) {
    hub_.loop().call_at(hub_.loop().now() + kRetryEvery,
                        [this, peer, path] { connect_shm(peer, path); });
  } else {
    hub_.broken(peer, socket.error().message);
  }
}

void Drivers::expect(const Token& token, Joined joined) {
  expected_.emplace(token, std::move(joined));
}

void Drivers::forget(const Token& token) {
  expected_.erase(token);
}

}  // namespace penstock::transport
