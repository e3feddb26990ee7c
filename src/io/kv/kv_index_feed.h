// KvIndexFeed: the gateway's index of what KV daemons hold, kept up to date by a thread a daemon.
//
// A thread connects to its daemon, subscribes after the last event known, applies what comes, and
// connects again when the daemon is gone (its holdings are forgotten meanwhile). Shards match
// through ShardKvIndex objects, each with its own hasher and cache of chains, under a shared lock.
//
// Errors: none to callers; a daemon with another secret or protocol is logged once per connection.
// Concurrency: the feed from any thread, a ShardKvIndex from one. Source: docs/protocol/kv.md.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/kvcache/chain_cache.h"
#include "core/kvcache/prefix_index.h"
#include "port/kv_index.h"

namespace penstock::kv {

class KvSession;

struct KvIndexFeedOptions {
  std::vector<std::string> sockets;  // of the daemons
  std::array<std::uint8_t, 32> secret{};
  std::string name;  // of this gateway, for the daemons' logs
  std::function<void(std::string_view)> log;
};

class KvIndexFeed {
 public:
  explicit KvIndexFeed(KvIndexFeedOptions options);
  ~KvIndexFeed();
  KvIndexFeed(const KvIndexFeed&) = delete;
  KvIndexFeed& operator=(const KvIndexFeed&) = delete;

  kvcache::KvMatch match(std::span<const BlockKey> keys) const;
  void prefetch(std::span<const BlockKey> keys) const;  // for a match() soon
  std::uint32_t connected() const { return connected_.load(); }
  std::size_t blocks() const;
  // The newest answer to "stat" of the first daemon, asked every second; empty without one.
  std::string stat() const;
  const KvIndexFeedOptions& options() const { return options_; }

 private:
  struct Daemon {
    std::thread thread;
    std::mutex mutex;  // guards what follows
    KvSession* session = nullptr;
    std::string stat;
  };

  void follow(std::size_t number);
  void feed(KvSession& session, Daemon& daemon, kvcache::KvHostId host);
  bool pause();

  const KvIndexFeedOptions options_;
  mutable std::shared_mutex mutex_;
  kvcache::PrefixIndex index_;
  std::atomic<std::uint32_t> connected_{0};
  std::mutex stop_mutex_;
  std::condition_variable stop_news_;
  bool stopping_ = false;
  std::vector<std::unique_ptr<Daemon>> daemons_;
};

class ShardKvIndex final : public KvIndex {
 public:
  ShardKvIndex(const KvIndexFeed& feed, std::size_t cache_bytes_max);
  KvIndexMatch match(const KvIdentity& identity, const CacheHints& hints,
                     std::span<const TokenId> prompt) override;

 private:
  const KvIndexFeed& feed_;
  kvcache::KeyChain hasher_;
  kvcache::ChainCache chains_;
};

}  // namespace penstock::kv
