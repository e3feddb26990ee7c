// The queue in front, on virtual time: ranks that compute one prompt after the other take what it
// admits.
#include "service/gateway/admission.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "core/routing/cost_model.h"
#include "tests/support/virtual_clock.h"

#include <doctest/doctest.h>

namespace penstock::gateway {
namespace {

using routing::to_duration;
using routing::to_seconds;

struct Rig {
  testing::VirtualClock clock;
  AdmissionLimits limits;
  Admission admission{clock, limits};
  Gate gate;
  std::uint32_t ranks = 1;
  std::uint32_t busy = 0;
  struct Answer {
    std::uint64_t id = 0;
    double seconds = 0;  // until its first token, or its refusal
    std::optional<Admission::Refusal> refusal = {};
  };
  std::vector<Answer> answers;  // in their order

  ~Rig() {
    clock.advance(std::chrono::hours(1));
    CHECK(admission.queued() == 0);
    CHECK(admission.running() == 0);
  }

  void ask(std::uint64_t id, double prompt_seconds, std::string_view tenant = "ann",
           int priority = 0) {
    AdmissionTicket ticket;
    ticket.id = RequestId(id);
    ticket.tenant = tenant;
    ticket.priority = priority;
    ticket.work_seconds = ticket.prompt_seconds = ticket.cold_prompt_seconds = prompt_seconds;
    ticket.ranks = ranks;
    ticket.deadline = clock.now() + std::chrono::minutes(30);
    ticket.has_room = [this] { return busy < ranks; };
    gate.start(live(std::move(ticket)));
  }
  Task<void> live(AdmissionTicket ticket) {
    const std::uint64_t id = ticket.id.value;
    const Duration prompt = to_duration(ticket.prompt_seconds);
    const Instant began = clock.now();
    auto entered = co_await admission.enter(std::move(ticket));
    if (!entered) {
      answers.push_back({id, to_seconds(clock.now() - began), entered.error()});
      co_return;
    }
    ++busy;
    co_await Sleep(clock, prompt);
    --busy;
    answers.push_back({id, to_seconds(clock.now() - began)});
  }
  std::vector<std::uint64_t> order() const {
    std::vector<std::uint64_t> ids;
    for (const Answer& answer : answers)
      ids.push_back(answer.id);
    return ids;
  }
  std::size_t within(double seconds) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(answers, [&](const Answer& a) { return a.seconds <= seconds; }));
  }
};

// Ten prompts of 0.6 s and ten of 0.1 s at once: 7 s of work.
std::size_t in_time_of_a_burst(Duration target) {
  Rig rig;
  rig.limits.first_token_target = target;
  for (std::uint64_t id = 0; id < 20; ++id)
    rig.ask(id, id % 2 == 0 ? 0.6 : 0.1);
  rig.clock.advance(std::chrono::minutes(1));
  REQUIRE(rig.answers.size() == 20);
  for (const Rig::Answer& answer : rig.answers)
    CHECK(!answer.refusal);
  return rig.within(2);
}

