// The queue in front of the engines: priorities, fair shares of tenants, as many in time as can be.
//
// A higher priority always goes first. Within one, tenants take turns by deficit round robin: each
// turn adds `quantum * weight` seconds of predicted work to what a tenant may spend, so tenants
// with long prompts get as much time as those with short ones, not as many requests. Within a
// tenant the latest possible start goes first (without one, the deadline), then the earliest
// arrival. When a tenant's prompts can't all start in time on its share of the ranks, the costliest
// are put off (on_time_queue.h): they are served when nothing of the tenant that can be in time
// waits, and given up after a minute. So who asks for too much is late alone.
//
// Shedding: a tenant above its own limit, while the queue has room, should slow down (429). A full
// queue, or no engine that could serve, is our fault (503). A full queue still takes a request of
// higher priority, in place of the newest one of the lowest.
//
// Invariants: sizes are within their limits; what was pushed leaves once: popped, removed, expired
// (past its deadline, or put off and given up) or evicted. Order depends on nothing but the calls.
// Units: seconds of predicted work. Errors: kRateLimited, kOverloaded, kUnavailable, kConflict for
// an id that is queued. Cost: O(tenants) and O(a tenant's requests), a few nanoseconds each.
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
#include "core/routing/on_time_queue.h"

namespace penstock::routing {

using TenantKey = Id<struct TenantKeyTag>;

struct QueueOptions {
  std::size_t requests_max = 4096;
  std::size_t tenant_requests_max = 1024;
  double quantum_seconds = 0.25;
  OnTimeOptions on_time = {};
};

struct QueuedRequest {
  RequestId id;
  TenantKey tenant;
  double weight = 1;  // of the tenant
  int priority = 0;   // higher first
  Instant deadline = Instant::max();
  double work_seconds = 0;  // predicted
  Instant arrival{};
  Instant latest_start = Instant::max();  // to be in time
  double prompt_seconds = 0;              // predicted, of its prompt on one rank
  double ranks = 1;                       // that compute such prompts
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
  // whose deadline is over, and those given up, leave and are added to `expired`. Valid until the
  // next call.
  const QueuedRequest* front(Instant now, std::vector<QueuedRequest>& expired);
  // Takes front() out, on its tenant's account.
  std::optional<QueuedRequest> pop(Instant now, std::vector<QueuedRequest>& expired);
  bool remove(RequestId id);

  std::size_t size() const { return by_id_.size(); }
  std::size_t late() const;  // of them, put off
  std::size_t tenant_size(TenantKey tenant) const;

 private:
  struct Flow {
    explicit Flow(const OnTimeOptions& options) : order(options) {}
    const QueuedRequest& next() const { return requests.at(order.front()->id.value); }

    OnTimeQueue order;                                // of numbers
    std::map<std::uint64_t, QueuedRequest> requests;  // by number of arrival
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
    std::uint64_t number = 0;
  };

  static double share(const Band& band, const QueuedRequest& request);
  double quantum(const QueuedRequest& request) const;
  void skip_rounds(Band& band) const;
  QueuedRequest take(const Where& where);
  std::optional<QueuedRequest> evict_below(int priority);
  void give_up(Instant now, std::vector<QueuedRequest>& expired);

  QueueOptions options_;
  std::map<int, Band, std::greater<>> bands_;
  std::map<RequestId, Where> by_id_;
  std::map<TenantKey, std::size_t> by_tenant_;
  std::uint64_t next_number_ = 0;
};

}  // namespace penstock::routing
