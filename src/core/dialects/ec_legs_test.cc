// Bodies and replies are typed from facts/engines.md 4.6.
#include "core/dialects/ec_legs.h"

#include <array>
#include <string>

#include "core/dialects/pd_legs.h"

#include <doctest/doctest.h>

namespace penstock::dialects {
namespace {

constexpr std::array<std::string_view, 7> kKeys = {"messages",
                                                   "stream",
                                                   "stream_options",
                                                   "max_tokens",
                                                   "max_completion_tokens",
                                                   "min_tokens",
                                                   "ec_transfer_params"};

JsonBody read(std::string_view text) {
  auto body = JsonBody::read(text, kKeys);
  REQUIRE(body.has_value());
  return *body;
}

constexpr std::string_view kImage =
    R"({"type":"image_url", "image_url":{"url":"data:image/png;base64,AA=="},"uuid":"u1"})";
constexpr std::string_view kAudio = R"({"type":"input_audio","input_audio":{"data":"BB"}})";

}  // namespace

TEST_CASE("encode legs: the media of all messages, each once, and each alone in its leg") {
  const std::string text =
      R"({"model":"m","stream":true,"messages":[{"role":"system","content":"image_url"},{"role":"user","content":[{"type":"text","text":"look: "},)" +
      std::string(kImage) + "]},{\"role\":\"user\",\"content\":[" + std::string(kImage) + "," +
      std::string(kAudio) + R"(]}],"max_tokens":99,"x":9007199254740993})";
  const JsonBody body = read(text);
  const auto items = media_items(body);
  REQUIRE(items.size() == 2);
  CHECK(items[0] == kImage);
  CHECK(items[1] == kAudio);
  CHECK(body.edited(encode_edits(body, items[0])) ==
        R"({"model":"m","stream":false,"messages":[{"role":"user","content":[)" +
            std::string(kImage) +
            R"(]}],"max_tokens":1,"x":9007199254740993,"max_completion_tokens":1})");
  for (const std::string_view none :
       {R"({})", R"({"messages":"x"})", R"({"messages":[{"content":"y"},{"content":[1,"a"]}]})",
        R"({"messages":[{"content":[{"type":"text","text":"image_url"}]}]})"})
    CHECK(media_items(read(none)).empty());
}

TEST_CASE(
    "encode legs: what replies say is merged verbatim, and replies that say nothing are good") {
  std::string merged;
  CHECK(merge_encoded(
      R"({"choices":[],"ec_transfer_params":{ "h1": {"metadata":{"grid":[1, 2]},"peer_host":"e0","peer_port":7001,"size_bytes":9007199254740993}}})",
      merged));
  CHECK(merge_encoded(R"({"choices":[],"ec_transfer_params":null})", merged));
  CHECK(merge_encoded(R"({"choices":[{}],"ec_transfer_params":{}})", merged));
  CHECK(
      merge_encoded(R"({"choices":[],"ec_transfer_params":{"h2":{"item_indices":[0]}}})", merged));
  CHECK_FALSE(merge_encoded("oops", merged));
  const auto edit = encoded_edit(merged);
  REQUIRE(edit.has_value());
  CHECK(
      *edit->json ==
      R"({"h1": {"metadata":{"grid":[1, 2]},"peer_host":"e0","peer_port":7001,"size_bytes":9007199254740993},"h2":{"item_indices":[0]}})");
  CHECK_FALSE(encoded_edit("").has_value());
}

}  // namespace penstock::dialects
