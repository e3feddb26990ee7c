// What engines hold, between placements, events and what answers say.
#include "app/engine_prefixes.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace penstock {
namespace {

using kvcache::RankOfWorker;

constexpr WorkerId kEngine(1);
constexpr WorkerId kOther(2);

struct Rig {
  std::vector<std::string> told;
  EnginePrefixes prefixes{7, [this](std::string_view text) { told.emplace_back(text); }};

  foreign::PromptName name(const std::string& text) const {
    return {foreign::text_keys(prefixes.chain(), 0, text),
            {},
            static_cast<std::uint32_t>(text.size() / foreign::kBytesPerToken),
            0};
  }
  // Tokens that the rank holds of the text.
  std::uint32_t held(RankOfWorker rank, const std::string& text) const {
    for (const auto& match : prefixes.match(name(text))) {
      if (match.rank == rank) return match.device;
    }
    return 0;
  }
};

const std::string kText = std::string(2000, 'a') + std::string(2000, 'b');  // 1,000 tokens

}  // namespace

TEST_CASE("engine prefixes: what was sent is held there, by rank, until answers say otherwise") {
  Rig rig;
  rig.prefixes.add(kEngine, "one", {});
  rig.prefixes.add(kOther, "two", {});
  rig.prefixes.has_ranks(kEngine, 2);
  rig.prefixes.has_ranks(kOther, 1);
  const RankOfWorker first{kEngine, 0};
  const RankOfWorker second{kEngine, 1};
  rig.prefixes.sent(second, rig.name(kText));
  CHECK(rig.held(second, kText) == 992);
  CHECK(rig.held(first, kText) == 0);
  CHECK(rig.held({kOther, 0}, kText) == 0);
  CHECK(rig.held(second, kText + "more of the conversation") == 992);
  CHECK(rig.held(second, kText.substr(0, 1000) + std::string(1000, 'x')) == 240);
  // Half of what was predicted, in the engine's own tokens: the rest was evicted, trust falls.
  CHECK(rig.prefixes.trust(second) == 1);
  rig.prefixes.observed(second, rig.name(kText), {992, 450, 900});
  CHECK(rig.prefixes.trust(second) < 0.95);
  CHECK(rig.prefixes.trust(second) > 0.5);
  // A little less than predicted is what a template and whole blocks make.
  const double before = rig.prefixes.trust(second);
  rig.prefixes.observed(second, rig.name(kText), {992, 850, 900});
  CHECK(rig.prefixes.trust(second) > before);
  // A rank that goes takes what is known of it along.
  rig.prefixes.has_ranks(kEngine, 1);
  CHECK(rig.held(second, kText) == 0);
  rig.prefixes.has_ranks(kEngine, 2);
  CHECK(rig.held(second, kText) == 0);
  CHECK(rig.prefixes.trust(second) == 1);
  rig.prefixes.sent(first, rig.name(kText));
  rig.prefixes.forget(kEngine);
  CHECK(rig.held(first, kText) == 0);
  rig.prefixes.sent(first, rig.name(kText));  // its last request was under way
  CHECK(rig.held(first, kText) == 0);
}

TEST_CASE(
    "engine prefixes: of one that publishes, prompts without token ids are known by their text") {
  Rig rig;
  rig.prefixes.add(kEngine, "one", {"tcp://127.0.0.1:1", "", ""});
  rig.prefixes.has_ranks(kEngine, 1);
  const RankOfWorker rank{kEngine, 0};
  rig.prefixes.sent(rank, rig.name(kText));
  CHECK(rig.held(rank, kText) == 992);
  // One with ids is what the events say it is, and they say nothing.
  foreign::PromptName named = rig.name(kText);
  named.ids = {16, 32};
  named.id_count = 32;
  CHECK(rig.prefixes.match(named).empty());
  rig.prefixes.forget(kEngine);
  CHECK(rig.held(rank, kText) == 0);
}

TEST_CASE("engine prefixes: predictions and what came of them are metrics") {
  Rig rig;
  rig.prefixes.add(kEngine, "one", {});
  rig.prefixes.has_ranks(kEngine, 1);
  const RankOfWorker rank{kEngine, 0};
  rig.prefixes.sent(rank, rig.name(kText));
  rig.prefixes.observed(rank, rig.name(kText), {992, 0, 1000});
  Metrics metrics;
  rig.prefixes.publish(metrics);
  const std::string text = metrics.exposition();
  const std::string name = "penstock_engine_hit_tokens{engine=\"one\",outcome=";
  CHECK(text.contains(name + "\"predicted\",rank=\"0\"} 992"));
  CHECK(text.contains(name + "\"came_true\",rank=\"0\"} 0"));
  CHECK(text.contains("penstock_engine_index_bytes{from=\"placements\"}"));
}

TEST_CASE(
    "engine prefixes: each rank publishes at a port of its own; what can't be followed is told") {
  CHECK(endpoint_of_rank("tcp://h:5557", 3) == "tcp://h:5560");
  CHECK(endpoint_of_rank("tcp://h:5557", 0) == "tcp://h:5557");
  CHECK(endpoint_of_rank("", 3) == "");
  CHECK_FALSE(endpoint_of_rank("tcp://h:65535", 1).has_value());
  CHECK_FALSE(endpoint_of_rank("ipc:///tmp/x", 1).has_value());
  Rig rig;
  rig.prefixes.add(kEngine, "one", {"ipc:///nowhere/socket", "", ""});
  CHECK(rig.prefixes.has_events(kEngine));
  CHECK_FALSE(rig.prefixes.has_events(kOther));
  rig.prefixes.has_ranks(kEngine, 2);
  REQUIRE(rig.told.size() == 1);
  CHECK(rig.told[0].contains("one rank 1"));
}

}  // namespace penstock
