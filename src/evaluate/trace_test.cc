#include "evaluate/trace.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include <doctest/doctest.h>

namespace penstock::evaluate {
namespace {

std::string shared(const std::string& name) {
  const char* where = std::getenv("PENSTOCK_SHARED");
  std::ifstream file((where != nullptr ? std::string(where) : std::string("../shared")) +
                     "/traces/" + name);
  if (!file.good()) return {};
  return {std::istreambuf_iterator<char>(file), {}};
}

constexpr std::string_view kMooncake =
    R"({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 3000, "input_length": 1024, "output_length": 7, "hash_ids": [0, 2]}
)";

TEST_CASE("the three forms") {
  const auto mooncake = read_mooncake(kMooncake);
  REQUIRE(mooncake);
  REQUIRE(mooncake->requests.size() == 2);
  CHECK(mooncake->requests[1].arrival_us == 3'000'000);
  CHECK(mooncake->requests[1].output_tokens == 7);
  CHECK(mooncake->blocks_of(mooncake->requests[1])[1] == 2);
  CHECK(mooncake->duration_us == 6'000'000);

  const auto azure = read_azure(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.5000000,374,44\r\n"
      "2023-11-17 00:00:01.0000010,396,109\r\n");
  REQUIRE(azure);
  CHECK(azure->requests[0].arrival_us == 0);
  CHECK(azure->requests[1].arrival_us == 1'500'001);
  CHECK(azure->requests[1].prompt_tokens == 396);

  const auto own = read_own(
      R"({"arrival_seconds": 0.5, "prompt_tokens": 100, "output_tokens": 1}
{"arrival_seconds": 0.75, "prompt_tokens": 100, "output_tokens": 1, "blocks": [5, 6]})",
      64);
  REQUIRE(own);
  CHECK(own->requests[0].arrival_us == 500'000);
  CHECK(own->requests[0].block_count == 0);
  CHECK(own->requests[1].block_count == 2);
  CHECK(read_mooncake("")->requests.empty());
}

TEST_CASE("a bad line is named, and nothing is half-read") {
  const auto error = [](auto&& result) { return result ? std::string() : result.error().message; };
  const auto second = [](std::string_view line) {
    return std::string(kMooncake) + std::string(line);
  };
  const std::pair<const char*, const char*> lines[] = {
      {R"({"timestamp": 2999, "input_length": 5, "output_length": 5, "hash_ids": [0]})", "back"},
      {R"({"timestamp": 4000, "input_length": -5, "output_length": 5, "hash_ids": [0]})", "-5"},
      {R"({"timestamp": 4000, "input_length": 5, "output_length": 0, "hash_ids": [0]})", "output"},
      {R"({"timestamp": 4000, "input_length": 5, "output_length": 5, "hash_ids": [0, 1]})", "fit"},
      {R"({"timestamp": 4000, "input_length": 5, "output_length": 5, "hash_ids": []})", "blocks"},
      {R"({"timestamp": 4000, "input_length": 5, "output_length": 5, "hash_ids": [-1]})", "whole"},
      {R"({"timestamp": 4000, "input_length": 5.5, "output_length": 5, "hash_ids": [0]})", "whole"},
      {R"({"timestamp": "4", "input_length": 5, "output_length": 5, "hash_ids": [0]})", "number"},
      {R"({"timestamp": 1e300, "input_length": 5, "output_length": 5, "hash_ids": [0]})", "range"},
      {R"({"timestamp": 4000, "input_length": 5, "output_length": 5})", "list"},
      {R"({"timestamp": 4000, "input_length": 5, "output_length": 5, "hash_ids": [0], "x": 1})",
       "unknown field x"},
      {R"({"timestamp": 4000, "input_length": 99999999999, "output_length": 5, "hash_ids": [0]})",
       "prompt"},
      {"[]", "object"},
      {"{", "object"}};
  for (const auto& [line, why] : lines) {
    CAPTURE(line);
    const std::string message = error(read_mooncake(second(line)));
    CHECK(message.find("line 3") != std::string::npos);
    CHECK(message.find(why) != std::string::npos);
  }
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  CHECK(error(read_azure("a,b\n")).find("line 1") != std::string::npos);
  for (const char* line :
       {"2023-11-16 18:15:46,374", "2023-11-16 18:15:46,374,44,1", "2023-11-16T18:15:46,374,44",
        "2023-13-16 18:15:46,374,44", "2023-11-16 18:15:46.x,374,44", "2023-11-16 18:15:46,-374,44",
        "2023-11-16 18:15:46,374,", "2023-11-16 25:15:46,374,44"}) {
    CAPTURE(line);
    CHECK(error(read_azure(header + line)).find("line 2") != std::string::npos);
  }
  CHECK(!read_own("", 0));
}

TEST_CASE("the shared traces") {
  const std::string mooncake = shared("mooncake_conversation.jsonl");
  const std::string azure = shared("azure_2023_conv.csv");
  if (mooncake.empty() || azure.empty()) {
    MESSAGE("skipped: shared/traces is not there (set PENSTOCK_SHARED)");
    return;
  }
  const auto m = read_mooncake(mooncake);
  REQUIRE(m);
  CHECK(m->requests.size() == 12'031);
  CHECK(m->requests.back().arrival_us == 3'536'999'000);
  CHECK(std::set<std::uint64_t>(m->blocks.begin(), m->blocks.end()).size() == 182'790);
  const auto a = read_azure(azure);
  REQUIRE(a);
  CHECK(a->requests.size() == 19'366);
}

TEST_CASE("scaling: as many requests as asked, in time order, with ids of their own") {
  std::string text;
  for (int i = 0; i < 200; ++i)
    text += "{\"timestamp\": " + std::to_string(3000 * (i / 4)) +
            ", \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [0, " +
            std::to_string(1 + i / 2) + "]}\n";
  const Trace trace = read_mooncake(text).value();
  CHECK(scale(trace, {}).size() == 200);
  CHECK(scale(Trace{}, {.copies = 3}).empty());
  CHECK(scale(trace, {.copies = 0}).empty());
  for (const double copies : {0.5, 1.0, 2.5, 7.0}) {
    CAPTURE(copies);
    const LoadOptions options{
        .copies = copies, .duration_us = 3 * trace.duration_us, .tick_us = 3'000'000};
    const auto arrivals = scale(trace, options);
    CHECK(std::abs(static_cast<double>(arrivals.size()) - 600 * copies) <= 100);
    CHECK(std::ranges::is_sorted(arrivals, {}, &Arrival::at_us));
    std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
    for (const Arrival& arrival : arrivals) {
      REQUIRE(arrival.at_us >= 0);
      REQUIRE(arrival.at_us < options.duration_us);
      REQUIRE(seen.insert({arrival.copy, arrival.request}).second);  // never the same prompt twice
    }
    const auto again = scale(trace, options);
    CHECK(std::ranges::equal(arrivals, again, [](const Arrival& a, const Arrival& b) {
      return a.at_us == b.at_us && a.request == b.request && a.copy == b.copy;
    }));
  }
  // Conversations stay whole when a part of a copy is taken.
  std::set<std::uint64_t> taken;
  const auto half = scale(trace, {.copies = 0.5});
  for (const Arrival& arrival : half)
    taken.insert(trace.blocks_of(trace.requests[arrival.request])[1]);
  CHECK(half.size() <= 2 * taken.size());
  CHECK(2 * taken.size() - half.size() <= 1);
  CHECK(block_in_copy(5, 0) != block_in_copy(5, 1));
}

}  // namespace
}  // namespace penstock::evaluate
