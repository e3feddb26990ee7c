// PeerTier: blocks that other hosts' KV daemons hold, read over TCP into the arena.
//
// Each peer is told of in the configuration by HOST:PORT, and looked up each time it is connected
// to again. One of its connections tells what it holds, so contains() looks into memory only; reads
// go to the peer with the least under way, over the connection with the least, in batches: all that
// came in one turn is one request. Nothing is written to peers.
//
// A peer whose operations fail twice in a row, or that makes no progress for `progress_max`, is
// ejected: what it holds is not found any more, its reads end as misses. After a pause, which
// doubles up to `pause_max`, one connection is tried; when it is proven and has told what it holds,
// the peer is used again, and one more failure ejects it at once, until a read has succeeded.
//
// Invariants: BlockTier's. A copy that arrived damaged is not asked for again, and the peer is
// told, which then looks at its own. poll() is to be called when event_fd() is readable; it has a
// timer for what time demands. Limits: bytes under way at a peer (more reads wait), names kept of a
// peer, time of one read. Errors: kTooSlow, kIoError, kCorrupt, or the peer's own reason.
// Concurrency: one thread. Source: docs/protocol/kv-peers.md; facts 7b.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "io/kv/name_lookup.h"
#include "io/kv/peer_link.h"
#include "port/block_tier.h"

namespace penstock::kv {

struct PeerTierOptions {
  std::vector<std::string> peers;  // HOST:PORT
  std::array<std::uint8_t, 32> secret{};
  std::string name;                                       // of this host, for the peers' logs
  std::size_t connections = 2;                            // to each peer
  std::uint64_t under_way_max = std::uint64_t{16} << 20;  // bytes asked of a peer
  std::size_t names_max = std::size_t{1} << 22;           // known of a peer
  Duration progress_max = std::chrono::seconds(1);
  Duration read_max = std::chrono::seconds(10);  // of one read, however it progresses
  Duration pause_min = std::chrono::milliseconds(500);
  Duration pause_max = std::chrono::seconds(30);
  std::function<void(std::string_view)> log;  // may be empty
  NameLookup::Resolver resolve = sockets::resolve;
};

class PeerTier final : public BlockTier {
 public:
  // kInvalidArgument: a peer that is no HOST:PORT. Whether names are known does not matter yet.
  static Result<std::unique_ptr<PeerTier>> open(PeerTierOptions options, TierNow now);
  ~PeerTier() override;
  PeerTier(const PeerTier&) = delete;
  PeerTier& operator=(const PeerTier&) = delete;

  bool contains(const BlockName& name) const override { return size_of(name).has_value(); }
  std::optional<std::uint32_t> size_of(const BlockName& name) const override;
  void read(TierRead read) override;
  void write(TierWrite write) override;  // ends with kTierOff
  void touch(std::span<const BlockName>, TtlClass, TierNow) override {}
  // Forgets who holds it.
  void remove(const BlockName& name, MissReason reason) override;
  void poll(TierNow now, std::vector<TierRemoval>& removals) override;
  int event_fd() const override { return epoll_.get(); }
  void for_each(const std::function<bool(const BlockName&, std::uint32_t)>& visit) const override;
  TierStats stats() const override;
  // Peers that are connected and have told what they hold.
  std::size_t ready() const;

 private:
  struct Waiting {
    TierRead read;
    Instant deadline;
  };
  struct Connection {
    std::unique_ptr<PeerLink> link;  // null: not connected
    std::vector<TierRead> batch;     // to be asked in this turn
    std::uint64_t batch_bytes = 0;
    bool watches_write = false;
    Instant since{};  // it began to connect, or its oldest reads were asked
  };
  struct Peer {
    std::size_t number = 0;       // its place in peers_
    std::string text;             // HOST:PORT as configured
    sockets::TcpAddress address;  // as looked up last
    bool looking_up = false;
    std::vector<Connection> connections;
    std::unordered_map<BlockName, std::uint32_t> blocks;  // name, bytes
    std::deque<TierRead> waiting;                         // for bytes under way to end
    bool ready = false;                                   // it has told what it holds
    bool told = false;                                    // its state is in the log
    int failures = 0;                                     // in a row
    Duration pause{};                                     // before it is tried again
    Instant retry_at{};                                   // while it is not connected
    std::uint64_t under_way() const;
  };

  explicit PeerTier(PeerTierOptions options);

  Peer* best_for(const BlockName& name);
  void connect(Peer& peer, std::size_t number, Instant now);
  void ask(Peer& peer, Instant now);
  void step(Peer& peer, std::size_t number, Instant now);
  void looked_up(NameLookup::Answer answer, Instant now);
  void take(Peer& peer, PeerLink& link, PeerLink::News& news);
  void fail_link(Peer& peer, std::size_t number, MissReason reason, std::string_view why,
                 Instant now);
  void eject(Peer& peer, std::string_view why, Instant now);
  void check_time(Peer& peer, Instant now);
  void watch(Peer& peer, std::size_t number);
  void set_timer(Instant now);
  void end(TierRead read, MissReason reason, BlockInfo info);
  void log(std::string_view text) const;

  PeerTierOptions options_;
  peer::PeerProofs proofs_;
  Descriptor epoll_;
  Descriptor timer_;
  Instant armed_{};          // when it fires
  sockets::WakeEvent wake_;  // there is something for the next poll()
  NameLookup names_;
  std::deque<Peer> peers_;
  std::vector<PeerLink::Arrival> ended_;
  TierStats stats_;
};

}  // namespace penstock::kv
