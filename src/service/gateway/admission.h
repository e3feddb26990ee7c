// Admission: requests wait here, in front of the engines, until one has room.
//
// What is admitted at once hardly notices: an empty queue and an engine with room are a few
// comparisons. Otherwise the request joins the AdmissionQueue of core/routing, which says who is
// next: the higher priority, then tenants by their shares of predicted time, then the latest start
// at which the first token is in time: first_token_target, or three times what the prompt takes by
// itself without a hit where that is longer. Those of a tenant that can't all be in time are put
// off, the costliest first (docs/design/0010). The head is looked at when something was given back
// to the engines' room, and every worker_wait_step, because loads come with frames. While the head
// does not fit nobody overtakes it but a higher priority or another tenant's turn, so a large
// request is not starved by small ones.
//
// An admitted request holds a Slot until it leaves the engines; moves from a lost worker to another
// need no second admission.
//
// Invariants: running() counts the slots that live; who waits is in the queue once and leaves it
// with its answer: admitted, expired, evicted or gone. Every wait ends at its deadline.
// Errors: kRateLimited above the tenant's limit; kOverloaded for a full queue, an eviction, a
// deadline, or what was put off for a minute; kCancelled by leave(). Concurrency: shard thread
// only. Source: design.md section 7.
#pragma once

#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "core/routing/admission_queue.h"
#include "port/clock.h"

namespace penstock::gateway {

struct AdmissionLimits {
  std::uint32_t running_max = 1024;  // requests on the engines at once
  std::uint32_t queue_max = 1024;
  std::uint32_t tenant_queue_max = 1024;
  Duration queue_time_max = std::chrono::minutes(10);
  // For the first token, when it is not a long prompt's; 0: requests go by their deadlines, and
  // none is put off.
  Duration first_token_target = std::chrono::seconds(2);
};

struct AdmissionTicket {
  RequestId id;  // unique among those that wait
  std::string_view tenant;
  double weight = 1;
  int priority = 0;
  // Predicted: on the engines; of what is not cached of its prompt; of the whole prompt.
  double work_seconds = 0;
  double prompt_seconds = 0;
  double cold_prompt_seconds = 0;
  double ranks = 1;                // that compute such prompts
  Instant deadline;                // of the request itself
  std::function<bool()> has_room;  // on the engines, for this request, now
};

class Admission {
 public:
  class Slot {
   public:
    Slot() = default;
    Slot(Slot&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
    Slot& operator=(Slot&& other) noexcept {
      if (this != &other) {
        give_back();
        of_ = std::exchange(other.of_, nullptr);
      }
      return *this;
    }
    ~Slot() { give_back(); }
    void give_back() {
      if (of_ == nullptr) return;
      Admission& of = *std::exchange(of_, nullptr);
      --of.running_;
      of.room_may_have_come();
    }

   private:
    friend class Admission;
    explicit Slot(Admission& of) : of_(&of) {}
    Admission* of_ = nullptr;
  };
  struct Refusal {
    Error error;
    std::string_view limit;  // its configuration key; empty when none refused it
  };

  Admission(Clock& clock, const AdmissionLimits& limits) : clock_(clock), limits_(limits) {}
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;
  ~Admission();

  Task<std::expected<Slot, Refusal>> enter(AdmissionTicket ticket);
  // The request's client has gone: its enter() returns at once.
  void leave(RequestId id);
  // A leg has ended, or a load has been heard of.
  void room_may_have_come();

  std::size_t queued() const { return queue_.size(); }
  std::uint32_t running() const { return running_; }

 private:
  struct Waiter;
  routing::QueuedRequest to_queue(const AdmissionTicket& ticket, Instant until) const;
  void answer(RequestId id, std::optional<Refusal> refusal);
  void look_at(Instant when);
  void admit_those_that_fit();

  Clock& clock_;
  const AdmissionLimits& limits_;
  routing::AdmissionQueue queue_{{}};
  std::map<RequestId, Waiter*> waiters_;
  std::uint32_t running_ = 0;
  Clock::TimerId timer_ = 0;
  Instant timer_at_;
};

}  // namespace penstock::gateway
