// The client against workers that say nothing, say nonsense, or go away.
#include <functional>
#include <thread>

#include "io/control/engine_codec.h"
#include "io/control/framed_socket.h"
#include "io/control/test_worker.h"

#include <doctest/doctest.h>

namespace penstock::control::testing {
namespace {

wire::WorkerFrame hello_frame() {
  wire::WorkerFrame frame;
  wire::WorkerHello& hello = *frame.mutable_hello();
  hello.set_protocol_version(kProtocolVersion);
  hello.set_name("hostile");
  wire::Model& model = *hello.add_models();
  model.set_name("alpha");
  model.set_vocab_size(100);
  model.set_context_length(1000);
  return frame;
}

// Greets each gateway with `first`, answers its first submits with `second`, then says nothing
// more.
class HostileWorker {
 public:
  explicit HostileWorker(const std::string& address, wire::WorkerFrame first = hello_frame(),
                         std::vector<wire::WorkerFrame> second = {})
      : listener_(*Listener::open(address)), first_(std::move(first)), second_(std::move(second)) {
    thread_ = std::thread([this] {
      while (auto socket = listener_.accept())
        serve(*socket);
    });
  }
  ~HostileWorker() {
    listener_.stop();
    thread_.join();
  }

 private:
  static void write(FramedSocket& socket, const wire::WorkerFrame& frame) {
    std::string bytes;
    frame_of(frame, bytes);
    (void)socket.write_all(bytes);
  }
  // Until the gateway closes.
  void serve(FramedSocket& socket) {
    wire::GatewayFrame frame;
    if (!socket.read(frame).value_or(false)) return;
    write(socket, first_);
    while (socket.read(frame).value_or(false)) {
      if (frame.submits_size() == 0) continue;
      for (const wire::WorkerFrame& answer : second_)
        write(socket, answer);
    }
  }

  Listener listener_;
  const wire::WorkerFrame first_;
  const std::vector<wire::WorkerFrame> second_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("a silent worker is dropped after two seconds and its requests fail") {
  SocketFolder folder;
  HostileWorker worker(folder.address());
  Shard shard(folder.address(), 1);
  shard.wait_connected();
  Answer a;
  REQUIRE(shard.submit(request(1, 1, 10), a));
  shard.clock.advance(std::chrono::milliseconds(1990));
  CHECK(shard.view().connected);
  CHECK_FALSE(a.over());
  shard.clock.advance(std::chrono::milliseconds(20));
  CHECK_FALSE(shard.view().connected);
  REQUIRE(a.error);
  CHECK(a.error->code == ErrorCode::kUnavailable);
  CHECK(a.error->message.find("said nothing") != std::string::npos);
  CHECK(shard.client->counters().silences == 1);
  shard.reconnect();
  CHECK(shard.client->counters().connects == 2);
}

TEST_CASE("a shard that was stopped itself does not blame the worker at once") {
  SocketFolder folder;
  HostileWorker worker(folder.address());
  Shard shard(folder.address(), 1);
  shard.wait_connected();
  shard.clock.stall(std::chrono::seconds(30));
  CHECK(shard.view().connected);
  shard.clock.advance(std::chrono::seconds(3));
  CHECK_FALSE(shard.view().connected);
}

TEST_CASE("backoff doubles while nobody listens") {
  SocketFolder folder;
  Shard shard(folder.address(), 1);
  for (std::size_t attempt = 1; attempt <= 9; ++attempt) {
    shard.clock.run_until([&] { return shard.events.size() == attempt; });
    CHECK_FALSE(shard.view().connected);
    // Half the backoff is never enough for the next attempt, the whole always is.
    const Duration backoff = std::min<Duration>(
        std::chrono::milliseconds(100) * (1 << (attempt - 1)), std::chrono::seconds(5));
    shard.clock.advance(backoff / 2 - std::chrono::milliseconds(1));
    CHECK(shard.events.size() == attempt);
    shard.clock.advance(backoff / 2 + std::chrono::milliseconds(1));
  }
  CHECK(shard.client->counters().disconnects >= 9);
  CHECK(shard.client->counters().violations == 0);
  Answer a;
  CHECK(shard.submit(request(1, 1, 1), a).error().code == ErrorCode::kUnavailable);
}

TEST_CASE("a worker that never greets is given up") {
  SocketFolder folder;
  wire::WorkerFrame bad = hello_frame();
  bad.clear_hello();
  HostileWorker worker(folder.address(), bad);
  Shard shard(folder.address(), 1);
  shard.clock.run_until([&] { return !shard.events.empty(); });
  CHECK(shard.events[0].reason.find("no hello") != std::string::npos);
  CHECK(shard.client->counters().violations == 1);
}

TEST_CASE("a worker that breaks the protocol is dropped with the reason") {
  struct Case {
    const char* reason;
    std::function<void(wire::WorkerFrame&)> spoil;
  };
  const Case cases[] = {
      {"second hello", [](auto& f) { *f.mutable_hello() = hello_frame().hello(); }},
      {"not open", [](auto& f) { f.mutable_outputs(0)->set_request_id(99); }},
      {"choice 1 of 1", [](auto& f) { f.mutable_outputs(0)->set_choice(1); }},
      {"outside the vocabulary", [](auto& f) { f.mutable_outputs(0)->set_tokens(0, 100); }},
      {"after its finish",
       [](auto& f) {
         f.mutable_outputs(0)->set_finish(wire::FINISH_STOP);
         *f.add_outputs() = f.outputs(0);
       }},
      {"absurd load", [](auto& f) { f.add_loads()->set_kv_tokens_used(5); }},
  };
  for (const Case& c : cases) {
    CAPTURE(c.reason);
    wire::WorkerFrame answer;
    wire::Output& output = *answer.add_outputs();
    output.set_request_id(1);
    output.add_tokens(5);
    c.spoil(answer);
    SocketFolder folder;
    HostileWorker worker(folder.address(), hello_frame(), {answer});
    Shard shard(folder.address(), 1);
    shard.wait_connected();
    Answer a;
    auto r = request(1, 1, 10, std::string_view(c.reason).starts_with("after") ? 2 : 1);
    REQUIRE(shard.submit(r, a));
    shard.clock.run_until([&] { return a.over(); });
    REQUIRE(a.error);
    CHECK(a.error->code == ErrorCode::kUnavailable);
    CHECK(a.error->message.find(c.reason) != std::string::npos);
    CHECK(shard.client->counters().violations == 1);
    CHECK_FALSE(shard.view().connected);
  }
}

TEST_CASE("an answer larger than the message limit ends the stream, not the process") {
  SocketFolder folder;
  wire::WorkerFrame huge;
  wire::Output& output = *huge.add_outputs();
  output.set_request_id(1);
  output.mutable_tokens()->Resize(40 << 20, 5);
  HostileWorker worker(folder.address(), hello_frame(), {huge});
  Shard shard(folder.address(), 1);
  shard.wait_connected();
  Answer a;
  REQUIRE(shard.submit(request(1, 1, 10), a));
  shard.clock.run_until([&] { return a.over(); });
  CHECK(a.error->code == ErrorCode::kUnavailable);
}

}  // namespace penstock::control::testing