// p99 of the first token of short prompts on 8 ranks at 60 %, which come at random.
double short_prompts_p99(bool with_a_long_one) {
  Rig rig;
  rig.ranks = 8;
  Rng rng(3);
  for (std::uint64_t id = 0; id < 4000; ++id) {
    rig.clock.advance(to_duration(-std::log(1 - rng.uniform()) * 0.1 / (8 * 0.6)));
    rig.ask(id, 0.1);
    if (with_a_long_one && id == 1000) rig.ask(100'000, 30);
  }
  rig.clock.advance(std::chrono::minutes(2));
  std::vector<double> seconds;
  for (const Rig::Answer& answer : rig.answers) {
    CHECK(!answer.refusal);
    if (answer.id < 100'000) seconds.push_back(answer.seconds);
  }
  REQUIRE(seconds.size() == 4000);
  std::ranges::sort(seconds);
  return seconds[seconds.size() * 99 / 100];
}

}  // namespace

TEST_CASE("the latest start goes first, and a higher priority before it") {
  Rig rig;
  rig.ask(1, 1);
  rig.ask(2, 10);  // in time within 30 s: starts at 20 s at the latest
  rig.ask(3, 0.5);
  rig.ask(4, 0.1);
  rig.ask(5, 1, "ann", 1);
  CHECK(rig.admission.queued() == 4);
  rig.clock.advance(std::chrono::minutes(1));
  CHECK((rig.order() == std::vector<std::uint64_t>{1, 5, 3, 4, 2}));
}

TEST_CASE("more are in time than by deadline alone, and all are served") {
  const std::size_t by_deadline = in_time_of_a_burst(Duration::zero());
  const std::size_t on_time = in_time_of_a_burst(std::chrono::seconds(2));
  CHECK(by_deadline <= 6);
  CHECK(on_time >= 10);
}

TEST_CASE("one prompt of a quarter of a million tokens hardly delays the short ones") {
  CHECK(short_prompts_p99(true) <= 1.2 * short_prompts_p99(false));
}

TEST_CASE("what is put off is refused after a minute, with 503") {
  Rig rig;
  rig.ask(1, 0.5);
  rig.ask(1000, 5);
  for (std::uint64_t id = 2; id < 150; ++id) {
    rig.clock.advance(std::chrono::milliseconds(450));
    rig.ask(id, 0.5);
  }
  const auto costly = std::ranges::find(rig.answers, 1000U, &Rig::Answer::id);
  REQUIRE(costly != rig.answers.end());
  REQUIRE(costly->refusal);
  CHECK(costly->seconds == doctest::Approx(60).epsilon(0.01));
  CHECK(error_info(costly->refusal->error.code).http_status == 503);
  CHECK(costly->refusal->limit == "gateway.first_token_target");
  // Nobody waits longer than that.
  rig.clock.advance(std::chrono::minutes(2));
  CHECK(rig.answers.size() == 150);
  CHECK(rig.within(60.6) == 150);
}

TEST_CASE("what is put off and given up by its client is gone at once") {
  Rig rig;
  rig.ask(1, 3);
  rig.ask(2, 1.5);
  rig.ask(3, 0.5);  // the 1.5 s before it are too much
  rig.ask(4, 0.5);
  CHECK(rig.admission.queued() == 3);
  rig.admission.leave(RequestId(2));
  CHECK(rig.admission.queued() == 2);
  rig.clock.run();
  REQUIRE(rig.answers.size() == 1);
  REQUIRE(rig.answers[0].refusal);
  CHECK(rig.answers[0].refusal->error.code == ErrorCode::kCancelled);
  rig.clock.advance(std::chrono::seconds(10));
  CHECK((rig.order() == std::vector<std::uint64_t>{2, 1, 3, 4}));
}

TEST_CASE("a tenant's flood makes the flood late, not the others") {
  Rig rig;
  rig.ask(0, 0.1, "bob");
  for (std::uint64_t id = 1; id <= 100; ++id)
    rig.ask(id, 0.1, "ann");
  for (std::uint64_t id = 201; id <= 206; ++id)
    rig.ask(id, 0.1, "bob");
  rig.clock.advance(std::chrono::minutes(1));
  REQUIRE(rig.answers.size() == 107);
  for (const Rig::Answer& answer : rig.answers)
    if (answer.id > 200) CHECK(answer.seconds <= 2);
}

TEST_CASE("a tenant above its limit is told to slow down, a full queue that it is full") {
  Rig rig;
  rig.limits.queue_max = 3;
  rig.limits.tenant_queue_max = 2;
  rig.ask(1, 1);
  for (std::uint64_t id = 2; id <= 4; ++id)
    rig.ask(id, 0.1);
  REQUIRE(rig.answers.size() == 1);
  CHECK(error_info(rig.answers[0].refusal->error.code).http_status == 429);
  CHECK(rig.answers[0].refusal->limit == "limits.tenant_queue");
  rig.ask(5, 0.1, "bob");
  rig.ask(6, 0.1, "cid");
  REQUIRE(rig.answers.size() == 2);
  CHECK(error_info(rig.answers[1].refusal->error.code).http_status == 503);
  CHECK(rig.answers[1].refusal->limit == "limits.queue");
}

}  // namespace penstock::gateway
