// PeerServer: serves what this host holds to the KV daemons of other hosts, over TCP.
//
// It lives in KvServer's loop. Each connection is a session of role "peer" in the daemon: once both
// sides have proven that they know the deployment secret, blocks are fetched (pinned) in the daemon
// and sent straight from the arena; when a block has left, its pin is dropped. Who subscribes is
// told what is held in memory and on disk here, and what changes.
//
// Invariants: nothing but nonces and proofs is said before the peer has proven itself; a payload is
// read only while it is pinned. Only this host's memory and disk are served, never other peers.
// Limits: connections; bytes queued for one peer (then it is not listened to); a peer that takes
// nothing for `progress_max` while something is queued, or does not prove itself in that time, is
// cut off. Errors: listen() fails with kInvalidArgument, kConflict or kIo; what a peer does wrong
// ends its connection only. Concurrency: the thread of the daemon.
// Source: docs/protocol/kv-peers.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "base/result.h"
#include "io/sockets/tcp_socket.h"
#include "service/kvd/kv_daemon.h"

namespace penstock::kv {

struct PeerServerOptions {
  std::string listen;  // HOST:PORT; port 0 picks a free one
  std::array<std::uint8_t, 32> secret{};
  std::size_t connections_max = 64;
  std::size_t output_bytes_max = std::size_t{32} << 20;  // queued for one peer
  Duration progress_max = std::chrono::seconds(10);
  std::function<void(std::string_view)> log;  // may be empty
};

class PeerServer {
 public:
  static Result<std::unique_ptr<PeerServer>> listen(PeerServerOptions options);
  ~PeerServer();
  PeerServer(const PeerServer&) = delete;
  PeerServer& operator=(const PeerServer&) = delete;

  // Precondition for all below: attached. `daemon` outlives the object, or end_all() was called.
  void attach(service::KvDaemon& daemon, const service::KvDaemonOptions& options);

  std::uint16_t port() const;
  // Readable when poll() has something to do.
  int event_fd() const;
  void poll(TierNow now);
  // Messages of the daemon to its sessions; false: not one of these.
  bool take(const service::KvOutgoing& outgoing);
  // Sends what the daemon has fetched meanwhile; has_work(): there is something to send.
  void flush(TierNow now);
  bool has_work() const;
  void end_all(TierNow now);

 private:
  struct State;
  explicit PeerServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock::kv
