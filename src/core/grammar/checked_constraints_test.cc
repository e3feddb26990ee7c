#include "core/grammar/checked_constraints.h"

#include <doctest/doctest.h>

#include <string>

namespace penstock::grammar {
namespace {

Constraint schema(std::string text) {
  return {Constraint::Kind::kJsonSchema, std::move(text)};
}

TEST_CASE("a constraint is compiled once, good or bad") {
  CheckedConstraints checked;
  for (int i = 0; i < 3; ++i) {
    CHECK(checked.check(schema(R"({"type":"string"})")));
    const Status bad = checked.check(schema(R"({"not":{}})"));
    REQUIRE_FALSE(bad);
    CHECK(bad.error().field == "#/not");
    // The same text in another notation is another constraint.
    CHECK_FALSE(checked.check({Constraint::Kind::kEbnf, R"({"type":"string"})"}));
  }
  CHECK(checked.misses() == 3);
  CHECK(checked.hits() == 6);
}

TEST_CASE("what is kept is bounded in bytes") {
  const std::string filler(300, ' ');
  CheckedConstraints checked(4096);
  const auto numbered = [&](int i) {
    return schema("{\"const\":" + std::to_string(i) + filler + "}");
  };
  for (int i = 0; i < 100; ++i) {
    CHECK(checked.check(numbered(i)));
    CHECK(checked.check(numbered(0)));  // in use all the time, so it stays
    CHECK(checked.bytes() <= 4096);
  }
  CHECK(checked.misses() == 100);
  CHECK(checked.check(numbered(1)));
  CHECK(checked.misses() == 101);
  // Too large to be worth it.
  const std::size_t before = checked.bytes();
  CHECK(checked.check(schema("{" + std::string(2000, ' ') + "}")));
  CHECK(checked.bytes() == before);
}

}  // namespace
}  // namespace penstock::grammar
