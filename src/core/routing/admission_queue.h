// The queue in front of the engines: priorities, fair shares of tenants, earliest deadline first.
//
// A higher priority always goes first. Within one, tenants take turns by deficit round robin: each
// turn adds `quantum * weight` seconds of predicted work to what a tenant may spend, so tenants
// with long prompts get as much time as those with short ones, not as many requests. Within a
// tenant the earliest deadline goes first, then the earliest arrival.
//
// Shedding: a tenant above its own limit, while the queue has room, should slow down (429). A full
// queue, or no engine that could serve, is our fault (503). A full queue still takes a request of
// higher priority, in place of the newest one of the lowest.
//
// Invariants: sizes are within their limits; what was pushed leaves once: popped, removed, expired
// or evicted. Order depends on nothing but the calls. Units: seconds of predicted work.
// Errors: kRateLimited, kOverloaded, kUnavailable, kConflict for an id that is queued.
// Cost: O(log n) and O(tenants); an eviction looks at the whole lowest priority.
// Concurrency: one thread. Source: M. Shreedhar, G. Varghese, "Efficient fair queueing using
// deficit round robin", 1995; facts: engines.md 2.3.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace penstock::routing {

using TenantKey = Id<struct TenantKeyTag>;

struct QueueOptions {
  std::size_t requests_max = 4096;
  std::size_t tenant_requests_max = 1024;
  double quantum_seconds = 0.25;
};

struct QueuedRequest {
  RequestId id;
  TenantKey tenant;
  double weight = 1;  // of the tenant
  int priority = 0;   // higher first
  Instant deadline = Instant::max();
  double work_seconds = 0;  // predicted
};

class AdmissionQueue {
 public:
  explicit AdmissionQueue(const QueueOptions& options) : options_(options) {}

  // For what is pushed from now on.
  void set_limits(std::size_t requests_max, std::size_t tenant_requests_max) {
    options_.requests_max = requests_max;
    options_.tenant_requests_max = tenant_requests_max;
  }
  // Takes the request, or says why not. `can_serve`: some engine could ever serve it. What had to
  // leave for it, if anything, is in the value.
  Result<std::optional<QueuedRequest>> push(const QueuedRequest& request, bool can_serve);
  // The next to serve, still queued: a later arrival of higher priority goes before it. Requests
  // whose deadline is over leave and are added to `expired`. Valid until the next call.
  const QueuedRequest* front(Instant now, std::vector<QueuedRequest>& expired);
  // Takes front() out, on its tenant's account.
  std::optional<QueuedRequest> pop(Instant now, std::vector<QueuedRequest>& expired);
  bool remove(RequestId id);

  std::size_t size() const { return by_id_.size(); }
  std::size_t tenant_size(TenantKey tenant) const;

 private:
  struct Order {
    Instant deadline;
    std::uint64_t number = 0;  // of arrival
    auto operator<=>(const Order&) const = default;
  };
  struct Flow {
    std::map<Order, QueuedRequest> requests;
    double deficit = 0;
    bool topped_up = false;  // in its present turn
  };
  struct Band {
    std::map<TenantKey, Flow> flows;
    std::list<TenantKey> turns;  // tenants with requests; the front one has its turn
  };
  struct Where {
    int priority = 0;
    TenantKey tenant;
    Order order;
  };

  double quantum(const QueuedRequest& request) const;
  void skip_rounds(Band& band) const;
  QueuedRequest take(const Where& where);
  std::optional<QueuedRequest> evict_below(int priority);

  QueueOptions options_;
  std::map<int, Band, std::greater<>> bands_;
  std::map<RequestId, Where> by_id_;
  std::map<TenantKey, std::size_t> by_tenant_;
  std::uint64_t next_number_ = 0;
};

}  // namespace penstock::routing
