// Every message survives the wire; nothing else is taken. The samples are the fuzzer's corpus too
// (tests/corpus/handoff_wire, UPDATE=1 rewrites it).
#include "core/handoff/wire.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <doctest/doctest.h>

namespace penstock::handoff {
namespace {

struct Sample {
  std::string name;
  Message message;
};

EngineOutput output() {
  EngineOutput output;
  output.request = RequestId(7);
  output.choice = 1;
  output.index = 2;
  output.tokens = {{11, -0.5F, {{11, -0.5F}, {12, -1.25F}}}, {13, 0.0F, {}}};
  output.cached_tokens = 64;
  return output;
}

std::vector<Sample> samples() {
  const HandoffId id{0x0123456789ABCDEF, 0xFEDCBA9876543210};
  EngineOutput failed;
  failed.finish = FinishReason::kError;
  failed.error = Error{ErrorCode::kInternal, "broken", "prompt", "server_error"};
  return {
      {"attach", Attach{1, id, 3, Epoch(5), 2, 130, "nano", {4, 64, 8192, "mla-bf16"}}},
      {"renew", Renew{id, 3, 9}},
      {"ack", Ack{id, 3, 40}},
      {"release", Release{id, 3, Reason::kStopped}},
      {"attached", Attached{3, 1, std::chrono::seconds(10)}},
      {"renewed", Renewed{3, 9, std::chrono::seconds(10)}},
      {"part", Part{3, 2, 256, 2, {{17, 5, {1, 2}}, {18, 6, {3, 0xFFFFFFFFFFFFFFFF}}}}},
      {"part_empty", Part{3, 2, 256, 2, {}}},
      {"closed", Closed{3, 130, output()}},
      {"closed_failed", Closed{3, 130, failed}},
      {"closed_plain", Closed{3, 130, std::nullopt}},
      {"ended", Ended{3, Reason::kWithdrawn, "cancelled"}},
      {"alive", Alive{}},
  };
}

}  // namespace

TEST_CASE("every message survives the wire, and no other bytes are taken for one") {
  for (const Sample& sample : samples()) {
    CAPTURE(sample.name);
    const std::string bytes = encode(sample.message);
    const auto again = decode(bytes);
    REQUIRE(again.has_value());
    CHECK(*again == sample.message);
    CHECK(encode(*again) == bytes);
    for (std::size_t cut = 0; cut < bytes.size(); ++cut)
      CHECK(!decode(std::string_view(bytes).substr(0, cut)).has_value());
    CHECK(decode(bytes + '\0').error().code == ErrorCode::kDataLoss);
  }
}

TEST_CASE("the corpus of the fuzzer is what this version writes") {
  for (const Sample& sample : samples()) {
    const std::string path = "tests/corpus/handoff_wire/" + sample.name;
    if (std::getenv("UPDATE") != nullptr)
      std::ofstream(path, std::ios::binary) << encode(sample.message);
    std::ostringstream bytes;
    bytes << std::ifstream(path, std::ios::binary).rdbuf();
    CAPTURE(sample.name);
    CHECK(bytes.str() == encode(sample.message));
  }
}

TEST_CASE("fields out of range are refused") {
  struct Case {
    const char* what;
    Message message;
    std::size_t at;
    std::string bytes;
  };
  const Case cases[] = {
      {"kind", Alive{}, 0, "\x63"},
      {"reason", Release{{}, 1, Reason::kDone}, 25, "\x15"},
      {"lease of two days", Attached{1, 0, Duration(0)}, 13, std::string("\0\0\0\0\0\xA0\0\0", 8)},
      {"lease with the highest bit", Attached{1, 0, Duration(0)}, 20, "\xFF"},
      {"no layers", Part{1, 0, 64, 1, {}}, 17, std::string(4, '\0')},
      {"too many layers", Part{1, 0, 64, 1, {}}, 17, std::string("\x01\x10\0\0", 4)},
      {"more blocks than bytes", Part{1, 0, 64, 1, {{}}}, 21, "\x02"},
      {"flag of two", Closed{1, 64, std::nullopt}, 13, "\x02"},
      {"text longer than the rest", Ended{1, Reason::kExpired, "ab"}, 10, "\x03"},
  };
  for (const Case& row : cases) {
    CAPTURE(row.what);
    Message message = row.message;
    if (auto* part = std::get_if<Part>(&message))
      for (TicketBlock& block : part->blocks)
        block.checksums.resize(part->layers);
    std::string bytes = encode(message);
    REQUIRE(decode(bytes).has_value());
    bytes.replace(row.at, row.bytes.size(), row.bytes);
    CHECK(!decode(bytes).has_value());
  }
  CHECK(!decode("").has_value());
  CHECK(!decode(std::string(kMessageMax + 1, '\x15')).has_value());
}

TEST_CASE("long texts are cut, outputs beyond the limits are seen before") {
  const auto ended = decode(encode(Ended{1, Reason::kWithdrawn, std::string(5000, 'x')}));
  REQUIRE(ended.has_value());
  CHECK(std::get<Ended>(*ended).why.size() == kTextMax);
  EngineOutput large;
  large.tokens.resize(kOutputTokensMax + 1);
  CHECK(!fits(large));
  large.tokens.resize(kOutputTokensMax);
  for (OutputToken& token : large.tokens)
    token.top.resize(kTopMax);
  CHECK(fits(large));
  CHECK(decode(encode(Closed{1, 64, large})).has_value());
  large.tokens[3].top.resize(kTopMax + 1);
  CHECK(!fits(large));
}

TEST_CASE("a layout makes sense or is refused") {
  const Layout good{4, 64, 8192, "x"};
  CHECK(good.sound());
  for (const auto& [layers, tokens, slice] : {std::tuple(0U, 64U, 8192ULL),
                                              {4U, 0U, 8192ULL},
                                              {4U, 64U, 0ULL},
                                              {4U, 64U, 8191ULL},
                                              {kLayersMax + 1, 64U, 64ULL},
                                              {4U, 64U, 1ULL << 30}})
    CHECK(!Layout{layers, tokens, slice, "x"}.sound());
}

}  // namespace penstock::handoff
