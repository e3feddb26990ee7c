// Outbox: what the daemon wants sent, in order, until the shell takes it.
//
// Invariants: nothing follows a message that ends its session.
// Concurrency: one thread. Source: service/kvd/kv_daemon.h.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "domain/kv_messages.h"
#include "service/kvd/kv_daemon.h"

namespace penstock::service {

class Outbox {
 public:
  void send(kv::SessionId session, kv::DaemonMessage message) {
    send(KvOutgoing{session, std::move(message)});
  }
  void send(KvOutgoing outgoing) {
    if (ended_.contains(outgoing.session)) return;
    if (outgoing.close) ended_.insert(outgoing.session);
    messages_.push_back(std::move(outgoing));
  }
  // The session is gone; its number is not used again.
  void forget(kv::SessionId session) { ended_.erase(session); }
  std::vector<KvOutgoing> take() { return std::exchange(messages_, {}); }

 private:
  std::vector<KvOutgoing> messages_;
  std::set<kv::SessionId> ended_;
};

}  // namespace penstock::service
