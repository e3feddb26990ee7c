// WebSockets: frames however they are cut, what a client may not do, and a socket of a real server.
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "io/http/test_server.h"
#include "io/http/websocket_frames.h"

#include <doctest/doctest.h>

namespace penstock::http {
namespace {

constexpr std::uint8_t kFinal = 0x80;

// A frame as a client sends it.
std::string client_frame(Opcode opcode, std::string payload, std::uint8_t flags = kFinal) {
  constexpr std::array<char, 4> kMask = {'\x37', '\xFA', '\x21', '\x3D'};
  std::string frame = frame_head(opcode, payload.size());
  frame[0] = static_cast<char>((frame[0] & 0x0F) | flags);
  frame[1] = static_cast<char>(frame[1] | 0x80);
  frame.append(kMask.data(), kMask.size());
  for (std::size_t i = 0; i < payload.size(); ++i)
    payload[i] = static_cast<char>(payload[i] ^ kMask[i & 3]);
  return frame + payload;
}

struct Read {
  std::vector<FrameEvent> events;
  int fault = 0;
  bool operator==(const Read&) const = default;
};

Read read_frames(std::string_view bytes, std::size_t step,
                 std::size_t message_bytes_max = 1 << 20) {
  FrameReader reader(message_bytes_max);
  Read out;
  while (!bytes.empty() && out.fault == 0) {
    const auto fed = reader.feed(bytes.substr(0, step), out.events);
    if (!fed) out.fault = fed.error().code;
    bytes.remove_prefix(std::min(step, bytes.size()));
  }
  return out;
}

constexpr std::string_view kHandshake =
    "GET /socket HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

// Answers each message with itself; ends when it says so, or when it is told to.
Task<void> echo_messages(std::unique_ptr<HttpExchange> exchange) {
  const auto opened = co_await exchange->accept_websocket({{"x-request-id", "r1"}});
  if (!opened) {
    HttpResponse response;
    response.status = 400;
    response.body = opened.error().message;
    co_await exchange->respond(std::move(response));
    co_return;
  }
  WebSocket& socket = **opened;
  while (true) {
    auto message = co_await socket.receive(Instant::max());
    if (!message) {
      socket.close(1001, message.error().message);
      co_return;
    }
    if (!*message) co_return;
    if (**message == "bye") {
      socket.close(1000, "as you wish");
      co_return;
    }
    if (!co_await socket.send("<" + **message + ">")) co_return;
  }
}

std::string text_frame(const std::string& text) {
  return frame_head(Opcode::kText, text.size()) + text;
}

}  // namespace

TEST_CASE("frames become messages, however the bytes are cut") {
  const std::string big(70000, 'x');
  const std::string medium(300, 'y');
  const std::string bytes =
      client_frame(Opcode::kText, "one") + client_frame(Opcode::kText, "tw", 0) +
      client_frame(Opcode::kPing, "still there?") + client_frame(Opcode::kContinuation, "", 0) +
      client_frame(Opcode::kContinuation, "o") + client_frame(Opcode::kText, "") +
      client_frame(Opcode::kText, big) + client_frame(Opcode::kPong, "") +
      client_frame(Opcode::kText, medium) + client_frame(Opcode::kClose, "\x03\xE8 done");
  const Read expected{{{Opcode::kText, "one", 0},
                       {Opcode::kPing, "still there?", 0},
                       {Opcode::kText, "two", 0},
                       {Opcode::kText, "", 0},
                       {Opcode::kText, big, 0},
                       {Opcode::kPong, "", 0},
                       {Opcode::kText, medium, 0},
                       {Opcode::kClose, " done", 1000}},
                      0};
  for (const std::size_t step : {1UL, 2UL, 3UL, 7UL, 1000UL, bytes.size()}) {
    CAPTURE(step);
    CHECK(read_frames(bytes, step) == expected);
  }
  // Nothing is read behind a close.
  CHECK(read_frames(bytes + "\xFF\xFF\xFF", bytes.size() + 3) == expected);
}

TEST_CASE("what a client must not send ends the connection with the code that says so") {
  std::string unmasked = client_frame(Opcode::kText, "a");
  unmasked[1] = static_cast<char>(unmasked[1] & 0x7F);
  const std::string mask = "abcd";
  struct Case {
    const char* what;
    std::string bytes;
    int code;
  };
  for (const Case& c : {
           Case{"unmasked", unmasked, 1002},
           Case{"reserved bit", client_frame(Opcode::kText, "a", kFinal | 0x40), 1002},
           Case{"opcode 3", client_frame(static_cast<Opcode>(3), "a"), 1002},
           Case{"opcode 11", client_frame(static_cast<Opcode>(11), "a"), 1002},
           Case{"binary", client_frame(Opcode::kBinary, "a"), 1003},
           Case{"cut ping", client_frame(Opcode::kPing, "a", 0), 1002},
           Case{"long ping", client_frame(Opcode::kPing, std::string(126, 'a')), 1002},
           Case{"continuation of nothing", client_frame(Opcode::kContinuation, "a"), 1002},
           Case{"text inside text",
                client_frame(Opcode::kText, "a", 0) + client_frame(Opcode::kText, "b"), 1002},
           Case{"16 bits for 5", std::string("\x81\xFE\x00\x05", 4) + mask, 1002},
           Case{"64 bits for 300", std::string("\x81\xFF\0\0\0\0\0\0\x01\x2C", 10) + mask, 1002},
           Case{"the highest bit", std::string("\x81\xFF\x80\0\0\0\0\1\0\0", 10) + mask, 1002},
           Case{"too long", client_frame(Opcode::kText, std::string(101, 'a')), 1009},
           Case{"too long together",
                client_frame(Opcode::kText, std::string(60, 'a'), 0) +
                    client_frame(Opcode::kContinuation, std::string(60, 'a')),
                1009},
           Case{"half a close code", client_frame(Opcode::kClose, "\x03"), 1002},
           Case{"close code 999", client_frame(Opcode::kClose, "\x03\xE7"), 1002},
           Case{"close code 1005", client_frame(Opcode::kClose, "\x03\xED"), 1002},
           Case{"close code 5000", client_frame(Opcode::kClose, "\x13\x88"), 1002},
       }) {
    CAPTURE(c.what);
    for (const std::size_t step : {1UL, c.bytes.size()})
      CHECK(read_frames(c.bytes, step, 100).fault == c.code);
  }
  const Read none = read_frames(client_frame(Opcode::kClose, ""), 100);
  CHECK(none == Read{{{Opcode::kClose, "", 1005}}, 0});
  CHECK(close_frame({1005, {}}) == std::string("\x88\0", 2));
  CHECK(close_frame({1000, std::string(200, 'a')}).size() == 127);
  CHECK(read_frames(client_frame(Opcode::kText, std::string(100, 'a')), 7, 100).fault == 0);
}

TEST_CASE("an opening handshake is answered, or refused with what is wrong") {
  HttpRequest good;
  good.method = "GET";
  good.headers = {{"Connection", "Upgrade"},
                  {"Upgrade", "WebSocket"},
                  {"Sec-WebSocket-Version", "13"},
                  {"Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}};
  const auto accepted = websocket_accept(good);
  REQUIRE(accepted);
  CHECK(*accepted == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");  // RFC 6455 1.3
  const auto with = [&](std::size_t header, const char* value) {
    HttpRequest request = good;
    request.headers[header].value = value;
    return websocket_accept(request);
  };
  CHECK(!with(0, "keep-alive"));
  CHECK(!with(1, "h2c"));
  CHECK(with(2, "8").error().code == ErrorCode::kUnsupported);
  CHECK(!with(3, "dGhlIHNhbXBsZSBub25jZQ="));
  CHECK(!with(3, "dGhlIHNhbXBsZSBub25jZR=="));
  CHECK(!with(3, ""));
  HttpRequest twice = good;
  twice.headers.push_back(twice.headers[3]);
  CHECK(!websocket_accept(twice));
  HttpRequest post = good;
  post.method = "POST";
  CHECK(!websocket_accept(post));
}

TEST_CASE("a socket answers messages, pings and a close") {
  TestServer server({}, echo_messages);
  RawClient client(server.port());
  CHECK(client.send(kHandshake));
  REQUIRE(client.read_until("\r\n\r\n"));
  CHECK(client.received.starts_with("HTTP/1.1 101 Switching Protocols\r\n"));
  CHECK(client.received.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
  CHECK(client.received.contains("x-request-id: r1\r\n"));
  CHECK(!client.received.contains("content-length"));
  const std::string big(200000, 'b');
  CHECK(client.send(client_frame(Opcode::kText, "one") + client_frame(Opcode::kPing, "p1") +
                    client_frame(Opcode::kText, big.substr(0, 5), 0) +
                    client_frame(Opcode::kContinuation, big.substr(5))));
  CHECK(client.read_until(text_frame("<one>")));
  CHECK(client.read_until(frame_head(Opcode::kPong, 2) + "p1"));
  CHECK(client.read_until(text_frame("<" + big + ">")));
  CHECK(client.send(client_frame(Opcode::kClose, "\x03\xE8")));
  CHECK(client.read_to_end().ends_with(close_frame({1000, {}})));
  CHECK(client.ended);
}

TEST_CASE("who ends a socket says why: the handler, the server, or the fault that was met") {
  const auto last_words = [](TestServer& server, const std::string& bytes,
                             const std::function<void()>& then = {}) {
    RawClient client(server.port());
    CHECK(client.send(std::string(kHandshake) + bytes));
    CHECK(client.read_until("\r\n\r\n"));
    if (then) then();
    client.read_to_end();
    CHECK(client.ended);
    return client.received.substr(client.received.find("\r\n\r\n") + 4);
  };
  {
    TestServer server({}, echo_messages);
    CHECK(last_words(server, client_frame(Opcode::kText, "bye")) ==
          close_frame({1000, "as you wish"}));
    // What came before the fault is answered before.
    CHECK(last_words(server, client_frame(Opcode::kText, "hi") +
                                 client_frame(Opcode::kText, "x", kFinal | 0x10))
              .ends_with(close_frame({1002, "a reserved bit is set"})));
    CHECK(last_words(server, client_frame(Opcode::kBinary, "x")) ==
          close_frame({1003, "messages here are text"}));
    CHECK(last_words(server, "", [&] { server.call([&] { server.server->stop(); }); }) ==
          close_frame({1001, "this server is shutting down"}));
    CHECK(server.until([](const ServerCounters& c) { return c.connections_now == 0; }));
    CHECK(server.counters().exchanges_now == 0);
  }
  ServerOptions small;
  small.limits.body_bytes_max = 1000;
  small.limits.body_memory_max = 500;
  TestServer server(small, echo_messages);
  CHECK(last_words(server, client_frame(Opcode::kText, std::string(1001, 'a')).substr(0, 100)) ==
        close_frame({1009, "a message is at most 1000 bytes long"}));
  CHECK(last_words(server, client_frame(Opcode::kText, std::string(900, 'a'))) ==
        close_frame({1013, "the server's memory for messages is in use"}));
  CHECK(server.until([](const ServerCounters& c) { return c.body_bytes_now == 0; }));
}

TEST_CASE("a peer that goes away, or is silent when asked, is noticed in the middle of a message") {
  Held held;
  const HttpHandler hold = [&held](std::unique_ptr<HttpExchange> exchange) -> Task<void> {
    const auto opened = co_await exchange->accept_websocket({});
    WebSocket& socket = **opened;
    static_cast<void>(co_await socket.receive(Instant::max()));
    OneShot<bool> gone;
    exchange->on_disconnect([&] {
      ++held.disconnects;
      gone.set(true);
    });
    co_await gone;
    held.last = co_await socket.send("late");
    CHECK(!co_await socket.receive(Instant::max()));
    socket.close(1001, "");  // nobody hears it
    ++held.handled;
  };
  ServerOptions options;
  options.limits.idle_timeout = std::chrono::milliseconds(30);
  for (const bool silent : {false, true}) {
    CAPTURE(silent);
    held.disconnects = held.handled = 0;
    TestServer server(options, hold);
    RawClient client(server.port());
    CHECK(client.send(std::string(kHandshake) + client_frame(Opcode::kText, "go")));
    CHECK(client.read_until("\r\n\r\n"));
    if (silent) {
      CHECK(client.read_until(frame_head(Opcode::kPing, 0)));
    } else {
      client.close();
    }
    CHECK(server.until([](const ServerCounters& c) { return c.connections_now == 0; }));
    server.drain();
    CHECK(held.disconnects == 1);
    CHECK(held.handled == 1);
    CHECK(held.last.error().code == ErrorCode::kCancelled);
    CHECK(server.counters().idle_timeouts == (silent ? 1 : 0));
    CHECK(server.counters().exchanges_now == 0);
  }
}

TEST_CASE("many messages wait in order") {
  TestServer server({}, echo_messages);
  RawClient client(server.port());
  CHECK(client.send(kHandshake));
  CHECK(client.read_until("\r\n\r\n"));
  std::string all;
  for (int i = 0; i < 100; ++i) {
    const std::string text = std::to_string(i) + std::string(3000, '.');
    all += client_frame(Opcode::kText, text) + client_frame(Opcode::kPing, std::to_string(i));
  }
  CHECK(client.send(all + client_frame(Opcode::kText, "bye")));
  std::string got = client.read_to_end();
  for (int i = 0; i < 100; ++i) {
    const std::string text = std::to_string(i) + std::string(3000, '.');
    const auto at = got.find(text_frame("<" + text + ">"));
    REQUIRE(at != std::string::npos);
    got.erase(0, at);
  }
  CHECK(got.ends_with(close_frame({1000, "as you wish"})));
}

}  // namespace penstock::http
