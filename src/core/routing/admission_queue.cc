#include "core/routing/admission_queue.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace penstock::routing {
namespace {

// A weight of nothing would wait for ever.
constexpr double kWeightMin = 0.01;

double weight_of(const QueuedRequest& request) {
  return std::max(request.weight, kWeightMin);
}

}  // namespace

std::size_t AdmissionQueue::tenant_size(TenantKey tenant) const {
  const auto at = by_tenant_.find(tenant);
  return at == by_tenant_.end() ? 0 : at->second;
}

std::size_t AdmissionQueue::late() const {
  std::size_t late = 0;
  for (const auto& [priority, band] : bands_)
    for (const auto& [tenant, flow] : band.flows)
      late += flow.order.late();
  return late;
}

Result<std::optional<QueuedRequest>> AdmissionQueue::push(const QueuedRequest& request,
                                                          bool can_serve) {
  if (!can_serve)
    return fail(ErrorCode::kUnavailable, "no engine can serve this request now; try again later");
  if (by_id_.contains(request.id))
    return fail(ErrorCode::kConflict, "a request of this id is already queued");
  if (tenant_size(request.tenant) >= options_.tenant_requests_max)
    return fail(ErrorCode::kRateLimited,
                fmt::format("{} requests of this tenant are queued, which is its limit; slow down",
                            options_.tenant_requests_max));
  std::optional<QueuedRequest> evicted;
  if (size() >= options_.requests_max) {
    evicted = evict_below(request.priority);
    if (!evicted)
      return fail(
          ErrorCode::kOverloaded,
          fmt::format("the queue is full ({} requests); try again later", options_.requests_max));
  }
  Band& band = bands_[request.priority];
  auto [flow, added] = band.flows.try_emplace(request.tenant, options_.on_time);
  if (added) band.turns.push_back(request.tenant);
  const std::uint64_t number = next_number_++;
  flow->second.requests.emplace(number, request);
  by_id_.emplace(request.id, Where{request.priority, request.tenant, number});
  flow->second.order.push(
      {RequestId(number), request.arrival, std::min(request.latest_start, request.deadline),
       request.prompt_seconds},
      request.arrival, request.ranks * share(band, request));
  ++by_tenant_[request.tenant];
  return evicted;
}

// Takes a request out; flows and bands without any go, and with them the tenant's saved turns.
QueuedRequest AdmissionQueue::take(const Where& where) {
  const auto band = bands_.find(where.priority);
  ENSURE(band != bands_.end());
  const auto flow = band->second.flows.find(where.tenant);
  ENSURE(flow != band->second.flows.end());
  auto node = flow->second.requests.extract(where.number);
  ENSURE(!node.empty());
  static_cast<void>(flow->second.order.remove(RequestId(where.number)));
  QueuedRequest request = std::move(node.mapped());
  if (flow->second.requests.empty()) {
    band->second.flows.erase(flow);
    band->second.turns.remove(request.tenant);
    if (band->second.flows.empty()) bands_.erase(band);
  }
  by_id_.erase(request.id);
  const auto count = by_tenant_.find(request.tenant);
  if (--count->second == 0) by_tenant_.erase(count);
  return request;
}

// The newest arrival of the lowest priority, if that is below `priority`.
std::optional<QueuedRequest> AdmissionQueue::evict_below(int priority) {
  if (bands_.empty() || bands_.rbegin()->first >= priority) return std::nullopt;
  const auto& [lowest, band] = *bands_.rbegin();
  std::optional<Where> newest;
  for (const auto& [tenant, flow] : band.flows)
    if (const auto last = flow.requests.rbegin()->first; !newest || last > newest->number)
      newest = Where{lowest, tenant, last};
  return take(*newest);
}

const QueuedRequest* AdmissionQueue::front(Instant now, std::vector<QueuedRequest>& expired) {
  give_up(now, expired);
  std::size_t passed = 0;  // turns in a row that were not enough
  while (!bands_.empty()) {
    const auto band = bands_.begin();
    const TenantKey tenant = band->second.turns.front();
    Flow& flow = band->second.flows.at(tenant);
    const QueuedRequest& request = flow.next();
    const Where where = by_id_.at(request.id);
    if (request.deadline <= now) {
      expired.push_back(take(where));
      passed = 0;
      continue;
    }
    if (!flow.topped_up) {
      flow.deficit += quantum(request);
      flow.topped_up = true;
    }
    if (flow.deficit >= request.work_seconds) return &request;
    flow.topped_up = false;  // its turn is over; the rest is saved
    band->second.turns.splice(band->second.turns.end(), band->second.turns,
                              band->second.turns.begin());
    if (++passed < band->second.turns.size()) continue;
    skip_rounds(band->second);
    passed = 0;
  }
  return nullptr;
}

std::optional<QueuedRequest> AdmissionQueue::pop(Instant now, std::vector<QueuedRequest>& expired) {
  const QueuedRequest* const next = front(now, expired);
  if (next == nullptr) return std::nullopt;
  const Where where = by_id_.at(next->id);
  bands_.at(where.priority).flows.at(where.tenant).deficit -= next->work_seconds;
  return take(where);
}

// Of the engines' time, among the tenants that wait with it.
double AdmissionQueue::share(const Band& band, const QueuedRequest& request) {
  double others = 0;
  for (const auto& [tenant, flow] : band.flows)
    if (tenant != request.tenant) others += weight_of(flow.next());
  return weight_of(request) / (weight_of(request) + others);
}

double AdmissionQueue::quantum(const QueuedRequest& request) const {
  return std::max(options_.quantum_seconds, 1e-6) * weight_of(request);
}

// Nobody could be served in a whole round: credits the rounds that pass until somebody can, at
// once.
void AdmissionQueue::skip_rounds(Band& band) const {
  double rounds = std::numeric_limits<double>::infinity();
  for (const auto& [tenant, flow] : band.flows) {
    const QueuedRequest& next = flow.next();
    rounds = std::min(rounds, std::ceil((next.work_seconds - flow.deficit) / quantum(next)));
  }
  // The next turn adds one quantum itself.
  rounds = std::max(rounds - 1, 0.0);
  for (auto& [tenant, flow] : band.flows)
    flow.deficit += rounds * quantum(flow.next());
}

void AdmissionQueue::give_up(Instant now, std::vector<QueuedRequest>& expired) {
  std::vector<RequestId> numbers;
  std::vector<RequestId> ids;
  for (auto& [priority, band] : bands_) {
    for (auto& [tenant, flow] : band.flows) {
      numbers.clear();
      flow.order.give_up(now, numbers);
      for (const RequestId number : numbers)
        ids.push_back(flow.requests.at(number.value).id);
    }
  }
  for (const RequestId id : ids)
    expired.push_back(take(Where(by_id_.at(id))));
}

bool AdmissionQueue::remove(RequestId id) {
  const auto at = by_id_.find(id);
  if (at == by_id_.end()) return false;
  const Where where = at->second;
  (void)take(where);
  return true;
}

}  // namespace penstock::routing
