// What the server's connections share: options, counters, the gate of handler tasks, the listener.
// Internal to io/http. Concurrency: shard thread only.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>

#include "io/http/message.h"
#include "io/http/server.h"

namespace penstock::http {

class Connection;

struct HttpServer::Core : std::enable_shared_from_this<Core> {
  Core(AsioClock& the_clock, ServerOptions the_options, HttpHandler the_handler);

  Status listen();
  void accept();
  void admit(boost::asio::ip::tcp::socket socket, const std::string& peer);
  void close_listener();
  // Called by each connection when it has closed.
  void forget(Connection* connection);
  HttpResponse refusal(const Error& error, std::string_view path = {}) const;
  // What is left of body_memory_max.
  std::size_t body_room() const { return options.limits.body_memory_max - counters.body_bytes_now; }
  // The date header's value; formatted once a second.
  std::string_view date();

  AsioClock& clock;
  ServerOptions options;
  HttpHandler handler;
  HeadLimits head_limits;
  std::shared_ptr<boost::asio::ssl::context> tls;  // null: plain
  boost::asio::ip::tcp::acceptor acceptor;
  Clock::TimerId accept_retry = 0;
  std::uint16_t port = 0;
  ServerCounters counters;
  std::unordered_set<Connection*> connections;
  Gate gate;
  bool stopping = false;
  OneShot<bool>* empty_waiter = nullptr;

 private:
  std::int64_t date_second_ = 0;
  std::string date_text_;
};

// What the body of one request, or the messages of one WebSocket, count against body_memory_max;
// given back on destruction. Invariant: the core outlives it.
class BodyShare {
 public:
  BodyShare() = default;
  BodyShare(BodyShare&& from) noexcept
      : core_(std::exchange(from.core_, nullptr)), bytes_(std::exchange(from.bytes_, 0)) {}
  BodyShare& operator=(BodyShare&& from) noexcept {
    give_back();
    core_ = std::exchange(from.core_, nullptr);
    bytes_ = std::exchange(from.bytes_, 0);
    return *this;
  }
  ~BodyShare() { give_back(); }

  std::size_t bytes() const { return bytes_; }
  // Makes it `bytes` in all; false, with nothing changed, when that does not fit.
  bool resize(HttpServer::Core& core, std::size_t bytes) {
    if (bytes > bytes_ && bytes - bytes_ > core.body_room()) return false;
    core_ = &core;
    core.counters.body_bytes_now -= bytes_;
    core.counters.body_bytes_now += bytes;
    bytes_ = bytes;
    return true;
  }
  void give_back() {
    if (core_ != nullptr) core_->counters.body_bytes_now -= bytes_;
    core_ = nullptr;
    bytes_ = 0;
  }

 private:
  HttpServer::Core* core_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace penstock::http
