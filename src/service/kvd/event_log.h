// EventLog and EventFeed: what changed in the tiers, numbered, told to those who subscribed.
//
// Every change is one event with the next number. The log keeps the last `kept_max` of them, so a
// subscriber that comes back goes on where it was; one that knows nothing, or is too far behind,
// gets a snapshot of everything held, in messages of at most kEventsPerMessage, and then what
// happened since it began: a snapshot is walked in steps between other work, and what changed
// behind the walk is among the events that follow. A subscriber whose connection is congested is
// sent nothing; when the log has left it behind, it gets a snapshot. Each message says which tiers
// are out of service; when that changes, one goes out for it alone if no event does.
//
// Invariants: numbers grow by one from 1 and are never used twice in an epoch; a subscriber is told
// every event once, in order, or a snapshot that stands for them. Memory: kept_max events, and one
// message of a snapshot per subscriber. Concurrency: one thread.
// Source: facts 7d rule 6; docs/protocol/kv.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "domain/kv_messages.h"
#include "service/kvd/outbox.h"

namespace penstock::service {

inline constexpr std::size_t kEventsPerMessage = 4096;

// Where a walk over everything held has got to.
struct SnapshotCursor {
  std::size_t slot = 0;  // of memory
  std::size_t part = 0;  // of the disk
  std::size_t cluster_part = 0;
};

class EventLog {
 public:
  explicit EventLog(std::size_t kept_max) : kept_max_(kept_max) {}

  void add(const kv::Event& event);
  std::uint64_t next() const { return first_ + events_.size(); }  // number of the next event
  std::uint64_t first() const { return first_; }                  // oldest that is kept
  // Events number, number + 1, ..., at most kEventsPerMessage. Precondition: number >= first().
  std::vector<kv::Event> from(std::uint64_t number) const;

 private:
  std::size_t kept_max_;
  std::uint64_t first_ = 1;
  std::deque<kv::Event> events_;
};

class EventFeed {
 public:
  // Appends what a bounded step of the walk finds, as "stored" events; true at the end. What is
  // held from before the first step until after the last is among them.
  using Snapshot = std::function<bool(SnapshotCursor&, std::vector<kv::Event>&)>;
  EventFeed(std::uint64_t epoch, const EventLog& log, Snapshot snapshot)
      : epoch_(epoch), log_(log), snapshot_(std::move(snapshot)) {}

  void subscribe(kv::SessionId session, const kv::Subscribe& request);
  void drop(kv::SessionId session);
  // Also of a session that has not subscribed yet.
  void set_congested(kv::SessionId session, bool congested);
  // Sends what is new, but no snapshots.
  void flush(Outbox& outbox);
  // One message of one snapshot per call.
  bool has_work() const;
  void work(Outbox& outbox);
  std::size_t subscribers() const { return subscribers_.size(); }
  // Tiers out of service, a bit each: told with the next message, or flush().
  void set_tiers_off(std::uint8_t tiers) { tiers_off_ = tiers; }

 private:
  struct Subscriber {
    std::uint64_t next = 0;  // number of the next event to send
    bool congested = false;
    bool snapshotting = false;
    bool walking = false;  // the walk has begun, at event `next`
    bool walked = false;   // and is over
    SnapshotCursor cursor;
    std::vector<kv::Event> found;
    std::size_t sent = 0;                     // of `found`
    std::optional<std::uint8_t> tiers_off{};  // as told; none: it may know anything
  };

  void send(kv::SessionId session, Subscriber& subscriber, kv::Events message, Outbox& outbox);

  std::uint64_t epoch_;
  const EventLog& log_;
  Snapshot snapshot_;
  std::uint8_t tiers_off_ = 0;
  std::map<kv::SessionId, Subscriber> subscribers_;
  std::set<kv::SessionId> congested_;
};

}  // namespace penstock::service
