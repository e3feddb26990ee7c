#include "app/kept_runs.h"

#include <fstream>

#include <doctest/doctest.h>

namespace penstock {
namespace {

TEST_CASE("runs are kept, taken up by the same program and inputs only, and a cut line is none") {
  const auto folder = TemporaryDirectory::make("penstock-runs").value();
  const std::string file = folder.path() + "/runs";
  {
    const auto runs = KeptRuns::open(file, "program 1").value();
    const auto memory = runs->memory();
    CHECK(!memory.recall("a"));
    memory.keep("a, b", "1 2");
    memory.keep("c", "3");
    CHECK(*memory.recall("a, b") == "1 2");
    const auto second = KeptRuns::open(file, "program 1");  // in use
    REQUIRE(!second);
    CHECK(second.error().code == ErrorCode::kConflict);
  }
  std::ofstream(file, std::ios::app) << "d\t4.5";
  for (int times = 0; times < 2; ++times) {
    const auto runs = KeptRuns::open(file, "program 1").value();
    CHECK(runs->size() == (times == 0 ? 2 : 3));
    const auto memory = runs->memory();
    CHECK(*memory.recall("a, b") == "1 2");
    CHECK(*memory.recall("c") == "3");
    if (times == 0)
      CHECK(!memory.recall("d"));
    else
      CHECK(*memory.recall("d") == "4.56");
    memory.keep("d", "4.56");
    CHECK(runs->written());
  }
  const auto other = KeptRuns::open(file, "program 2");
  REQUIRE(!other);
  CHECK(other.error().code == ErrorCode::kConflict);
  CHECK(other.error().message.find("another program") != std::string::npos);
  // Without a file they last as long as the process.
  const auto here = KeptRuns::open("", "").value();
  here->memory().keep("a", "1");
  CHECK(*here->memory().recall("a") == "1");
  CHECK(here->written());
}

}  // namespace
}  // namespace penstock
