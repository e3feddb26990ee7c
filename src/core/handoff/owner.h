// Owner: the prefill side of all handoffs of one process, as a state machine.
//
// The engine's calls, readers' messages, lost connections and time come in; messages, blocks that
// go back and work to do come out. Checksums are not computed here: next_sum() names the block that
// is next, summed() takes the result. A ticket exists from then on: only then may the reader that
// is attached read the block, and only then is it told, in parts of some kilobytes, at most
// parts_in_flight_max ahead of its acknowledgements.
//
// A handoff that is over gives its blocks back at once when nobody can read any more: the reader
// released it, its connection is gone, or there never was one. Otherwise they stay in quarantine
// until the last of those is true or `quarantine` after the lease's end.
//
// Invariants: every block given to publish() comes back exactly once in Effects::freed; none that
// readable() would allow, or that a reader which keeps the protocol may still be reading, is freed.
// At most one reader per handoff may read. Nothing of an ended handoff is kept but its id and the
// reason, for `remembered`.
// Units and shapes: checksums are [layers], over each slice's rows in use.
// Errors: a call or message that makes no sense ends the handoff or is answered with Ended.
// Concurrency: one thread; `now` never decreases. Source: docs/protocol/handoff.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/handoff/edges.h"
#include "core/handoff/wire.h"

namespace penstock::handoff {

struct OwnerOptions {
  Duration lease = std::chrono::seconds(10);
  Duration unclaimed = std::chrono::seconds(10);  // from the close, or from the lost reader's lease
  Duration quarantine = std::chrono::seconds(2);
  // How long a reader whose connection is gone may still read: zero wherever bytes come over the
  // connection or the reader's process is known to be dead.
  Duration quarantine_lost{};
  Duration parked = std::chrono::seconds(5);  // an attach that comes before its announcement
  Duration heartbeat = std::chrono::seconds(1);
  Duration remembered = std::chrono::seconds(30);
  std::size_t handoffs_max = 1024;
  std::size_t parked_max = 256;
  std::size_t remembered_max = 4096;
  std::size_t parts_in_flight_max = 8;
  std::size_t part_bytes_max = 32 << 10;
  std::uint32_t blocks_held_percent_max = 75;  // of a pool, distinct ones
};

struct GivenBlock {
  std::uint32_t block = 0;
  std::uint64_t generation = 0;
};

struct OwnerEffects {
  struct Send {
    PeerId peer;
    Message message;
  };
  struct Freed {
    std::uint32_t pool = 0;
    std::uint32_t block = 0;
    bool operator==(const Freed&) const = default;
  };
  std::vector<Send> send;
  std::vector<Freed> freed;
};

struct OwnerCounters {
  std::uint64_t announced = 0;
  std::uint64_t completed = 0;
  std::uint64_t released = 0;
  std::uint64_t expired = 0;
  std::uint64_t withdrawn = 0;
  std::uint64_t refused = 0;      // announcements and attaches
  std::uint64_t open = 0;         // now, with those in quarantine
  std::uint64_t parked = 0;       // now
  std::uint64_t blocks_held = 0;  // now, as often as they were given
};

class Owner {
 public:
  using Effects = OwnerEffects;
  struct SumTask {
    std::uint32_t pool = 0;
    std::uint32_t block = 0;
    std::uint32_t rows = 0;  // of each slice
  };

  Owner(Epoch epoch, const OwnerOptions& options, Hits& hits)
      : epoch_(epoch), options_(options), hits_(hits) {}

  // Precondition: the layout is sound.
  void add_pool(std::uint32_t pool, const Layout& layout, std::uint32_t blocks);

  // --- The engine of `pool`
  void announce(Instant now, std::uint32_t pool, HandoffId id, const std::string& model,
                Effects& effects);
  void publish(Instant now, std::uint32_t pool, HandoffId id, std::uint32_t first,
               std::span<const GivenBlock> blocks, std::uint32_t tokens, Effects& effects);
  void close(Instant now, std::uint32_t pool, HandoffId id, std::optional<EngineOutput> output,
             Effects& effects);
  void withdraw(Instant now, std::uint32_t pool, HandoffId id, const std::string& why,
                Effects& effects);

  // --- Readers
  void attach(Instant now, PeerId peer, const Attach& message, Effects& effects);
  void renew(Instant now, PeerId peer, const Renew& message, Effects& effects);
  void ack(PeerId peer, const Ack& message);
  void release(Instant now, PeerId peer, const Release& message, Effects& effects);
  void lost(Instant now, PeerId peer, Effects& effects);
  // Design section 4 rule (e).
  bool readable(Instant now, PeerId peer, std::uint32_t pool, std::uint32_t block,
                std::uint64_t generation) const;

