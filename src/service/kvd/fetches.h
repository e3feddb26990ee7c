// Fetches: single blocks for the daemons of other hosts, by name.
//
// Each block of a request is answered on its own: pinned where it is in memory, loaded when it is
// on this host's disk, missed otherwise. Other hosts are never asked, so two daemons that name each
// other as peers can't wait for one another. A pin ends with unpin() or with its session.
//
// Invariants: exactly one Fetched per block asked for, unless its session closes first; only sealed
// blocks are served. Limits: an eighth of the arena pinned by a session; beyond it, when no load
// may be started, and when the budget is over: kTooSlow. Concurrency: one thread. Source:
// docs/protocol/kv-peers.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "service/kvd/fetch.h"
#include "service/kvd/loads.h"

namespace penstock::service {

class Fetches {
 public:
  Fetches(Holdings& holdings, Loads& loads) : holdings_(holdings), loads_(loads) {}

  // Precondition: none of its numbers is in use in this session.
  void start(kv::SessionId session, const Fetch& fetch, TierNow now);
  void unpin(kv::SessionId session, std::uint64_t number);
  void close(kv::SessionId session);
  void loaded(const std::vector<LoadEnded>& ended);
  void expire(TierNow now);
  std::optional<Instant> next_deadline() const;
  std::vector<Fetched> take() { return std::exchange(answers_, {}); }

 private:
  using Key = std::pair<kv::SessionId, std::uint64_t>;
  struct Wait {
    HostBlock block;
    Instant deadline;
  };

  MissReason start_one(const Key& key, const BlockInfo& info, Instant deadline, TierNow now);
  void serve(const Key& key, HostBlock block);
  void stop_waiting(std::map<Key, Wait>::iterator wait, MissReason reason);

  Holdings& holdings_;
  Loads& loads_;
  std::map<Key, HostBlock> pinned_;
  std::map<kv::SessionId, std::uint64_t> pinned_bytes_;
  std::map<Key, Wait> waiting_;
  std::set<std::pair<Instant, Key>> deadlines_;  // of waiting_
  std::vector<Fetched> answers_;
};

}  // namespace penstock::service
