#include "core/protocol/completion_response.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/protocol/chat_response.h"
#include "core/protocol/errors.h"
#include "core/protocol/json_writer.h"
#include "core/protocol/sse.h"

namespace penstock::protocol {
namespace {

bool continues_character(char c) {
  return (c & 0xC0) == 0x80;
}

std::string spelled(const TokenText& token) {
  if (find_invalid_utf8(token.bytes) == std::string_view::npos) return token.bytes;
  std::string out = "bytes:";
  for (const char c : token.bytes)
    out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

// The four arrays, each as comma-separated JSON.
class LegacyLogprobs {
 public:
  void add(std::span<const LogprobEntry> entries) {
    for (const LogprobEntry& entry : entries) {
      if (!tokens_.empty()) {
        for (std::string* list : {&tokens_, &token_logprobs_, &top_logprobs_, &text_offset_})
          *list += ',';
      }
      append_json_string(tokens_, spelled(entry.token));
      append_json_logprob(token_logprobs_, entry.token.logprob);
      append_top(entry);
      const std::string& bytes = entry.token.bytes;
      // A token may begin inside a character.
      const bool inside = !bytes.empty() && continues_character(bytes.front()) && characters_ > 0;
      append_json_number(text_offset_, characters_ - (inside ? 1 : 0));
      characters_ += static_cast<std::uint64_t>(
          std::ranges::count_if(bytes, [](char c) { return !continues_character(c); }));
    }
  }
  bool empty() const { return tokens_.empty(); }
  // Appends the object and forgets its entries, but not where the text is.
  void take(std::string& out) {
    out.append(R"({"tokens":[)").append(std::exchange(tokens_, {}));
    out.append(R"(],"token_logprobs":[)").append(std::exchange(token_logprobs_, {}));
    out.append(R"(],"top_logprobs":[)").append(std::exchange(top_logprobs_, {}));
    out.append(R"(],"text_offset":[)").append(std::exchange(text_offset_, {})).append("]}");
  }

 private:
  // Keys must differ: of tokens that are spelled alike the likelier one stays.
  void append_top(const LogprobEntry& entry) {
    std::vector<std::string> seen;
    top_logprobs_ += '{';
    const auto put = [&](const TokenText& token) {
      std::string name = spelled(token);
      if (std::ranges::find(seen, name) != seen.end()) return;
      if (!seen.empty()) top_logprobs_ += ',';
      append_json_string(top_logprobs_, name);
      top_logprobs_ += ':';
      append_json_logprob(top_logprobs_, token.logprob);
      seen.push_back(std::move(name));
    };
    std::ranges::for_each(entry.top, put);
    put(entry.token);
    top_logprobs_ += '}';
  }

  std::string tokens_;
  std::string token_logprobs_;
  std::string top_logprobs_;
  std::string text_offset_;
  std::uint64_t characters_ = 0;
};

struct ChoiceState {
  std::string text;  // collector only
  LegacyLogprobs logprobs;
  std::string_view finish;  // empty until it has finished
};

// What streams and whole answers share.
class Writer : public AnswerWriter {
 public:
  explicit Writer(CompletionAnswer answer)
      : answer_(std::move(answer)), choices_(answer_.choices) {}

 protected:
  ChoiceState& open(std::uint32_t choice) {
    ENSURE(!over_ && choice < choices_.size() && choices_[choice].finish.empty());
    return choices_[choice];
  }
  std::string_view echo_of(std::uint32_t choice) const {
    if (answer_.echoes.empty()) return {};
    return answer_.echoes[choice * answer_.echoes.size() / choices_.size()];
  }
  void take_logprobs(ChoiceState& state, const ChatDelta& delta) const {
    if (answer_.top_logprobs >= 0) state.logprobs.add(delta.logprobs);
  }
  void close(std::uint32_t choice, const ChoiceEnd& end) {
    open(choice).finish = end.reason == FinishReason::kLength ? "length" : "stop";
  }
  void end_all() {
    ENSURE(!std::exchange(over_, true));
    for (const ChoiceState& state : choices_)
      ENSURE(!state.finish.empty());
  }
  void append_head(std::string& out) const {
    out += R"({"id":)";
    append_json_string(out, answer_.id);
    out += R"(,"object":"text_completion","created":)";
    append_json_number(out, answer_.created);
    out += R"(,"model":)";
    append_json_string(out, answer_.model);
    out += R"(,"choices":[)";
  }
  static void append_choice(std::string& out, std::uint32_t index, std::string_view text,
                            LegacyLogprobs* logprobs, std::string_view finish) {
    out += R"({"text":)";
    append_json_string(out, text);
    out += R"(,"index":)";
    append_json_number(out, std::uint64_t{index});
    out += R"(,"logprobs":)";
    if (logprobs != nullptr) {
      logprobs->take(out);
    } else {
      out += "null";
    }
    out += R"(,"finish_reason":)";
    if (finish.empty()) {
      out += "null}";
    } else {
      out.append("\"").append(finish).append("\"}");
    }
  }

  CompletionAnswer answer_;
  std::vector<ChoiceState> choices_;
  bool over_ = false;
};

class StreamWriter final : public Writer {
 public:
  using Writer::Writer;

  void start(const Usage&, std::string& out) override {
    for (std::uint32_t i = 0; i < choices_.size(); ++i)
      if (!echo_of(i).empty()) chunk(i, echo_of(i), out);
  }
  void add(const ChatDelta& delta, std::string& out) override {
    ChoiceState& state = open(delta.choice);
    take_logprobs(state, delta);
    if (!delta.content.empty() || !state.logprobs.empty()) chunk(delta.choice, delta.content, out);
  }
  void finish(std::uint32_t choice, const ChoiceEnd& end, std::string& out) override {
    close(choice, end);
    chunk(choice, {}, out);
  }
  void end(const Usage& usage, std::string& out) override {
    end_all();
    if (answer_.include_usage) {
      out += "data: ";
      append_head(out);
      out += R"(],"usage":)";
      append_usage(out, usage);
      out += "}\n\n";
    }
    out += kSseDone;
  }
  void fail(const Error& error, std::string& out) override {
    ENSURE(!std::exchange(over_, true));
    append_sse_event(out, error_object(error));
  }
  void keep_alive(std::string& out) override { out += kSseKeepAlive; }

 private:
  void chunk(std::uint32_t choice, std::string_view text, std::string& out) {
    ChoiceState& state = choices_[choice];
    out += "data: ";
    append_head(out);
    append_choice(out, choice, text, state.logprobs.empty() ? nullptr : &state.logprobs,
                  state.finish);
    out += answer_.include_usage ? "],\"usage\":null}\n\n" : "]}\n\n";
  }
};

class CollectorWriter final : public Writer {
 public:
  using Writer::Writer;

  void start(const Usage&, std::string&) override {
    for (std::uint32_t i = 0; i < choices_.size(); ++i)
      choices_[i].text = echo_of(i);
  }
  void add(const ChatDelta& delta, std::string&) override {
    ChoiceState& state = open(delta.choice);
    take_logprobs(state, delta);
    append_valid_utf8(state.text, delta.content);
  }
  void finish(std::uint32_t choice, const ChoiceEnd& end, std::string&) override {
    close(choice, end);
  }
  void end(const Usage& usage, std::string& out) override {
    end_all();
    append_head(out);
    for (std::uint32_t i = 0; i < choices_.size(); ++i) {
      if (i > 0) out += ',';
      ChoiceState& state = choices_[i];
      append_choice(out, i, state.text, answer_.top_logprobs >= 0 ? &state.logprobs : nullptr,
                    state.finish);
    }
    out += R"(],"usage":)";
    append_usage(out, usage);
    out += '}';
  }
  void fail(const Error&, std::string&) override {}
  void keep_alive(std::string&) override {}
};

}  // namespace

std::unique_ptr<AnswerWriter> make_completion_stream(CompletionAnswer answer) {
  return std::make_unique<StreamWriter>(std::move(answer));
}

std::unique_ptr<AnswerWriter> make_completion_collector(CompletionAnswer answer) {
  return std::make_unique<CollectorWriter>(std::move(answer));
}

}  // namespace penstock::protocol
