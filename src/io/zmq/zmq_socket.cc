#include "io/zmq/zmq_socket.h"

#include <cerrno>
#include <charconv>

#include <fmt/format.h>

namespace penstock::zmq {
namespace {

constexpr std::int64_t kMessageBytesMax = std::int64_t{64} << 20;
constexpr int kWaitingMax = 4096;  // messages; more are lost, which a replay makes good
// A publisher that is gone without a word is found within this, and connected to anew.
constexpr int kHeartbeatMs = 5000;

Error zmq_error(std::string_view what) {
  return {ErrorCode::kIo, fmt::format("{}: {}", what, zmq_strerror(zmq_errno())), {}, {}};
}

}  // namespace

Status check_endpoint(std::string_view endpoint) {
  const auto wrong = [&](std::string_view why) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" {}; give tcp://HOST:PORT (of the engine's KV events) or "
                            "ipc://PATH",
                            endpoint, why));
  };
  if (endpoint.starts_with("ipc://") && endpoint.size() > 6) return {};
  if (!endpoint.starts_with("tcp://")) return wrong("is no endpoint of ZeroMQ");
  const auto colon = endpoint.rfind(':');
  const auto host = endpoint.substr(6, colon > 6 ? colon - 6 : 0);
  if (host.empty() || host == "*") return wrong("names no host to connect to");
  const auto port = endpoint.substr(colon + 1);
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  const bool is_port =
      error == std::errc() && end == port.data() + port.size() && number > 0 && number <= 65'535;
  if (!is_port) return wrong("has no port");
  return {};
}

Result<ZmqSocket> ZmqSocket::make(void* context, int type) {
  ZmqSocket out(zmq_socket(context, type));
  if (!out) return std::unexpected(zmq_error("opening a socket"));
  const auto set = [&](int option, const auto& value) {
    return zmq_setsockopt(out.socket_, option, &value, sizeof value) == 0;
  };
  const bool good = set(ZMQ_LINGER, 0) && set(ZMQ_RCVHWM, kWaitingMax) && set(ZMQ_IPV6, 1) &&
                    set(ZMQ_MAXMSGSIZE, kMessageBytesMax) && set(ZMQ_RECONNECT_IVL, 100) &&
                    set(ZMQ_RECONNECT_IVL_MAX, 2000) && set(ZMQ_HEARTBEAT_IVL, kHeartbeatMs) &&
                    set(ZMQ_HEARTBEAT_TIMEOUT, kHeartbeatMs);
  if (!good) return std::unexpected(zmq_error("setting up a socket"));
  return out;
}

Result<ZmqSocket> ZmqSocket::subscriber(void* context, std::string_view topic) {
  TRY(ZmqSocket out, make(context, ZMQ_SUB));
  if (zmq_setsockopt(out.socket_, ZMQ_SUBSCRIBE, topic.data(), topic.size()) != 0)
    return std::unexpected(zmq_error("subscribing"));
  return out;
}

Result<ZmqSocket> ZmqSocket::dealer(void* context) {
  return make(context, ZMQ_DEALER);
}

Result<ZmqSocket> ZmqSocket::publisher(void* context) {
  TRY(ZmqSocket out, make(context, ZMQ_PUB));
  const int unlimited = 0;  // the engines keep a hundred thousand
  if (zmq_setsockopt(out.socket_, ZMQ_SNDHWM, &unlimited, sizeof unlimited) != 0)
    return std::unexpected(zmq_error("setting up a socket"));
  return out;
}

Result<ZmqSocket> ZmqSocket::router(void* context) {
  TRY(ZmqSocket out, make(context, ZMQ_ROUTER));
  const int unlimited = 0;  // all that is kept goes out at once
  if (zmq_setsockopt(out.socket_, ZMQ_SNDHWM, &unlimited, sizeof unlimited) != 0)
    return std::unexpected(zmq_error("setting up a socket"));
  return out;
}

Result<std::string> ZmqSocket::bind(const std::string& endpoint) {
  if (zmq_bind(socket_, endpoint.c_str()) != 0)
    return std::unexpected(zmq_error("listening at " + endpoint));
  char name[256];
  std::size_t size = sizeof name;
  if (zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, name, &size) != 0)
    return std::unexpected(zmq_error("listening at " + endpoint));
  return std::string(name);
}

Status ZmqSocket::connect(const std::string& endpoint) {
  TRY_STATUS(check_endpoint(endpoint));
  if (zmq_connect(socket_, endpoint.c_str()) != 0)
    return std::unexpected(zmq_error("connecting to " + endpoint));
  return {};
}

Result<ZmqSocket> ZmqSocket::monitor(void* context, const ZmqSocket& of, const std::string& name) {
  const std::string endpoint = "inproc://" + name;
  ZmqSocket out(zmq_socket(context, ZMQ_PAIR));
  const int no_linger = 0;
  const bool good =
      out && zmq_socket_monitor(of.socket_, endpoint.c_str(), ZMQ_EVENT_HANDSHAKE_SUCCEEDED) == 0 &&
      zmq_setsockopt(out.socket_, ZMQ_LINGER, &no_linger, sizeof no_linger) == 0 &&
      zmq_connect(out.socket_, endpoint.c_str()) == 0;
  if (!good) return std::unexpected(zmq_error("watching a socket"));
  return out;
}

void ZmqSocket::close() {
  if (socket_ != nullptr) zmq_close(std::exchange(socket_, nullptr));
}

Status ZmqSocket::send(std::initializer_list<std::string_view> frames) {
  std::size_t left = frames.size();
  for (const std::string_view frame : frames) {
    const int flags = ZMQ_DONTWAIT | (--left > 0 ? ZMQ_SNDMORE : 0);
    if (zmq_send(socket_, frame.data(), frame.size(), flags) < 0)
      return std::unexpected(zmq_error("sending"));
  }
  return {};
}

bool ZmqSocket::receive(std::vector<std::string>& frames) {
  frames.clear();
  bool more = true;
  while (more) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    const int size = zmq_msg_recv(&message, socket_, ZMQ_DONTWAIT);
    if (size >= 0) {
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)),
                          static_cast<std::size_t>(size));
    }
    more = size >= 0 && zmq_msg_more(&message) != 0;
    zmq_msg_close(&message);
    if (size < 0) return false;  // the frames of a message come together, so this is before one
  }
  return true;
}

}  // namespace penstock::zmq
