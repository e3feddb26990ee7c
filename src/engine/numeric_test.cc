#include "engine/numeric.h"

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock::engine {

TEST_CASE("stable functions agree with the C library to a few units in the last place") {
  Rng rng(7);
  for (int i = 0; i < 20000; ++i) {
    const double x = rng.uniform() * 1200 - 600;
    REQUIRE(stable_exp(x) == doctest::Approx(std::exp(x)).epsilon(1e-14));
    const double y = std::exp(rng.uniform() * 600 - 300);
    REQUIRE(std::abs(stable_log(y) - std::log(y)) <= 1e-14 * std::max(1.0, std::abs(std::log(y))));
    const double angle = rng.uniform() * 2e6;
    const SineCosine t = stable_sincos(angle);
    REQUIRE(std::abs(t.sine - std::sin(angle)) < 1e-13);
    REQUIRE(std::abs(t.cosine - std::cos(angle)) < 1e-13);
  }
  CHECK(stable_exp(-1000) == 0);
  CHECK(stable_exp(0) == 1);
  CHECK(stable_log(1) == 0);
  CHECK(stable_sincos(0).sine == 0);
  CHECK(stable_sincos(0).cosine == 1);
}

TEST_CASE("stable functions never change a bit") {
  CHECK(std::bit_cast<std::uint64_t>(stable_exp(1.5)) == 0x4011ED3FE64FC541ULL);
  CHECK(std::bit_cast<std::uint64_t>(stable_log(10)) == 0x40026BB1BBB55516ULL);
  CHECK(std::bit_cast<std::uint64_t>(stable_sincos(12345.678).sine) == 13827889057084568741ULL);
}

}  // namespace penstock::engine
