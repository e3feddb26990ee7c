#include "core/routing/admission_queue.h"

#include <map>
#include <set>

#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock::routing {
namespace {

using std::chrono::seconds;

Instant at(int second) {
  return Instant{} + seconds(second);
}

QueuedRequest request(std::uint64_t id, std::uint64_t tenant, double work = 0.1) {
  return {.id = RequestId(id), .tenant = TenantKey(tenant), .work_seconds = work};
}

std::vector<std::uint64_t> drain(AdmissionQueue& queue, Instant now = at(0)) {
  std::vector<std::uint64_t> ids;
  std::vector<QueuedRequest> expired;
  while (auto next = queue.pop(now, expired))
    ids.push_back(next->id.value);
  return ids;
}

TEST_CASE("a higher priority goes first, then the earlier deadline, then the earlier arrival") {
  AdmissionQueue queue({});
  auto add = [&](std::uint64_t id, int priority, Instant deadline) {
    QueuedRequest r = request(id, 1);
    r.priority = priority;
    r.deadline = deadline;
    REQUIRE(queue.push(r, true));
  };
  add(1, 0, Instant::max());
  add(2, 0, at(20));
  add(3, 5, at(50));
  add(4, 0, at(10));
  add(5, 0, at(20));
  add(6, 5, at(40));
  CHECK(drain(queue) == std::vector<std::uint64_t>{6, 3, 4, 2, 5, 1});
  CHECK(queue.size() == 0);
}

TEST_CASE("what is next stays queued until it is taken, and an earlier one may come before it") {
  AdmissionQueue queue({});
  std::vector<QueuedRequest> expired;
  CHECK(queue.front(at(0), expired) == nullptr);
  REQUIRE(queue.push(request(1, 1, 3), true));
  REQUIRE(queue.push(request(2, 2, 1), true));
  for (int i = 0; i < 5; ++i) {
    const QueuedRequest* const next = queue.front(at(0), expired);
    REQUIRE(next != nullptr);
    CHECK(next->id == RequestId(2));  // looking costs nobody anything
  }
  CHECK(queue.size() == 2);
  QueuedRequest urgent = request(3, 1);
  urgent.priority = 1;
  REQUIRE(queue.push(urgent, true));
  CHECK(queue.front(at(0), expired)->id == RequestId(3));
  CHECK(drain(queue) == std::vector<std::uint64_t>{3, 2, 1});
  QueuedRequest late = request(4, 1);
  late.deadline = at(1);
  REQUIRE(queue.push(late, true));
  CHECK(queue.front(at(1), expired) == nullptr);
  REQUIRE(expired.size() == 1);
  CHECK(expired[0].id == RequestId(4));
  CHECK(queue.size() == 0);
}

TEST_CASE("tenants share time, not requests") {
  AdmissionQueue queue({.requests_max = 100'000, .tenant_requests_max = 100'000});
  // Tenant 1 asks for 1 s each, tenant 2 for 0.05 s each.
  for (std::uint64_t i = 0; i < 200; ++i)
    REQUIRE(queue.push(request(i, 1, 1), true));
  for (std::uint64_t i = 1000; i < 5000; ++i)
    REQUIRE(queue.push(request(i, 2, 0.05), true));
  std::map<std::uint64_t, double> served;
  std::vector<QueuedRequest> expired;
  for (int i = 0; i < 2000; ++i) {
    const auto next = queue.pop(at(0), expired);
    REQUIRE(next);
    served[next->tenant.value] += next->work_seconds;
    if (i > 100) REQUIRE(std::abs(served[1] - served[2]) <= 1.5);
  }
}

TEST_CASE("weights scale the shares") {
  AdmissionQueue queue({});
  for (std::uint64_t i = 0; i < 600; ++i) {
    QueuedRequest r = request(i, i % 2, 0.1);
    r.weight = i % 2 == 0 ? 3 : 1;
    REQUIRE(queue.push(r, true));
  }
  std::map<std::uint64_t, int> served;
  std::vector<QueuedRequest> expired;
  for (int i = 0; i < 200; ++i)
    ++served[queue.pop(at(0), expired)->tenant.value];
  CHECK(std::abs(served[0] - 150) <= 10);
}

TEST_CASE("work far above the quantum is served, and at once") {
  AdmissionQueue queue({.quantum_seconds = 1e-6});
  REQUIRE(queue.push(request(1, 1, 1e6), true));
  REQUIRE(queue.push(request(2, 2, 2e6), true));
  CHECK(drain(queue) == std::vector<std::uint64_t>{1, 2});
}

TEST_CASE("expired requests are handed back, not served") {
  AdmissionQueue queue({});
  QueuedRequest r = request(1, 1);
  r.deadline = at(5);
  REQUIRE(queue.push(r, true));
  REQUIRE(queue.push(request(2, 1), true));
  std::vector<QueuedRequest> expired;
  const auto next = queue.pop(at(5), expired);
  REQUIRE(next);
  CHECK(next->id == RequestId(2));
  REQUIRE(expired.size() == 1);
  CHECK(expired[0].id == RequestId(1));
  CHECK(!queue.pop(at(5), expired));
}

TEST_CASE("shed with the right status") {
  AdmissionQueue queue({.requests_max = 3, .tenant_requests_max = 2});
  CHECK(queue.push(request(1, 1), false).error().code == ErrorCode::kUnavailable);
  REQUIRE(queue.push(request(1, 1), true));
  CHECK(queue.push(request(1, 1), true).error().code == ErrorCode::kConflict);
  REQUIRE(queue.push(request(2, 1), true));
  CHECK(queue.push(request(3, 1), true).error().code == ErrorCode::kRateLimited);
  REQUIRE(queue.push(request(3, 2), true));
  const auto full = queue.push(request(4, 3), true);
  REQUIRE(!full);
  CHECK(full.error().code == ErrorCode::kOverloaded);
  CHECK(error_info(full.error().code).http_status == 503);
  // A higher priority takes the place of the newest of the lowest.
  QueuedRequest urgent = request(5, 3);
  urgent.priority = 1;
  const auto taken = queue.push(urgent, true);
  REQUIRE(taken);
  REQUIRE(*taken);
  CHECK((**taken).id == RequestId(3));
  CHECK(queue.size() == 3);
  CHECK(drain(queue) == std::vector<std::uint64_t>{5, 1, 2});
}

TEST_CASE("who can't be in time is put off, and only within its tenant") {
  AdmissionQueue queue({.on_time = {.useful_share = 1}});
  const auto add = [&](std::uint64_t id, std::uint64_t tenant, double prompt, int latest_start) {
    QueuedRequest r = request(id, tenant, prompt);
    r.prompt_seconds = prompt;
    r.latest_start = at(latest_start);
    REQUIRE(queue.push(r, true));
  };
  // One rank: 1 would keep 2 and 3 from their starts.
  add(1, 1, 50, 3);
  add(2, 1, 1, 4);
  add(3, 1, 1, 5);
  CHECK(drain(queue) == std::vector<std::uint64_t>{2, 3, 1});
  // Half of the rank is the other tenant's, whose long prompt is in time: it is not put off for a
  // flood of tenant 1, of which two are too many.
  add(9, 2, 2, 30);
  for (std::uint64_t id = 1; id <= 6; ++id)
    add(id, 1, 1, 6);
  const auto order = drain(queue);
  REQUIRE(order.size() == 7);
  CHECK(order.back() != 9);
  CHECK(std::set(order.begin(), order.end()) == std::set<std::uint64_t>{1, 2, 3, 4, 5, 6, 9});
}

TEST_CASE("a higher priority goes before whoever is in a hurry") {
  AdmissionQueue queue({});
  QueuedRequest urgent = request(1, 1);
  urgent.latest_start = at(1);
  QueuedRequest higher = request(2, 1);
  higher.latest_start = at(100);
  higher.priority = 1;
  REQUIRE(queue.push(urgent, true));
  REQUIRE(queue.push(higher, true));
  CHECK(drain(queue) == std::vector<std::uint64_t>{2, 1});
}

TEST_CASE("what was put off waits a minute at most, whoever else is served") {
  AdmissionQueue queue({.on_time = {.useful_share = 1}});
  QueuedRequest costly = request(1, 1, 50);
  costly.prompt_seconds = 50;
  costly.latest_start = at(1);
  REQUIRE(queue.push(costly, true));
  std::vector<QueuedRequest> expired;
  std::uint64_t id = 2;
  int served = 0;
  for (int second = 0; second <= 60; ++second) {
    QueuedRequest r = request(id++, 1, 0.5);
    r.arrival = at(second);
    r.prompt_seconds = 0.5;
    r.latest_start = at(second + 2);
    REQUIRE(queue.push(r, true));
    const auto next = queue.pop(at(second), expired);
    REQUIRE(next);
    CHECK(next->id != RequestId(1));
    CHECK(expired.empty());
    ++served;
  }
  CHECK(served == 61);
  CHECK(queue.size() == 1);
  CHECK(queue.front(at(61), expired) == nullptr);
  REQUIRE(expired.size() == 1);
  CHECK(expired[0].id == RequestId(1));
  CHECK(queue.size() == 0);
  CHECK(queue.tenant_size(TenantKey(1)) == 0);
}

TEST_CASE("whatever happens, what was pushed leaves exactly once") {
  Rng rng(17);
  for (int round = 0; round < 30; ++round) {
    AdmissionQueue queue({.requests_max = 40, .tenant_requests_max = 15});
    std::set<std::uint64_t> inside;
    std::vector<QueuedRequest> expired;
    const auto leaves = [&](RequestId id) { REQUIRE(inside.erase(id.value) == 1); };
    for (int op = 0; op < 2000; ++op) {
      const Instant now = at(op / 10);
      if (rng.below(2) == 0) {
        QueuedRequest r = request(rng.below(500), rng.below(5), 3 * rng.uniform());
        r.priority = static_cast<int>(rng.below(3));
        r.weight = 2 * rng.uniform();
        if (rng.below(3) == 0) r.deadline = now + seconds(rng.below(20));
        r.arrival = now;
        r.prompt_seconds = r.work_seconds;
        if (rng.below(2) == 0) r.latest_start = now + seconds(rng.below(5));
        const auto pushed = queue.push(r, rng.below(20) != 0);
        if (pushed) {
          if (*pushed) leaves((**pushed).id);
          REQUIRE(inside.insert(r.id.value).second);
        }
      } else if (rng.below(4) == 0) {
        const RequestId id(rng.below(500));
        const bool was = inside.contains(id.value);
        REQUIRE(queue.remove(id) == was);
        if (was) leaves(id);
      } else {
        expired.clear();
        const auto next = queue.pop(now, expired);
        for (const QueuedRequest& r : expired) {
          REQUIRE((r.deadline <= now || now - r.arrival > seconds(60)));
          leaves(r.id);
        }
        if (next) leaves(next->id);
        if (!next) REQUIRE(queue.size() == 0);
      }
      REQUIRE(queue.size() == inside.size());
      REQUIRE(queue.size() <= 40);
    }
  }
}

}  // namespace
}  // namespace penstock::routing
