// KvSession: a plain, blocking session with a KV daemon: for tools and for the gateway's event
// feed.
//
// Engines use KvClient. Concurrency: one thread, but stop() may be called from any.
// Errors: kUnavailable when no daemon answers at the socket or it ended the session (with its
// reason), kDeadlineExceeded, kCancelled after stop(). Source: docs/protocol/kv.md.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "io/kv/arena.h"
#include "io/kv/kv_codec.h"
#include "io/sockets/unix_socket.h"

namespace penstock::kv {

class KvSession {
 public:
  // Connects, says hello as `role` and waits for the welcome.
  static Result<std::unique_ptr<KvSession>> connect(const std::string& socket, std::string role,
                                                    std::string name, const BlockKey& key_check,
                                                    Duration timeout);

  const Welcome& welcome() const { return welcome_; }
  // `descriptor` travels beside it and stays the caller's.
  Status send(const ClientMessage& message, int descriptor = -1);
  // The daemon's arena, to copy leased blocks from.
  Result<Mapping> map_arena() const;
  // The next message; nullopt when none came in time.
  Result<std::optional<DaemonMessage>> receive(Duration timeout);
  // Runs an admin command; `progress` gets the parts before the last one.
  Result<std::string> admin(std::string command, std::string arguments, Duration timeout,
                            const std::function<void(std::string_view)>& progress = {});
  // Makes a receive() that is under way, and all later ones, end with kCancelled.
  void stop();

 private:
  KvSession() = default;
  Status wait_for(short events, Duration timeout);

  Descriptor socket_;
  sockets::WakeEvent wake_;
  std::atomic<bool> stopped_{false};
  FrameBuffer frames_;
  std::vector<Descriptor> descriptors_;  // the arena's
  Welcome welcome_;
  std::uint64_t last_number_ = 0;
};

}  // namespace penstock::kv
