// DsmlEncoding: what the chat encodings with DSML calls (DeepSeek V3.2, V4, V4.1) have in common.
//
// Invariants, errors, concurrency: as ChatEncoding.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/prompt/chat_encoding.h"
#include "core/prompt/deepseek_parser.h"
#include "core/prompt/deepseek_tokens.h"
#include "core/prompt/dsml_writer.h"

namespace penstock::prompt {

class DsmlEncoding : public ChatEncoding {
 public:
  std::string_view text_begin() const override { return kBos; }
  bool thinks(const Conversation& conversation) const override {
    return conversation.thinking == Thinking::kEnabled;
  }

  std::unique_ptr<OutputParser> make_parser(const Conversation& conversation,
                                            std::vector<std::string> stop) const override {
    const auto tools = conversation.tools.empty() ? ToolMarkup::kAsText : ToolMarkup::kParse;
    return std::make_unique<DeepSeekParser>(starts_in_reasoning(conversation), tools,
                                            std::move(stop));
  }
  bool tells_json_from_calls() const override { return true; }
  std::unique_ptr<OutputParser> make_json_or_calls_parser(
      const Conversation& conversation, std::vector<std::string> stop) const override {
    return std::make_unique<DeepSeekParser>(starts_in_reasoning(conversation),
                                            ToolMarkup::kFirstOnly, std::move(stop));
  }

  Result<std::string> answer_grammar(const Conversation& conversation, const AnswerRules& rules,
                                     const TokenIdOf& token_id) const override {
    return dsml_answer_grammar(conversation, rules, token_id, spelling(),
                               starts_in_reasoning(conversation));
  }

 protected:
  virtual DsmlSpelling spelling() const = 0;

 private:
  bool starts_in_reasoning(const Conversation& conversation) const {
    const bool mid_answer = conversation.continue_last_assistant &&
                            !conversation.messages.empty() &&
                            !conversation.messages.back().text.empty();
    return thinks(conversation) && !mid_answer;
  }
};

}  // namespace penstock::prompt
