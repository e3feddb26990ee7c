#include "io/http/upstream.h"

#include <boost/asio/executor_work_guard.hpp>
#include <string>
#include <vector>

#include "io/http/test_server.h"

#include <doctest/doctest.h>

namespace penstock::http {
namespace {

using namespace std::chrono_literals;

// Instead of an answer: the server closes after 60 ms.
constexpr std::string_view kLateClose = "late close";

// A server that answers its nth connection with the nth list of byte strings: one for each request
// that comes in, and closes when they are used up.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::vector<std::vector<std::string>> connections)
      : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(listen(listener_, 16) == 0);
    socklen_t size = sizeof address;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    url = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this, connections = std::move(connections)] {
      for (const auto& answers : connections)
        serve(answers);
    });
  }
  ~ScriptedServer() {
    ::shutdown(listener_, SHUT_RDWR);
    ::close(listener_);
    thread_.join();
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  std::string url;
  std::string received;  // look at it when the server has gone

 private:
  void serve(const std::vector<std::string>& answers) {
    const int fd = accept(listener_, nullptr, nullptr);
    if (fd < 0) return;
    const timeval limit{10, 0};  // against a hang of the test only
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    for (const auto& answer : answers) {
      std::string in;
      char buffer[4096];
      while (!in.ends_with("END")) {
        const auto n = recv(fd, buffer, sizeof buffer, 0);
        if (n <= 0) break;
        in.append(buffer, static_cast<std::size_t>(n));
      }
      received += in;
      if (answer == kLateClose) {
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
        break;
      }
      if (::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL) < 0) break;
    }
    ::close(fd);
  }
  int listener_;
  std::thread thread_;
};

// A loop on the test's own thread.
struct Loop {
  boost::asio::io_context context{1};
  AsioClock clock{context};

  // What was closed last goes while there is a clock.
  ~Loop() {
    context.restart();
    context.poll();
  }

  void run(Task<void> task) {
    Gate gate;
    context.restart();  // it may have run out of work before
    const auto work = boost::asio::make_work_guard(context);
    gate.start(std::move(task));
    while (gate.running() > 0)
      context.run_one_for(10s);
  }
  std::unique_ptr<HttpUpstream> upstream(const std::string& url) {
    auto made = HttpUpstream::make(clock, {.url = url});
    REQUIRE(made.has_value());
    return std::move(*made);
  }
  Instant soon() const { return clock.now() + 10s; }
};

UpstreamRequest request(std::string body = "END") {
  return {"POST", "/v1/x", {{"content-type", "application/json"}}, std::move(body)};
}

// Reads a whole answer: "STATUS body", or "STATUS body!error".
Task<void> fetch(Loop& loop, Upstream& upstream, std::string& out) {
  const auto call = upstream.call(request());
  const auto head = co_await call->head(loop.soon());
  if (!head && head.error().code == ErrorCode::kUnavailable) CHECK_FALSE(call->sent());
  if (head) CHECK(call->sent());
  if (!head) {
    out = "!" + std::string(error_info(head.error().code).name);
    co_return;
  }
  out = std::to_string(head->status) + " ";
  while (true) {
    const auto bytes = co_await call->read(loop.soon());
    if (!bytes) {
      out += "!" + std::string(error_info(bytes.error().code).name);
      co_return;
    }
    if (bytes->empty()) co_return;
    out += *bytes;
  }
}

std::string answer(std::string_view body) {
  return "HTTP/1.1 200 OK\r\ncontent-length: " + std::to_string(body.size()) + "\r\n\r\n" +
         std::string(body);
}

}  // namespace

TEST_CASE("upstream: answers of every framing, connections kept where they can be") {
  const std::string chunked =
      "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
  ScriptedServer server(
      {{answer("one"), chunked, "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n" + answer("four"),
        "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 3\r\n\r\nbad"},
       {"HTTP/1.0 200 OK\r\n\r\nuntil the end"}});
  Loop loop;
  auto upstream = loop.upstream(server.url);
  for (const auto* expected :
       {"200 one", "200 abcde", "204 ", "200 four", "400 bad", "200 until the end"}) {
    std::string got;
    loop.run(fetch(loop, *upstream, got));
    CHECK(got == expected);
  }
  CHECK(upstream->counters().opened == 2);
  CHECK(upstream->counters().reused == 4);
}

TEST_CASE("upstream: cut answers are data loss, whichever byte is the last") {
  const std::string whole =
      "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
  std::vector<std::vector<std::string>> connections;
  for (std::size_t i = 0; i < whole.size(); ++i)
    connections.push_back({whole.substr(0, i)});
  ScriptedServer server(connections);
  Loop loop;
  auto upstream = loop.upstream(server.url);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string got;
    loop.run(fetch(loop, *upstream, got));
    CHECK(got.ends_with("!data_loss"));
  }
}

TEST_CASE("upstream: a request that met an idle close is sent again, once, and no other") {
  ScriptedServer server({{answer("one")}, {answer("two"), ""}, {answer("three")}});
  Loop loop;
  auto upstream = loop.upstream(server.url);
  std::string got;
  loop.run(fetch(loop, *upstream, got));
  loop.run(fetch(loop, *upstream, got));
  CHECK(got == "200 two");
  // The server closes only when this request has come, without an answer.
  loop.run(fetch(loop, *upstream, got));
  CHECK(got == "200 three");
  CHECK(upstream->counters().stale >= 1);
}

