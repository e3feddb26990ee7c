// AcquireRecords: what recent acquires got, for `kv explain`.
//
// The last kRecordsMax finished acquires are kept by request id, each with the tiers its blocks
// came from and the names of the first blocks it missed. Why those are missing is asked of the
// history when somebody wants to know.
//
// Concurrency: one thread. Source: issue 3 part 6.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/kvcache/load_model.h"
#include "domain/kv.h"

namespace penstock::service {

struct AcquireRecord {
  std::string request;
  BlockKey root;
  std::uint64_t tenant = 0;
  std::uint64_t content_tag = 0;
  UnixSeconds at;
  std::size_t asked = 0;               // blocks
  std::vector<KvTier> served;          // by block, from the first
  std::vector<std::uint32_t> windows;  // depths served
  MissReason missing = MissReason::kNone;
  std::vector<BlockKey> missed;  // the blocks after the served ones, at most kMissedMax
  // Load or recompute, with the numbers it was decided by; empty when all was in memory.
  std::optional<kvcache::LoadDecision> decision;
  Duration took{};  // until the lease was final
};

class AcquireRecords {
 public:
  static constexpr std::size_t kRecordsMax = 1024;
  static constexpr std::size_t kMissedMax = 256;

  void add(AcquireRecord record) {
    records_.push_back(std::move(record));
    if (records_.size() > kRecordsMax) records_.pop_front();
  }
  // The last acquires of that request, newest first: a request may have been placed again.
  std::vector<const AcquireRecord*> find(const std::string& request) const {
    std::vector<const AcquireRecord*> found;
    for (auto record = records_.rbegin(); record != records_.rend(); ++record)
      if (record->request == request) found.push_back(&*record);
    return found;
  }

 private:
  std::deque<AcquireRecord> records_;
};

}  // namespace penstock::service
