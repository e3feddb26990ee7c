// PeerOutbox: messages that a connection does not take yet wait here, up to a limit.
//
// The machines send and forget. What the transport refuses for now (kOverloaded) is tried again on
// every flush(), in order; a connection that has more than kQueuedMax bytes waiting is given up:
// its peer has not read for long.
//
// Invariants: messages of one peer leave in order. Concurrency: the transport's thread.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "port/transport.h"

namespace penstock::service {

class PeerOutbox {
 public:
  static constexpr std::size_t kQueuedMax = 4 << 20;  // bytes, of one peer

  explicit PeerOutbox(Transport& transport) : transport_(transport) {}

  void send(PeerId peer, std::string message);
  void flush();
  void drop(PeerId peer) { queues_.erase(peer); }
  // Peers to be given up; each is named once.
  std::vector<PeerId> take_stuck();
  bool empty() const { return queues_.empty(); }

 private:
  struct Queue {
    std::deque<std::string> messages;
    std::size_t bytes = 0;
  };
  Transport& transport_;
  std::map<PeerId, Queue> queues_;  // with something in it
  std::vector<PeerId> stuck_;
};

}  // namespace penstock::service
