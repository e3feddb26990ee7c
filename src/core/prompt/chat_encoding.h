// ChatEncoding: how one model family writes a conversation, and how its answer is read back.
//
// render() turns a Conversation into spans: special tokens from the template, plain text from
// people. The tokenizer encodes span by span, so text that spells a special token stays text.
// make_parser() gives the matching reader of the model's output, answer_grammar() what that output
// is held to when calls are forced or strict. Families are listed in chat_encoding.cc; which one a
// model uses follows from its vocabulary and type, or is named in the configuration.
//
// Invariants: rendering is deterministic; appending a turn to a conversation only appends spans,
// except where the family drops old reasoning (facts of the family's encoding).
// Errors: kInvalidArgument or kUnsupported naming the message at fault.
// Concurrency: immutable after construction. Source: docs/protocol/chat-encodings.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/prompt/output_parser.h"
#include "domain/conversation.h"
#include "domain/tokens.h"

namespace penstock::prompt {

// The id of the added token with this content, if the vocabulary has one.
using TokenIdOf = std::function<std::optional<TokenId>(std::string_view)>;

// What an answer with tools may consist of.
struct AnswerRules {
  enum class Arguments : std::uint8_t {
    kNone,      // it isn't called
    kAny,       // any object
    kBySchema,  // what its parameters say
  };
  std::vector<Arguments> tools;  // [conversation.tools]; one is not kNone
  bool must_call = false;        // calls and nothing else, but for reasoning
  bool several_calls = true;
  // The schema that an answer without calls is an instance of; empty: it is free text. Only for
  // families that tell_json_from_calls().
  std::string json = {};
};

class ChatEncoding {
 public:
  virtual ~ChatEncoding() = default;
  virtual std::string_view name() const = 0;
  // True when an answer to this conversation starts with reasoning.
  virtual bool thinks(const Conversation& conversation) const = 0;
  // The special token behind which the answer proper begins when it thinks().
  virtual std::string_view reasoning_end() const { return "</think>"; }
  // The special token that begins whatever the model reads, a bare text too; empty without one.
  virtual std::string_view text_begin() const { return {}; }
  // Whether make_parser()'s parsers read special tokens, by their spelling.
  virtual bool reads_special_tokens() const { return false; }
  virtual Result<std::vector<PromptSpan>> render(const Conversation& conversation) const = 0;
  // A parser for one answer to `conversation`; stop strings apply to visible text only.
  virtual std::unique_ptr<OutputParser> make_parser(const Conversation& conversation,
                                                    std::vector<std::string> stop) const = 0;
  // Whether an answer may be either JSON or calls, told apart by how it begins.
  virtual bool tells_json_from_calls() const { return false; }
  // The parser of such an answer: what doesn't begin with a call is text to its end, whatever marks
  // its strings spell. Precondition: tells_json_from_calls().
  virtual std::unique_ptr<OutputParser> make_json_or_calls_parser(
      const Conversation& conversation, std::vector<std::string> stop) const {
    return make_parser(conversation, std::move(stop));
  }
  // Whole answers by `rules`, reasoning included, as EBNF (core/grammar/ebnf.h): make_parser()
  // finds in them no other calls than allowed. Free text holds no mark of a call.
  // kUnsupported where the family has no calls, or for a schema that the family's calls can't be
  // held to; kInvalidArgument for a schema that isn't one.
  virtual Result<std::string> answer_grammar(const Conversation& conversation,
                                             const AnswerRules& rules,
                                             const TokenIdOf& token_id) const;
};

// Tells whether the vocabulary has an added token with this content.
using HasToken = std::function<bool(std::string_view)>;

// The family whose special tokens the vocabulary has. `model_type`, of the checkpoint's
// config.json, tells families of one vocabulary apart. kUnsupported lists the families known.
Result<std::unique_ptr<ChatEncoding>> detect_chat_encoding(const HasToken& has_token,
                                                           std::string_view model_type = {});
// By name; kUnsupported lists the names known.
Result<std::unique_ptr<ChatEncoding>> make_chat_encoding(std::string_view name);

}  // namespace penstock::prompt
