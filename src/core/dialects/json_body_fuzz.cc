// Bytes as a body with controlled keys. Checks: no crash; what Boost.JSON accepts as an object is
// accepted here, unless a controlled key stands twice or containers are too deep; an accepted body
// is unchanged without edits; after edits it reads back with the new values, and every other byte
// is as it was; the same keys are found that Boost.JSON finds.
#include <array>
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "core/dialects/json_body.h"

namespace penstock::dialects {
namespace {

using namespace std::string_view_literals;
constexpr std::array kNames = {"model"sv, "a"sv, "b"sv};

void check_edits(const JsonBody& body, std::string_view text) {
  ENSURE(body.edited({}) == text);
  const std::vector<std::vector<Edit>> all = {
      {{"model", R"("x")"}},
      {{"model", std::nullopt}},
      {{"a", std::nullopt}, {"model", "[1]"}},
      {{"a", std::nullopt}, {"model", std::nullopt}, {"b", std::nullopt}},
      {{"a", "1"}, {"model", std::nullopt}, {"b", "{}"}}};
  for (const auto& edits : all) {
    const std::string edited = body.edited(edits);
    const auto again = JsonBody::read(edited, kNames);
    ENSURE(again.has_value());
    std::size_t removed = 0;
    std::size_t added = 0;
    for (const Edit& edit : edits) {
      ENSURE(edit.json ? again->value(edit.key) == *edit.json : !again->has(edit.key));
      if (!edit.json) removed += body.has(edit.key) ? 1 : 0;
      if (edit.json && !body.has(edit.key)) ++added;
    }
    for (const auto name : kNames) {
      const bool touched = std::ranges::find(edits, name, &Edit::key) != edits.end();
      if (!touched) ENSURE(again->value(name) == body.value(name));
    }
    // Undone, a replacement is the text it began as.
    if (removed == 0 && added == 0) {
      std::vector<Edit> undo;
      for (const Edit& edit : edits)
        if (body.has(edit.key)) undo.push_back({edit.key, std::string(*body.value(edit.key))});
      ENSURE(again->edited(undo) == text);
    }
  }
}

void compare(const JsonBody& body, const boost::json::object& theirs) {
  for (const auto name : kNames) {
    const auto* value = theirs.if_contains(name);
    ENSURE((value != nullptr) == body.has(name));
    if (value == nullptr) continue;
    ENSURE(boost::json::parse(*body.value(name)) == *value);
    if (value->is_string()) ENSURE(body.string(name) == std::string_view(value->as_string()));
  }
}

}  // namespace
}  // namespace penstock::dialects

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::dialects;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto body = JsonBody::read(text, kNames);
  boost::json::parse_options options;
  options.max_depth = 256;
  boost::json::error_code error;
  const auto theirs = boost::json::parse(text, error, {}, options);
  if (!body) {
    ENSURE(error || !theirs.is_object() || body.error().openai_code == "duplicate_key");
    return 0;
  }
  check_edits(*body, text);
  if (!error) compare(*body, theirs.as_object());
  return 0;
}
