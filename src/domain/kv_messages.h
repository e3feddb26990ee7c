// What the KV daemon and those who connect to it say to each other, as values.
//
// The wire form is proto/kv.proto; io/kv converts. A connection is one session: a worker that
// acquires and stores, a gateway that subscribes to events, a tool, or another host's daemon. All
// requests carry a number chosen by the client; answers repeat it.
//
// Units and shapes: arena and pool places are byte offsets into the shared memory object. Keys of
// one request are a chain in order, the first being the block at depth 0 unless said otherwise.
// Concurrency: values. Source: docs/protocol/kv.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "domain/kv.h"

namespace penstock::kv {

using SessionId = Id<struct KvSessionTag>;
using LeaseId = std::uint64_t;  // unique within the session, chosen by the client
inline constexpr std::uint32_t kKvProtocolVersion = 2;

// --- client to daemon
// ------------------------------------------------------------------------------

struct Hello {
  std::uint32_t protocol_version = 0;
  std::string role;  // "worker", "gateway", "tool", "peer"
  std::string name;  // for logs
  std::int64_t process_id = 0;
  BlockKey key_check;  // hash of a fixed text under the deployment secret; differing ones never hit
};

// A worker's KV pool, from which stores are copied; its memory travels beside the message.
struct RegisterPool {
  std::uint32_t pool = 0;  // the client's number
  std::uint64_t bytes = 0;
  KvLayoutSpec layout;
};

// What a chain's root key stands for, so that people and `explain` can name it.
struct RegisterRoot {
  BlockKey root;
  std::string scope;  // "tenant:acme", "deployment"
  std::string build;  // model, weights digest, engine build, dtype and layout, for people
  KvLayoutSpec layout;
};

struct Acquire {
  LeaseId lease = 0;
  BlockKey root;
  std::vector<BlockKey> keys;          // history blocks wanted, from depth 0
  std::vector<std::uint32_t> windows;  // depths whose window state is wanted too, ascending
  std::uint64_t content_tag = 0;       // tag of the first block's tokens alone; see miss_history.h
  std::string request;                 // request id, for explain
  TtlClass ttl_class = 0;
  std::uint64_t tenant = 0;
  Duration budget{};  // after it, what has arrived is all there is
  // What computing costs there: loads that would take longer are left out.
  PrefillCoefficients prefill = {};
};
// The engine reads no more: pins are dropped, unfinished loads are nobody's.
struct Release {
  LeaseId lease = 0;
};

// One block to keep. Its slices lie in the worker's pool; the worker holds them still until the
// answer.
struct StoreBlock {
  BlockName name;
  BlockKey parent;
  std::uint32_t depth = 0;
  std::vector<std::uint64_t> slices;  // pool offsets, by slice of its group
};
struct Store {
  std::uint64_t number = 0;
  std::uint32_t pool = 0;
  BlockKey root;
  TtlClass ttl_class = 0;
  std::uint64_t tenant = 0;
  std::uint64_t content_tag = 0;
  std::vector<StoreBlock> blocks;  // a chain's consecutive blocks, ancestors first
};

// Which of these are held, and where; no pins. Order as asked.
struct Lookup {
  std::uint64_t number = 0;
  std::vector<BlockName> names;
};

// `after` is the number of the last event known: events after it follow; 0, another epoch, or a
// number that is too old begins with a snapshot.
struct Subscribe {
  std::uint64_t epoch = 0;
  std::uint64_t after = 0;
};

// For people: "stat", "ls", "verify", "gc", "explain", "flush"; arguments and answer are JSON.
struct Admin {
  std::uint64_t number = 0;
  std::string command;
  std::string arguments;
};

// The holder is alive; sent every second while leases are open.
struct Alive {};

// A block that the lease holds was copied and did not have the bytes of its checksums. The daemon
// looks at the copy itself before it quarantines it: a reader's own memory may be what is broken.
struct Report {
  LeaseId lease = 0;
  BlockName name;
};

// A request that went without a daemon: there was none, or it ended before it had answered.
// `served` are the tiers of the blocks that had been granted by then.
struct MissedRequest {
  std::string request;
  BlockKey root;
  std::uint64_t tenant = 0;
  std::uint32_t blocks = 0;  // asked for
  std::vector<KvTier> served;
  UnixSeconds at;
};
// Told to the next daemon, for explain: the newest kMissedMax.
inline constexpr std::size_t kMissedMax = 1024;
struct Missed {
  std::vector<MissedRequest> requests;
};

using ClientMessage = std::variant<Hello, RegisterPool, RegisterRoot, Acquire, Release, Store,
                                   Lookup, Subscribe, Admin, Alive, Report, Missed>;

// --- daemon to client
// ------------------------------------------------------------------------------

struct Welcome {
  std::uint32_t protocol_version = 0;
  std::uint64_t epoch = 0;        // this run of the daemon
  std::uint64_t arena_bytes = 0;  // the arena's memory travels beside the message
  std::vector<TtlClassSpec> classes;
};

// A block that the lease holds pinned in the arena.
struct PinnedBlock {
  std::uint64_t offset = 0;  // of the payload in the arena; slices one after the other
  std::uint64_t generation = 0;
  KvTier from = KvTier::kHost;           // where it was found
  std::vector<std::uint64_t> checksums;  // by slice
};
// The readable prefix of a lease has grown. `history` are the next blocks after those sent before.
struct Granted {
  LeaseId lease = 0;
  std::vector<PinnedBlock> history;
  std::vector<std::pair<std::uint32_t, PinnedBlock>> windows;  // depth, block
  bool final = false;
  // With final: why the block after the last one was not served; kNone when all were.
  MissReason missing = MissReason::kNone;
};

struct Stored {
  std::uint64_t number = 0;
  std::vector<MissReason> results;  // by block; kNone: it is in the arena (now or already)
};

struct LookupAnswer {
  std::uint64_t number = 0;
  std::vector<std::uint8_t> tiers;  // bit t: held by KvTier t
};

// A change of what a tier holds. `reason` with removals only.
struct Event {
  BlockName name;
  KvTier tier = KvTier::kHost;
  bool stored = false;
  MissReason reason = MissReason::kNone;
};
// Events first, first + 1, ... A snapshot replaces everything known before: its events are all
// "stored" and count as having come before `first`; it may take several messages. Each message says
// which tiers are out of service from then on: what is held there can't be loaded, but is not gone.
// A message that says no more than that has no events.
struct Events {
  std::uint64_t epoch = 0;
  std::uint64_t first = 0;
  bool snapshot = false;
  bool snapshot_end = false;
  std::vector<Event> events;
  std::uint8_t tiers_off = 0;  // bit t: KvTier t
};

struct AdminAnswer {
  std::uint64_t number = 0;
  std::optional<Error> error;  // the command failed; then json is empty
  std::string json;            // the answer, or a part of it
  bool final = true;           // false: progress
};

// The session is over: what was wrong.
struct Goodbye {
  std::string reason;
};

using DaemonMessage =
    std::variant<Welcome, Granted, Stored, LookupAnswer, Events, AdminAnswer, Goodbye>;

}  // namespace penstock::kv
