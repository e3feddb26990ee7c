#include "core/dialects/ec_legs.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>

#include "core/dialects/json_values.h"
#include "core/dialects/pd_legs.h"

namespace penstock::dialects {
namespace {

using namespace std::string_view_literals;

constexpr std::array kMedia = {"image_url"sv, "video_url"sv, "audio_url"sv, "input_audio"sv};

}  // namespace

std::vector<std::string_view> media_items(const JsonBody& body) {
  std::vector<std::string_view> items;
  const auto messages = elements(body.value("messages").value_or(""));
  if (!messages) return items;
  for (const std::string_view message : *messages) {
    const auto content = value_at(message, {"content"});
    if (!content || !content->starts_with('[')) continue;
    const auto parts = elements(*content);
    if (!parts) continue;
    for (const std::string_view part : *parts) {
      const auto type = string_at(part, {"type"});
      if (type && std::ranges::find(kMedia, *type) != kMedia.end() &&
          std::ranges::find(items, part) == items.end())
        items.push_back(part);
    }
  }
  return items;
}

std::vector<Edit> encode_edits(const JsonBody& body, std::string_view item) {
  auto edits = one_token_edits(body, WireApi::kChat);
  edits.push_back({"messages", fmt::format(R"([{{"role":"user","content":[{}]}}])", item)});
  return edits;
}

bool merge_encoded(std::string_view reply, std::string& merged) {
  // Any answer of a chat has choices, be they empty.
  if (!value_at(reply, {"choices"})) return false;
  const auto params = value_at(reply, {"ec_transfer_params"});
  if (!params || !params->starts_with('{')) return true;
  std::string_view members = params->substr(1, params->size() - 2);
  const auto begin = std::min(members.find_first_not_of(" \t\r\n"), members.size());
  members.remove_prefix(begin);
  if (members.empty()) return true;
  if (!merged.empty()) merged += ",";
  merged += members;
  return true;
}

std::optional<Edit> encoded_edit(std::string_view merged) {
  if (merged.empty()) return std::nullopt;
  return Edit{"ec_transfer_params", fmt::format("{{{}}}", merged)};
}

}  // namespace penstock::dialects
