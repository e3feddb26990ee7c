// Reader: one pull, the decode side of a handoff, as a state machine.
//
// Connect, attach with the id, receive tickets part by part, read every slice of every block
// (next_read() names them, in order, while the window has room), acknowledge, renew the lease, take
// the close. Whoever drives it says what became of connection, messages and reads, and calls tick()
// at least every kTick while it is not over.
//
// The lease is counted from when the reader asked for it, which is before the owner began to count:
// a message that lay in a stopped process's socket extends nothing. No read starts later than
// `margin` before its end, nor has a deadline after it.
//
// Invariants: no read after over(); a slice is read again only after its read ended with kCorrupt
// (once, and the next failure ends the pull) or with the connection. kDone only when every slice
// was verified and the owner's count of tokens is the one wanted.
// Errors: whatever fails is kFailed with reason() and why(). Concurrency: one thread.
// Source: docs/protocol/handoff.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/handoff/edges.h"
#include "core/handoff/wire.h"

namespace penstock::handoff {

// How often machines want to know the time; their deadlines are no finer.
inline constexpr Duration kTick = std::chrono::milliseconds(50);

struct ReaderOptions {
  Duration connect = std::chrono::seconds(3);
  Duration attach = std::chrono::seconds(8);  // more than the owner lets an early one wait
  Duration read = std::chrono::seconds(5);    // one slice
  Duration whole = std::chrono::seconds(120);
  Duration silent = std::chrono::seconds(3);  // three of the owner's heartbeats
  Duration margin = std::chrono::milliseconds(500);
  std::uint32_t reconnects_max = 1;
  std::size_t reads_max = 32;  // under way, of one pull
};

struct PullSpec {
  HandoffId id;
  std::uint64_t pull = 0;
  Epoch epoch;
  std::uint32_t tokens = 0;
  std::string model;
  Layout layout;
  bool has_room = true;  // false: room() will say so; nothing is read before
};

enum class SliceEnd : std::uint8_t { kDone, kStale, kCorrupt, kRefused, kGone, kDeadline };

struct SliceRead {
  std::uint64_t slice = 0;  // names it towards ended(); block of the sequence * layers + layer
  std::uint32_t index = 0;  // block of the sequence
  std::uint32_t layer = 0;
  std::uint32_t pool = 0;
  TicketBlock const* ticket = nullptr;  // valid until the next call of the machine
  std::uint32_t length = 0;             // bytes, the first rows of the slice
  Instant deadline;
};

struct ReaderEffects {
  std::vector<Message> send;  // to the owner
  bool connect = false;       // (again)
  bool over = false;          // cancel the reads; then the blocks may go back
};

class Reader {
 public:
  using Effects = ReaderEffects;
  // Precondition: tokens >= 1, the layout is sound. The connection is the first thing wanted.
  Reader(Instant now, PullSpec spec, const ReaderOptions& options, Hits& hits);

  void opened(Instant now, Effects& effects);
  // The connection ended, or there is none to be had. All reads must have ended before.
  void lost(Instant now, const std::string& why, Effects& effects);
  // The owner has said nothing at all for `silent`.
  void silent(Effects& effects);
  void attached(const Attached& message, Effects& effects);
  void renewed(const Renewed& message);
  void part(Part message, Effects& effects);
  void closed(Closed message, Effects& effects);
  void ended(const Ended& message, Effects& effects);
  // The owner said what can't be.
  void broken(const std::string& why, Effects& effects);
  void read_ended(std::uint64_t slice, SliceEnd end, Effects& effects);
  void stop(Effects& effects);
  void tick(Instant now, Effects& effects);
  // There are blocks to read into.
  void room() { spec_.has_room = true; }
  // The next slice to read; it is under way from then on.
  std::optional<SliceRead> next_read(Instant now);

  bool over() const { return state_ >= State::kDone; }
  bool attached_or_attaching() const {
    return state_ >= State::kAttaching && state_ <= State::kClosing;
  }
  State state() const { return state_; }
  Reason reason() const { return reason_; }
  const std::string& why() const { return why_; }
  std::uint32_t tokens() const { return spec_.tokens; }
  std::uint64_t corrupt() const { return corrupt_; }
  std::optional<EngineOutput>& output() { return output_; }
  std::size_t reads() const { return reading_.size(); }

 private:
  std::uint32_t blocks() const {
    return (spec_.tokens + spec_.layout.block_tokens - 1) / spec_.layout.block_tokens;
  }
  std::uint64_t slices() const { return std::uint64_t{blocks()} * spec_.layout.layers; }
  std::uint64_t slices_published() const {
    return std::uint64_t{tickets_.size()} * spec_.layout.layers;
  }
  bool all_read() const { return done_ == slices(); }
  Instant last_start() const { return lease_end_ - options_.margin; }
  // To kFailed or kStopped; tells the owner when it may think that this still reads.
  void finish(Event event, Reason reason, std::string why, Effects& effects);
  void complete(Event event, Effects& effects);
  void take(Event event) { state_ = hits_.take(state_, event); }

  PullSpec spec_;
  ReaderOptions options_;
  Hits& hits_;
  State state_ = State::kNone;
  Reason reason_ = Reason::kDone;
  std::string why_;
  std::optional<EngineOutput> output_;
  bool closed_ = false;
  bool cut_ = false;  // a read has found the connection gone
  Instant whole_deadline_;
  Instant phase_deadline_;  // of connecting and attaching
  std::uint32_t reconnects_ = 0;

  std::uint32_t pool_ = 0;
  Duration lease_{};
  Instant asked_;  // when the latest Attach or Renew was sent
  Instant lease_end_;
  std::uint32_t sequence_ = 0;  // of the latest Renew
  bool asking_ = false;         // a Renew has no answer yet

  std::vector<TicketBlock> tickets_;
  std::uint64_t next_ = 0;           // slice never tried so far
  std::deque<std::uint64_t> again_;  // to be read once more
  std::set<std::uint64_t> reading_;
  std::set<std::uint64_t> retried_;  // were corrupt once
  std::uint64_t done_ = 0;
  std::uint64_t corrupt_ = 0;
};

}  // namespace penstock::handoff
