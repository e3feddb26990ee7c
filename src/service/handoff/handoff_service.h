// HandoffService: the prefill -> decode handoff of one worker process, both sides, all ranks.
//
// Drives core/handoff's machines over a Transport: carries out what they want (messages, reads,
// checksums, blocks back) and tells them what happened. Ranks talk to it through the HandoffPort
// that add_rank() gives. Checksums of published blocks are computed on the transport's thread, at
// most sum_bytes_max in a turn, so that reads and messages go on between. Pulls from one worker
// share one connection, which is closed when it was idle for a while.
//
// Invariants: those of port/handoff.h and core/handoff; after everything has ended, every number
// under "now" in the counters is zero. Nothing is done after the destructor, though the transport
// goes on.
// Errors: add_rank() ENSUREs a sound layout; all else ends handoffs and pulls with a reason.
// Concurrency: everything on the transport's thread, but the HandoffPorts and counters().
// Source: docs/protocol/handoff.md; design.md section 4.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/guarded.h"
#include "base/units.h"
#include "core/handoff/edges.h"
#include "core/handoff/owner.h"
#include "core/handoff/reader.h"
#include "core/handoff/reason.h"
#include "port/handoff.h"
#include "port/transport.h"

namespace penstock::service {

struct HandoffOptions {
  Epoch epoch;  // of this run of the process, as its worker announces it
  handoff::OwnerOptions owner = {};
  handoff::ReaderOptions reader = {};
  std::size_t pulls_max = 1024;      // running
  std::size_t link_reads_max = 128;  // under way on one connection
  Duration link_idle = std::chrono::seconds(30);
  std::size_t sum_bytes_max = 1 << 20;  // checksummed in one turn
};

// A rank's KV pool and what lies in it.
struct RankMemory {
  PublishedPool pool;
  std::byte* payloads = nullptr;  // of block 0, the same memory, for pulls to write
  std::string model;
  std::uint32_t layers = 0;
  std::uint32_t block_tokens = 0;
  std::uint64_t slice_bytes = 0;
  std::string kv_format;
};

struct HandoffCounters {
  handoff::OwnerCounters owner;
  handoff::Hits hits;  // of both sides' edges
  std::uint64_t pulls_started = 0;
  std::uint64_t pulls_done = 0;
  std::array<std::uint64_t, handoff::kReasons> pulls_failed{};  // by Reason
  std::uint64_t bytes_pulled = 0;                               // verified
  std::uint64_t slices_corrupt = 0;  // an alarm: memory, a driver or a network breaks bytes
  std::uint64_t peers_cut = 0;       // spoke nonsense, or did not listen
  std::uint64_t pulls_running = 0;   // now
  std::uint64_t reads_running = 0;   // now
  std::uint64_t links = 0;           // now: connections made, idle ones too
};

class OwnerSide;
class ReaderSide;
class PeerOutbox;

class HandoffService {
 public:
  // The transport outlives it.
  HandoffService(Transport& transport, HandoffOptions options);
  // Running pulls fail, and their blocks are back, before it returns.
  ~HandoffService();
  HandoffService(const HandoffService&) = delete;
  HandoffService& operator=(const HandoffService&) = delete;

  // Publishes the rank's pool; nobody else publishes any on this transport. `wake` is called on the
  // transport's thread when there are freed blocks or a pull has ended. The port lives as long as
  // the service.
  HandoffPort& add_rank(const RankMemory& memory, std::function<void()> wake);
  // Sets the transport's events: it begins. Once; ranks are added before peers know the address.
  void start();

  // As of the last turn. Any thread.
  HandoffCounters counters() const { return published_.get(); }

 private:
  struct State;
  void turn_over();
  void tick();
  void run_commands(std::size_t rank);

  std::unique_ptr<State> state_;
  Guarded<HandoffCounters> published_;
};

}  // namespace penstock::service
