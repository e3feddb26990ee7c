// ReaderSide: core/handoff's Readers on a transport: connections shared by pulls, reads, results.
//
// Invariants: a pull's blocks go back only after its reads have ended or were cancelled; a Release
// is sent after that too. A link exists while its connection does, or is being made.
// Concurrency: the transport's thread. Source: core/handoff/reader.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/handoff/reader.h"
#include "port/transport.h"
#include "service/handoff/handoff_service.h"
#include "service/handoff/peer_outbox.h"
#include "service/handoff/rank_port.h"

namespace penstock::service {

class ReaderSide {
 public:
  // `news` is called when a read has ended: outside of any call from above.
  ReaderSide(Transport& transport, PeerOutbox& outbox, const HandoffOptions& options,
             HandoffCounters& counters, std::function<void()> news);
  // Cancels all reads, fails all pulls, gives all blocks back and closes all connections.
  ~ReaderSide();
  ReaderSide(const ReaderSide&) = delete;
  ReaderSide& operator=(const ReaderSide&) = delete;

  void add_rank(const RankMemory& memory, const handoff::Layout& layout, RankPort& port);

  void run(std::size_t rank, PullCommand command);
  void run(std::size_t rank, FillCommand command);
  void run(const StopCommand& command);

  // Is `peer` a connection that this side made?
  bool has(PeerId peer) const { return links_.contains(peer); }
  void opened(PeerId peer);
  // False: no owner says that.
  bool message(PeerId peer, handoff::Message message);
  void lost(PeerId peer, const std::string& why);
  // Ends the connection and its pulls: the owner speaks nonsense or does not listen.
  void cut(PeerId peer, const std::string& why);
  void tick();
  bool idle() const { return pulls_.empty(); }
  bool has_links() const { return !links_.empty(); }

 private:
  struct Rank {
    std::byte* payloads = nullptr;
    std::uint32_t blocks = 0;
    handoff::Layout layout;
    RankPort* port = nullptr;
  };
  struct Link {
    std::string address;
    bool open = false;
    bool cut = false;  // a read has found it gone
    std::set<std::uint64_t> pulls;
    std::set<std::uint64_t> hungry;  // of them, may have something to read
    std::uint64_t fed = 0;           // the hungry one that had its turn last
    std::size_t reads = 0;           // under way
    Instant heard;
    Instant idle_since;
  };
  struct Running {
    std::shared_ptr<PullResult> result;
    std::size_t rank = 0;
    std::vector<std::uint32_t> to;
    std::string source;
    PeerId peer;  // its link; none before connecting
    handoff::Reader machine;
    std::map<std::uint64_t, ReadId> reads;  // by slice
  };

  // What is wrong with these blocks for so many tokens; empty: nothing.
  static std::string misfit(const Rank& rank, std::uint32_t tokens,
                            const std::vector<std::uint32_t>& to);
  void connect(std::uint64_t number);
  void apply(std::uint64_t number);
  void finish(std::uint64_t number);
  void leave_link(std::uint64_t number, Running& pull);
  void feed(PeerId peer);
  void start_read(std::uint64_t number, Running& pull, Link& link, const handoff::SliceRead& slice);
  void read_ended(std::uint64_t number, std::uint64_t slice, std::uint32_t length, ReadEnd end);
  void close_link(PeerId peer);
  Instant now() const { return transport_.clock().now(); }

  Transport& transport_;
  PeerOutbox& outbox_;
  const HandoffOptions& options_;
  HandoffCounters& counters_;
  std::function<void()> news_;
  handoff::ReaderEffects effects_;
  std::vector<Rank> ranks_;
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, Running> pulls_;
  std::map<PeerId, Link> links_;
  std::map<std::string, PeerId> by_address_;
  Instant last_tick_;
};

}  // namespace penstock::service
