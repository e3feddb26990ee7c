// The chat encoding of any model that carries a chat template: the checkpoint's own Jinja template
// (core/prompt/jinja) writes the prompt.
//
// The template sees what transformers gives it: messages, tools, add_generation_prompt, the special
// tokens by name, enable_thinking and thinking when the request says something of thinking. Text of
// the template is searched for added tokens; what came out of a value is plain text, wherever the
// template puts it. A role is the template's word, not a person's.
//
// Answers are read by the marks that the template itself knows: <think>, <tool_call> (Hermes),
// [TOOL_CALLS] (Mistral), bare JSON calls (Llama); without them an answer is text.
//
// Invariants and concurrency: as ChatEncoding. Errors: kInvalidArgument for a template that doesn't
// parse, or that refuses a conversation (its raise_exception); kUnsupported when it fails on one,
// with the template's line. Source: transformers' documentation of chat templates.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/prompt/chat_encoding.h"

namespace penstock::prompt {

// What a checkpoint's files say about its chat template.
struct ChatTemplate {
  std::string source;       // empty: there is none
  std::string tool_source;  // for conversations with tools, when it is another one
  std::vector<std::pair<std::string, std::string>> special_tokens;  // "bos_token", its text
};

// Reads a tokenizer_config.json. kInvalidArgument for what is no JSON object.
Result<ChatTemplate> read_chat_template(std::string_view tokenizer_config_json);

struct TemplateSupport {
  // Cuts trusted text at the added tokens in it (Tokenizer::split_added).
  std::function<std::vector<PromptSpan>(std::string_view)> split;
  // Seconds since 1970 for strftime_now; may be empty.
  std::function<std::int64_t()> now;
};

Result<std::unique_ptr<ChatEncoding>> make_template_encoding(const ChatTemplate& chat_template,
                                                             TemplateSupport support);

}  // namespace penstock::prompt
