#include "io/http/client.h"

#include <atomic>
#include <string>

#include "io/http/test_server.h"

#include <doctest/doctest.h>

namespace penstock::http {

TEST_CASE("the client reads whole answers, streams, errors and can be stopped") {
  TestServer server({}, [](std::unique_ptr<HttpExchange> exchange) -> Task<void> {
    if (exchange->request().path == "/stream") {
      co_await stream_three(std::move(exchange));
    } else {
      co_await echo(std::move(exchange));
    }
  });
  const auto base = "http://127.0.0.1:" + std::to_string(server.port());
  ClientRequest request;
  request.method = "POST";
  request.url = base + "/x?y=1";
  request.body = "{}";
  auto answer = send(request);
  REQUIRE(answer.has_value());
  CHECK(answer->status == 200);
  CHECK(answer->body == "POST /x?y=1 {}");
  CHECK(answer->header("Content-Type") == "text/plain");
  request.url = base + "/stream";
  std::string got;
  request.on_body = [&](std::string_view bytes) {
    got += bytes;
    return true;
  };
  REQUIRE(send(request).has_value());
  CHECK(got == "data: 1\n\ndata: 2\n\ndata: 3\n\n");
  request.on_body = [](std::string_view) { return false; };
  CHECK(send(request).error().code == ErrorCode::kCancelled);
  server.call([&] { server.server->stop(); });
  CHECK(send(request).error().code == ErrorCode::kUnavailable);
}

TEST_CASE("the client gives up at its time-out and when it is cancelled") {
  Held held;
  TestServer server({}, hold_until_gone(held, true));
  ClientRequest request;
  request.url = "http://127.0.0.1:" + std::to_string(server.port()) + "/";
  request.idle_timeout = std::chrono::milliseconds(20);
  CHECK(send(request).error().code == ErrorCode::kDeadlineExceeded);
  std::atomic<bool> cancel{true};
  request.cancel = &cancel;
  CHECK(send(request).error().code == ErrorCode::kCancelled);
}

TEST_CASE("URLs") {
  const auto url = parse_url("http://[::1]:81/a?b#c");
  REQUIRE(url.has_value());
  CHECK(url->host == "::1");
  CHECK(url->port == 81);
  CHECK(url->target == "/a?b");
  CHECK(parse_url("https://h")->port == 443);
  CHECK(parse_url("http://h?x")->target == "/?x");
  for (const char* bad :
       {"", "h", "ftp://h", "http://", "http://h:", "http://h:70000", "http://h:1x", "http://u@h",
        "http://[::1", "http://h/ b", "http://:80"}) {
    CAPTURE(bad);
    CHECK(parse_url(bad).error().code == ErrorCode::kInvalidArgument);
  }
}

}  // namespace penstock::http
