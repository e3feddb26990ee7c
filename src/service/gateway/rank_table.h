// RankTable: the ranks that could run requests for one model, as the policies see them, kept.
//
// A placement looks at every rank, but between two of them little changes: some workers' loads, and
// the few ranks on which this shard has placed or seen done something. refresh() reads just these
// again: workers whose revision has moved, and what the ledger says has changed. When a worker has
// come, gone, begun to drain, or serves the model on other ranks, everything is read anew.
//
// The ranks of a worker load the KV of hits over one link, so what this shard has promised of it
// counts for all of them.
//
// What depends on the request (hits, predicted times, ways to a decode rank) is not kept: whoever
// decides fills it in.
//
// Ranks that step together (WorkerDescription::step_group) are one engine; any other rank is an
// engine of its own. Engines are numbered within their pool, in the order of their first rank.
//
// Invariants: after refresh() the table equals one that was just made. Rows stand in the order of
// workers and ranks, and views beside their rows. Units: seconds, tokens. Errors: none.
// Cost: of refresh() O(workers), a comparison each, and O(log n) for each rank that has changed;
// O(ranks) when the set of ranks has. Memory is bounded by ranks. Concurrency: shard thread only.
// Source: design.md section 7; docs/routing.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/routing/policy.h"
#include "port/engine_client.h"
#include "service/gateway/engine_costs.h"
#include "service/gateway/rank_ledger.h"

namespace penstock::gateway {

class RankTable {
 public:
  struct Row {
    RankId id;
    std::uint32_t worker = 0;  // index into the workers
    std::uint32_t model = 0;   // index into its models
    PrefillCoefficients cost;
    double queue_seconds = 0;   // until a prompt that comes now is begun
    std::uint32_t running = 0;  // as reported
    bool usual_cost = false;    // it has not measured its own
    bool operator==(const Row&) const = default;
  };
  // The ranks of one worker in a pool.
  struct Block {
    std::uint32_t worker = 0;
    std::uint32_t first = 0;  // row
    std::uint32_t rows = 0;
    std::uint16_t zone = 0;
    std::uint32_t kv_kind = 0;  // equal ones can hand KV over; kNoWay: it can't with anybody
    std::uint32_t kv_token_bytes = 0;
    bool mixed = false;
    bool operator==(const Block&) const = default;
  };
  static constexpr std::uint32_t kNoWay = 0;
  // Ranks of one kind. Views hold their load; what belongs to a request is scratch.
  struct Pool {
    std::vector<Row> rows;
    std::vector<routing::RankView> views;
    std::vector<Block> blocks;
    std::uint32_t engines = 0;
    bool steps_together = false;  // some engine has several ranks
    bool mixed = false;           // some of its workers are

    const Block& block_of(std::uint32_t row) const;
    // Running requests of the rank's engine, as reported: a step of the rank is one of theirs.
    std::uint32_t running_with(const routing::RankView& rank) const;
  };

  void refresh(std::span<const WorkerView> workers, const RankLedger& ledger, EngineCosts& costs,
               std::string_view model);
  // The next refresh() reads everything: somebody has written into what is kept.
  void forget() { seen_.clear(); }

  Pool& prefill() { return prefill_; }
  Pool& others() { return others_; }  // decode and mixed
  const Pool& prefill() const { return prefill_; }
  const Pool& others() const { return others_; }
  std::size_t draining() const { return draining_; }  // workers of the model

 private:
  // A worker as it was read.
  struct Seen {
    WorkerId id;
    Epoch epoch;
    std::uint64_t revision = 0;
    bool draining = false;  // it serves the model
    bool usable = false;    // it has a block
    bool of_prefill = false;
    std::uint32_t block = 0;
  };
  struct Source {
    std::span<const WorkerView> workers;
    const RankLedger& ledger;
    EngineCosts& costs;
    std::string_view model;
  };
  void read_all(const Source& source);
  bool read_changed(const Source& source);
  bool read_again(const Source& source, std::size_t worker);
  void read_rank(RankId rank, const Source& source);
  void read_link(Pool& pool, const Block& block, const RankLedger& ledger);
  void read_row(Pool& pool, std::uint32_t row, const RankLedger::Entry& own, const Source& source);
  Pool& pool_of(const Seen& seen) { return seen.of_prefill ? prefill_ : others_; }

  Pool prefill_;
  Pool others_;
  std::vector<Seen> seen_;  // by index of worker; empty: nothing is known
  std::size_t draining_ = 0;
  std::uint64_t ledger_changes_ = 0;
  std::uint64_t costs_changes_ = 0;
};

}  // namespace penstock::gateway
