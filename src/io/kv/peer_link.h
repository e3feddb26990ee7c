// PeerLink: one connection to another host's KV daemon, seen from the daemon that asks.
//
// It proves itself, asks for blocks in batches, and receives them straight into the places given,
// hashing each slice as soon as it has arrived, while its bytes are still in the cache. The owner
// calls step() when the socket is ready and takes what has come of it.
//
// Invariants: each read that was asked ends once, in `arrivals` or in give_up(); with kNone only
// when every slice had the checksum the peer gave. After the link is gone nothing is written to any
// place: only this object's step() writes there.
// Errors: step() fails when the peer is gone, unproven, or breaks the protocol; then the link is of
// no more use. Concurrency: one thread. Source: docs/protocol/kv-peers.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/kv/peer_wire.h"
#include "io/sockets/tcp_socket.h"
#include "io/sockets/unix_socket.h"
#include "port/block_tier.h"

namespace penstock::kv {

class PeerLink {
 public:
  struct Arrival {
    TierRead read;
    MissReason reason = MissReason::kNone;
    BlockInfo info;
  };
  struct News {
    std::vector<Arrival> arrivals;
    std::vector<peer::Holdings> holdings;  // in order
    std::uint64_t bytes = 0;               // of payload
  };

  // `proofs` outlives the link. One that subscribes is told what the peer holds.
  static Result<std::unique_ptr<PeerLink>> start(const sockets::TcpAddress& address,
                                                 std::string name, peer::PeerProofs& proofs,
                                                 bool subscribes, Instant now);

  int fd() const { return socket_.get(); }
  bool open() const { return state_ == State::kOpen; }
  bool wants_write() const { return state_ == State::kConnecting || sent_ < output_.size(); }
  std::size_t outstanding() const { return reads_.size(); }
  std::uint64_t outstanding_bytes() const { return outstanding_bytes_; }
  Instant heard() const { return heard_; }  // bytes came last, or reads were asked while idle

  // Asks for the blocks, which are of one root. Precondition: open().
  void ask(std::vector<TierRead> reads, Duration budget, Instant now);
  // Tells the peer that its copy of a block arrived damaged. Precondition: open().
  void report(const BlockName& name);
  // Sends and receives what can be.
  Status step(Instant now, News& news);
  // What was asked and has not ended; the link must go.
  std::vector<TierRead> give_up();

 private:
  enum class State : std::uint8_t { kConnecting, kProving, kWaiting, kOpen };
  static constexpr std::size_t kStageBytes = 4096;
  static constexpr std::size_t kListBytes = std::size_t{64} << 10;
  static constexpr std::size_t kReceiveBytes = std::size_t{256} << 10;
  static constexpr std::size_t kTurnBytes = std::size_t{8} << 20;

  // A block whose payload is arriving.
  struct Payload {
    TierRead read;
    BlockInfo info;
    std::size_t bytes = 0;
    std::size_t got = 0;
    std::size_t slice = 0;        // next to be checked
    std::size_t slice_begin = 0;  // its place
    bool corrupt = false;
  };

  PeerLink(Descriptor socket, std::string where, peer::PeerProofs& proofs, bool subscribes)
      : socket_(std::move(socket)),
        where_(std::move(where)),
        proofs_(proofs),
        subscribes_(subscribes) {}

  void say(peer::Op op, std::uint64_t request, std::string_view body);
  Status send();
  Status receive(Instant now, News& news);
  Result<std::size_t> receive_some(News& news);  // 0: nothing now
  Status take_frames(News& news);
  Status take(const peer::Header& header, std::string_view body, News& news);
  Status take_block(const peer::Header& header, std::string_view body, News& news);
  void fill(std::size_t bytes, News& news);
  std::unexpected<Error> broken(std::string_view what) const;

  Descriptor socket_;
  std::string where_;
  peer::PeerProofs& proofs_;
  bool subscribes_;
  State state_ = State::kConnecting;
  peer::Nonce nonce_ = peer::random_nonce();
  std::uint64_t epoch_ = 0;
  Instant heard_{};
  std::string output_;
  std::size_t sent_ = 0;  // of output_
  std::string stage_;     // received, not yet taken
  std::optional<Payload> payload_;
  std::map<std::uint64_t, TierRead> reads_;  // by number
  std::uint64_t outstanding_bytes_ = 0;
  std::uint64_t last_number_ = 0;
};

}  // namespace penstock::kv
