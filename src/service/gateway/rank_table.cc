#include "service/gateway/rank_table.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "core/routing/cost_model.h"

namespace penstock::gateway {
namespace {

using routing::to_seconds;

// The model's index on the worker, when it could take a request for it.
std::optional<std::uint32_t> served_at(const WorkerView& worker, std::string_view model) {
  const auto& models = worker.description.models;
  const auto at = std::ranges::find(models, model, &ModelDescription::name);
  if (!worker.connected || at == models.end()) return std::nullopt;
  return static_cast<std::uint32_t>(at - models.begin());
}

// The entry of a rank, out of a worker's; ranks are asked for in order.
RankLedger::Entry next_of(std::span<const RankLedger::Item>& own, std::uint32_t rank) {
  while (!own.empty() && own.front().first.rank < rank)
    own = own.subspan(1);
  return !own.empty() && own.front().first.rank == rank ? own.front().second : RankLedger::Entry{};
}

// Small numbers for things that are equal or not.
template <typename T>
std::uint32_t number_of(std::vector<const T*>& known, const T& thing) {
  const auto at = std::ranges::find_if(known, [&](const T* k) { return *k == thing; });
  const auto number = static_cast<std::uint32_t>(at - known.begin());
  if (at == known.end()) known.push_back(&thing);
  return number;
}

}  // namespace

const RankTable::Block& RankTable::Pool::block_of(std::uint32_t row) const {
  return *std::prev(std::ranges::upper_bound(blocks, row, {}, &Block::first));
}

std::uint32_t RankTable::Pool::running_with(const routing::RankView& rank) const {
  if (!steps_together) return rows[static_cast<std::size_t>(&rank - views.data())].running;
  std::uint32_t running = 0;
  for (std::size_t i = 0; i < views.size(); ++i)
    running += views[i].engine == rank.engine ? rows[i].running : 0;
  return running;
}

void RankTable::refresh(std::span<const WorkerView> workers, const RankLedger& ledger,
                        EngineCosts& costs, std::string_view model) {
  const Source source{workers, ledger, costs, model};
  if (seen_.size() != workers.size() || !read_changed(source)) read_all(source);
  ledger_changes_ = ledger.changes();
  costs_changes_ = costs.prefill_changes();
}

// False when everything must be read.
bool RankTable::read_changed(const Source& source) {
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const WorkerView& worker = source.workers[i];
    if (seen_[i].id != worker.description.id || worker.revision == 0) return false;
    if (seen_[i].revision != worker.revision && !read_again(source, i)) return false;
  }
  if (source.ledger.changes() - ledger_changes_ > RankLedger::kChangesKept) return false;
  for (std::uint64_t n = ledger_changes_; n < source.ledger.changes(); ++n)
    read_rank(source.ledger.changed(n), source);
  if (costs_changes_ == source.costs.prefill_changes()) return true;
  for (Pool* const pool : {&prefill_, &others_})
    for (std::uint32_t row = 0; row < pool->rows.size(); ++row)
      if (pool->rows[row].usual_cost)
        read_row(*pool, row, source.ledger.of(pool->rows[row].id), source);
  return true;
}

void RankTable::read_all(const Source& source) {
  for (Pool* const pool : {&prefill_, &others_}) {
    pool->rows.clear();
    pool->views.clear();
    pool->blocks.clear();
    pool->engines = 0;
    pool->steps_together = pool->mixed = false;
  }
  seen_.clear();
  draining_ = 0;
  std::vector<const KvIdentity*> kinds;
  std::vector<const std::string*> zones;
  std::array<std::vector<std::pair<const std::string*, std::uint32_t>>, 2> groups;  // and engines
  for (std::uint32_t i = 0; i < source.workers.size(); ++i) {
    const WorkerView& worker = source.workers[i];
    const WorkerDescription& described = worker.description;
    Seen& seen = seen_.emplace_back(described.id, described.epoch, worker.revision);
    const auto model = served_at(worker, source.model);
    if (!model) continue;
    if (worker.draining) {
      ++draining_;
      seen.draining = true;
      continue;
    }
    seen.of_prefill = described.role == WorkerRole::kPrefill;
    Pool& pool = pool_of(seen);
    Block block{.worker = i, .first = static_cast<std::uint32_t>(pool.rows.size())};
    auto& known = groups[seen.of_prefill ? 0 : 1];
    auto own = source.ledger.of_worker(described.id);
    for (std::uint32_t rank = 0; rank < worker.loads.size(); ++rank) {
      if (worker.loads[rank].model != *model) continue;
      const auto group = described.step_group.empty()
                             ? known.end()
                             : std::ranges::find_if(known, [&](const auto& entry) {
                                 return *entry.first == described.step_group;
                               });
      const std::uint32_t engine = group == known.end() ? pool.engines++ : group->second;
      if (group != known.end()) pool.steps_together = true;
      if (group == known.end() && !described.step_group.empty())
        known.emplace_back(&described.step_group, engine);
      const auto row = static_cast<std::uint32_t>(pool.rows.size());
      Row& added = pool.rows.emplace_back();
      added.id = {described.id, rank};
      added.worker = i;
      added.model = *model;
      routing::RankView& view = pool.views.emplace_back();
      view.id = added.id;
      view.engine = engine;
      read_row(pool, row, next_of(own, rank), source);
    }
    block.rows = static_cast<std::uint32_t>(pool.rows.size()) - block.first;
    if (block.rows == 0) continue;
    block.zone = static_cast<std::uint16_t>(number_of(zones, described.zone));
    block.kv_kind =
        described.transport.empty() ? kNoWay : 1 + number_of(kinds, described.models[*model].kv);
    block.kv_token_bytes = described.models[*model].kv_token_bytes;
    block.mixed = described.role == WorkerRole::kMixed;
    for (std::uint32_t row = block.first; row < pool.rows.size(); ++row)
      pool.views[row].zone = block.zone;
    pool.mixed = pool.mixed || block.mixed;
    seen.usable = true;
    seen.block = static_cast<std::uint32_t>(pool.blocks.size());
    pool.blocks.push_back(block);
    read_link(pool, block, source.ledger);
  }
}

