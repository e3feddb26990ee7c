// A server on its own thread and a raw client, for the tests of this folder.
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "io/http/server.h"

namespace penstock::http {

class TestServer {
 public:
  // Runs `f` on the server's thread and waits for it.
  template <typename F>
  auto call(F f) {
    std::packaged_task<decltype(f())()> task(std::move(f));
    auto result = task.get_future();
    clock.post([&task] { task(); });
    return result.get();
  }
  TestServer(ServerOptions options, HttpHandler handler) {
    auto started = HttpServer::start(clock, std::move(options), std::move(handler));
    ENSURE(started.has_value());
    server = std::move(*started);
    thread_ = std::thread([this] {
      auto work = boost::asio::make_work_guard(context);
      context.run();
    });
  }
  ~TestServer() {
    call([this] {
      server->stop();
      server->cut();
    });
    drain();
    call([this] { server.reset(); });
    context.stop();
    thread_.join();
  }

  void drain() {
    std::promise<void> done;
    call([&] { gate_.start(signal(&done)); });
    done.get_future().get();
    call([this] { ENSURE(gate_.running() == 0); });
  }
  ServerCounters counters() {
    return call([this] { return server->counters(); });
  }
  // Runs turns of the server's loop until `condition(counters)` holds.
  template <typename F>
  bool until(F condition) {
    for (int i = 0; i < 200'000; ++i) {
      if (condition(counters())) return true;
      std::this_thread::yield();
    }
    return false;
  }
  std::uint16_t port() const { return server->port(); }

  boost::asio::io_context context{1};
  AsioClock clock{context};
  std::unique_ptr<HttpServer> server;

 private:
  Task<void> signal(std::promise<void>* done) {
    co_await server->drained();
    done->set_value();
  }
  Gate gate_;
  std::thread thread_;
};

// A client that sends exactly the bytes it is told to.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval limit{30, 0};  // against a hang of the test only
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    connected = connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  ~RawClient() { close(); }

  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void half_close() const { shutdown(fd_, SHUT_WR); }
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const auto n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  // Reads until `received` holds `mark`; false when the stream ended before.
  bool read_until(std::string_view mark) {
    while (!received.contains(mark)) {
      if (!read_once()) return false;
    }
    return true;
  }
  std::string read_to_end() {
    while (read_once()) {
    }
    return received;
  }

  bool connected = false;
  bool ended = false;  // orderly, not by a reset or the guard
  std::string received;

 private:
  bool read_once() {
    char buffer[16 << 10];
    const auto n = recv(fd_, buffer, sizeof buffer, 0);
    ended = n == 0;
    if (n <= 0) return false;
    received.append(buffer, static_cast<std::size_t>(n));
    return true;
  }
  int fd_;
};

// Handlers that tests share.
inline Task<void> echo(std::unique_ptr<HttpExchange> exchange) {
  const auto& request = exchange->request();
  HttpResponse response;
  response.content_type = "text/plain";
  response.body = request.method + " " + request.path + "?" + request.query + " " + request.body;
  co_await exchange->respond(std::move(response));
}

inline Task<void> stream_three(std::unique_ptr<HttpExchange> exchange) {
  exchange->begin_stream(200, "text/event-stream", {{"x-request-id", "r1"}});
  for (const char* event : {"data: 1\n\n", "data: 2\n\n", "data: 3\n\n"}) {
    if (!co_await exchange->write(event)) co_return;
  }
  co_await exchange->finish();
}

// Handlers of one test, driven from outside through what they share.
struct Held {
  Gate gate;
  OneShot<bool>* waiting = nullptr;
  int disconnects = 0;
  int handled = 0;
  Status last;
};

inline HttpHandler hold_until_gone(Held& held, bool streaming) {
  return [&held, streaming](std::unique_ptr<HttpExchange> exchange) -> Task<void> {
    if (streaming) {
      exchange->begin_stream(200, "text/event-stream", {});
      co_await exchange->write("data: first\n\n");
    }
    OneShot<bool> gone;
    held.waiting = &gone;
    exchange->on_disconnect([&] {
      ++held.disconnects;
      gone.set(true);
    });
    co_await gone;
    held.waiting = nullptr;
    if (streaming) {
      held.last = co_await exchange->write("data: late\n\n");
    } else {
      held.last = co_await exchange->respond({});
    }
    ++held.handled;
  };
}

}  // namespace penstock::http
