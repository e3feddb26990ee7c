// What `penstock explain` shows, what is kept for it, and who may ask.
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/operator_access.h"
#include "app/option_table.h"
#include "app/placement_history.h"
#include "io/files/files.h"
#include "service/gateway/placement.h"

namespace penstock {
namespace {

gateway::PlacementExplanation placed(std::string id, std::uint32_t move = 0) {
  gateway::PlacementExplanation out;
  out.request_id = std::move(id);
  out.model = "nano";
  out.placement = move;
  out.tokens = 2000;
  out.cached_tokens = 500;
  out.output_tokens = 256;
  out.queued = std::chrono::milliseconds(12);
  out.summary = "prefill-0 for decode-0: 1500 tokens in 14.0 ms";
  gateway::LegExplanation& leg = out.prefill.emplace();
  leg.policy = "prefill-balancer";
  leg.reason = "ready first in its tier";
  leg.chosen = "prefill-0";
  leg.ranks = 3;
  leg.candidates = 2;
  leg.best = {{"prefill-0", 0.0125, 1, 100, 0, 0.002, 0.0105, 0.001},
              {"prefill-1", 0.5, 2, 200, 4000, 0.4, 0.1, 0, 0.003, 0.025, 1.25},
              {"prefill-2", std::nullopt, 0, 0, 0, 0, 0, 0}};
  return out;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the last placements are kept, a request's in their order") {
  PlacementHistory history(3);
  CHECK_FALSE(history.find_json("a"));
  history.add(placed("a"));
  history.add(placed("b"));
  history.add(placed("a", 1));
  const auto json = history.find_json("a");
  REQUIRE(json);
  CHECK(json->starts_with(R"({"request":"a","placements":[{"model":"nano","move":0,)"));
  CHECK(has(*json, R"("move":1)"));
  CHECK(has(*json, R"("score":null)"));
  CHECK(has(*json, R"("decode":null)"));
  history.add(placed("c"));
  history.add(placed("d"));
  CHECK_FALSE(history.find_json("b"));
  REQUIRE(history.find_json("a"));
  CHECK_FALSE(has(*history.find_json("a"), R"("move":0)"));
  CHECK(history.find_json("d"));
}

TEST_CASE("an explanation as text") {
  PlacementHistory history(3);
  history.add(placed("a"));
  history.add(placed("a", 1));
  const std::string text = explanation_text(*history.find_json("a"));
  CHECK(has(text,
            "request a\n\nplaced: model nano, 2000 tokens, of them 500 expected from the "
            "cache; 256 expected of the answer; waited 12.0 ms\n"));
  CHECK(has(text,
            "prefill: prefill-balancer chose prefill-0, ready first in its tier (2 "
            "candidates of 3 ranks)\n"));
  CHECK(
      has(text, "prefill-0  0.0125         1        100     -       2.0        10.5          1.0"));
  CHECK(has(text,
            "prefill-1     0.5         2        200  4000     400.0       100.0          0.0      "
            "3.0     25.0   1.250"));
  CHECK(has(text, "prefill-2      no"));
  CHECK(has(text, "\nmove 1: model nano"));
  CHECK(explanation_text("not JSON") == "not JSON");
}

TEST_CASE("the operator's token lies where only its owner can read it, while the gateway runs") {
  const auto folder = TemporaryDirectory::make("penstock-operator");
  REQUIRE(folder);
  Options options;
  options.data_dir = folder->path();
  options.host = "0.0.0.0";
  const auto nobody = find_gateway(options);
  REQUIRE(!nobody);
  CHECK(nobody.error().code == ErrorCode::kUnavailable);
  CHECK(has(nobody.error().message, "no gateway runs with the data folder"));
  {
    OperatorAccess first;
    REQUIRE(first.grant(options, 8123));
    const auto found = find_gateway(options);
    REQUIRE(found);
    CHECK(found->url == "http://127.0.0.1:8123");
    CHECK(first.holds(found->key));
    CHECK_FALSE(first.holds(""));
    CHECK_FALSE(first.holds(found->key + "0"));
    CHECK_FALSE(OperatorAccess().holds(found->key));
    OperatorAccess second;  // a restarted one takes over
    REQUIRE(second.grant(options, 8124));
    CHECK(second.holds(find_gateway(options)->key));
  }
  CHECK_FALSE(find_gateway(options));
  REQUIRE(write_file_atomically(options.data_dir + "/run/gateway.json", "[]", 0600));
  CHECK(find_gateway(options).error().code == ErrorCode::kDataLoss);
}

TEST_CASE("the option table names the policies that there are") {
  CHECK(find_key("gateway.prefill_policy")->choices ==
        fmt::format("{}", fmt::join(gateway::prefill_policy_names(), "|")));
  CHECK(find_key("gateway.decode_policy")->choices ==
        fmt::format("{}", fmt::join(gateway::decode_policy_names(), "|")));
}

}  // namespace penstock
