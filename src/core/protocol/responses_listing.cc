#include "core/protocol/responses_listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "core/protocol/json_document.h"
#include "core/protocol/json_writer.h"
#include "core/protocol/responses_response.h"

namespace penstock::protocol {
namespace {

constexpr std::int64_t kPageMax = 100;
constexpr std::int64_t kPageUsual = 20;

std::unexpected<Error> bad_parameter(std::string_view name, std::string_view why) {
  return std::unexpected(Error{ErrorCode::kInvalidArgument, fmt::format("{}: {}", name, why),
                               std::string(name), "invalid_value"});
}

Result<std::int64_t> read_count(std::string_view query, std::string_view name, std::int64_t usual) {
  const auto text = query_value(query, name);
  if (!text) return usual;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < 0)
    return bad_parameter(name, "must be a whole number");
  return value;
}

void append_id(std::string& out, JsonRef item) {
  const auto id = item.find("id");
  out += id ? id.text() : "null";
}

}  // namespace

std::optional<std::string_view> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const auto pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const auto equals = std::min(pair.find('='), pair.size());
    if (pair.substr(0, equals) == name) return pair.substr(std::min(pair.size(), equals + 1));
  }
  return std::nullopt;
}

Result<std::int64_t> starting_after(std::string_view query) {
  return read_count(query, "starting_after", -1);
}

Result<std::string> item_page(std::string_view items, std::string_view query) {
  TRY(const auto limit, read_count(query, "limit", kPageUsual));
  if (limit < 1 || limit > kPageMax)
    return bad_parameter("limit", fmt::format("must be from 1 to {}", kPageMax));
  const auto order = query_value(query, "order").value_or("desc");
  if (order != "asc" && order != "desc") return bad_parameter("order", "must be asc or desc");
  TRY(const auto document, JsonDocument::parse(items));
  std::vector<JsonRef> all;
  for (auto item = document.root().first_child(); item; item = item.next_sibling())
    all.push_back(item);
  if (order == "desc") std::ranges::reverse(all);
  auto first = all.begin();
  if (const auto after = query_value(query, "after")) {
    first = std::ranges::find_if(all, [&](JsonRef item) { return item.find("id").equals(*after); });
    if (first == all.end()) return bad_parameter("after", "is not the id of an item");
    ++first;
  }
  const auto last = first + std::min<std::ptrdiff_t>(limit, all.end() - first);
  std::string out = R"({"object":"list","data":[)";
  for (auto item = first; item != last; ++item) {
    if (item != first) out += ',';
    out += item->text();
  }
  out += R"(],"first_id":)";
  first == last ? void(out += "null") : append_id(out, *first);
  out += R"(,"last_id":)";
  first == last ? void(out += "null") : append_id(out, *(last - 1));
  out.append(R"(,"has_more":)").append(last == all.end() ? "false}" : "true}");
  return out;
}

std::optional<std::string> find_item(std::string_view items, std::string_view id) {
  const auto document = JsonDocument::parse(items);
  if (!document) return std::nullopt;
  for (auto item = document->root().first_child(); item; item = item.next_sibling()) {
    if (item.find("id") && item.find("id").equals(id)) return std::string(item.text());
  }
  return std::nullopt;
}

std::string deleted_response(std::string_view id) {
  std::string out = R"({"id":)";
  append_json_string(out, id);
  return out += R"(,"object":"response","deleted":true})";
}

std::string input_tokens_object(std::uint64_t tokens) {
  std::string out = R"({"object":"response.input_tokens","input_tokens":)";
  append_json_number(out, tokens);
  return out += '}';
}

std::string compaction_object(std::string_view items, const Compaction& compaction,
                              const Seal& seal) {
  std::string kept = "[";
  if (const auto document = JsonDocument::parse(items)) {
    for (auto item = document->root().first_child(); item; item = item.next_sibling()) {
      // A compaction of before stays as it is, inside the new one.
      const auto type = item.find("type");
      if (!type.equals("message") && !type.equals("compaction")) continue;
      if (kept.size() > 1) kept += ',';
      kept += item.text();
    }
  }
  kept += ']';
  std::string out = R"({"id":)";
  append_json_string(out, "resp_" + compaction.name);
  out += R"(,"object":"response.compaction","created_at":)";
  append_json_number(out, compaction.created);
  out += R"(,"output":[{"id":)";
  append_json_string(out, "cmp_" + compaction.name);
  out += R"(,"type":"compaction","encrypted_content":)";
  append_json_string(out, seal.close(kSealedCompaction, kept));
  out += R"(}],"usage":)";
  append_responses_usage(out, compaction.usage);
  return out += '}';
}

}  // namespace penstock::protocol
