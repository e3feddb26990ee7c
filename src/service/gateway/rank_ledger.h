// RankLedger: what this shard has placed on each rank and not yet seen done.
//
// Loads come with frames, so they lag; a burst of requests would all see the same idle rank. The
// ledger adds what the shard itself has under way. A RankPermit holds a request's part and gives it
// back, however the request ends.
//
// Invariants: everything is zero when no permit is alive. Units: tokens of prompts to be computed,
// requests. Concurrency: one shard's thread; the ledger outlives its permits.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <utility>

#include "base/units.h"

namespace penstock::gateway {

struct RankId {
  WorkerId worker;
  std::uint32_t rank = 0;
  auto operator<=>(const RankId&) const = default;
};

class RankLedger {
 public:
  struct Entry {
    std::uint64_t prompt_tokens = 0;
    std::uint32_t requests = 0;
    auto operator<=>(const Entry&) const = default;
  };

  Entry of(RankId rank) const {
    const auto found = entries_.find(rank);
    return found == entries_.end() ? Entry{} : found->second;
  }
  bool empty() const { return entries_.empty(); }
  std::uint64_t requests() const {
    std::uint64_t sum = 0;
    for (const auto& [rank, entry] : entries_)
      sum += entry.requests;
    return sum;
  }

 private:
  friend class RankPermit;
  void add(RankId rank, Entry part) {
    Entry& entry = entries_[rank];
    entry.prompt_tokens += part.prompt_tokens;
    entry.requests += part.requests;
  }
  void remove(RankId rank, Entry part) {
    const auto found = entries_.find(rank);
    found->second.prompt_tokens -= part.prompt_tokens;
    found->second.requests -= part.requests;
    if (found->second == Entry{}) entries_.erase(found);
  }

  std::map<RankId, Entry> entries_;
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
    ledger_->remove(rank_, {part_.prompt_tokens, 0});
    part_.prompt_tokens = 0;
  }
  void give_back() {
    if (ledger_ != nullptr) std::exchange(ledger_, nullptr)->remove(rank_, part_);
  }

 private:
  RankLedger* ledger_ = nullptr;
  RankId rank_;
  RankLedger::Entry part_;
};

}  // namespace penstock::gateway
