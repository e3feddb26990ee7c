// The inside of KvClient, shared by its three sources: calls (client.cc), the socket's thread
// (client_link.cc) and the copying thread (client_load.cc).
//
// Concurrency: one mutex guards everything but what a Load's comment says. Callbacks are collected
// with the mutex held and called without it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/hashed_copy.h"
#include "core/kvcache/chain_cache.h"
#include "io/kv/arena.h"
#include "io/kv/client.h"
#include "io/kv/kv_codec.h"
#include "io/sockets/unix_socket.h"

namespace penstock::kv {

struct ClientPool {
  Descriptor fd;
  std::uint64_t bytes = 0;
  EngineLayout layout;
  KvLayoutSpec spec;
  // By layer: where it begins in the payload of its group, and its (first) slice there.
  std::vector<std::uint64_t> slice_begins;
  std::vector<std::uint32_t> slice_numbers;
};

struct ClientRoot {
  BlockKey key;
  std::uint32_t pool = 0;
  std::string scope;
  std::string build;  // for people
};

// Copying granted blocks. The copying thread alone has what is not said to be guarded; it reads
// `blocks` and `windows` of the lease, whose elements never move.
struct Load {
  std::vector<void*> slices;                // [count][layers]
  std::vector<const PinnedBlock*> history;  // [count]
  std::map<std::uint32_t, const PinnedBlock*> windows;
  std::atomic<bool> cancelled = false;
  bool active = true;             // guarded: queued or copying
  std::uint32_t layers_done = 0;  // guarded
  std::uint32_t valid = 0;        // guarded
};

class KvLease {
 public:
  // The largest number of blocks up to `limit` after which the engine can go on.
  std::uint32_t usable_blocks(std::uint32_t limit) const;

  LeaseId id = 0;
  MissedRequest asked;  // told to the next daemon when this one ends first
  const ClientPool* pool = nullptr;
  std::vector<BlockKey> keys;
  std::function<void()> wake;
  std::chrono::steady_clock::time_point deadline;
  std::uint64_t connection = 0;     // it was asked on; 0: none
  std::shared_ptr<Mapping> arena;   // of that connection
  std::deque<PinnedBlock> history;  // grows at the end only
  std::map<std::uint32_t, PinnedBlock> windows;
  bool final = false;
  MissReason missing = MissReason::kNone;
  std::size_t callbacks = 0;  // running
  std::unique_ptr<Load> load;
};

struct KvClient::State {
  explicit State(KvClientOptions o);
  ~State();

  // --- client_link.cc
  void run_link();
  void step_link(std::vector<std::function<void()>>& calls);
  void try_connect();
  void read(std::vector<std::function<void()>>& calls);
  void drop(std::string_view why, std::vector<std::function<void()>>& calls);
  int link_timeout_ms(bool has_socket) const;
  void handle(Welcome welcome);
  void handle(Granted granted, std::vector<std::function<void()>>& calls);
  void handle(Stored stored, std::vector<std::function<void()>>& calls);
  void handle(LookupAnswer answer);
  bool hangs();
  void expire_leases(std::vector<std::function<void()>>& calls);
  void went_without(KvLease& lease);
  void send_missed();
  bool fits(const KvLease& lease, const Granted& granted) const;
  // With the mutex held.
  Status send(const ClientMessage& message, int descriptor = -1);
  void send_registration(std::uint32_t pool);
  void send_registration(const ClientRoot& root);
  std::function<void()> wake_of(KvLease& lease);
  void log(std::string_view text) const {
    if (options.log) options.log(text);
  }

  // --- client_load.cc
  void run_loads();
  void copy(KvLease& lease);
  bool copy_history(KvLease& lease, std::uint32_t layer, std::uint32_t block);
  bool copy_window(KvLease& lease, std::uint32_t layer, std::uint32_t resume);
  std::uint32_t settle(KvLease& lease, std::uint32_t limit, std::uint32_t layers);
  void report(KvLease& lease, BlockName name);
  void publish(KvLease& lease, std::uint32_t layers_done, std::uint32_t valid);

  std::uint64_t content_tag(std::span<const TokenId> first_block);

  const KvClientOptions options;
  BlockKey key_check;
  std::mutex chains_mutex;  // guards the next two; held without the other mutex
  kvcache::KeyChain hasher;
  kvcache::ChainCache chains;

  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  bool stopping = false;

  // The link. `socket` and `input` are the link thread's; it changes `socket` with the mutex held.
  Descriptor socket;
  FrameBuffer input;
  std::vector<Descriptor> descriptors;
  sockets::WakeEvent link_event;
  std::chrono::steady_clock::time_point next_attempt;
  std::chrono::steady_clock::time_point next_alive;
  Duration pause{};
  // What the daemon owed at the last look: answers to stores, taking `output`; and since when
  // nothing has come of it.
  bool owes_answers = false, owes_reading = false;
  std::chrono::steady_clock::time_point answered_at, read_at;
  std::uint64_t output_sent = 0;
  std::string failure;           // last reason not to be connected, so that it is logged once
  bool up = false;               // welcomed
  std::uint64_t connection = 0;  // number of the present or last connection
  sockets::SendQueue output;
  std::shared_ptr<Mapping> arena;
  std::vector<TtlClassSpec> classes;
  std::string frame;  // reused by send()

  std::deque<ClientPool> pools;
  std::deque<ClientRoot> roots;
  LeaseId next_lease = 1;
  std::unordered_map<LeaseId, std::unique_ptr<KvLease>> leases;
  std::deque<MissedRequest> missed;  // what the next daemon is told; at most kMissedMax

  struct PendingStore {
    std::uint64_t bytes = 0;
    std::vector<bool> history;  // by block offered
    std::function<void(std::uint32_t)> done;
  };
  std::uint64_t next_number = 1;
  std::unordered_map<std::uint64_t, PendingStore> stores;
  std::uint64_t store_bytes = 0;
  struct PendingLookup {
    bool answered = false;
    std::vector<std::uint8_t> tiers;
  };
  std::unordered_map<std::uint64_t, PendingLookup*> lookups;

  std::deque<KvLease*> loads;
  HashedCopy copier;  // the copying thread's
  KvClientCounters counters;

  std::thread link_thread;
  std::thread load_thread;
};

}  // namespace penstock::kv
