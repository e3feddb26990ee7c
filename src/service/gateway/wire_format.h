// WireFormat: what a generation needs to know of the API it was asked through.
//
// One object per request: parse() may keep what its writer will need. What can fail before a model
// is involved (an unknown field, a stored answer that is gone) fails in parse().
//
// Errors: parse() as in core/protocol. Concurrency: owned by its request.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/protocol/answer_writer.h"
#include "core/protocol/chat_request.h"
#include "core/protocol/errors.h"
#include "core/protocol/messages_request.h"
#include "domain/tokens.h"

namespace penstock::gateway {

struct AnswerIdentity {
  std::string name;          // 24 random hexadecimal digits; the format puts its prefix before it
  std::int64_t created = 0;  // seconds since 1970
  std::string request_id;
};

// A prompt that goes to the model as it is: ids, or else a text in which nothing is special.
struct RawPrompt {
  std::string text = {};
  std::string suffix = {};  // the answer belongs between the two; empty: behind the text
  bool begins = false;      // what begins every text of the model goes before it
  std::optional<std::vector<TokenId>> ids = {};
  bool wants_text = false;  // of the ids
};

class WireFormat {
 public:
  virtual ~WireFormat() = default;
  virtual protocol::ErrorShape error_shape() const { return protocol::ErrorShape::kOpenAi; }
  virtual Result<protocol::ChatRequest> parse(std::string_view body,
                                              const protocol::ChatLimits& limits) = 0;
  // The writer of a stream if request.stream, else of a whole answer.
  virtual std::unique_ptr<protocol::AnswerWriter> make_writer(const protocol::ChatRequest& request,
                                                              const AnswerIdentity& answer) = 0;
  // The request asks for no answer, only how many tokens its prompt has; count_body() says it.
  virtual bool only_counts() const { return false; }
  virtual std::string count_body(std::uint64_t /*prompt_tokens*/) const { return {}; }
  // The same for formats that say which tokens they are.
  virtual std::string tokens_body(std::span<const TokenId> prompt) const {
    return count_body(prompt.size());
  }
  // Once, after parse(): the prompts when there is no conversation, else nothing. With several, the
  // writer has the choices of each prompt after those of the one before.
  virtual std::vector<RawPrompt> take_raw_prompts() { return {}; }
  // Before make_writer(): the text of a raw prompt that came as ids and wanted it.
  virtual void set_prompt_text(std::size_t /*prompt*/, std::string /*text*/) {}
  // What stands before the random digits of a tool call's id.
  virtual std::string_view call_prefix() const { return "call_"; }
};

class ChatFormat final : public WireFormat {
 public:
  Result<protocol::ChatRequest> parse(std::string_view body,
                                      const protocol::ChatLimits& limits) override;
  std::unique_ptr<protocol::AnswerWriter> make_writer(const protocol::ChatRequest& request,
                                                      const AnswerIdentity& answer) override;
};

class MessagesFormat final : public WireFormat {
 public:
  explicit MessagesFormat(protocol::MessagesCall call) : call_(call) {}

  protocol::ErrorShape error_shape() const override { return protocol::ErrorShape::kAnthropic; }
  Result<protocol::ChatRequest> parse(std::string_view body,
                                      const protocol::ChatLimits& limits) override;
  std::unique_ptr<protocol::AnswerWriter> make_writer(const protocol::ChatRequest& request,
                                                      const AnswerIdentity& answer) override;
  bool only_counts() const override { return call_ == protocol::MessagesCall::kCountTokens; }
  std::string count_body(std::uint64_t prompt_tokens) const override;
  std::string_view call_prefix() const override { return "toolu_"; }

 private:
  protocol::MessagesCall call_;
};

// POST /tokenize.
class TokenizeFormat final : public WireFormat {
 public:
  Result<protocol::ChatRequest> parse(std::string_view body,
                                      const protocol::ChatLimits& limits) override;
  std::unique_ptr<protocol::AnswerWriter> make_writer(const protocol::ChatRequest&,
                                                      const AnswerIdentity&) override {
    return nullptr;  // it only counts
  }
  bool only_counts() const override { return true; }
  std::string tokens_body(std::span<const TokenId> prompt) const override;
  std::vector<RawPrompt> take_raw_prompts() override;

 private:
  std::optional<std::string> text_;
};

// POST /v1/completions.
class CompletionFormat final : public WireFormat {
 public:
  Result<protocol::ChatRequest> parse(std::string_view body,
                                      const protocol::ChatLimits& limits) override;
  std::unique_ptr<protocol::AnswerWriter> make_writer(const protocol::ChatRequest& request,
                                                      const AnswerIdentity& answer) override;
  std::vector<RawPrompt> take_raw_prompts() override { return std::move(prompts_); }
  void set_prompt_text(std::size_t prompt, std::string text) override {
    echoes_[prompt] = std::move(text);
  }

 private:
  std::vector<RawPrompt> prompts_;
  std::uint32_t prompt_count_ = 0;
  std::vector<std::string> echoes_;  // go before the answers; empty: none are wanted
};

}  // namespace penstock::gateway
