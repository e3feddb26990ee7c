// Where one gateway's prompts wait: the gateway's own queue with its tenants and priorities, or,
// when all requests are one tenant's, that tenant's queue alone, which gives the same order.
//
// Invariants: those of core/routing's queues. Units: seconds of work of one rank.
// Concurrency: one thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/routing/admission_queue.h"
#include "core/routing/on_time_queue.h"

namespace penstock::sim {

// Whole conversations belong to a tenant, in this proportion.
struct TenantShare {
  std::string name;
  double share = 1;
  double weight = 1;
  int priority = 0;  // higher first
};

class FrontLine {
 public:
  FrontLine(const routing::OnTimeOptions& order, bool tenants);

  // So many ranks serve this line. `tenant` is a number of its own for each.
  void push(const routing::WaitingPrompt& prompt, std::size_t tenant, const TenantShare& who,
            Instant now, double ranks);
  std::optional<RequestId> pop(Instant now, std::vector<RequestId>& expired);
  std::size_t size() const { return fair_ ? fair_->size() : order_.size(); }
  std::size_t late() const { return fair_ ? fair_->late() : order_.late(); }

 private:
  routing::OnTimeQueue order_;
  std::optional<routing::AdmissionQueue> fair_;
  std::vector<routing::QueuedRequest> expired_;  // scratch
};

}  // namespace penstock::sim
