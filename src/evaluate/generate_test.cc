#include "evaluate/generate.h"

#include <algorithm>
#include <set>

#include <doctest/doctest.h>

namespace penstock::evaluate {
namespace {

TEST_CASE("every workload: the rate asked for, in order, blocks that fit, one seed one trace") {
  for (const auto kind : workload_names()) {
    CAPTURE(kind);
    const auto trace = generate(kind, {.requests_per_second = 20, .seconds = 1000, .seed = 3});
    REQUIRE(trace);
    CHECK(trace->requests.size() > 14'000);
    CHECK(trace->requests.size() < 26'000);
    CHECK(std::ranges::is_sorted(trace->requests, {}, &TraceRequest::arrival_us));
    CHECK(trace->requests.back().arrival_us < trace->duration_us);
    for (const TraceRequest& r : trace->requests) {
      REQUIRE(r.prompt_tokens > 0);
      REQUIRE(r.output_tokens > 0);
      REQUIRE(r.block_count == (r.prompt_tokens + 511) / 512);
    }
    const auto again = generate(kind, {.requests_per_second = 20, .seconds = 1000, .seed = 3});
    CHECK(again->blocks == trace->blocks);
    const auto other = generate(kind, {.requests_per_second = 20, .seconds = 1000, .seed = 4});
    CHECK(other->blocks != trace->blocks);
  }
}

// The share of blocks that an earlier request of the trace had, at the start of each prompt.
double hit_share(const Trace& trace) {
  std::set<std::uint64_t> seen;
  double hits = 0;
  for (const TraceRequest& r : trace.requests) {
    bool matching = true;
    for (const std::uint64_t block : trace.blocks_of(r)) {
      matching = matching && seen.contains(block);
      hits += matching ? 1 : 0;
      seen.insert(block);
    }
  }
  return hits / static_cast<double>(trace.blocks.size());
}

TEST_CASE("agents reuse most of their context, single requests little; long ones are long") {
  const Workload workload{.requests_per_second = 10, .seconds = 600, .seed = 1};
  const auto agents = generate("agents", workload);
  const auto poisson = generate("poisson", workload);
  const auto lengthy = generate("long", workload);
  REQUIRE(agents);
  REQUIRE(poisson);
  REQUIRE(lengthy);
  CHECK(hit_share(*agents) > 0.8);
  CHECK(hit_share(*poisson) < 0.5);
  const auto longs = [](const Trace& trace) {
    return std::ranges::count_if(trace.requests,
                                 [](const TraceRequest& r) { return r.prompt_tokens >= 262'144; });
  };
  CHECK(longs(*lengthy) > 3);
  CHECK(longs(*poisson) == 0);
}

TEST_CASE("what can't be made is refused") {
  CHECK(!generate("magic", {}));
  CHECK(!generate("poisson", {.requests_per_second = 0}));
  CHECK(!generate("poisson", {.seconds = -1}));
  CHECK(!generate("poisson", {.requests_per_second = 1e9}));
}

}  // namespace
}  // namespace penstock::evaluate
