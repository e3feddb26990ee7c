// KvServer: the shell around service::KvDaemon: sockets, shared memory and the clock.
//
// One thread runs everything: an epoll loop takes frames from a Unix socket, hands them to the
// daemon with the time, sends what it answers, and lets it copy one block whenever no message
// waits. Descriptors of pools come in beside RegisterPool; the arena's goes out beside Welcome.
//
// Invariants: a session's pools stay mapped until the daemon has closed it, and its socket is
// closed last: a client that sees the end knows that nothing reads its memory any more. A client
// that hangs up is seen by KvMemory::pool() at once.
// Limits: bytes a session may leave unread (then it is cut off), pools a session, frames of 32 MiB.
// Errors: start() fails with kConflict (another daemon has the socket), kInvalidArgument, kIo.
// What a client does wrong ends its session only.
// Concurrency: run() on one thread, which is also the tiers'; stop() and counters() from any.
// Source: docs/protocol/kv.md; docs/design/0005-kv-cache.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/units.h"
#include "io/kv/peer_server.h"
#include "port/block_tier.h"
#include "service/kvd/kv_daemon.h"

namespace penstock::kv {

struct KvServerOptions {
  std::string socket;  // path
  std::uint64_t arena_bytes = std::uint64_t{1} << 30;
  service::KvDaemonOptions daemon;
  std::size_t output_bytes_max = std::size_t{128} << 20;  // of one session, unread
  std::size_t pools_max = 16;                             // of one session
  Duration settle_max = std::chrono::seconds(5);          // for writes under way when it stops
  std::optional<PeerServerOptions> peer_server;           // serve other hosts, too
  std::function<void(std::string_view)> log;              // may be empty
};

struct KvServerCounters {
  std::uint64_t sessions = 0;         // opened since the start
  std::uint64_t sessions_open = 0;    // now
  std::uint64_t messages = 0;         // received
  std::uint64_t protocol_errors = 0;  // sessions ended for what they sent
  std::uint64_t slow_readers = 0;     // sessions cut off for what they did not read
  std::uint64_t kills = 0;            // processes ended for holding too much in silence
};

class KvServer {
 public:
  // Makes the arena and listens. `disk`, `peers` and `cluster` (null: none) outlive the server.
  static Result<std::unique_ptr<KvServer>> start(KvServerOptions options, BlockTier* disk,
                                                 BlockTier* peers = nullptr,
                                                 service::ClusterTier* cluster = nullptr);
  ~KvServer();
  KvServer(const KvServer&) = delete;
  KvServer& operator=(const KvServer&) = delete;

  // Serves until stop(); then ends all sessions and waits until the disk has what it was given.
  void run();
  void stop();

  // The arena's own mapping; other threads may look only while run() does not.
  std::span<std::byte> arena();
  bool huge_pages() const;
  std::uint16_t peer_port() const;  // where it serves other hosts; 0: it does not
  KvServerCounters counters() const;

 private:
  struct State;
  explicit KvServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock::kv
