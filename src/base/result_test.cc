#include <doctest/doctest.h>

#include "base/result.h"

namespace penstock {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return fail(ErrorCode::kInvalidArgument, "odd", "x");
  return x / 2;
}

Result<int> quarter(int x) {
  TRY(const int h, half(x));
  return half(h);
}

}  // namespace

TEST_CASE("TRY passes values on and returns errors") {
  CHECK(quarter(8) == 2);
  const auto bad = quarter(6);
  REQUIRE(!bad);
  CHECK(bad.error().field == "x");
  CHECK(to_string(bad.error()) == "invalid_argument: odd (x)");
  CHECK(error_info(ErrorCode::kModelNotFound).http_status == 404);
}

}  // namespace penstock
