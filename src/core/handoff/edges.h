// The states of a handoff, on both sides, and every edge between them: the table that the machines
// move by, that docs/protocol/handoff.md shows, and that the fault suite counts.
//
// Hits::take(state, event) is the only way from one state to the next: it looks the edge up, counts
// it and gives the state it leads to. An edge's name is "side.state.event" and stable.
//
// Invariants: at most one edge per (state, event); an event that has no edge in a state is a bug
// of the machine (ENSURE). `fault` marks edges that are only taken when something went wrong.
// Concurrency: Hits is a value of one thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace penstock::handoff {

enum class Side : std::uint8_t { kOwner, kReader };

enum class State : std::uint8_t {
  kNone,  // before the first event, on either side
  // Owner
  kAnnounced,   // the prefill leg is accepted; nothing is computed yet
  kOpen,        // some blocks are published
  kComplete,    // all are, and the first output is known
  kQuarantine,  // over, but a reader may still read: its blocks wait
  kGone,        // over; the blocks went back
  // Reader
  kConnecting,
  kAttaching,  // the id was shown; no answer yet
  kWaiting,    // attached, nothing to read: prefill computes
  kPulling,    // reads are to be done or under way
  kClosing,    // all bytes are here, the first output isn't
  kDone,
  kFailed,
  kStopped,
};
inline constexpr std::size_t kStates = 14;

enum class Event : std::uint8_t {
  // Owner: from the engine
  kAnnounce,
  kRefuseAnnounce,  // over a limit
  kPublish,
  kClose,
  kWithdraw,      // nobody can read
  kWithdrawHeld,  // somebody may be reading
  // Owner: from readers
  kAttach,
  kReplace,       // another reader, or the same again
  kRefuseAttach,  // wrong epoch, model, layout
  kRenew,
  kRelease,
  kReleaseHeld,  // by the present reader; an earlier one may still be reading
  kReaderLost,
  // Owner: time
  kExpireHeld,       // lease over, the reader is still connected
  kExpireUnclaimed,  // complete, and nobody came (back)
  // Owner: in quarantine
  kHolderReleased,
  kHolderLost,
  kLastReleased,
  kLastLost,
  kOver,
  // Reader
  kPull,
  kRefusePull,  // a limit of ours, or nonsense
  kOpened,
  kUnreachable,
  kAttached,         // nothing to read yet
  kAttachedPulling,  // again, with parts left to read
  kAttachedClosing,  // again, with all bytes here
  kEnded,            // the owner says so: refused, withdrawn, expired, replaced
  kPart,
  kDrained,  // all that was published is here
  kAllRead,  // every byte is here, the close isn't
  kFinish,   // the last byte, after the close
  kClosed,   // the close, after the last byte
  kLostOnce,
  kLost,
  kSilent,
  kLease,
  kDeadline,
  kStop,
  kRetry,  // a slice was corrupt the first time
  kCorrupt,
  kStale,
  kForbidden,
  kSlowRead,
  kProtocol,
};
inline constexpr std::size_t kEvents = 45;

enum class Fault : bool { kNo, kYes };

struct Edge {
  State from;
  Event event;
  State to;
  Fault fault;
};

std::span<const Edge> edges();
std::string_view name(State state);
std::string_view name(Event event);
Side side(Event event);
// "owner.open.publish"
std::string name(const Edge& edge);

class Hits {
 public:
  // Precondition: the table has that edge.
  State take(State from, Event event);
  // How often, in the order of edges().
  std::uint64_t of(std::size_t edge) const { return counts_[edge]; }
  std::uint64_t of(State from, Event event) const;

  static constexpr std::size_t kEdgesMax = 128;

 private:
  std::array<std::uint64_t, kEdgesMax> counts_{};
};

}  // namespace penstock::handoff
