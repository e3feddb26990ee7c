// What the server's connections share: options, counters, the gate of handler tasks, the listener.
// Internal to io/http. Concurrency: shard thread only.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>
#include <unordered_set>

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
  HttpResponse refusal(const Error& error) const;
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

}  // namespace penstock::http
