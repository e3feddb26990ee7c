#include "core/protocol/responses_listing.h"

#include <boost/json.hpp>
#include <string>

#include "core/protocol/responses_items.h"

#include <doctest/doctest.h>

namespace penstock::protocol {
namespace {

constexpr std::string_view kItems = R"([{"id":"a"},{"id":"b"},{"id":"c"}])";

// "ids first last more"
std::string page(std::string_view query) {
  const auto got = item_page(kItems, query);
  if (!got) return got.error().field;
  const auto value = boost::json::parse(*got);
  std::string out;
  for (const auto& item : value.at("data").as_array())
    out += item.at("id").as_string();
  const auto id = [&](const char* key) {
    return value.at(key).is_null() ? std::string("-") : std::string(value.at(key).as_string());
  };
  return out + " " + id("first_id") + " " + id("last_id") +
         (value.at("has_more").as_bool() ? " more" : "");
}

}  // namespace

TEST_CASE("pages of items: newest first, limit, order, after") {
  CHECK(page("") == "cba c a");
  CHECK(page("limit=2") == "cb c b more");
  CHECK(page("limit=2&after=b") == "a a a");
  CHECK(page("order=asc&limit=2") == "ab a b more");
  CHECK(page("order=asc&after=b&include[]=x") == "c c c");
  CHECK(page("after=a") == " - -");
  CHECK(page("limit=0") == "limit");
  CHECK(page("limit=101") == "limit");
  CHECK(page("limit=x") == "limit");
  CHECK(page("order=up") == "order");
  CHECK(page("after=z") == "after");
  CHECK(*starting_after("stream=true&starting_after=7") == 7);
  CHECK(*starting_after("stream=true") == -1);
  CHECK_FALSE(starting_after("starting_after=-3"));
}

TEST_CASE("an item is found by its id") {
  CHECK(find_item(kItems, "b") == R"({"id":"b"})");
  CHECK_FALSE(find_item(kItems, "z"));
  CHECK_FALSE(find_item("nonsense", "z"));
}

TEST_CASE("a compaction keeps what was said and reads back as such") {
  const Seal seal{
      [](std::string_view, std::string_view text) { return std::string(text); },
      [](std::string_view, std::string_view text) { return std::optional(std::string(text)); }};
  const auto text = compaction_object(
      R"([{"id":"m","type":"message","role":"user","content":[{"type":"input_text","text":"q"}]},
          {"id":"r","type":"reasoning","summary":[]},
          {"id":"f","type":"function_call","call_id":"c","name":"f","arguments":"{}"},
          {"id":"o","type":"function_call_output","call_id":"c","output":"long"},
          {"id":"n","type":"message","role":"assistant","content":"a"}])",
      {"1", 7, {.prompt_tokens = 9}}, seal);
  const auto value = boost::json::parse(text);
  CHECK(value.at("object") == "response.compaction");
  CHECK(value.at("usage").at("input_tokens") == 9);
  ResponseItemReader reader(seal, nullptr);
  REQUIRE(reader.read_all(boost::json::serialize(value.at("output"))));
  REQUIRE(reader.messages().size() == 2);
  CHECK(reader.messages()[0].text == "q");
  CHECK(reader.messages()[1].text == "a");
}

}  // namespace penstock::protocol
