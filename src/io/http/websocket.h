// Socket: the WebSocket of one exchange, between its connection's bytes and its handler.
//
// The connection hands over what it reads; messages queue here for receive(), and control frames
// are answered at once, by the connection as soon as no write is under way. What ends it (a close
// frame, a fault, a peer that is gone) is told to the exchange like any disconnect.
//
// Invariants: no more is held than one message that comes, the queue of about kQueuedBytes, and the
// message that the handler works on; all of it counts against body_memory_max.
// Internal to io/http. Concurrency: shard thread only. Source: RFC 6455 sections 5.5 and 7.
#pragma once

#include <string>
#include <string_view>

#include "io/http/server_core.h"
#include "io/http/websocket_frames.h"

namespace penstock::http {

class Exchange;

class Socket final : public WebSocket {
 public:
  // Both outlive it.
  Socket(Connection& connection, Exchange& exchange);
  ~Socket() override;

  Task<Result<std::optional<std::string>>> receive(Instant until) override;
  Task<Status> send(std::string message) override;
  void close(std::uint16_t code, std::string reason) override;

  // For Connection. take() may end the handler, and with it this.
  void take(std::string_view bytes);
  // Nothing more is read until a message was received.
  bool full() const { return messages_.size() >= kQueuedMax || queued_bytes_ >= kQueuedBytes; }
  std::size_t held() const { return reader_.held(); }  // of a message that comes
  bool receiving() const { return receiving_; }
  // No message comes any more. Wakes receive().
  void end_messages(bool drop_queued);

 private:
  static constexpr std::size_t kQueuedMax = 8;
  static constexpr std::size_t kQueuedBytes = std::size_t{64} << 10;
  static constexpr std::size_t kQueueCapacity = 256;  // a read may bring many

  // Ends the connection with this close frame.
  void end(const CloseReason& reason);
  bool count_held(std::size_t coming);

  Connection& connection_;
  Exchange& exchange_;
  FrameReader reader_;
  Channel<std::string> messages_;
  std::size_t queued_bytes_ = 0;
  std::size_t taken_bytes_ = 0;  // of the message received last
  BodyShare share_;
  bool receiving_ = false;
};

}  // namespace penstock::http
