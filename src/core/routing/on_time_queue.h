// Prompts that wait in front of the prefill engines: as many in time as possible.
//
// Every prompt has a latest start: its deadline less its own compute and what it waits once a rank
// has it. While all that wait can
// start in time they go in that order. When one could not, because of the work before it, the
// costliest of those up to it is put off (the very first never is: it may still be in time), as in
// Moore and Hodgson's rule for the fewest late jobs: one prompt of 100K tokens stands in the way of
// a hundred short ones. What is put off is served, oldest first, whenever nothing that can be in
// time is waiting; after `late_wait_max` it is given up (503).
//
// Invariants: what is pushed leaves once: popped, removed or expired. Order depends on nothing but
// the calls; ties go to the lower id. Units: seconds of work of one rank; Instant.
// Cost: O(waiting) a push and a pop, a few nanoseconds each. Concurrency: one thread.
// Source: J. M. Moore, "An n job, one machine sequencing algorithm for minimizing the number of
// late jobs", 1968; docs/design/0010-on-time-queue.md.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "base/units.h"

namespace penstock::routing {

struct OnTimeOptions {
  bool put_off = true;  // false: latest start first, whatever comes of it
  Duration late_wait_max = std::chrono::seconds(60);
  // Part of the ranks' time that becomes predicted work: less for steps' base costs, ranks that
  // wait for the slowest of their engine, and what is not foreseen.
  double useful_share = 0.8;
};

struct WaitingPrompt {
  RequestId id;
  Instant arrival{};
  Instant latest_start{};
  double work_seconds = 0;
};

class OnTimeQueue {
 public:
  explicit OnTimeQueue(const OnTimeOptions& options) : options_(options) {}

  // So many ranks serve this queue.
  void push(const WaitingPrompt& prompt, Instant now, double ranks);
  // Takes out those that were put off and have waited too long.
  void give_up(Instant now, std::vector<RequestId>& expired);
  // The next to serve, still in; null when there is none. Valid until the next call.
  const WaitingPrompt* front() const;
  // Takes front() out, after give_up().
  std::optional<WaitingPrompt> pop(Instant now, std::vector<RequestId>& expired);
  bool remove(RequestId id);

  std::size_t size() const { return waiting_.size() + late_.size(); }
  std::size_t late() const { return late_.size(); }
  double waiting_seconds() const;  // of those not put off

 private:
  void put_off_costliest(Instant now, double ranks);

  OnTimeOptions options_;
  std::vector<WaitingPrompt> waiting_;  // by latest start, the last one goes first
  std::deque<WaitingPrompt> late_;      // by being put off
};

}  // namespace penstock::routing
