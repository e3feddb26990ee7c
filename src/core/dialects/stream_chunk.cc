#include "core/dialects/stream_chunk.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>

#include "core/dialects/engine_reports.h"
#include "core/dialects/json_body.h"
#include "core/dialects/json_values.h"

namespace penstock::dialects {
namespace {

using namespace std::string_view_literals;
using Chunk = std::optional<StreamChunk>;

bool is_nothing(std::optional<std::string_view> value) {
  return !value || *value == "null" || *value == "[]";
}

// The type of an event: its name, or what its data says.
std::string type_of(const SseEvent& event) {
  if (!event.name.empty()) return std::string(event.name);
  return string_at(event.data, {"type"}).value_or("");
}

// A number of a place, as text; none is as good as the first.
std::string place(std::string_view json, std::string_view key) {
  return fmt::to_string(integer_at(json, {key}).value_or(0));
}

// False: there is no text, or another one already.
bool take(StreamChunk& chunk, std::optional<std::string_view> value, std::string channel) {
  if (is_nothing(value)) return true;
  auto text = decode_string(*value);
  if (!text) return false;
  if (text->empty()) return true;
  // Two at once could be cut in two places.
  if (!chunk.text.empty()) return false;
  chunk.channel = std::move(channel);
  chunk.text = std::move(*text);
  chunk.text_json = *value;
  return true;
}

// One tool call of a chat: its name, which comes once, and a piece of its arguments.
bool take_call(StreamChunk& chunk, std::string_view delta) {
  if (!is_nothing(value_at(delta, {"function_call"}))) return false;
  const auto calls = value_at(delta, {"tool_calls"});
  if (is_nothing(calls)) return true;
  const auto list = elements(*calls);
  if (!list || list->size() != 1) return false;
  const std::string_view call = list->front();
  const std::string at = place(call, "index");
  const auto id = value_at(call, {"id"});
  const auto name = value_at(call, {"function", "name"});
  if (!is_nothing(id) || !is_nothing(name)) {
    chunk.mark = fmt::format("call {} {}", at, name.value_or(""));
    if (!is_nothing(id)) chunk.named.push_back(*id);
    if (!is_nothing(name)) chunk.named.push_back(*name);
  }
  return take(chunk, value_at(call, {"function", "arguments"}), "call " + at);
}

bool take_ids(StreamChunk& chunk, std::optional<std::string_view> value) {
  if (is_nothing(value)) return true;
  const auto ids = parse_token_ids(*value);
  if (!ids) return false;
  for (const std::uint32_t id : *ids)
    chunk.text += fmt::format("{},", id);
  chunk.text_json = *value;
  chunk.is_ids = true;
  return true;
}

Chunk choice_chunk(const SseEvent& event, WireApi api) {
  StreamChunk chunk;
  if (event.data == "[DONE]") {
    chunk.last = true;
    return chunk;
  }
  const auto choices = value_at(event.data, {"choices"});
  const auto list = choices ? elements(*choices) : std::nullopt;
  if (!list || list->size() > 1) return std::nullopt;
  if (list->empty()) return chunk;
  chunk.choice = true;
  const std::string_view choice = list->front();
  if (integer_at(choice, {"index"}).value_or(0) != 0) return std::nullopt;
  chunk.by_token = !is_nothing(value_at(choice, {"logprobs"}));
  chunk.finishes = !is_nothing(value_at(choice, {"finish_reason"}));
  bool good = false;
  if (api == WireApi::kCompletion) {
    good = take(chunk, value_at(choice, {"text"}), "text");
  } else if (api == WireApi::kGenerate) {
    good = take_ids(chunk, value_at(choice, {"token_ids"}));
  } else if (const auto delta = value_at(choice, {"delta"})) {
    good = take_call(chunk, *delta);
    for (const std::string_view field : {"content"sv, "reasoning_content"sv, "reasoning"sv})
      good = good && take(chunk, value_at(*delta, {field}), std::string(field));
  }
  return good ? Chunk(std::move(chunk)) : std::nullopt;
}

// A block of Messages that begins; what it holds comes in deltas.
Chunk block_start(std::string_view data) {
  const auto block = value_at(data, {"content_block"});
  if (!block) return std::nullopt;
  for (const std::string_view field : {"text"sv, "thinking"sv}) {
    if (!string_at(*block, {field}).value_or("").empty()) return std::nullopt;
  }
  StreamChunk chunk;
  chunk.mark =
      fmt::format("block {} {} {}", place(data, "index"), string_at(*block, {"type"}).value_or(""),
                  string_at(*block, {"name"}).value_or(""));
  return chunk;
}

Chunk block_delta(std::string_view data) {
  const auto delta = value_at(data, {"delta"});
  if (!delta) return std::nullopt;
  StreamChunk chunk;
  const std::string at = place(data, "index");
  const std::string type = string_at(*delta, {"type"}).value_or("");
  if (type == "signature_delta") {
    chunk.mark = "signature " + at;  // of the engine, and not of the text
    return chunk;
  }
  constexpr std::array kFields = {std::pair("text_delta"sv, "text"sv),
                                  std::pair("thinking_delta"sv, "thinking"sv),
                                  std::pair("input_json_delta"sv, "partial_json"sv)};
  const auto* const field =
      std::ranges::find(kFields, type, &std::pair<std::string_view, std::string_view>::first);
  if (field == kFields.end()) return std::nullopt;
  const auto value = value_at(*delta, {field->second});
  if (!value || !take(chunk, value, fmt::format("{} {}", field->second, at))) return std::nullopt;
  return chunk;
}

Chunk messages_chunk(const SseEvent& event) {
  StreamChunk chunk;
  const std::string type = type_of(event);
  if (type == "ping") return chunk;
  if (type == "content_block_start") return block_start(event.data);
  if (type == "content_block_delta") return block_delta(event.data);
  if (type == "message_start" || type == "message_delta") {
    chunk.mark = type;
  } else if (type == "content_block_stop") {
    chunk.mark = fmt::format("{} {}", type, place(event.data, "index"));
  } else if (type == "message_stop") {
    chunk.last = true;
  } else {
    return std::nullopt;
  }
  return chunk;
}

Chunk responses_chunk(const SseEvent& event) {
  StreamChunk chunk;
  const std::string type = type_of(event);
  if (type == "response.completed" || type == "response.incomplete") {
    chunk.last = true;
    return chunk;
  }
  if (type == "response.created" || type == "response.in_progress" || type == "response.queued") {
    chunk.mark = type;
    return chunk;
  }
  // Annotations come several at a place; what engines' own tools do is not compared.
  const bool once = type.ends_with(".added") || type.ends_with(".done");
  if (!type.starts_with("response.") || type.contains(".annotation.") ||
      (!once && !type.ends_with(".delta")) || !value_at(event.data, {"output_index"}))
    return std::nullopt;
  const std::string at =
      fmt::format("{} {} {} {}", type, place(event.data, "output_index"),
                  place(event.data, "content_index"), place(event.data, "summary_index"));
  if (type.ends_with(".delta")) {
    chunk.by_token = !is_nothing(value_at(event.data, {"logprobs"}));
    const auto value = value_at(event.data, {"delta"});
    return value && take(chunk, value, at) ? Chunk(std::move(chunk)) : std::nullopt;
  }
  chunk.mark = at;
  if (const auto item = value_at(event.data, {"item"}))
    chunk.mark += fmt::format(" {} {}", string_at(*item, {"type"}).value_or(""),
                              string_at(*item, {"name"}).value_or(""));
  return chunk;
}

}  // namespace

std::optional<StreamChunk> read_stream_chunk(const SseEvent& event, WireApi api) {
  switch (api) {
    case WireApi::kMessages:
      return messages_chunk(event);
    case WireApi::kResponses:
      return responses_chunk(event);
    default:
      return choice_chunk(event, api);
  }
}

StreamNames names_in(const SseEvent& event, WireApi api) {
  StreamNames names;
  const auto name = [&](std::string what, JsonPath path) {
    if (const auto value = value_at(event.data, path); value && value->starts_with('"'))
      names.emplace_back(std::move(what), *value);
  };
  if (api == WireApi::kMessages || event.data == "[DONE]") return names;  // it says them once
  if (api != WireApi::kResponses) {
    name("answer", {api == WireApi::kGenerate ? "request_id"sv : "id"sv});
    return names;
  }
  name("response", {"response", "id"});
  const std::string at = place(event.data, "output_index");
  name("item " + at, {"item_id"});
  name("item " + at, {"item", "id"});
  name("call " + at, {"item", "call_id"});
  return names;
}

bool holds_name(std::string_view key) {
  return key == "id" || key == "item_id" || key == "call_id" || key == "request_id" ||
         key == "response_id";
}

}  // namespace penstock::dialects
