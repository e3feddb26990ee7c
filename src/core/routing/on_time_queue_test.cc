#include "core/routing/on_time_queue.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/rng.h"
#include "core/routing/cost_model.h"

#include <doctest/doctest.h>

namespace penstock::routing {
namespace {

Instant at(double s) {
  return Instant{} + to_duration(s);
}

WaitingPrompt prompt(std::uint64_t id, double latest_start, double work) {
  return {RequestId(id), at(0), at(latest_start), work};
}

std::vector<std::uint64_t> drain(OnTimeQueue& queue, Instant now) {
  std::vector<std::uint64_t> ids;
  std::vector<RequestId> expired;
  while (const auto next = queue.pop(now, expired))
    ids.push_back(next->id.value);
  CHECK(expired.empty());
  return ids;
}

TEST_CASE("latest start first; ties by id") {
  OnTimeQueue queue({.useful_share = 1});
  queue.push(prompt(1, 3, 0.1), at(0), 1);
  queue.push(prompt(4, 1, 0.1), at(0), 1);
  queue.push(prompt(3, 2, 0.1), at(0), 1);
  queue.push(prompt(2, 2, 0.1), at(0), 1);
  CHECK(queue.waiting_seconds() == doctest::Approx(0.4));
  CHECK(drain(queue, at(0)) == std::vector<std::uint64_t>{4, 2, 3, 1});
}

TEST_CASE("the costliest is put off when it makes another late, and served when nothing is") {
  OnTimeQueue queue({.useful_share = 1});
  queue.push(prompt(1, 0.5, 5), at(0), 1);
  queue.push(prompt(2, 1, 0.4), at(0), 1);  // would start at 5
  CHECK(queue.late() == 1);
  queue.push(prompt(3, 1.2, 0.4), at(0), 1);
  CHECK(queue.late() == 1);
  CHECK(drain(queue, at(0)) == std::vector<std::uint64_t>{2, 3, 1});

  OnTimeQueue wide({.useful_share = 1});  // ten ranks: nobody is late
  wide.push(prompt(1, 0.5, 5), at(0), 10);
  wide.push(prompt(2, 1, 0.4), at(0), 10);
  CHECK(wide.late() == 0);

  OnTimeQueue never({.put_off = false});
  never.push(prompt(1, 0.5, 5), at(0), 1);
  never.push(prompt(2, 1, 0.4), at(0), 1);
  CHECK(never.late() == 0);
}

TEST_CASE("what waits too long is given up, what is removed is gone") {
  OnTimeQueue queue({.late_wait_max = std::chrono::seconds(10), .useful_share = 1});
  queue.push(prompt(1, 0.5, 2), at(0), 1);
  queue.push(prompt(2, 1, 1), at(0), 1);
  CHECK(queue.late() == 1);
  std::vector<RequestId> expired;
  const auto next = queue.pop(at(11), expired);
  REQUIRE(next);
  CHECK(next->id.value == 2);
  CHECK(expired == std::vector<RequestId>{RequestId(1)});
  CHECK(queue.size() == 0);
  queue.push(prompt(3, 50, 1), at(11), 1);
  CHECK(queue.remove(RequestId(3)));
  CHECK(!queue.remove(RequestId(3)));
  CHECK(!queue.pop(at(11), expired));
}

// One rank, all there at once: the rule finds the fewest late.
TEST_CASE("as many in time as any choice allows") {
  Rng rng(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<WaitingPrompt> prompts;
    for (std::uint64_t i = 0; i < 8; ++i) {
      const double work = 0.1 + rng.uniform();
      prompts.push_back(prompt(i, work + 4 * rng.uniform() - work, work));
    }
    OnTimeQueue queue({.useful_share = 1});
    for (const WaitingPrompt& p : prompts)
      queue.push(p, at(0), 1);
    std::size_t best = 0;
    for (unsigned set = 0; set < 256; ++set) {
      std::vector<WaitingPrompt> chosen;
      for (unsigned i = 0; i < 8; ++i)
        if ((set >> i & 1U) != 0) chosen.push_back(prompts[i]);
      std::ranges::sort(chosen, {}, &WaitingPrompt::latest_start);
      double before = 0;
      bool in_time = true;
      for (const WaitingPrompt& p : chosen) {
        in_time = in_time && before <= to_seconds(p.latest_start - at(0));
        before += p.work_seconds;
      }
      if (in_time) best = std::max(best, chosen.size());
    }
    // Pushed one by one and judged by starts, not ends, it is a rule of thumb: within one.
    CHECK(queue.size() - queue.late() + 1 >= best);
    CHECK(queue.size() - queue.late() <= best);
  }
}

TEST_CASE("whatever happens, what is pushed leaves once") {
  Rng rng(6);
  OnTimeQueue queue({.late_wait_max = std::chrono::seconds(3)});
  std::multiset<std::uint64_t> in;
  std::multiset<std::uint64_t> out;
  std::vector<RequestId> expired;
  for (std::uint64_t i = 0; i < 5000; ++i) {
    const double now = static_cast<double>(i) * 0.01;
    in.insert(i);
    queue.push({RequestId(i), at(now), at(now + 2 * rng.uniform()), 0.05 * rng.uniform()}, at(now),
               1 + rng.uniform());
    if (rng.below(2) == 0)
      if (const auto next = queue.pop(at(now), expired)) out.insert(next->id.value);
  }
  while (const auto next = queue.pop(at(60), expired))
    out.insert(next->id.value);
  for (const RequestId id : expired)
    out.insert(id.value);
  CHECK(in == out);
  CHECK(!expired.empty());
}

}  // namespace
}  // namespace penstock::routing
