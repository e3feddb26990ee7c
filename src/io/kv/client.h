// KvClient: an engine's side of the KV cache service; behind include/penstock_kv.h.
//
// A thread owns the socket: it connects (again and again, with a growing pause), says hello, maps
// the daemon's arena to read, registers pools and roots anew, and hands answers to whoever waits. A
// second thread copies granted blocks from the arena into the engine's memory, layer by layer, and
// verifies what it has copied (HashedCopy). Callers only take one mutex; nothing they call waits
// for the daemon but match() and wait_connected(), as long as they are told.
//
// Invariants: each load is the bytes that were stored, or is shorter; a block that does not verify
// is reported to the daemon. `done` of a store is called exactly once, and only when the daemon has
// answered or its session is over, so that nothing reads the engine's memory any more (docs/
// protocol/kv.md, "Who may write when"). After release() returns nothing is copied into the
// engine's memory and nothing of the lease is called. A lost daemon ends all leases (kNoDaemon);
// blocks granted before stay readable in the mapping that the lease holds, and are verified as
// always. With window layers a load ends at a resume point, also when it is cut short.
// Limits: store_bytes_max being stored, output_bytes_max unsent.
// Errors: kInvalidArgument; kOverloaded (too much in flight), kUnavailable (no daemon),
// kDeadlineExceeded. Concurrency: any thread; one lease by one thread at a time. Callbacks come
// from the two threads, without the mutex, and must not call back into the client.
// Source: docs/design/0005-kv-cache.md; facts on failures: docs/protocol/kv.md.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/kvcache/key_chain.h"
#include "domain/kv_messages.h"
#include "domain/tokens.h"

namespace penstock::kv {

struct KvClientOptions {
  std::string socket;
  std::array<std::uint8_t, 32> secret{};
  std::string name;  // for logs
  std::function<void(std::string_view)> log;
  std::size_t store_bytes_max = std::size_t{256} << 20;
  std::size_t output_bytes_max = std::size_t{64} << 20;
  // Without an answer to a store, or without taking what it is sent, the daemon counts as hung: the
  // connection is ended, so that the engine gets its memory back.
  Duration store_time_max = std::chrono::seconds(10);
  Duration backoff_min = std::chrono::milliseconds(20);
  Duration backoff_max = std::chrono::seconds(1);
};

// As pkv_layout: bytes of one block's slice of each layer, and which layers slide.
struct EngineLayout {
  std::uint32_t block_tokens = 64;
  std::vector<std::uint32_t> slice_bytes;
  std::vector<bool> window;         // by layer; empty: none
  std::uint32_t window_tokens = 0;  // multiple of block_tokens

  std::size_t layers() const { return slice_bytes.size(); }
  bool slides(std::size_t layer) const { return !window.empty() && window[layer]; }
  std::uint32_t window_blocks() const { return window_tokens / block_tokens; }
  // The daemon's view: history slices are the other layers in order; window slices are, for each
  // sliding layer in order, those of the window's blocks in order.
  KvLayoutSpec spec() const;
};

struct KvRequest {
  std::uint32_t root = 0;
  std::span<const BlockKey> keys;
  std::span<const TokenId> first_block;  // for explain; may be empty
  std::string request;
  std::string_view tenant;
  std::string_view ttl_class;
  Duration budget{};
  PrefillCoefficients prefill;
  std::function<void()> wake;
};

struct KvProgress {
  std::uint32_t history_blocks = 0;
  std::uint32_t usable_blocks = 0;
  bool final = false;
  MissReason missing = MissReason::kNone;
  std::uint32_t host_blocks = 0, disk_blocks = 0, peer_blocks = 0;  // of the usable ones
};

struct KvLayerResult {
  bool ready = false;       // false: still copying
  std::uint32_t valid = 0;  // leading blocks that are right so far
  std::uint32_t wanted = 0;
};

struct KvStore {
  std::uint32_t pool = 0;
  std::uint32_t root = 0;
  std::span<const BlockKey> keys;  // from depth 0
  std::uint32_t first = 0, count = 0;
  std::span<const std::uint64_t> slice_offsets;  // [count][layers]
  std::span<const std::uint32_t> window_depths;
  std::span<const TokenId> first_block;
  std::string_view tenant;
  std::string_view ttl_class;
  std::function<void(std::uint32_t)> done;  // history blocks kept
};

struct KvClientCounters {
  std::uint64_t connections = 0;     // welcomed since the start
  std::uint64_t blocks_loaded = 0;   // history blocks copied and right
  std::uint64_t bytes_loaded = 0;    // copied and right
  std::uint64_t blocks_corrupt = 0;  // copied and wrong
  std::uint64_t blocks_stored = 0;
  std::uint64_t stores_refused = 0;  // backpressure
};

class KvLease;

class KvClient {
 public:
  static Result<std::unique_ptr<KvClient>> open(KvClientOptions options);
  // Ends loads and calls `done` of open stores. Leases not released are gone with it.
  ~KvClient();
  KvClient(const KvClient&) = delete;
  KvClient& operator=(const KvClient&) = delete;

  bool connected() const;
  bool wait_connected(Duration timeout) const;

  // `fd` is duplicated. The numbers returned are good for the client's life, whatever the daemon
  // does.
  Result<std::uint32_t> register_pool(int fd, std::uint64_t bytes, EngineLayout layout);
  Result<std::uint32_t> register_root(std::uint32_t pool, kvcache::KvRootFields fields,
                                      std::string_view model);
  Result<std::vector<BlockKey>> chain(std::uint32_t root, std::span<const TokenId> tokens,
                                      std::span<const kvcache::KvMedia> media = {});

  // Null when it is not registered. Layouts live as long as the client.
  const EngineLayout* pool_layout(std::uint32_t pool) const;
  const EngineLayout* root_layout(std::uint32_t root) const;
  static const EngineLayout& layout(const KvLease& lease);

  Result<KvLease*> acquire(KvRequest request);
  KvProgress progress(KvLease& lease) const;
  // slices: [count][layers] places in the engine's memory, read while this runs only.
  Status load(KvLease& lease, std::uint32_t count, std::span<void* const> slices);
  Result<KvLayerResult> wait_layer(KvLease& lease, std::uint32_t layer, Duration timeout) const;
  void release(KvLease* lease);

  Status store(const KvStore& store);
  // Tiers that hold each history block, as in LookupAnswer.
  Result<std::vector<std::uint8_t>> match(std::span<const BlockKey> keys, Duration timeout);

  KvClientCounters counters() const;

 private:
  struct State;
  explicit KvClient(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock::kv
