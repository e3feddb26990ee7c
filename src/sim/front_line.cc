#include "sim/front_line.h"

#include <limits>

#include "base/check.h"

namespace penstock::sim {

FrontLine::FrontLine(const routing::OnTimeOptions& order, bool tenants) : order_(order) {
  if (tenants)
    fair_.emplace(
        routing::QueueOptions{.requests_max = std::numeric_limits<std::size_t>::max(),
                              .tenant_requests_max = std::numeric_limits<std::size_t>::max(),
                              .on_time = order});
}

void FrontLine::push(const routing::WaitingPrompt& prompt, std::size_t tenant,
                     const TenantShare& who, Instant now, double ranks) {
  if (!fair_) {
    order_.push(prompt, now, ranks);
    return;
  }
  const auto pushed = fair_->push({.id = prompt.id,
                                   .tenant = routing::TenantKey(tenant),
                                   .weight = who.weight,
                                   .priority = who.priority,
                                   .work_seconds = prompt.work_seconds,
                                   .arrival = prompt.arrival,
                                   .latest_start = prompt.latest_start,
                                   .prompt_seconds = prompt.work_seconds,
                                   .ranks = ranks},
                                  true);
  ENSURE(pushed.has_value());  // no limits, and a request waits once
}

std::optional<RequestId> FrontLine::pop(Instant now, std::vector<RequestId>& expired) {
  if (!fair_) {
    const auto next = order_.pop(now, expired);
    return next ? std::optional(next->id) : std::nullopt;
  }
  expired_.clear();
  const auto next = fair_->pop(now, expired_);
  for (const routing::QueuedRequest& request : expired_)
    expired.push_back(request.id);
  return next ? std::optional(next->id) : std::nullopt;
}

}  // namespace penstock::sim
