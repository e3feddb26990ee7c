#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock {

TEST_CASE("philox equals the published known answers") {
  // Known-answer vectors of Philox4x32-10: counter and key all zero, and all ones.
  CHECK_EQ(philox(0, {0, 0, 0, 0}),
           std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK_EQ(philox(~0ULL, {~0U, ~0U, ~0U, ~0U}),
           std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
}

TEST_CASE("sampling draws depend on every coordinate and stay in [0, 1)") {
  const double base = sampling_uniform(1, 2, 3, 4);
  CHECK(base >= 0.0);
  CHECK(base < 1.0);
  CHECK(sampling_uniform(2, 2, 3, 4) != base);
  CHECK(sampling_uniform(1, 3, 3, 4) != base);
  CHECK(sampling_uniform(1, 2, 4, 4) != base);
  CHECK(sampling_uniform(1, 2, 3, 5) != base);
  CHECK(uniform01(~0U, ~0U) < 1.0);
}

TEST_CASE("below covers its range and nothing else") {
  Rng rng(7);
  std::array<int, 5> seen{};
  for (int i = 0; i < 1000; ++i)
    ++seen.at(rng.below(5));
  for (const int count : seen)
    CHECK(count > 120);
}

}  // namespace penstock