// A worker whose revision has moved; false when it is not on the same ranks any more.
bool RankTable::read_again(const Source& source, std::size_t at) {
  Seen& seen = seen_[at];
  const WorkerView& worker = source.workers[at];
  if (seen.epoch != worker.description.epoch) return false;
  seen.revision = worker.revision;
  const auto model = served_at(worker, source.model);
  const bool draining = model && worker.draining;
  if (draining != seen.draining) return false;
  if (!seen.usable)
    return draining || !model || std::ranges::none_of(worker.loads, [&](const EngineLoad& load) {
             return load.model == *model;
           });
  if (!model) return false;
  Pool& pool = pool_of(seen);
  const Block& block = pool.blocks[seen.block];
  auto own = source.ledger.of_worker(seen.id);
  std::uint32_t row = block.first;
  for (std::uint32_t rank = 0; rank < worker.loads.size(); ++rank) {
    if (worker.loads[rank].model != *model) continue;
    if (row == block.first + block.rows || pool.rows[row].id.rank != rank) return false;
    read_row(pool, row++, next_of(own, rank), source);
  }
  return row == block.first + block.rows;
}

// A rank of which the ledger says something new.
void RankTable::read_rank(RankId rank, const Source& source) {
  const auto seen = std::ranges::lower_bound(seen_, rank.worker, {}, &Seen::id);
  if (seen == seen_.end() || seen->id != rank.worker || !seen->usable) return;
  Pool& pool = pool_of(*seen);
  const Block& block = pool.blocks[seen->block];
  read_link(pool, block, source.ledger);
  const auto rows = std::span(pool.rows).subspan(block.first, block.rows);
  const auto row =
      std::ranges::lower_bound(rows, rank.rank, {}, [](const Row& r) { return r.id.rank; });
  if (row == rows.end() || row->id.rank != rank.rank) return;
  read_row(pool, block.first + static_cast<std::uint32_t>(row - rows.begin()),
           source.ledger.of(rank), source);
}

void RankTable::read_link(Pool& pool, const Block& block, const RankLedger& ledger) {
  Duration queued{};
  for (const auto& [rank, own] : ledger.of_worker(pool.rows[block.first].id.worker))
    queued += own.load_time;
  for (routing::RankView& view : std::span(pool.views).subspan(block.first, block.rows))
    view.load_outstanding_seconds = to_seconds(queued);
}

// What is reported and what this shard has promised overlap, so the larger one counts.
void RankTable::read_row(Pool& pool, std::uint32_t at, const RankLedger::Entry& own,
                         const Source& source) {
  Row& row = pool.rows[at];
  const WorkerView& worker = source.workers[row.worker];
  const EngineLoad& load = worker.loads[row.id.rank];
  row.cost = load.prefill;
  row.usual_cost = row.cost == PrefillCoefficients{};
  if (row.usual_cost)
    row.cost = source.costs.of(worker.description.engine, source.model).prefill_coefficients();
  // What this shard has placed is known in time; what others have, in tokens only.
  const double others =
      static_cast<double>(load.prompt_tokens_waiting) - static_cast<double>(own.prompt_tokens);
  row.queue_seconds = to_seconds(own.prompt_time) + routing::prefill_seconds(row.cost, others, 0);
  row.running = load.running;
  routing::RankView& view = pool.views[at];
  view.running = std::max(load.running + load.waiting, own.requests);
  view.kv_tokens = std::max(load.kv_tokens_used.value, static_cast<std::int64_t>(own.kv_tokens));
  // Prompts wait in their rank's queue, whatever its room. A decode rank without requests has all
  // of it, whatever was last heard: what is too large for it the engine itself must say.
  const bool all_room = &pool == &prefill_ || view.running == 0;
  view.kv_capacity = all_room ? 0 : load.kv_tokens_total.value;
}

}  // namespace penstock::gateway
