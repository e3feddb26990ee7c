#include "core/protocol/completion_request.h"

#include <fmt/format.h>
#include <limits>

#include "core/protocol/json_fields.h"
#include "core/protocol/request_fields.h"

namespace penstock::protocol {
namespace {

constexpr std::uint32_t kDefaultMaxTokens = 16;

struct Refusal {
  std::string_view field;
  std::string_view why;
};
constexpr Refusal kRefused[] = {
    {"prompt_logprobs", "is not supported here"},    {"prompt_embeds", "is not supported here"},
    {"guided_json", "is not supported here"},        {"guided_regex", "is not supported here"},
    {"guided_choice", "is not supported here"},      {"guided_grammar", "is not supported here"},
    {"structured_outputs", "is not supported here"},
};

Status refuse_unsupported(JsonRef body, ChatRequest& request) {
  for (const Refusal& refusal : kRefused) {
    if (const auto value = optional_member(body, refusal.field))
      return unsupported(value, refusal.why);
  }
  const auto format = optional_member(body, "response_format");
  if (!format) return {};
  TRY_STATUS(read_answer_format(format, request));
  if (!request.constraint) return {};
  return unsupported(format, "is not supported here, use /v1/chat/completions");
}

Result<CompletionPrompt> read_ids(JsonRef list) {
  CompletionPrompt prompt;
  auto& ids = prompt.ids.emplace();
  for (auto item = list.first_child(); item; item = item.next_sibling()) {
    TRY(const auto id, read_integer(item, {0, kTokenIdMax}));
    ids.push_back(static_cast<TokenId>(id));
  }
  if (ids.empty()) return invalid_value(list, "must not be empty");
  return prompt;
}

Result<CompletionPrompt> read_prompt(JsonRef value) {
  if (value.is_array()) return read_ids(value);
  if (value.is_string()) return CompletionPrompt{.text = value.string()};
  return invalid_type(value, "a string or an array of token ids");
}

// A list that begins with a number is one prompt.
Status read_prompts(JsonRef body, const ChatLimits& limits, CompletionRequest& out) {
  TRY(const auto prompt, required_member(body, "prompt"));
  const auto first = prompt.is_array() ? prompt.first_child() : JsonRef();
  if (prompt.is_array() && !first) return invalid_value(prompt, "must not be empty");
  if (!first || first.is_number()) {
    TRY(out.prompts.emplace_back(), read_prompt(prompt));
    return {};
  }
  const std::uint32_t choices = out.chat.sampling.choices;
  for (auto item = first; item; item = item.next_sibling()) {
    if ((out.prompts.size() + 1) * choices > limits.choices_max) {
      return invalid_value(prompt, fmt::format("may ask for at most {} answers in one request, {} "
                                               "for each prompt; send several requests",
                                               limits.choices_max, choices));
    }
    TRY(out.prompts.emplace_back(), read_prompt(item));
  }
  return {};
}

// An empty one asks for nothing more than going on.
Status read_suffix(JsonRef body, CompletionRequest& out) {
  const auto suffix = optional_member(body, "suffix");
  if (!suffix) return {};
  TRY(out.suffix, read_string(suffix));
  if (out.suffix.empty()) return {};
  for (const CompletionPrompt& prompt : out.prompts) {
    if (prompt.ids) return unsupported(suffix, "goes with a prompt of text, not with token ids");
  }
  return {};
}

Status read_logprobs(JsonRef body, CompletionRequest& out) {
  if (const auto echo = optional_member(body, "echo")) {
    TRY(out.echo, read_bool(echo));
  }
  const auto logprobs = optional_member(body, "logprobs");
  if (!logprobs) return {};
  TRY(const auto count, read_integer(logprobs, {0, 5}));
  out.chat.sampling.top_logprobs = static_cast<std::int32_t>(count);
  if (!out.echo) return {};
  return unsupported(body.find("echo"),
                     "is not supported here with logprobs: those of the prompt are not computed");
}

Status read_best_of(JsonRef body, const ChatLimits& limits, const ChatRequest& request) {
  const auto best = optional_member(body, "best_of");
  if (!best) return {};
  TRY(const auto count, read_integer(best, {1, limits.choices_max}));
  const std::uint32_t choices = request.sampling.choices;
  if (count < choices) return invalid_value(best, "must not be less than n");
  if (count > choices) return unsupported(best, "more than n is not supported here");
  return {};
}

}  // namespace

Result<CompletionRequest> parse_completion_request(std::string_view body,
                                                   const ChatLimits& limits) {
  TRY(const auto document, JsonDocument::parse(body, limits.json));
  const auto root = document.root();
  TRY_STATUS(expect_object(root));
  CompletionRequest request;
  ChatRequest& chat = request.chat;
  chat.prompt_field = "prompt";
  TRY_STATUS(read_identity(root, chat));
  TRY_STATUS(refuse_unsupported(root, chat));
  TRY_STATUS(read_sampling(root, limits, chat));
  TRY_STATUS(read_prompts(root, limits, request));
  TRY_STATUS(read_suffix(root, request));
  TRY_STATUS(read_logprobs(root, request));
  TRY_STATUS(read_best_of(root, limits, chat));
  chat.sampling.max_tokens = kDefaultMaxTokens;
  if (const auto max = optional_member(root, "max_tokens")) {
    TRY(const auto count, read_integer(max, {1, std::numeric_limits<std::int32_t>::max()}));
    chat.sampling.max_tokens = static_cast<std::uint32_t>(count);
  }
  if (const auto stop = optional_member(root, "stop"))
    TRY_STATUS(read_stop_strings(stop, limits, chat.stop));
  TRY_STATUS(read_stop_token_ids(root, limits, chat.sampling));
  TRY_STATUS(read_stream(root, chat));
  return request;
}

}  // namespace penstock::protocol
