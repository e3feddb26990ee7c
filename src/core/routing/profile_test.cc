#include "core/routing/profile.h"

#include <fstream>
#include <iterator>
#include <utility>

#include <doctest/doctest.h>

namespace penstock::routing {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string shipped(const std::string& name) {
  return text_of("profiles/" + name + ".json");
}

// Replaces the only occurrence of `from`.
std::string with(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST_CASE("shipped profiles parse, and print as they are") {
  for (const std::string name : {"v41-flash-64p-64d", "embedded-nano"}) {
    const auto profile = parse_profile(shipped(name));
    REQUIRE_MESSAGE(profile, to_string(profile.error()));
    CHECK(profile->name == name);
    const std::string printed = print_profile(*profile);
    const auto again = parse_profile(printed);
    REQUIRE(again);
    CHECK(*again == *profile);
    CHECK(print_profile(*again) == printed);
  }
}

TEST_CASE("the pool of public figures matches them") {
  const auto p = parse_profile(shipped("v41-flash-64p-64d"));
  REQUIRE(p);
  CHECK(p->basis == ProfileBasis::kEstimate);
  // 1M tokens in 13.2 s on four ranks.
  CHECK(prefill_seconds(p->costs.prefill, 1'048'576, 0) / 4 == doctest::Approx(13.2).epsilon(0.02));
  CHECK(p->costs.decode_moe.mean == doctest::Approx(1.09));
  CHECK(p->prefill_pool.ranks == 64);
  CHECK(p->decode_pool.ranks == 64);
}

TEST_CASE("impossible numbers are refused, with the key") {
  const std::string good = text_of("tests/cases/profiles/round-numbers.json");
  const std::pair<std::pair<const char*, const char*>, const char*> cases[] = {
      {{R"("seconds_per_token": 0.0002)", R"("seconds_per_token": -1)"},
       "costs.prefill.seconds_per_token"},
      {{R"("seconds_per_token": 0.0002)", R"("seconds_per_token": 1e300)"},
       "costs.prefill.seconds_per_token"},
      {{R"("seconds_per_token": 0.0002)", R"("seconds_per_token": "2")"},
       "costs.prefill.seconds_per_token"},
      {{R"("seconds_per_token": 0.0002)", R"("seconds_per_tokens": 0.0002)"},
       "costs.prefill.seconds_per_token"},
      {{R"("seconds_per_request": 0.0005,)", R"("seconds_per_request": 0.0005, "x": 1,)"},
       "costs.step.x"},
      {{R"("mean": 1.0)", R"("mean": 0.9)"}, "costs.moe_lb_prefill"},
      {{R"("ranks": 1)", R"("ranks": 0)"}, "prefill_pool"},
      {{R"("ranks": 1)", R"("ranks": 1.5)"}, "prefill_pool.ranks"},
      {{R"("group_ranks": 1)", R"("group_ranks": 0)"}, "prefill_pool"},
      {{R"("group_ranks": 1)", R"("group_ranks": 2)"}, "prefill_pool"},
      {{R"("ranks": 1)", R"("ranks": 10000000)"}, "prefill_pool"},
      {{R"("kv_bytes_per_token": 2048)", R"("kv_bytes_per_token": 0)"}, "kv_bytes_per_token"},
      {{R"("chunk_budget_seconds": 0.1)", R"("chunk_budget_seconds": 0.0001)"},
       "chunk_budget_seconds"},
      {{R"("basis": "placeholder")", R"("basis": "guess")"}, "basis"},
      {{R"("name": "embedded-nano")", R"("name": "")"}, "name"},
      {{R"("load": {)", R"("load": [], "loads": {)"}, "costs.load"},
      {{R"("bytes_per_second": 5000000000.0)", R"("bytes_per_second": -5.0)"}, "costs.load.host"},
  };
  for (const auto& [change, field] : cases) {
    CAPTURE(change.second);
    const auto profile = parse_profile(with(good, change.first, change.second));
    REQUIRE(!profile);
    CHECK(profile.error().code == ErrorCode::kInvalidArgument);
    CHECK(profile.error().field == field);
  }
  for (const char* text : {"", "[]", "{", "null", "{}", "3"}) {
    CAPTURE(text);
    CHECK(!parse_profile(text));
  }
}

TEST_CASE("an estimate without sources is refused") {
  auto p = parse_profile(shipped("v41-flash-64p-64d"));
  REQUIRE(p);
  p->sources.clear();
  const auto status = validate(*p);
  REQUIRE(!status);
  CHECK(status.error().field == "sources");
}

}  // namespace
}  // namespace penstock::routing
