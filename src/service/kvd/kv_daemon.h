// KvDaemon: the KV cache of one host as a state machine: sessions in, grants, events and copies
// out.
//
// The shell (io/kv/kv_server) owns sockets, memory and the clock. It opens a session per
// connection, hands in each message with the time, calls work() while has_work() (one block copied
// a call, so that messages are never behind a long copy), poll() when the disk has completions or
// the deadline is there, and sends what take_outbox() gives. Everything else is decided here: what
// is held and where (core/kvcache/host_tier), which loads are under way and who waits for them, who
// may keep pins, what is told to the gateways, and why something missed.
//
// Invariants: see docs/design/0005-kv-cache.md; a lease gets exactly one Granted with `final`; only
// sealed blocks are granted; a block that is pinned, being filled or being read or written by a
// tier is never reused; after close() nothing of the session is left but quarantined blocks.
// Errors: a session that breaks the protocol gets Goodbye and is closed by the shell; everything
// else is a miss with a reason. Concurrency: one thread. Source: design.md section 6.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "domain/kv_messages.h"
#include "port/block_tier.h"
#include "service/kvd/fetch.h"

namespace penstock::service {

class ClusterTier;

// Memory that the shell has mapped.
class KvMemory {
 public:
  virtual ~KvMemory() = default;
  virtual std::span<std::byte> arena() = 0;  // the same for the daemon's life; 4 KiB aligned
  // A session's pool as it was registered; empty when there is none or its peer has hung up. To be
  // asked again after each copy out of it: a peer that hung up in between may have overwritten what
  // was being copied, so when it is empty then, the copy is discarded, not sealed.
  virtual std::span<const std::byte> pool(kv::SessionId session, std::uint32_t pool) = 0;
};

struct KvDaemonOptions {
  std::uint64_t epoch = 0;  // drawn by the process
  BlockKey key_check;       // hash of the fixed text under the deployment secret
  std::vector<TtlClassSpec> classes;
  std::string disk_failure;  // why there is no disk tier though one is wanted; for stat
  Duration silence_max = std::chrono::seconds(5);  // of a holder, then its pins are quarantined
  double quarantine_share_max = 0.1;               // of the arena, then the holder is killed
  std::size_t sessions_max = 1024;
  std::size_t leases_max = 4096;                        // of one session
  std::size_t acquire_keys_max = std::size_t{1} << 16;  // of one request
  // Of all open leases: what they remember of a key is about 100 bytes.
  std::size_t acquire_keys_open_max = std::size_t{1} << 20;
  std::size_t roots_max = 4096;  // chains known by name and layout; the longest unused goes
  std::size_t stores_pending_max = 65536;  // blocks waiting to be copied, all sessions
  std::size_t loads_in_flight_max = 256;   // reads of tiers under way
  std::size_t event_history_max = std::size_t{1} << 16;   // events kept for replay
  std::size_t history_max = std::size_t{1} << 18;         // removed names remembered for explain
  Duration cluster_tail_delay = std::chrono::seconds(5);  // before an end of a chain goes there
  double tenant_share_max = 0.5;  // of the arena, for one tenant when there are others
};

struct KvOutgoing {
  kv::SessionId session;
  kv::DaemonMessage message;
  bool close = false;         // after sending
  bool with_arena = false;    // send the arena's descriptor beside it (Welcome)
  bool kill_process = false;  // the holder is mad: end its process
};

class KvDaemon {
 public:
  // `memory`, `disk` (null: no disk tier), `peers` (other hosts' daemons; null: none) and `cluster`
  // (a store that hosts share; null: none) outlive the daemon.
  KvDaemon(KvDaemonOptions options, KvMemory& memory, BlockTier* disk, BlockTier* peers = nullptr,
           ClusterTier* cluster = nullptr);
  ~KvDaemon();
  KvDaemon(const KvDaemon&) = delete;
  KvDaemon& operator=(const KvDaemon&) = delete;

  void open(kv::SessionId session, TierNow now);
  void close(kv::SessionId session, TierNow now);
  void handle(kv::SessionId session, kv::ClientMessage message, TierNow now);
  bool has_work() const;
  void work(TierNow now);  // copies one block, or finishes one store
  void poll(TierNow now);  // the disk's completions, deadlines, silent holders
  std::optional<Instant> next_deadline() const;
  // What is to be sent, in order; taken after every call above, so that "removed" is under way
  // before the bytes go.
  std::vector<KvOutgoing> take_outbox();
  // Another host's daemon wants blocks. Precondition: `session` is open and has said Hello; its
  // numbers are not in use. The answers are taken after every call above, too.
  void fetch(kv::SessionId session, const Fetch& fetch, TierNow now);
  void unpin(kv::SessionId session, std::uint64_t number);
  std::vector<Fetched> take_fetched();
  // That host got other bytes than the block's checksums: what memory has here is read and compared
  // in a later turn (a copy on disk is at every read).
  void suspect(const BlockName& name, TierNow now);
  // Bytes of a block that is sealed in memory or on disk here.
  std::optional<std::uint32_t> bytes_of(const BlockName& name) const;
  // The shell's send queue of this session is full (or drained again): events are held back
  // meanwhile; one who falls behind the kept history gets a snapshot.
  void set_congested(kv::SessionId session, bool congested);
  // Writes what waits for more to come (for an orderly stop).
  void hurry();
  // True once no write to the disk or the cluster store is pending.
  bool settled() const;

  // Numbers for metrics and `kv stat`; cheap.
  std::string stat_json() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::service
