// Named lives: every edge of "Life of a request" and "Migration" (issue 4), forced.
#include <doctest/doctest.h>

#include "tests/sim/bodies.h"
#include "tests/sim/world.h"

namespace penstock::simulated {

TEST_CASE("toy: alone, an answer is there and stays the same") {
  const Answer answer = alone(body(BodyOptions{}));
  CHECK(answer.done);
  CHECK(answer.choices.size() == 1);
  MESSAGE(answer.choices.at(0).reasoning);
}

}  // namespace penstock::simulated
