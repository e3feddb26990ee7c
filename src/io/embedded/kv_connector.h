// KvConnector: the embedded engine's use of the KV cache service, through its public C interface.
//
// A request's keys are computed and its blocks acquired while it waits; when the lease is final the
// engine gets a PrefixLoad that copies them layer by layer into its pool. Finished blocks are
// offered to the daemon as the engine shows them; their memory is kept from being reused until the
// daemon has copied it. Window layers are offered as sidecars at prompt end, answer end and every
// kWindowEvery tokens.
//
// Invariants: a block of the pool is held for the daemon at most once per offer and always given
// back, on the engine's thread (tend()); at most a quarter of the pool is held. No daemon, no
// secret for a scope, too much in flight: the request is computed and its blocks are not kept.
// Errors: open() names what can't be set up; nothing else fails. Concurrency: the engine's thread,
// but `wake` is called from the library's. Source: docs/design/0005-kv-cache.md.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <penstock_kv.h>
#include "domain/engine.h"
#include "engine/engine.h"

namespace penstock {

struct KvConnectorOptions {
  std::string socket;       // of the host's daemon
  std::string secret_file;  // see io/files/kv_secret.h
  std::string name;         // of this worker
  Duration budget_base = std::chrono::milliseconds(50);
  Duration budget_per_1k_tokens = std::chrono::milliseconds(20);
  std::uint32_t hit_tokens_min = 64;  // fewer are computed
  bool weighs_loads = true;  // false: what is there is loaded, also when computing is faster
  std::function<void(int level, const char* text)> log;
};

// A request's blocks on their way. Destroying it gives everything back.
class KvFetch {
 public:
  explicit KvFetch(pkv_lease* lease) : lease_(lease) {}
  ~KvFetch() { pkv_release(lease_); }
  KvFetch(const KvFetch&) = delete;
  KvFetch& operator=(const KvFetch&) = delete;
  // True when nothing more will come.
  bool final() const;
  std::uint32_t usable_blocks() const;
  pkv_lease* lease() const { return lease_; }

 private:
  pkv_lease* lease_;
};

class KvConnector final : public engine::BlockSink {
 public:
  static constexpr std::size_t kScopesMax = 65536;
  static constexpr std::uint32_t kWindowEvery = 2048;

  // `engine` outlives the connector. `wake` tells the engine's thread that has_news() may be true.
  static Result<std::unique_ptr<KvConnector>> open(KvConnectorOptions options,
                                                   engine::Engine& engine,
                                                   std::function<void()> wake);
  ~KvConnector() override;
  KvConnector(const KvConnector&) = delete;
  KvConnector& operator=(const KvConnector&) = delete;

  // Starts fetching; null when there is nothing to fetch. `cost` is what computing costs here;
  // zeros: everything that is there is loaded.
  std::shared_ptr<KvFetch> fetch(const EngineRequest& request, const PrefillCoefficients& cost);
  // The prefix to submit with a request whose fetch is final; null when too little came.
  std::shared_ptr<engine::PrefixLoad> prefix(std::shared_ptr<KvFetch> fetch);
  bool computed(const engine::ComputedBlocks& blocks) override;
  // Gives back blocks that the daemon has copied.
  void tend();
  // Waits for a KV daemon; for tests and benches.
  bool wait_connected(Duration timeout) const;
  bool has_news() const { return news_.load(std::memory_order_acquire); }
  CacheUse counters() const { return counters_; }

 private:
  struct Offer {
    KvConnector* connector = nullptr;
    std::vector<engine::BlockId> blocks;
  };

  KvConnector(KvConnectorOptions options, engine::Engine& engine, std::function<void()> wake)
      : options_(std::move(options)), engine_(engine), wake_(std::move(wake)) {}
  Status set_up();
  const std::uint32_t* root(const std::string& scope);
  std::vector<pkv_key> keys(std::uint32_t root, std::span<const TokenId> tokens,
                            std::size_t blocks);
  // Depths of [first, end) at whose end window state is kept.
  std::vector<std::uint32_t> window_depths(const engine::ComputedBlocks& c) const;
  void give_back(std::span<const engine::BlockId> blocks);
  void news();
  static void on_news(void* context);
  static void on_stored(void* context, std::uint32_t stored);

  KvConnectorOptions options_;
  engine::Engine& engine_;
  std::function<void()> wake_;
  pkv_client* client_ = nullptr;
  std::uint32_t pool_ = 0;
  std::unordered_map<std::string, std::uint32_t> roots_;  // by scope
  std::size_t held_ = 0;                                  // blocks held for the daemon
  CacheUse counters_;

  std::atomic<bool> news_{false};
  std::mutex mutex_;
  std::vector<Offer*> stored_;  // answered, not yet given back
};

}  // namespace penstock
