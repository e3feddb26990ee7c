// KvEventPublisher: KV events as an engine publishes them, for those who speak as one does.
//
// Messages have three frames, topic, number and payload, on a PUB socket; the last of them are kept
// and sent again to whoever asks on the second endpoint, as the engines do: [empty][number] is
// answered by [empty][number][payload] for each message from there on, and a last one with the
// number of all ones.
//
// Invariants: numbers are consecutive from 0. Errors: start() says which endpoint can't be bound.
// Concurrency: publish() from any thread; one thread of its own has the sockets.
// Source: docs/kv-events.md; facts/engines.md 4.5.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "io/zmq/zmq_socket.h"

namespace penstock::zmq {

struct KvEventPublisherOptions {
  std::string events = "tcp://127.0.0.1:*";  // to bind; with * the system chooses the port
  std::string replay = {};                   // empty: nothing is kept
  std::string topic = {};
  std::size_t kept_max = 10'000;  // messages
};

class KvEventPublisher {
 public:
  static Result<std::unique_ptr<KvEventPublisher>> start(KvEventPublisherOptions options);
  ~KvEventPublisher();
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;

  // A lost one gets a number, is kept and is not sent.
  enum class Wire : std::uint8_t { kSent, kLost };
  void publish(std::string payload, Wire wire = Wire::kSent);

  // Where others connect to.
  const std::string& events_endpoint() const { return events_endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }

 private:
  explicit KvEventPublisher(KvEventPublisherOptions options) : options_(std::move(options)) {}
  void run();
  bool send_queued();
  void answer_replay(const std::vector<std::string>& frames);

  const KvEventPublisherOptions options_;
  ZmqContext context_;
  int wake_ = -1;  // eventfd
  std::string events_endpoint_;
  std::string replay_endpoint_;

  std::mutex mutex_;
  bool stopping_ = false;
  std::vector<std::pair<std::string, Wire>> queued_;

  // The thread's.
  ZmqSocket events_;
  ZmqSocket replay_;
  std::uint64_t next_ = 0;
  std::deque<std::pair<std::uint64_t, std::string>> kept_;
  std::thread thread_;
};

}  // namespace penstock::zmq
