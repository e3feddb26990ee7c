// OwnerSide: core/handoff's Owner on a transport: checksums, messages out, blocks back to ranks.
//
// Invariants: every effect of the machine is carried out before the call that made it returns.
// Concurrency: the transport's thread. Source: core/handoff/owner.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/handoff/owner.h"
#include "port/transport.h"
#include "service/handoff/handoff_service.h"
#include "service/handoff/peer_outbox.h"
#include "service/handoff/rank_port.h"

namespace penstock::service {

class OwnerSide {
 public:
  OwnerSide(Transport& transport, PeerOutbox& outbox, const HandoffOptions& options,
            HandoffCounters& counters);

  // `pool` is the transport's number; `port` outlives this.
  void add_rank(const RankMemory& memory, std::uint32_t pool, const handoff::Layout& layout,
                RankPort& port);

  void run(std::uint32_t pool, const AnnounceCommand& command);
  void run(std::uint32_t pool, const PublishCommand& command);
  void run(std::uint32_t pool, CloseCommand command);
  void run(std::uint32_t pool, const WithdrawCommand& command);

  // False: no reader says that.
  bool message(PeerId peer, const handoff::Message& message);
  void lost(PeerId peer);
  bool readable(PeerId peer, std::uint32_t pool, std::uint32_t block,
                std::uint64_t generation) const {
    return owner_.readable(transport_.clock().now(), peer, pool, block, generation);
  }

  // Checksums up to the budget of a turn, and sends what may be sent. True: there is more to sum.
  bool work();
  void tick();
  bool idle() const { return owner_.idle(); }

 private:
  struct Rank {
    const std::byte* payloads = nullptr;
    handoff::Layout layout;
    RankPort* port = nullptr;
  };
  void apply();

  Transport& transport_;
  PeerOutbox& outbox_;
  std::size_t sum_bytes_max_;
  HandoffCounters& counters_;
  handoff::Owner owner_;
  handoff::OwnerEffects effects_;
  std::vector<Rank> ranks_;  // by pool
};

}  // namespace penstock::service
