// SimClient: one HTTP client of a simulated gateway, and the exchange that the gateway answers.
//
// Between them lies a socket of kSocketBytes: write() returns when the rest fits, and fails when
// the client takes no byte for the write time-out, as io/http does. The client reads by its plan:
// at once, so many bytes at a time, not at all beyond some bytes; or leaves.
//
// Invariants: what the client has read is what was written, in order. Concurrency: one thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "port/clock.h"
#include "port/http.h"

namespace penstock::simulated {

struct ClientPlan {
  std::size_t read_bytes = SIZE_MAX;   // at a time
  Duration read_every{};               // zero: everything at once
  std::size_t stops_after = SIZE_MAX;  // bytes, then it reads no more
  std::optional<Duration> leaves_after;
};

enum class ClientEnd : std::uint8_t {
  kOpen,
  kFinished,  // the whole answer was written
  kCut,       // the server ended the connection before
  kLeft,      // the client did
};

class SimClient : public std::enable_shared_from_this<SimClient> {
 public:
  static constexpr std::size_t kSocketBytes = 2048;

  SimClient(Clock& clock, ClientPlan plan, Duration write_timeout)
      : clock_(clock), plan_(plan), write_timeout_(write_timeout) {}

  // The request's exchange; once.
  std::unique_ptr<HttpExchange> exchange(HttpRequest request);
  void leave();

  ClientEnd end = ClientEnd::kOpen;
  int status = 0;
  bool streamed = false;
  std::string taken;            // what it has read
  std::string socket;           // what waits to be read
  std::size_t socket_most = 0;  // bytes that waited, one write included
  std::size_t writes = 0;
  std::string all() const { return taken + socket; }

 private:
  class Exchange;
  Task<Status> put(std::string bytes);
  void read();
  bool is_gone() const { return end != ClientEnd::kOpen; }

  Clock& clock_;
  ClientPlan plan_;
  Duration write_timeout_;
  Clock::TimerId reading_ = 0;
  OneShot<bool>* room_ = nullptr;  // of the write that waits
  std::function<void()> disconnect_;
  Instant progress_at_;
  Instant deadline_ = Instant::max();
};

}  // namespace penstock::simulated
