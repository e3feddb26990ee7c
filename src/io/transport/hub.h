// Hub: the Transport of sockets; the connections, the reads and the events of one process.
//
// It numbers peers and reads, keeps their deadlines and limits, and turns what connections tell
// into events. Links between a driver and an address are made in drivers.h.
//
// Invariants: as port/transport.h. A connection that ends is taken down in two steps: its sockets
// at once, the object, its reads and `closed` in a later turn, so nothing is destroyed while it
// runs. Concurrency: one thread, started by set_events(). Source: docs/design/0006-transport.md.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "io/transport/connection.h"
#include "io/transport/copier.h"
#include "io/transport/drivers.h"
#include "io/transport/event_loop.h"
#include "io/transport/pool_table.h"
#include "io/transport/transport_options.h"
#include "port/transport.h"

namespace penstock::transport {

class UcxWorker;

class Hub final : public Transport {
 public:
  static Result<std::unique_ptr<Hub>> open(TransportOptions options);
  ~Hub() override;

  // --- Transport
  Clock& clock() override { return loop_; }
  void set_events(TransportEvents events) override;
  std::uint32_t publish(const PublishedPool& pool) override;
  std::string address() const override { return address_; }
  Result<PeerId> connect(const std::string& address, Instant deadline) override;
  Status send(PeerId peer, std::string_view message) override;
  void close(PeerId peer) override;
  ReadId read(PeerId peer, const RemoteSlice& slice, std::byte* into, Instant deadline,
              ReadDone done) override;
  void cancel(ReadId read) override;

  // --- For connections and data paths
  EventLoop& loop() { return loop_; }
  const PoolTable& pools() const { return pools_; }
  const TransportLimits& limits() const { return options_.limits; }
  Copier& copier() { return copier_; }
  // The UCX worker, begun when it is first needed.
  Status start_ucx();
  Result<UcxWorker*> ucx();
  // Makes a connection for a socket that was accepted; null when there are too many.
  Connection* admit(Driver driver);
  // Null when it ends or has ended.
  Connection* connection(PeerId peer);
  void opened(PeerId peer);
  void accepted(PeerId peer);
  void message(PeerId peer, std::string_view bytes);
  void read_ended(std::uint64_t read, ReadEnd end);
  void broken(PeerId peer, const std::string& why);
  // The owner's first look at what a peer asks for: the bytes, or why not.
  struct Look {
    ReadEnd end = ReadEnd::kRefused;  // kDone: take them
    std::span<const std::byte> bytes;
  };
  Look look(PeerId peer, const RemoteSlice& slice) const;
  // The second, after the bytes were taken.
  ReadEnd look_again(const RemoteSlice& slice) const;

 private:
  struct Peer {
    std::unique_ptr<Connection> connection;
    bool ours = false;       // we connected
    bool announced = false;  // the user knows of it
    bool open = false;
    bool ending = false;
    bool silent = false;       // no `closed`
    std::size_t reads = 0;     // under way
    Clock::TimerId timer = 0;  // of the connecting or the greeting
  };
  struct Read {
    PeerId peer;  // 0: it ends by itself
    ReadDone done;
    Instant deadline;
  };

  explicit Hub(TransportOptions options);
  Peer& add_peer(bool ours, Driver driver);
  void begin_end(PeerId id, Peer& peer, const std::string& why);
  void finish_end(PeerId id, const std::string& why);
  void finish_read(std::uint64_t id, ReadEnd end);
  std::vector<std::uint64_t> reads_where(const std::function<bool(const Read&)>& wanted) const;
  void expire();
  std::size_t count(bool ours) const;

  TransportOptions options_;
  EventLoop loop_;
  PoolTable pools_;
  Copier copier_;
  TransportEvents events_;
  std::string address_;
  std::unique_ptr<Drivers> drivers_;
#if PENSTOCK_UCX
  std::unique_ptr<UcxWorker> ucx_;  // after peers_ has gone
#endif
  std::map<PeerId, Peer> peers_;
  std::unordered_map<std::uint64_t, Read> reads_;
  // One timer for all reads: it stands at the earliest deadline or before, and then all are looked
  // at. Reads end long before their deadlines, so this is rare, and a read costs no timer.
  Clock::TimerId expiry_ = 0;
  Instant expires_ = Instant::max();
  std::uint64_t last_peer_ = 0;
  std::uint64_t last_read_ = 0;
  std::thread thread_;
};

}  // namespace penstock::transport