  // --- Work and time
  std::optional<SumTask> next_sum();
  // Of the task that next_sum() gave last.
  void summed(std::vector<std::uint64_t> checksums);
  // Sends what may be sent: after every call above, once per turn is enough.
  void pump(Effects& effects);
  void tick(Instant now, Effects& effects);

  bool idle() const { return handoffs_.empty() && parked_.empty() && remembered_.empty(); }
  const OwnerCounters& counters() const { return counters_; }

 private:
  struct Reader {
    PeerId peer;
    std::uint64_t pull = 0;
    Instant until;  // end of the lease
    bool operator==(const Reader&) const = default;
  };
  struct Handoff {
    HandoffId id;
    std::uint32_t pool = 0;
    std::string model;
    State state = State::kNone;
    std::vector<GivenBlock> blocks;
    std::vector<TicketBlock> tickets;  // of the first blocks
    std::uint32_t tokens = 0;          // in `blocks`
    std::optional<EngineOutput> output;
    std::optional<Reader> reader;
    std::vector<Reader> former;           // may still be reading; one per connection
    std::uint32_t sent = 0;               // tickets, to `reader`
    std::deque<std::uint32_t> in_flight;  // ends of parts sent and not acknowledged
    bool close_sent = false;
    Instant unclaimed;         // complete and without a reader: when it expires
    Instant quarantine_until;  // in quarantine
  };
  struct Pool {
    Layout layout;
    std::vector<std::uint32_t> held;  // [blocks], how often
    std::uint32_t distinct = 0;
  };
  struct Place {
    std::uint32_t pool = 0;
    std::uint32_t block = 0;
    std::uint64_t generation = 0;
    bool operator==(const Place&) const = default;
  };
  struct PlaceHash {
    std::size_t operator()(const Place& place) const noexcept {
      return place.generation * 0x9E3779B97F4A7C15U ^
             (std::size_t{place.pool} << 32 | place.block) * 0xC2B2AE3D27D4EB4FU;
    }
  };
  struct Peer {
    std::set<std::uint64_t> handoffs;  // reader or former reader of
    // What it may read, by how many of its handoffs have it.
    std::unordered_map<Place, std::uint32_t, PlaceHash> readable;
    Instant last_sent;
    std::size_t parked = 0;
  };
  struct Parked {
    PeerId peer;
    Attach message;
    Instant until;
  };
  struct Remembered {
    Reason reason = Reason::kUnknown;
    std::string why;
    Instant until;
  };

  Handoff* find(std::uint32_t pool, HandoffId id);
  void refuse(PeerId peer, std::uint64_t pull, Reason reason, std::string why, Effects& effects);
  void send(PeerId peer, Message message, Effects& effects);
  // Why this attach can't be, or kDone.
  Reason check(const Handoff& handoff, const Attach& message, std::string& why) const;
  void give_back(std::uint32_t pool, std::span<const GivenBlock> blocks, Effects& effects);
  // The present reader reads no more, or may no more.
  enum class Leaves : std::uint8_t { kReadsNoMore, kMayStillRead };
  void detach(std::uint64_t number, Handoff& handoff, Leaves how);
  // `peer` has nothing to do with it any more, unless it is its reader or a former one.
  void leave(std::uint64_t number, const Handoff& handoff, PeerId peer);
  void allow(const Handoff& handoff, std::size_t first, std::size_t end, bool yes);
  // The end, whoever wants it; tells the reader when there still is one. Erases the handoff when
  // nobody can read.
  void end(std::uint64_t number, Reason reason, const std::string& why, Event clean, Event held,
           Effects& effects);
  void gone(std::uint64_t number, Effects& effects);
  void remember(Instant now, HandoffId id, Reason reason, std::string why);
  void forget_old(Instant now);
  void forget_peer(PeerId peer);
  void pump(Handoff& handoff, Effects& effects);
  void take(Handoff& handoff, Event event) { handoff.state = hits_.take(handoff.state, event); }

  Epoch epoch_;
  OwnerOptions options_;
  Hits& hits_;
  OwnerCounters counters_;
  Instant now_;  // of the latest call that told it
  std::map<std::uint32_t, Pool> pools_;
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, Handoff> handoffs_;
  std::unordered_map<HandoffId, std::uint64_t> live_;  // not over yet
  std::map<PeerId, Peer> peers_;                       // with a handoff or a parked attach
  std::deque<Parked> parked_;                          // oldest first
  std::unordered_map<HandoffId, Remembered> remembered_;
  std::deque<std::pair<Instant, HandoffId>> remembered_order_;
  std::deque<std::uint64_t> to_sum_;         // handoffs with blocks without tickets
  std::set<std::uint64_t> to_pump_;          // handoffs with something new to tell
  Instant next_lease_end_ = Instant::max();  // no lease ends before
};

}  // namespace penstock::handoff
