#include "service/handoff/peer_outbox.h"

#include <utility>

namespace penstock::service {

void PeerOutbox::send(PeerId peer, std::string message) {
  auto queue = queues_.find(peer);
  if (queue == queues_.end()) {
    const Status sent = transport_.send(peer, message);
    // Sent, or to nobody: its `closed` has come or will.
    if (sent || sent.error().code != ErrorCode::kOverloaded) return;
    queue = queues_.emplace(peer, Queue{}).first;
  }
  queue->second.bytes += message.size();
  queue->second.messages.push_back(std::move(message));
  if (queue->second.bytes > kQueuedMax) {
    queues_.erase(queue);
    stuck_.push_back(peer);
  }
}

void PeerOutbox::flush() {
  for (auto queue = queues_.begin(); queue != queues_.end();) {
    auto& [peer, waiting] = *queue;
    while (!waiting.messages.empty()) {
      const Status sent = transport_.send(peer, waiting.messages.front());
      if (!sent && sent.error().code == ErrorCode::kOverloaded) break;
      waiting.bytes -= waiting.messages.front().size();
      waiting.messages.pop_front();
    }
    queue = waiting.messages.empty() ? queues_.erase(queue) : std::next(queue);
  }
}

std::vector<PeerId> PeerOutbox::take_stuck() {
  return std::exchange(stuck_, {});
}

}  // namespace penstock::service
