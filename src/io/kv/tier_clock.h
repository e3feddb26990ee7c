// The time that block tiers are given, from this machine's clocks.
#pragma once

#include <chrono>

#include "port/block_tier.h"

namespace penstock::kv {

inline TierNow tier_now() {
  using namespace std::chrono;
  return {Instant(duration_cast<Duration>(steady_clock::now().time_since_epoch())),
          UnixSeconds(duration_cast<seconds>(system_clock::now().time_since_epoch()).count())};
}

}  // namespace penstock::kv
