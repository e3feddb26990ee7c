#include "io/http/server.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.h"
#include "io/http/client.h"
#include "io/http/test_server.h"

#include <doctest/doctest.h>

namespace penstock::http {
namespace {

constexpr std::string_view kGet = "GET /echo HTTP/1.1\r\nHost: t\r\n\r\n";

std::string post(std::string_view headers, std::string_view body) {
  return "POST /echo HTTP/1.1\r\nHost: t\r\n" + std::string(headers) + "\r\n" + std::string(body);
}

}  // namespace

TEST_CASE("requests are answered in order on one connection, pipelined ones too") {
  TestServer server({}, echo);
  RawClient client(server.port());
  CHECK(client.send(
      std::string(kGet) + post("Content-Length: 2\r\n", "ab") + "\r\n" +
      post("Transfer-Encoding: chunked\r\n", "3\r\nxyz\r\n1;e=1\r\n!\r\n0\r\nt: 1\r\n\r\n") +
      "GET /a%20b?q=1%20 HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"));
  const auto all = client.read_to_end();
  CHECK(client.ended);
  std::size_t at = 0;
  for (const char* part : {"GET /echo? ", "POST /echo? ab", "POST /echo? xyz!", "connection: close",
                           "GET /a b?q=1%20 "}) {
    CAPTURE(part);
    at = all.find(part, at);
    CHECK(at != std::string::npos);
  }
  CHECK(server.counters().requests == 4);
}

TEST_CASE("a request may arrive byte by byte") {
  TestServer server({}, echo);
  RawClient client(server.port());
  for (const char c : post("Transfer-Encoding: chunked\r\n", "a\r\n0123456789\r\n0\r\n\r\n")) {
    REQUIRE(client.send(std::string_view(&c, 1)));
  }
  CHECK(client.read_until("POST /echo? 0123456789"));
}

TEST_CASE("malformed requests are refused with 4xx and the connection closes after the answer") {
  ServerOptions options;
  options.limits.header_bytes_max = 2000;
  options.limits.header_count_max = 10;
  options.limits.body_bytes_max = 100;
  options.error_response = [](const Error& error, std::string_view path) {
    HttpResponse response;
    response.status = error_info(error.code).http_status;
    response.body = "{\"error\":\"" + error.message + "\"}";
    response.headers.push_back({"at", std::string(path)});
    return response;
  };
  TestServer server(std::move(options), echo);
  using namespace std::string_literals;
  const struct {
    std::string bytes;
    int status;
  } cases[] = {
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"s, 400},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"GET / HTTP/1.2\r\nHost: t\r\n\r\n", 400},
      {"GET / HTTP/11\r\nHost: t\r\n\r\n", 400},
      {"GET /\r\nHost: t\r\n\r\n", 400},
      {"GET / HTTP/1.1\nHost: t\n\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: t\r\n folded: x\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: t\r\nA : x\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: t\r\nA: x\0y\r\n\r\n"s, 400},
      {"GET / HTTP/1.1\r\nHost: t\r\nA: x\ry\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: t\r\nno colon\r\n\r\n", 400},
      {"GET /%00 HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {"GET /%0 HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {"GET /\xff HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {"GET t HTTP/1.1\r\nHost: t\r\n\r\n", 400},
      {post("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400},
      {post("Content-Length: 1\r\nContent-Length: 1\r\n", "a"), 400},
      {post("Content-Length: -1\r\n", ""), 400},
      {post("Content-Length: +1\r\n", "a"), 400},
      {post("Content-Length: 1, 1\r\n", "a"), 400},
      {post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 400},
      {post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post("Transfer-Encoding: chunked\r\n", "zz\r\n"), 400},
      {post("Transfer-Encoding: chunked\r\n", "1\r\nabc"), 400},
      {post("Transfer-Encoding: chunked\r\n", "1\nabc"), 400},
      {post("Transfer-Encoding: chunked\r\n", "10000000000000000\r\n"), 400},
      {post("Transfer-Encoding: chunked\r\n", "0\r\n\x01"), 400},
      {post("Expect: tea\r\n", ""), 400},
      {post("Content-Encoding: gzip\r\nContent-Length: 1\r\n", "a"), 415},
      {post("Content-Length: 101\r\n", ""), 413},
      {post("Content-Length: 99999999999999999999999\r\n", ""), 413},
      {post("Content-Length: 101\r\nExpect: 100-continue\r\n", ""), 413},
      {post("Transfer-Encoding: chunked\r\n", "65\r\n"), 413},
      {post("Transfer-Encoding: chunked\r\n", "64\r\n" + std::string(100, 'x') + "\r\n1\r\n"), 413},
      {"GET / HTTP/1.1\r\nHost: t\r\nA: " + std::string(3000, 'a'), 431},
      {"GET / HTTP/1.1\r\nHost: t\r\n" +
           [] {
             std::string many;
             for (int i = 0; i < 10; ++i)
               many += "a: b\r\n";
             return many;
           }() +
           "\r\n",
       431},
  };
  for (const auto& c : cases) {
    CAPTURE(c.bytes);
    RawClient client(server.port());
    CHECK(client.send(c.bytes));
    CHECK(client.read_until("\r\n\r\n"));
    CHECK(client.received.starts_with("HTTP/1.1 " + std::to_string(c.status) + " "));
    CHECK(client.read_until("{\"error\":\""));
    CHECK(client.received.contains("connection: close\r\n"));
    client.half_close();
    client.read_to_end();
    CHECK(client.ended);
  }
  CHECK(server.counters().requests == 0);
  CHECK(server.until([](const ServerCounters& c) { return c.connections_now == 0; }));
}

TEST_CASE("what the server refuses by itself is told to on_refused") {
  ServerOptions options;
  options.limits.header_bytes_max = 2000;
  options.limits.body_bytes_max = 100;
  options.limits.header_timeout = std::chrono::milliseconds(30);
  std::vector<RefusedRequest> refused;
  options.on_refused = [&](const RefusedRequest& r) { refused.push_back(r); };
  TestServer server(std::move(options), [](std::unique_ptr<HttpExchange> exchange) -> Task<void> {
    if (exchange->request().path != "/none") co_await echo(std::move(exchange));
  });
  const struct {
    std::string bytes;
    const char* method;
    ErrorCode code;
    int status;
  } cases[] = {
      {"GET /\r\n\r\n", "", ErrorCode::kInvalidArgument, 400},
      {"GET / HTTP/1.1\r\nA: " + std::string(3000, 'x'), "", ErrorCode::kHeadersTooLarge, 431},
      {post("Content-Length: 101\r\n", ""), "POST", ErrorCode::kPayloadTooLarge, 413},
      {post("Content-Encoding: gzip\r\nContent-Length: 1\r\n", ""), "POST",
       ErrorCode::kUnsupportedMediaType, 415},
      {"GET / HT", "", ErrorCode::kDeadlineExceeded, 408},
  };
  std::size_t count = 0;
  for (const auto& c : cases) {
    CAPTURE(c.bytes);
    RawClient client(server.port());
    REQUIRE(client.send(c.bytes));
    CHECK(client.read_to_end().starts_with("HTTP/1.1 " + std::to_string(c.status)));
    const auto all = server.call([&] { return refused; });
    REQUIRE(all.size() == ++count);
    CHECK(all.back().peer == "127.0.0.1");
    CHECK(all.back().method == c.method);
    CHECK(all.back().code == c.code);
    CHECK(all.back().status == c.status);
    CHECK(all.back().total >= Duration{});
  }
  // What reached the handler is the handler's to report, answered or not.
  for (const char* path : {"/echo", "/none"}) {
    RawClient client(server.port());
    REQUIRE(client.send("GET " + std::string(path) +
                        " HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"));
    client.read_to_end();
  }
  CHECK(server.call([&] { return refused.size(); }) == count);
}

TEST_CASE("a refused head is answered before its body is asked for or read") {
  ServerOptions options;
  options.admit_head = [](const HttpRequest& head) -> std::optional<HttpResponse> {
    if (head.header("authorization") == "yes") return std::nullopt;
    HttpResponse response;
    response.status = 401;
    response.body = head.method + " " + head.path + " needs a key";
    return response;
  };
  TestServer server(std::move(options), echo);
  RawClient without(server.port());
  REQUIRE(without.send(post("Content-Length: 10\r\nExpect: 100-continue\r\n", "")));
  const auto answer = without.read_to_end();
  CHECK(answer.starts_with("HTTP/1.1 401 "));
  CHECK(answer.contains("connection: close\r\n"));
  CHECK(answer.ends_with("POST /echo needs a key"));
  RawClient with(server.port());
  REQUIRE(with.send(post("Content-Length: 2\r\nAuthorization: yes\r\n", "ab")));
  CHECK(with.read_until("POST /echo? ab"));
  RawClient no_body(server.port());
  REQUIRE(no_body.send(kGet));
  CHECK(no_body.read_until("GET /echo? "));
  CHECK(server.counters().requests == 2);
}

TEST_CASE("all bodies together fit the memory set aside, and give it back") {
  OneShot<bool> go;
  ServerOptions options;
  options.limits.body_memory_max = 300'000;
  options.limits.body_bytes_max = 300'000;
  std::vector<int> refused;
  options.on_refused = [&](const RefusedRequest& r) { refused.push_back(r.status); };
  TestServer server(std::move(options), [&](std::unique_ptr<HttpExchange> exchange) -> Task<void> {
    if (exchange->request().body.size() == 200'000) co_await go;
    co_await echo(std::move(exchange));
  });
  const std::string large(200'000, 'x');
  RawClient first(server.port());
  REQUIRE(first.send(post("Content-Length: 200000\r\n", large)));
  REQUIRE(server.until([](const ServerCounters& c) { return c.exchanges_now == 1; }));
  CHECK(server.counters().body_bytes_now == 200'000);

  RawClient announced(server.port());  // refused before any of it has come
  REQUIRE(announced.send(post("Content-Length: 200000\r\n", "")));
  CHECK(announced.read_to_end().starts_with("HTTP/1.1 503 "));
  CHECK(announced.received.contains("retry-after: 1\r\n"));
  RawClient grown(server.port());  // fits at first
  REQUIRE(grown.send(
      post("Transfer-Encoding: chunked\r\n",
           "186a0\r\n" + large.substr(0, 100'000) + "\r\n186a0\r\n" + large.substr(0, 100'000))));
  CHECK(grown.read_to_end().starts_with("HTTP/1.1 503 "));
  RawClient gone(server.port());
  REQUIRE(gone.send(post("Content-Length: 90000\r\n", large.substr(0, 50'000))));
  REQUIRE(server.until([](const ServerCounters& c) { return c.body_bytes_now > 200'000; }));
  gone.close();
  REQUIRE(server.until([](const ServerCounters& c) { return c.body_bytes_now == 200'000; }));
  RawClient small(server.port());
  REQUIRE(small.send(post("Content-Length: 90000\r\n", large.substr(0, 90'000))));
  CHECK(small.read_until(large.substr(0, 90'000)));

  CHECK(server.counters().bodies_over_memory == 2);
  CHECK(server.call([&] { return refused; }) == std::vector<int>{503, 503});
  server.call([&] { go.set(true); });
  CHECK(first.read_until(large));
  REQUIRE(server.until([](const ServerCounters& c) { return c.body_bytes_now == 0; }));
}

TEST_CASE("a body of the limit passes, expect: 100-continue asks for it, HEAD has no body") {
  ServerOptions options;
  options.limits.body_bytes_max = 1 << 20;
  TestServer server(std::move(options), echo);
  const std::string body(1 << 20, 'b');
  RawClient client(server.port());
  REQUIRE(client.send(post("Content-Length: 1048576\r\nExpect: 100-continue\r\n", "")));
  REQUIRE(client.read_until("100 Continue\r\n\r\n"));
  REQUIRE(client.send(body));
  CHECK(client.read_until("POST /echo? " + body));
  client.received.clear();
  REQUIRE(client.send("HEAD / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"));
  CHECK(client.read_to_end().ends_with("content-length: 8\r\nconnection: close\r\n\r\n"));
}

TEST_CASE("streams are chunked, one chunk an event; HTTP/1.0 gets bytes until the close") {
  TestServer server({}, stream_three);
  RawClient client(server.port());
  REQUIRE(client.send(kGet));
  REQUIRE(client.read_until("\r\n0\r\n\r\n"));
  CHECK(client.received.contains("transfer-encoding: chunked\r\n"));
  CHECK(client.received.contains("x-request-id: r1\r\n"));
  CHECK_FALSE(client.received.contains("content-length"));
  CHECK(client.received.ends_with(
      "\r\n\r\n9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n9\r\ndata: 3\n\n\r\n0\r\n\r\n"));
  RawClient old(server.port());
  REQUIRE(old.send("GET / HTTP/1.0\r\n\r\n"));
  CHECK(old.read_to_end().ends_with("\r\n\r\ndata: 1\n\ndata: 2\n\ndata: 3\n\n"));
  CHECK(old.ended);
}

TEST_CASE("a client that goes away is noticed while the handler works, idle or streaming") {
  for (const bool streaming : {false, true}) {
    for (const bool half : {false, true}) {
      Held held;
      TestServer server({}, hold_until_gone(held, streaming));
      RawClient client(server.port());
      REQUIRE(client.send(kGet));
      if (streaming) REQUIRE(client.read_until("data: first\n\n"));
      REQUIRE(server.until([](const ServerCounters& c) { return c.exchanges_now == 1; }));
      half ? client.half_close() : client.close();
      server.drain();
      CHECK(held.disconnects == 1);
      CHECK(held.handled == 1);
      CHECK(held.last.error().code == ErrorCode::kCancelled);
      CHECK(server.counters().disconnects == 1);
      CHECK(server.counters().exchanges_now == 0);
    }
  }
}

TEST_CASE("a stream dropped half-way has no terminating chunk; an unanswered request gets 500") {
  TestServer server({}, [](std::unique_ptr<HttpExchange> exchange) -> Task<void> {
    if (exchange->request().path == "/none") co_return;
    exchange->begin_stream(200, "text/event-stream", {});
    co_await exchange->write("data: {\"error\":1}\n\n");
  });
  RawClient client(server.port());
  REQUIRE(client.send(kGet));
  CHECK(client.read_to_end().ends_with("data: {\"error\":1}\n\n\r\n"));
  RawClient none(server.port());
  REQUIRE(none.send("GET /none HTTP/1.1\r\nHost: t\r\n\r\n"));
  CHECK(none.read_to_end().starts_with("HTTP/1.1 500 "));
  CHECK(server.counters().streams_cut == 1);
  ClientRequest request;
  request.url = "http://127.0.0.1:" + std::to_string(server.port()) + "/";
  const auto answer = send(request);
  REQUIRE_FALSE(answer.has_value());
  CHECK(answer.error().code == ErrorCode::kDataLoss);
}

TEST_CASE("a reader that stops reading fails the write after the time-out, with bounded memory") {
  ServerOptions options;
  options.limits.write_timeout = std::chrono::milliseconds(50);
  Status last;
  std::size_t sent = 0;
  TestServer server(std::move(options), [&](std::unique_ptr<HttpExchange> exchange) -> Task<void> {
    exchange->begin_stream(200, "application/octet-stream", {});
    for (int i = 0; i < 1000 && last; ++i) {
      last = co_await exchange->write(std::string(1 << 20, 'x'));
      if (last) sent += 1 << 20;
    }
  });
  RawClient client(server.port());
  REQUIRE(client.send(kGet));
  REQUIRE(server.until([](const ServerCounters& c) { return c.requests == 1; }));
  server.drain();
  REQUIRE_FALSE(last.has_value());
  CHECK(last.error().code == ErrorCode::kDeadlineExceeded);
  CHECK(sent < std::size_t{100} << 20);
  CHECK(server.counters().write_timeouts == 1);
}

TEST_CASE("a write under way ends at the answer's deadline, and last words are still sent") {
  Status blocked;
  TestServer server({}, [&](std::unique_ptr<HttpExchange> exchange) -> Task<void> {
    if (exchange->request().path == "/late") {
      exchange->set_deadline(exchange->request().received_at - std::chrono::seconds(5));
      exchange->begin_stream(200, "text/plain", {});
      static_cast<void>(co_await exchange->write("sorry"));
      static_cast<void>(co_await exchange->finish());
      co_return;
    }
    exchange->set_deadline(exchange->request().received_at + std::chrono::milliseconds(1500));
    exchange->begin_stream(200, "application/octet-stream", {});
    while (blocked)
      blocked = co_await exchange->write(std::string(1 << 20, 'x'));
  });
  ClientRequest late;
  late.url = "http://127.0.0.1:" + std::to_string(server.port()) + "/late";
  const auto answer = send(late);
  REQUIRE(answer.has_value());
  CHECK(answer->body == "sorry");
  RawClient client(server.port());
  REQUIRE(client.send(kGet));
  REQUIRE(server.until([](const ServerCounters& c) { return c.requests == 2; }));
  server.drain();  // ends long before the write time-out of 30 s
  REQUIRE_FALSE(blocked.has_value());
  CHECK(blocked.error().code == ErrorCode::kDeadlineExceeded);
}

TEST_CASE("slow heads, slow bodies and idle connections are closed and counted") {
  ServerOptions options;
  options.limits.header_timeout = std::chrono::milliseconds(30);
  options.limits.body_timeout = std::chrono::milliseconds(30);
  options.limits.idle_timeout = std::chrono::milliseconds(30);
  TestServer server(std::move(options), echo);
  RawClient head(server.port());
  REQUIRE(head.send("GET / HT"));
  CHECK(head.read_to_end().starts_with("HTTP/1.1 408 "));
  RawClient body(server.port());
  REQUIRE(body.send(post("Content-Length: 5\r\n", "ab")));
  CHECK(body.read_to_end().starts_with("HTTP/1.1 408 "));
  RawClient idle(server.port());
  REQUIRE(idle.send(kGet));
  CHECK(idle.read_to_end().starts_with("HTTP/1.1 200 "));
  RawClient silent(server.port());
  CHECK(silent.read_to_end().empty());
  CHECK(silent.ended);
  const auto c = server.counters();
  CHECK(c.header_timeouts == 2);
  CHECK(c.body_timeouts == 1);
  CHECK(c.idle_timeouts == 1);
}

TEST_CASE("connections beyond the limit get 503 and retry-after") {
  ServerOptions options;
  options.limits.connections_max = 1;
  int refused = 0;
  options.on_refused = [&](const RefusedRequest& r) { refused = r.status; };
  TestServer server(std::move(options), echo);
  RawClient first(server.port());
  REQUIRE(first.send(kGet));
  REQUIRE(first.read_until("GET /echo"));
  RawClient second(server.port());
  REQUIRE(second.send(kGet));
  CHECK(second.read_to_end().starts_with("HTTP/1.1 503 "));
  CHECK(second.received.contains("retry-after: 1\r\n"));
  CHECK(server.call([&] { return refused; }) == 503);
  CHECK(server.counters().connections_refused == 1);
}

TEST_CASE("stop() closes the listener and idle connections and lets answers finish") {
  OneShot<bool> go;
  ServerOptions options;
  options.limits.linger_timeout = std::chrono::milliseconds(10);
  TestServer server(std::move(options), [&](std::unique_ptr<HttpExchange> exchange) -> Task<void> {
    if (exchange->request().path == "/slow") co_await go;
    co_await echo(std::move(exchange));
  });
  RawClient idle(server.port());
  REQUIRE(idle.send(kGet));
  REQUIRE(idle.read_until("GET /echo"));
  RawClient slow(server.port());
  REQUIRE(slow.send("GET /slow HTTP/1.1\r\nHost: t\r\n\r\n"));
  REQUIRE(server.until([](const ServerCounters& c) { return c.requests == 2; }));
  server.call([&] { server.server->stop(); });
  idle.read_to_end();
  CHECK(idle.ended);
  CHECK_FALSE(RawClient(server.port()).connected);
  server.call([&] { go.set(true); });
  CHECK(slow.read_to_end().ends_with("GET /slow? "));
  CHECK(slow.received.contains("connection: close\r\n"));
  server.drain();
}

TEST_CASE("a client slower than the linger time still gets the whole last answer") {
  ServerOptions options;
  options.limits.linger_timeout = std::chrono::milliseconds(10);
  const std::string body(400'000, 'x');  // more than a client's receive buffer holds
  TestServer server(std::move(options), [&](std::unique_ptr<HttpExchange> exchange) -> Task<void> {
    HttpResponse response;
    response.body = body;
    co_await exchange->respond(std::move(response));
  });
  RawClient client(server.port());
  REQUIRE(client.send("GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"));
  REQUIRE(server.until(
      [](const ServerCounters& c) { return c.requests == 1 && c.connections_now == 0; }));
  CHECK(client.read_to_end().ends_with(body));
}

TEST_CASE("cut() ends running streams and tells their handlers") {
  Held held;
  TestServer server({}, hold_until_gone(held, true));
  RawClient client(server.port());
  REQUIRE(client.send(kGet));
  REQUIRE(client.read_until("data: first\n\n"));
  REQUIRE(server.until([](const ServerCounters& c) { return c.exchanges_now == 1; }));
  server.call([&] { server.server->cut(); });
  server.drain();
  CHECK(held.disconnects == 1);
  CHECK_FALSE(client.read_to_end().contains("0\r\n\r\n"));
}

TEST_CASE("nothing a handler passes can split an answer") {
  TestServer server({}, [](std::unique_ptr<HttpExchange> exchange) -> Task<void> {
    HttpResponse response;
    response.headers = {{"x-request-id", "a\r\nevil: 1"}, {"bad name", "x"}, {"", "x"}};
    response.body = "ok";
    co_await exchange->respond(std::move(response));
  });
  RawClient client(server.port());
  REQUIRE(client.send(kGet));
  REQUIRE(client.read_until("ok"));
  CHECK(client.received.contains("x-request-id: a  evil: 1\r\n"));
  CHECK_FALSE(client.received.contains("bad name"));
}

TEST_CASE("two servers share a port with reuse_port, and a taken port is named") {
  ServerOptions options;
  options.reuse_port = true;
  TestServer first(options, echo);
  options.port = first.port();
  TestServer second(options, echo);
  CHECK(second.port() == first.port());
  options.reuse_port = false;
  boost::asio::io_context context;
  AsioClock clock(context);
  const auto taken = HttpServer::start(clock, options, echo);
  REQUIRE_FALSE(taken.has_value());
  CHECK(taken.error().message.contains("127.0.0.1:" + std::to_string(first.port())));
  options.address = "localhost:1";
  CHECK(HttpServer::start(clock, options, echo).error().code == ErrorCode::kInvalidArgument);
}

TEST_CASE("requests sent ahead wait beyond the pipeline buffer and are all answered in order") {
  OneShot<bool> go;
  int count = 0;
  TestServer server({}, [&](std::unique_ptr<HttpExchange> exchange) -> Task<void> {
    if (count++ == 0) co_await go;
    HttpResponse response;
    response.body = "#" + std::to_string(count);
    co_await exchange->respond(std::move(response));
  });
  RawClient client(server.port());
  std::string many;
  for (int i = 0; i < 5000; ++i)
    many += kGet;  // 150 KB
  std::thread sender([&] { client.send(many); });
  REQUIRE(server.until([](const ServerCounters& c) { return c.requests == 1; }));
  server.call([&] { go.set(true); });
  CHECK(client.read_until("#5000"));
  sender.join();
  CHECK(server.counters().requests == 5000);
}

TEST_CASE("whatever bytes come and however they end, the server goes on") {
  ServerOptions options;
  options.limits.header_timeout = std::chrono::milliseconds(50);
  options.limits.body_timeout = std::chrono::milliseconds(50);
  options.limits.linger_timeout = std::chrono::milliseconds(50);
  TestServer server(std::move(options), [](std::unique_ptr<HttpExchange> exchange) -> Task<void> {
    if (exchange->request().body.size() % 2 == 0) {
      co_await stream_three(std::move(exchange));
    } else {
      co_await echo(std::move(exchange));
    }
  });
  const std::string bases[] = {std::string(kGet), post("Content-Length: 5\r\n", "hello"),
                               post("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"),
                               post("Content-Length: 5\r\nExpect: 100-continue\r\n", "hello"),
                               "GET / HTTP/1.0\r\n\r\n"};
  Rng rng(20);
  for (int round = 0; round < 300; ++round) {
    std::string bytes = bases[rng.below(5)] + bases[rng.below(5)];
    for (auto edits = rng.below(4); edits > 0; --edits) {
      const auto at = rng.below(bytes.size());
      switch (rng.below(4)) {
        case 0:
          bytes[at] = static_cast<char>(rng.below(256));
          break;
        case 1:
          bytes.erase(at, 1 + rng.below(4));
          break;
        case 2:
          bytes.insert(at, bytes.substr(rng.below(bytes.size()), rng.below(20)));
          break;
        default:
          bytes.resize(1 + at);
          break;
      }
      if (bytes.empty()) bytes = "x";
    }
    CAPTURE(bytes);
    RawClient client(server.port());
    REQUIRE(client.connected);
    client.send(bytes);
    if (rng.below(2) == 0) client.half_close();
    if (rng.below(2) == 0) client.read_until("\r\n\r\n");
  }
  RawClient client(server.port());
  REQUIRE(client.send(post("Content-Length: 1\r\nConnection: close\r\n", "x")));
  CHECK(client.read_to_end().ends_with("POST /echo? x"));
  CHECK(server.until([](const ServerCounters& c) { return c.connections_now == 0; }));
  CHECK(server.counters().exchanges_now == 0);
}

}  // namespace penstock::http
