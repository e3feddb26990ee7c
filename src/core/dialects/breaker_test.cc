#include "core/dialects/breaker.h"

#include <doctest/doctest.h>

namespace penstock::dialects {
namespace {

using namespace std::chrono_literals;
using enum Ending;
using State = Breaker::State;

void take(Breaker& breaker, Ending ending, Instant now) {
  REQUIRE(breaker.allows(now));
  breaker.begin(now);
  breaker.end(ending, now);
}

}  // namespace

TEST_CASE("Breaker: failures in a row open it, a try closes it") {
  Breaker breaker;
  Instant now{1s};
  for (int i = 0; i < 4; ++i)
    take(breaker, kBad, now);
  take(breaker, kGood, now);
  for (int i = 0; i < 5; ++i)
    take(breaker, kBad, now);
  CHECK(breaker.state(now) == State::kOpen);
  CHECK_FALSE(breaker.allows(now));
  now += 1s;
  CHECK(breaker.state(now) == State::kTrying);
  breaker.begin(now);
  CHECK_FALSE(breaker.allows(now));  // one at a time
  breaker.end(kBad, now);
  CHECK_FALSE(breaker.allows(now + 1s));  // twice as long
  now += 2s;
  take(breaker, kGood, now);
  CHECK(breaker.state(now) == State::kClosed);
}

TEST_CASE("Breaker: a million 4xx neither open nor close it") {
  Breaker breaker;
  Instant now{1s};
  for (int i = 0; i < 1'000'000; ++i)
    take(breaker, ending_of_status(400), now);
  CHECK(breaker.state(now) == State::kClosed);
  for (int i = 0; i < 4; ++i)
    take(breaker, kBad, now);
  take(breaker, ending_of_status(422), now);
  take(breaker, kBad, now);  // the fifth, whatever the client got wrong in between
  CHECK(breaker.state(now) == State::kOpen);
  now += 1s;
  take(breaker, kNeutral, now);
  CHECK(breaker.state(now) == State::kTrying);
}

TEST_CASE("Breaker: busy is not dead") {
  Breaker breaker;
  Instant now{1s};
  for (int i = 0; i < 100; ++i) {
    breaker.begin(now);
    breaker.end(ending_of_status(i % 2 == 0 ? 429 : 503), now, 2s);
  }
  CHECK(breaker.state(now) == State::kClosed);
  CHECK(breaker.busy(now));
  CHECK(breaker.busy(now + 1999ms));
  CHECK_FALSE(breaker.busy(now + 2s));
  breaker.end(kBusy, now, std::chrono::hours(1));
  CHECK_FALSE(breaker.busy(now + 10s));
}

TEST_CASE("Breaker: what a status means") {
  CHECK(ending_of_status(200) == kGood);
  CHECK(ending_of_status(404) == kNeutral);
  CHECK(ending_of_status(408) == kBad);
  CHECK(ending_of_status(429) == kBusy);
  CHECK(ending_of_status(500) == kBad);
  CHECK(ending_of_status(503) == kBusy);
}

TEST_CASE("RetryBudget: a tenth of the requests, and a reserve") {
  RetryBudget budget(0.1, 2);
  CHECK(budget.take());
  CHECK(budget.take());
  CHECK_FALSE(budget.take());
  int retries = 0;
  for (int i = 0; i < 1000; ++i) {
    budget.request();
    retries += budget.take() ? 1 : 0;
  }
  CHECK(retries >= 99);
  CHECK(retries <= 100);
}

}  // namespace penstock::dialects
