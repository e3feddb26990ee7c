// Breaker: whether an engine gets requests, judged by how they and the probes end; RetryBudget: how
// many of all requests may be tried again.
//
// Failures in a row open the breaker for a time that doubles up to a limit; then one request at a
// time tries whether the engine is back, and a success closes it. What a client caused (4xx) says
// nothing about the engine, neither good nor bad. An engine that says 429 or 503 is busy, not dead:
// it is left alone for as long as it asks, and loses nothing else.
//
// Invariants: a breaker that is open closes again by itself if its engine answers; time only moves
// forward. Errors: none. Concurrency: one owner.
// Source: facts/engines.md 2.5, section 5 (sglang#25811, smg#2565), rules 2 and 3.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/units.h"

namespace penstock::dialects {

enum class Ending : std::uint8_t {
  kGood,     // 2xx
  kNeutral,  // other 4xx, or the client went away
  kBusy,     // 429, 503
  kBad,      // other 5xx, no connection, cut, too slow
};

// 408 is the engine's time running out, so it is bad; all other 4xx are the client's.
constexpr Ending ending_of_status(int status) {
  if (status == 429 || status == 503) return Ending::kBusy;
  if (status == 408 || status >= 500) return Ending::kBad;
  return status >= 400 ? Ending::kNeutral : Ending::kGood;
}

struct BreakerLimits {
  std::uint32_t failures = 5;  // in a row
  Duration open_min = std::chrono::seconds(1);
  Duration open_max = std::chrono::seconds(30);
  Duration busy_default = std::chrono::milliseconds(500);  // when it does not say how long
  Duration busy_max = std::chrono::seconds(10);
};

class Breaker {
 public:
  explicit Breaker(BreakerLimits limits = {}) : limits_(limits) {}

  enum class State : std::uint8_t { kClosed, kOpen, kTrying };
  State state(Instant now) const {
    if (failures_ < limits_.failures) return State::kClosed;
    return now < open_until_ ? State::kOpen : State::kTrying;
  }
  // Whether a request may go there now.
  bool allows(Instant now) const {
    if (state(now) == State::kOpen) return false;
    return state(now) == State::kClosed || !trying_;
  }
  bool busy(Instant now) const { return now < busy_until_; }
  Instant busy_until() const { return busy_until_; }

  // Precondition: allows(now). Each is followed by one end().
  void begin(Instant now) { trying_ = state(now) == State::kTrying; }
  // `retry_after` is what the engine asked for; zero when it did not.
  void end(Ending ending, Instant now, Duration retry_after = Duration::zero()) {
    switch (ending) {
      case Ending::kGood:
        failures_ = 0;
        open_for_ = limits_.open_min;
        trying_ = false;
        break;
      case Ending::kNeutral:
        trying_ = false;  // another one may try
        break;
      case Ending::kBusy:
        trying_ = false;
        busy_until_ =
            now + (retry_after > Duration::zero() ? std::min(retry_after, limits_.busy_max)
                                                  : limits_.busy_default);
        break;
      case Ending::kBad:
        trying_ = false;
        if (++failures_ < limits_.failures) break;
        failures_ = limits_.failures;
        open_until_ = now + open_for_;
        open_for_ = std::min(open_for_ * 2, limits_.open_max);
        break;
    }
  }

 private:
  BreakerLimits limits_;
  std::uint32_t failures_ = 0;
  Duration open_for_ = limits_.open_min;
  Instant open_until_;
  Instant busy_until_;
  bool trying_ = false;
};

// Each request earns a part of a retry, so that retries never multiply an overload.
class RetryBudget {
 public:
  // `share` of requests may be retried, beyond a reserve for quiet times.
  explicit RetryBudget(double share = 0.1, double reserve = 10)
      : share_(share), reserve_(reserve), tokens_(reserve) {}

  void request() { tokens_ = std::min(tokens_ + share_, reserve_); }
  // True when one more try is paid for.
  bool take() {
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
  }

 private:
  double share_;
  double reserve_;
  double tokens_;
};

}  // namespace penstock::dialects
