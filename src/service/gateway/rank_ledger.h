// RankLedger: what this shard has placed on each rank and not yet seen done.
//
// Loads come with frames, so they lag; a burst of requests would all see the same idle rank. The
// ledger adds what the shard itself has under way. A RankPermit holds a request's part and gives it
// back, however the request ends. KV counts from the moment a leg is submitted, with what the
// answer is expected to add; a request that waits in front of the engines holds none.
//
// Who keeps what it has read here reads again the ranks that have changed since: changes() counts
// them, and the last kChangesKept are known.
//
// Invariants: everything is zero when no permit is alive. Units: tokens of prompts to be computed,
// requests, tokens of KV, predicted time of those prompts and of the loads of their hits. Cost:
// O(log n) to find, O(n) to add and remove (ranks in use; they lie in one array, in order, for
// placement to walk along).
// Concurrency: one shard's thread; the ledger outlives its permits.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/units.h"
#include "core/routing/policy.h"

namespace penstock::gateway {

using routing::RankId;

class RankLedger {
 public:
  struct Entry {
    std::uint64_t prompt_tokens = 0;
    std::uint32_t requests = 0;
    std::uint64_t kv_tokens = 0;
    Duration prompt_time{};
    Duration load_time{};
    auto operator<=>(const Entry&) const = default;
  };
  using Item = std::pair<RankId, Entry>;
  static constexpr std::uint64_t kChangesKept = 256;

  Entry of(RankId rank) const {
    const auto at = find(rank);
    return at == items_.end() || at->first != rank ? Entry{} : at->second;
  }
  // Those of one worker, by rank.
  std::span<const Item> of_worker(WorkerId worker) const {
    const auto at = find({worker, 0});
    auto end = at;
    while (end != items_.end() && end->first.worker == worker)
      ++end;
    return {at, end};
  }
  bool empty() const { return items_.empty(); }
  std::uint64_t requests() const {
    std::uint64_t sum = 0;
    for (const auto& [rank, entry] : items_)
      sum += entry.requests;
    return sum;
  }
  // How many entries have changed so far, and the rank of one of the last kChangesKept.
  std::uint64_t changes() const { return changes_; }
  RankId changed(std::uint64_t number) const { return changed_[number % kChangesKept]; }

 private:
  friend class RankPermit;
  std::vector<Item>::const_iterator find(RankId rank) const {
    return std::ranges::lower_bound(items_, rank, {}, &Item::first);
  }
  void note_change(RankId rank) { changed_[changes_++ % kChangesKept] = rank; }
  void add(RankId rank, const Entry& part) {
    note_change(rank);
    auto at = std::ranges::lower_bound(items_, rank, {}, &Item::first);
    if (at == items_.end() || at->first != rank) at = items_.insert(at, {rank, {}});
    at->second.prompt_tokens += part.prompt_tokens;
    at->second.requests += part.requests;
    at->second.kv_tokens += part.kv_tokens;
    at->second.prompt_time += part.prompt_time;
    at->second.load_time += part.load_time;
  }
  void remove(RankId rank, const Entry& part) {
    note_change(rank);
    const auto at = std::ranges::lower_bound(items_, rank, {}, &Item::first);
    at->second.prompt_tokens -= part.prompt_tokens;
    at->second.requests -= part.requests;
    at->second.kv_tokens -= part.kv_tokens;
    at->second.prompt_time -= part.prompt_time;
    at->second.load_time -= part.load_time;
    if (at->second == Entry{}) items_.erase(at);
  }

  std::vector<Item> items_;  // by rank
  std::uint64_t changes_ = 0;
  std::array<RankId, kChangesKept> changed_{};
};

class RankPermit {
 public:
  RankPermit() = default;
  RankPermit(RankLedger& ledger, RankId rank, RankLedger::Entry part)
      : ledger_(&ledger), rank_(rank), part_(part) {
    ledger_->add(rank_, part_);
  }
  RankPermit(RankPermit&& other) noexcept { *this = std::move(other); }
  RankPermit& operator=(RankPermit&& other) noexcept {
    if (this == &other) return *this;
    give_back();
    ledger_ = std::exchange(other.ledger_, nullptr);
    rank_ = other.rank_;
    part_ = other.part_;
    return *this;
  }
  ~RankPermit() { give_back(); }

  // The prompt is computed.
  void prompt_done() {
    if (ledger_ == nullptr || part_.prompt_tokens == 0) return;
    ledger_->remove(rank_, {part_.prompt_tokens, 0, 0, part_.prompt_time, part_.load_time});
    part_.prompt_tokens = 0;
    part_.prompt_time = part_.load_time = {};
  }
  void give_back() {
    if (ledger_ != nullptr) std::exchange(ledger_, nullptr)->remove(rank_, part_);
  }
  RankId rank() const { return rank_; }

 private:
  RankLedger* ledger_ = nullptr;
  RankId rank_;
  RankLedger::Entry part_;
};

}  // namespace penstock::gateway