TEST_CASE("upstream: after send_by a request is neither sent nor sent again") {
  ScriptedServer server({{answer("one"), std::string(kLateClose)}, {answer("three")}});
  Loop loop;
  auto upstream = loop.upstream(server.url);
  std::string got;
  loop.run(fetch(loop, *upstream, got));
  const auto ask = [&](Duration left) -> Task<void> {
    UpstreamRequest late = request();
    late.send_by = loop.clock.now() + left;
    const auto call = upstream->call(std::move(late));
    CHECK_FALSE(call->sent());
    const auto head = co_await call->head(loop.soon());
    got = head ? "sent" : error_info(head.error().code).name;
    got += call->sent() ? ", was out" : ", never out";
  };
  // The server had it when it closed.
  loop.run(ask(50ms));
  CHECK(got == "conflict, was out");
  loop.run(ask(0ms));
  CHECK(got == "conflict, never out");
  loop.run(fetch(loop, *upstream, got));
  CHECK(got == "200 three");
}

TEST_CASE("upstream: nobody there, no HTTP there, a name that is none") {
  Loop loop;
  std::string got;
  {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);  // bound, so nobody else takes the port
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    socklen_t size = sizeof address;
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    auto upstream = loop.upstream("http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
    loop.run(fetch(loop, *upstream, got));
    CHECK(got == "!unavailable");
    ::close(fd);
  }
  ScriptedServer server({{"SSH-2.0-x\r\n\r\n"}});
  auto upstream = loop.upstream(server.url);
  loop.run(fetch(loop, *upstream, got));
  CHECK(got == "!data_loss");
  CHECK_FALSE(HttpUpstream::make(loop.clock, {.url = "localhost:8000"}).has_value());
  CHECK_FALSE(HttpUpstream::make(loop.clock, {.url = "http://h/?x"}).has_value());
}

TEST_CASE("upstream: cancel ends what is awaited, and the server sees the connection go") {
  Held held;
  TestServer server({}, hold_until_gone(held, true));
  Loop loop;
  auto upstream = loop.upstream("http://127.0.0.1:" + std::to_string(server.port()));
  std::string got;
  const auto run = [&]() -> Task<void> {
    auto call = upstream->call(request());
    const auto head = co_await call->head(loop.soon());
    REQUIRE(head.has_value());
    CHECK((co_await call->read(loop.soon())) == "data: first\n\n");
    loop.clock.call_at(loop.clock.now() + 5ms, [&call] { call->cancel(); });
    const auto bytes = co_await call->read(loop.soon());
    got = bytes ? "bytes" : error_info(bytes.error().code).name;
  };
  loop.run(run());
  CHECK(got == "cancelled");
  CHECK(server.until([](const ServerCounters& c) { return c.disconnects == 1; }));
  // Not read to its end and let go: the same.
  const auto drop = [&]() -> Task<void> {
    auto call = upstream->call(request());
    static_cast<void>(co_await call->head(loop.soon()));
  };
  loop.run(drop());
  CHECK(server.until([](const ServerCounters& c) { return c.disconnects == 2; }));
  CHECK(upstream->idle_connections() == 0);
}

TEST_CASE("upstream: deadlines, idle connections retired, large bodies both ways") {
  TestServer server({}, echo);
  Loop loop;
  auto made = HttpUpstream::make(
      loop.clock,
      {.url = "http://127.0.0.1:" + std::to_string(server.port()) + "/base/", .idle_max = 20ms});
  REQUIRE(made.has_value());
  auto& upstream = **made;
  const std::string body(3 << 20, 'x');
  std::string got;
  const auto run = [&]() -> Task<void> {
    auto call = upstream.call(request(body));
    const auto head = co_await call->head(loop.soon());
    REQUIRE(head.has_value());
    while (true) {
      const auto bytes = co_await call->read(loop.soon());
      REQUIRE(bytes.has_value());
      if (bytes->empty()) break;
      got += *bytes;
    }
  };
  loop.run(run());
  CHECK(got == "POST /base/v1/x? " + body);
  CHECK(upstream.idle_connections() == 1);
  // The same in more pieces than one write takes, some of them empty.
  got.clear();
  std::vector<std::string_view> pieces;
  for (std::size_t at = 0; at < body.size(); at += 100'000) {
    pieces.push_back(std::string_view(body).substr(at, 100'000));
    pieces.emplace_back();
  }
  const auto run_pieces = [&]() -> Task<void> {
    UpstreamRequest in_pieces = request("");
    in_pieces.pieces = pieces;
    auto call = upstream.call(std::move(in_pieces));
    REQUIRE((co_await call->head(loop.soon())).has_value());
    while (true) {
      const auto bytes = co_await call->read(loop.soon());
      REQUIRE(bytes.has_value());
      if (bytes->empty()) break;
      got += *bytes;
    }
  };
  loop.run(run_pieces());
  CHECK(got == "POST /base/v1/x? " + body);
  loop.run([](Clock& clock) -> Task<void> { co_await Sleep(clock, 40ms); }(loop.clock));
  CHECK(upstream.idle_connections() == 0);
  CHECK(upstream.counters().retired == 1);

  ScriptedServer silent({{"HTTP/1.1 200 OK\r\n"}});
  auto slow = loop.upstream(silent.url);
  const auto wait = [&]() -> Task<void> {
    auto call = slow->call(request("not the mark"));
    const auto head = co_await call->head(loop.clock.now() + 20ms);
    REQUIRE_FALSE(head.has_value());
    CHECK(head.error().code == ErrorCode::kDeadlineExceeded);
  };
  loop.run(wait());
}

}  // namespace penstock::http
