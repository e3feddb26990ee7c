// KvEventFeed: the index of what other engines hold, kept up to date from their KV events.
//
// One thread follows all publishers (a rank of an engine each): it subscribes, puts messages in
// order (EventStream), asks for replays over the publisher's second endpoint, turns blocks into our
// keys (EngineHoldings), and applies what has changed to the EngineIndex. Shards match under a
// shared lock, which the thread takes for a few hundred blocks at a time.
//
// An engine that is sent prompts and never says that it has stored one is silent: its match is
// always empty, which looks just like a cold cache. That is told in the log, with what to do, and
// in report().
//
// Invariants: the memory of index and holdings stays below `bytes_max` but for one growth of a
// table. Errors: wrong endpoints on add(); the rest is logged, counted, and tried again.
// Concurrency: all functions from any thread. Source: docs/kv-events.md.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "core/kvcache/engine_index.h"
#include "core/kvcache/event_stream.h"
#include "io/zmq/zmq_socket.h"

namespace penstock::zmq {

struct KvEventSource {
  kvcache::RankOfWorker rank;
  std::string name;    // for logs: "vllm-0 rank 1"
  std::string events;  // endpoint of its PUB socket
  std::string replay;  // of its ROUTER socket; empty: it has none
  std::string topic;   // empty: all
};

struct KvEventFeedOptions {
  std::uint64_t seed = 0;  // of routing keys; drawn when the process starts
  std::size_t bytes_max = std::size_t{1} << 30;
  Duration replay_time_max = std::chrono::seconds(2);  // without a message of it
  Duration replay_pause = std::chrono::milliseconds(200);
  Duration silent_after = std::chrono::seconds(60);
  std::function<void(std::string_view)> log = {};
};

// What has come of one source, since it was added.
struct KvEventReport {
  kvcache::RankOfWorker rank;
  std::string name;
  bool silent = false;  // prompts were sent to it, and no event came
  std::uint64_t messages = 0;
  std::uint64_t connections = 0;
  std::uint64_t replays = 0;
  std::uint64_t unreadable = 0;      // messages
  std::uint64_t unknown_events = 0;  // of kinds that are new
  std::uint64_t unknown_fields = 0;
  std::uint64_t bad_events = 0;
  std::size_t blocks = 0;
  std::size_t bytes = 0;  // of its holdings; the index is apart
  kvcache::EventStream::Counts stream;
  kvcache::HoldingCounts holdings;
};

class KvEventFeed {
 public:
  explicit KvEventFeed(KvEventFeedOptions options);
  ~KvEventFeed();
  KvEventFeed(const KvEventFeed&) = delete;
  KvEventFeed& operator=(const KvEventFeed&) = delete;

  // Begins to follow it. One source a rank: an earlier one of the rank ends.
  Status add(KvEventSource source);
  void remove(kvcache::RankOfWorker rank);
  // A prompt that its cache should keep has been sent to the rank.
  void sent_prompt(kvcache::RankOfWorker rank);

  const kvcache::RoutingChain& chain() const { return chain_; }
  // EngineIndex::match().
  std::span<const kvcache::RankMatch> match(std::span<const kvcache::RoutingKey> keys,
                                            kvcache::EngineIndex::Scratch& scratch) const;

  std::vector<KvEventReport> report() const;
  std::size_t blocks() const;
  std::size_t memory_bytes() const;  // of index and holdings
  std::size_t bytes_max() const { return options_.bytes_max; }

 private:
  class Follower;
  struct Known;

  void run();
  void wake();
  void take_orders();
  void log(std::string_view text) const;

  const KvEventFeedOptions options_;
  const kvcache::RoutingChain chain_;
  ZmqContext context_;
  int wake_ = -1;  // eventfd

  mutable std::shared_mutex index_mutex_;
  kvcache::EngineIndex index_;
  std::atomic<std::size_t> holdings_bytes_{0};

  // What the thread is asked to do, and what it tells.
  mutable std::mutex mutex_;
  bool stopping_ = false;
  std::vector<std::shared_ptr<Known>> wanted_;

  // The thread's.
  std::vector<std::unique_ptr<Follower>> followers_;
  std::size_t next_number_ = 0;  // monitors need names
  std::thread thread_;
};

}  // namespace penstock::zmq
