#include "core/routing/late_report.h"

#include <array>

#include <doctest/doctest.h>

namespace penstock::routing {
namespace {

Instant at(double s) {
  return Instant{} + to_duration(s);
}

TEST_CASE("what is left when a report arrives: worked off on its way, and what was given since") {
  CHECK(left_on_arrival(0.4, at(1), {}, at(1), 0.8) == 0.4);
  CHECK(left_on_arrival(0.4, at(1), {}, at(1.25), 0.8) == doctest::Approx(0.2));
  CHECK(left_on_arrival(0.4, at(1), {}, at(9), 0.8) == 0);
  const std::array<GivenWork, 2> given = {{{at(1), 0.1}, {at(2), 0.3}}};
  CHECK(left_on_arrival(0.4, at(1), given, at(1), 0) == doctest::Approx(0.8));
  // It has done all of the first half second's, then stands idle: none of that is saved up.
  CHECK(left_on_arrival(0.3, at(1), given, at(2.25), 0.8) == doctest::Approx(0.1));
}

}  // namespace
}  // namespace penstock::routing
