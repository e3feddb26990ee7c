#include "service/gateway/admission.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "core/routing/cost_model.h"

namespace penstock::gateway {
namespace {

// Loads come with frames, every 200 ms at least and mostly with each step.
constexpr Duration kLookInterval = std::chrono::milliseconds(20);
// A long prompt is in time when its first token comes within so many times its own computation.
constexpr double kColdPromptFactor = 3;

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
  auto pushed = queue_.push(to_queue(ticket, until), true);
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

routing::QueuedRequest Admission::to_queue(const AdmissionTicket& ticket, Instant until) const {
  routing::QueuedRequest queued{.id = ticket.id,
                                .tenant = routing::TenantKey(checksum64(ticket.tenant)),
                                .weight = ticket.weight,
                                .priority = ticket.priority,
                                .deadline = until,
                                .work_seconds = ticket.work_seconds,
                                .arrival = clock_.now()};
  if (limits_.first_token_target <= Duration::zero()) return queued;
  const Duration in_time =
      std::max(limits_.first_token_target,
               routing::to_duration(kColdPromptFactor * ticket.cold_prompt_seconds));
  queued.latest_start = queued.arrival + in_time - routing::to_duration(ticket.prompt_seconds);
  queued.prompt_seconds = ticket.prompt_seconds;
  queued.ranks = ticket.ranks;
  return queued;
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
      // Whose deadline is over their own timers answer, in this same moment.
      for (const routing::QueuedRequest& request : std::exchange(expired, {}))
        if (request.deadline > clock_.now())
          answer(request.id,
                 Refusal{{ErrorCode::kOverloaded,
                          "there is more to do than can be done in time, and the request was put "
                          "off for a minute; try again later",
                          {},
                          {}},
                         "gateway.first_token_target"});
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
