// For tests of transports: a transport with its events recorded and calls that wait, and a peer in
// another process that can be stopped and killed.
//
// Concurrency: the calls are made on the test's thread and run on the transport's.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "io/files/descriptor.h"
#include "io/transport/transport_options.h"
#include "port/transport.h"

namespace penstock::transport {

inline constexpr auto kLong = std::chrono::seconds(60);  // how long a test waits for what must come

class TestPeer {
 public:
  explicit TestPeer(TransportOptions options) {
    auto made = open_transport(std::move(options));
    REQUIRE_MESSAGE(made, (made ? "" : to_string(made.error())));
    transport_ = std::move(*made);
  }

  void start() {
    TransportEvents events;
    events.accepted = [this](PeerId peer) { note([&] { accepted.push_back(peer); }); };
    events.opened = [this](PeerId peer) { note([&] { opened.push_back(peer); }); };
    events.closed = [this](PeerId peer, const std::string& why) {
      note([&] { closed.emplace_back(peer, why); });
    };
    events.message = [this](PeerId peer, std::string_view text) {
      if (on_message) return on_message(peer, text);
      note([&] { messages.emplace_back(peer, text); });
    };
    events.readable = [this](PeerId, std::uint32_t, std::uint32_t block, std::uint64_t) {
      return !refuses || !refuses(block);
    };
    transport_->set_events(std::move(events));
  }

  Transport& transport() { return *transport_; }
  std::string address() const { return transport_->address(); }
  // Ends the transport: nothing is called any more.
  void end() { transport_.reset(); }

  // Runs on the transport's thread and gives back what it returns.
  template <typename F>
  auto on_thread(F call) {
    std::promise<decltype(call())> promise;
    auto future = promise.get_future();
    transport_->clock().post([&] {
      if constexpr (std::is_void_v<decltype(call())>) {
        call();
        promise.set_value();
      } else {
        promise.set_value(call());
      }
    });
    return future.get();
  }

  Instant in(Duration duration) { return transport_->clock().now() + duration; }

  Result<PeerId> try_connect(const std::string& address) {
    return on_thread([&] { return transport_->connect(address, in(kLong)); });
  }
  // Connects and waits until that has succeeded.
  PeerId connect(const std::string& address) {
    const auto peer = try_connect(address);
    REQUIRE(peer);
    wait([&] { return std::ranges::find(opened, *peer) != opened.end() || is_closed(*peer); });
    const std::scoped_lock lock(mutex);
    REQUIRE_MESSAGE(!is_closed(*peer), (closed.empty() ? "" : closed.back().second));
    return *peer;
  }
  Status send(PeerId peer, std::string_view text) {
    return on_thread([&] { return transport_->send(peer, text); });
  }

  // Starts a read whose end is noted under its number.
  ReadId read(PeerId peer, const RemoteSlice& slice, std::byte* into,
              Duration time = std::chrono::duration_cast<Duration>(kLong)) {
    return on_thread([&] { return read_here(peer, slice, into, time); });
  }
  // The same, on the transport's thread.
  ReadId read_here(PeerId peer, const RemoteSlice& slice, std::byte* into, Duration time) {
    auto id = std::make_shared<ReadId>();
    *id = transport_->read(peer, slice, into, in(time), [this, id](ReadEnd end) {
      note([&] { ends[id->value].push_back(end); });
    });
    return *id;
  }
  ReadEnd end_of(ReadId read) {
    wait([&] { return ends.contains(read.value); });
    const std::scoped_lock lock(mutex);
    REQUIRE(ends.at(read.value).size() == 1);
    return ends.at(read.value)[0];
  }
  // Starts a read and waits for its end.
  ReadEnd read_all(PeerId peer, const RemoteSlice& slice, std::byte* into) {
    return end_of(read(peer, slice, into));
  }

  // Waits until `done`, which is called with the records locked.
  void wait(const std::function<bool()>& done, std::chrono::milliseconds time = kLong) {
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, time, done));
  }
  // Precondition: called in wait(), or when nothing happens.
  bool is_closed(PeerId peer) const {
    return std::ranges::find(closed, peer, [](const auto& c) { return c.first; }) != closed.end();
  }
  std::string why_closed(PeerId peer) {
    wait([&] { return is_closed(peer); });
    const std::scoped_lock lock(mutex);
    return std::ranges::find(closed, peer, [](const auto& c) { return c.first; })->second;
  }
  template <typename F>
  void note(F change) {
    const std::scoped_lock lock(mutex);
    change();
    changed.notify_all();
  }

  std::function<bool(std::uint32_t block)> refuses;          // set before start()
  std::function<void(PeerId, std::string_view)> on_message;  // set before start()
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<PeerId> accepted;
  std::vector<PeerId> opened;
  std::vector<std::pair<PeerId, std::string>> closed;
  std::vector<std::pair<PeerId, std::string>> messages;
  std::map<std::uint64_t, std::vector<ReadEnd>> ends;

 private:
  std::unique_ptr<Transport> transport_;
};

// A process of testing/peer_main.cc.
class PeerProcess {
 public:
  PeerProcess(const std::string& listen, std::uint32_t blocks, std::size_t block_bytes) {
    int in[2];
    int out[2];
    REQUIRE(::pipe2(in, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
    input_ = Descriptor(in[1]);
    const Descriptor child_in(in[0]);
    Descriptor child_out(out[1]);
    const Descriptor output(out[0]);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::string words[] = {beside_this_program("transport_peer_for_tests"), listen,
                           std::to_string(blocks), std::to_string(block_bytes)};
    char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(),
                         nullptr};
    const int error = ::posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments, environ);
    ::posix_spawn_file_actions_destroy(&actions);
    REQUIRE(error == 0);
    char byte = 0;
    child_out = Descriptor();  // the child's is the only one left
    while (::read(output.get(), &byte, 1) == 1 && byte != '\n')
      address_ += byte;
    REQUIRE(byte == '\n');
  }
  ~PeerProcess() { kill(); }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  const std::string& address() const { return address_; }
  // Returns once it does not run any more.
  void stop() const {
    ::kill(pid_, SIGSTOP);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED);
  }
  void go_on() const { ::kill(pid_, SIGCONT); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  static std::string beside_this_program(const std::string& name) {
    char path[4096];
    const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
    const std::string self(path, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    return self.substr(0, self.rfind('/') + 1) + name;
  }

  pid_t pid_ = -1;
  Descriptor input_;
  std::string address_;
};

}  // namespace penstock::transport
