#include "service/gateway/admission.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"

namespace penstock::gateway {
namespace {

// Loads come with frames, every 200 ms at least and mostly with each step.
constexpr Duration kLookInterval = std::chrono::milliseconds(20);

}  // namespace

// Lives in the frame of the enter() that waits.
struct Admission::Waiter {
  Waiter(Admission& admission, RequestId request, std::function<bool()> room)
      : of(admission), id(request), has_room(std::move(room)), answers(admission.clock_, 1) {
    of.waiters_.emplace(id, this);
  }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  ~Waiter() {
    of.waiters_.erase(id);
    static_cast<void>(of.queue_.remove(id));
  }

  Admission& of;
  RequestId id;
  std::function<bool()> has_room;
  Channel<std::optional<Refusal>> answers;  // none: admitted
};

Admission::~Admission() {
  if (timer_ != 0) clock_.cancel(timer_);
}

Task<std::expected<Admission::Slot, Admission::Refusal>> Admission::enter(AdmissionTicket ticket) {
  if (queue_.size() == 0 && running_ < limits_.running_max && ticket.has_room()) {
    ++running_;
    co_return Slot(*this);
  }
  const Instant until = std::min(ticket.deadline, clock_.now() + limits_.queue_time_max);
  queue_.set_limits(limits_.queue_max, limits_.tenant_queue_max);
  const routing::QueuedRequest queued{ticket.id,     routing::TenantKey(checksum64(ticket.tenant)),
                                      ticket.weight, ticket.priority,
                                      until,         ticket.work_seconds};
  auto pushed = queue_.push(queued, true);
  if (!pushed) {
    const bool of_tenant = pushed.error().code == ErrorCode::kRateLimited;
    co_return std::unexpected(
        Refusal{std::move(pushed).error(), of_tenant ? "limits.tenant_queue" : "limits.queue"});
  }
  Waiter waiter(*this, ticket.id, std::move(ticket.has_room));
  if (*pushed) {
    answer((*pushed)->id,
           Refusal{{ErrorCode::kOverloaded,
                    "the queue is full, and requests of higher priority came; try again later",
                    {},
                    {}},
                   "limits.queue"});
  }
  look_at(clock_.now());
  auto came = co_await waiter.answers.pop(until);
  if (came && !*came) co_return Slot(*this);
  if (came) co_return std::unexpected(std::move(**came));
  co_return std::unexpected(
      Refusal{{ErrorCode::kOverloaded,
               "no engine had room for the request in time (limits.queue_time); try again later",
               {},
               {}},
              "limits.queue_time"});
}

void Admission::answer(RequestId id, std::optional<Refusal> refusal) {
  const auto waiter = waiters_.find(id);
  if (waiter == waiters_.end()) return;
  static_cast<void>(waiter->second->answers.push(std::move(refusal)));
}

void Admission::leave(RequestId id) {
  if (!queue_.remove(id)) return;
  answer(id,
         Refusal{{ErrorCode::kCancelled, "the request was given up while it waited", {}, {}}, {}});
  room_may_have_come();  // the next one may fit
}

void Admission::room_may_have_come() {
  if (queue_.size() > 0) look_at(clock_.now());
}

void Admission::look_at(Instant when) {
  if (timer_ != 0) {
    if (timer_at_ <= when) return;
    clock_.cancel(timer_);
  }
  timer_at_ = when;
  timer_ = clock_.call_at(when, [this] {
    timer_ = 0;
    admit_those_that_fit();
  });
}

// An answer runs its request up to where it next waits, so the room that it takes is seen here.
void Admission::admit_those_that_fit() {
  std::vector<routing::QueuedRequest> expired;
  while (true) {
    const routing::QueuedRequest* const next = queue_.front(clock_.now(), expired);
    if (!expired.empty()) {
      // Their own timers answer them, in this same moment.
      expired.clear();
      continue;
    }
    if (next == nullptr) return;
    const RequestId id = next->id;
    if (running_ >= limits_.running_max || !waiters_.at(id)->has_room()) break;
    static_cast<void>(queue_.pop(clock_.now(), expired));
    ++running_;
    answer(id, std::nullopt);
  }
  look_at(clock_.now() + kLookInterval);
}

}  // namespace penstock::gateway
