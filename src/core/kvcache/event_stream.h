// EventStream: the order of one publisher's messages, as a state machine.
//
// Messages are numbered from 0 by each run of the engine. The publisher keeps the last ones, and
// replays them from a number on when asked; live messages go on meanwhile. This machine says of
// every message what to do with it: nothing is applied twice or out of order, a gap is filled by a
// replay, and what can't be filled, or comes from another run of the engine, purges what is known.
//
// A replay begins with the last message that was applied. It must come back the same (by checksum):
// so a restarted engine that has already sent as many messages is told from one that goes on.
//
// Invariants: what is held at any time is what the engine held at the last message applied, or a
// part of it (blocks stored before all that was heard of). A replay always ends: replay_failed() is
// called when it takes too long. Errors: none. Concurrency: one thread.
// Source: docs/kv-events.md.
#pragma once

#include <cstdint>
#include <optional>

namespace penstock::kvcache {

class EventStream {
 public:
  // What to do with the message at hand.
  enum class Do : std::uint8_t {
    kApply,
    kSkip,          // known already, or a replay will bring it
    kPurge,         // forget what is held, then apply it
    kPurgeAndSkip,  // forget what is held; a replay from the start will bring it
  };
  struct Counts {
    std::uint64_t gaps = 0;      // times that messages were missing
    std::uint64_t filled = 0;    // of them, by a replay
    std::uint64_t restarts = 0;  // of the engine
    std::uint64_t purges = 0;    // times that what was held was forgotten, for whatever reason
  };

  // `can_replay`: there is somebody to ask.
  explicit EventStream(bool can_replay) : can_replay_(can_replay) {}

  // A connection to the publisher is there: the first, or again after a break. True: purge.
  bool connected();
  Do live(std::uint64_t sequence, std::uint64_t checksum);

  // The number to replay from, when one is to be asked for.
  std::optional<std::uint64_t> wanted_replay() const;
  void replay_asked();
  Do replayed(std::uint64_t sequence, std::uint64_t checksum);
  // True: purge.
  bool replay_ended();
  bool replay_failed();
  // A message could not be read, so something is lost; after live() or replayed() of it.
  void lost();

  bool replaying() const { return state_ == State::kReplaying; }
  const Counts& counts() const { return counts_; }

 private:
  enum class State : std::uint8_t {
    kFollowing,  // next_ is what must come next; any when it is not set
    kWants,      // a replay is to be asked for
    kReplaying,
  };
  struct Last {
    std::uint64_t sequence = 0;
    std::uint64_t checksum = 0;
  };

  void applied(std::uint64_t sequence, std::uint64_t checksum) { last_ = {sequence, checksum}; }
  void forget();
  Do restarted(std::uint64_t sequence, std::uint64_t checksum);

  bool can_replay_;
  State state_ = State::kFollowing;
  std::optional<Last> last_;                // message applied
  std::optional<std::uint64_t> live_last_;  // number of the last live message of this connection
  bool first_of_replay_ = false;
  bool progress_ = false;  // the replay has brought something
  bool gap_ = false;       // the replay is for one
  Counts counts_;
};

}  // namespace penstock::kvcache
