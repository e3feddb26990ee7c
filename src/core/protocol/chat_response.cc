#include "core/protocol/chat_response.h"

#include <utility>

#include "base/check.h"
#include "core/protocol/errors.h"
#include "core/protocol/json_writer.h"
#include "core/protocol/sse.h"

namespace penstock::protocol {
namespace {

std::string_view finish_name(ChatFinish finish) {
  switch (finish) {
    case ChatFinish::kStop:
      return "stop";
    case ChatFinish::kLength:
      return "length";
    case ChatFinish::kToolCalls:
      return "tool_calls";
    case ChatFinish::kContentFilter:
      return "content_filter";
    case ChatFinish::kInsufficientSystemResource:
      return "insufficient_system_resource";
  }
  return "stop";
}

// Fields of the answer around the choices: identity before, tier and fingerprint after.
void append_identity(std::string& out, const ChatAnswer& answer, std::string_view object) {
  out += R"("id":)";
  append_json_string(out, answer.id);
  out += R"(,"object":")";
  out += object;
  out += R"(","created":)";
  append_json_number(out, answer.created);
  out += R"(,"model":)";
  append_json_string(out, answer.model);
  if (!answer.service_tier.empty()) {
    out += R"(,"service_tier":)";
    // "fast" is an alias; the answer names the tier it stands for.
    append_json_string(out, answer.service_tier == "fast" ? "priority" : answer.service_tier);
  }
  if (!answer.system_fingerprint.empty()) {
    out += R"(,"system_fingerprint":)";
    append_json_string(out, answer.system_fingerprint);
  }
}

void append_token(std::string& out, const TokenText& token) {
  out += R"("token":)";
  append_json_string(out, token.bytes);
  out += R"(,"logprob":)";
  append_json_logprob(out, token.logprob);
  out += R"(,"bytes":[)";
  for (const char c : token.bytes) {
    append_json_number(out, std::uint64_t{static_cast<unsigned char>(c)});
    out += ',';
  }
  if (out.back() == ',') out.pop_back();
  out += ']';
}

void append_field(std::string& out, std::string_view name, std::string_view value) {
  if (out.back() != '{') out += ',';
  out.append("\"").append(name).append("\":");
  append_json_string(out, value);
}

ChatChoiceState& open_choice(std::vector<ChatChoiceState>& choices, std::uint32_t index) {
  ENSURE(index < choices.size());
  ENSURE(!choices[index].finished);
  return choices[index];
}

// Opens the call when the piece is its first; true then.
bool open_call(ChatChoiceState& state, const ToolCallPiece& piece) {
  if (piece.index == state.calls.size()) {
    state.calls.push_back({std::string(piece.id), std::string(piece.name), {}, false});
    return true;
  }
  ENSURE(piece.index + 1 == state.calls.size());
  return false;
}

void append_tool_piece(std::string& out, std::uint32_t index, const ChatChoiceState::Call* opened,
                       std::string_view arguments) {
  out += R"({"index":)";
  append_json_number(out, std::uint64_t{index});
  if (opened != nullptr) {
    out += R"(,"id":)";
    append_json_string(out, opened->id);
    out += R"(,"type":"function","function":{"name":)";
    append_json_string(out, opened->name);
    out += R"(,"arguments":)";
  } else {
    out += R"(,"function":{"arguments":)";
  }
  append_json_string(out, arguments);
  out += "}}";
}

}  // namespace

ChatFinish chat_finish(FinishReason reason, bool called_tools, const ToolChoice& choice) {
  ENSURE(reason == FinishReason::kStop || reason == FinishReason::kLength);
  if (reason == FinishReason::kLength) return ChatFinish::kLength;
  const bool named = choice.mode == ToolChoiceMode::kNamed;
  return called_tools && !named ? ChatFinish::kToolCalls : ChatFinish::kStop;
}

void append_usage(std::string& out, const Usage& usage) {
  const auto field = [&out](std::string_view name, std::uint64_t value) {
    out.append(name);
    append_json_number(out, value);
  };
  field(R"({"prompt_tokens":)", usage.prompt_tokens);
  field(R"(,"completion_tokens":)", usage.completion_tokens);
  field(R"(,"total_tokens":)", usage.prompt_tokens + usage.completion_tokens);
  field(R"(,"prompt_tokens_details":{"cached_tokens":)", usage.cached_tokens);
  field(R"(},"completion_tokens_details":{"reasoning_tokens":)", usage.reasoning_tokens);
  field(R"(},"prompt_cache_hit_tokens":)", usage.cached_tokens);
  field(R"(,"prompt_cache_miss_tokens":)", usage.prompt_tokens - usage.cached_tokens);
  out += '}';
}

void append_logprobs(std::string& out, std::span<const LogprobEntry> entries) {
  bool first = true;
  for (const LogprobEntry& entry : entries) {
    out += first ? "{" : ",{";
    first = false;
    append_token(out, entry.token);
    out += R"(,"top_logprobs":[)";
    for (std::size_t i = 0; i < entry.top.size(); ++i) {
      out += i == 0 ? "{" : ",{";
      append_token(out, entry.top[i]);
      out += '}';
    }
    out += "]}";
  }
}

ChatStream::ChatStream(const ChatAnswer& answer) : answer_(answer), choices_(answer.choices) {
  head_ = "data: {";
  append_identity(head_, answer_, "chat.completion.chunk");
  head_ += R"(,"choices":[{"index":)";
  tail_ = answer_.include_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n";
}

// From "data:" into the delta object; the choice's first delta begins with the role.
void ChatStream::begin_delta(ChatChoiceState& state, std::uint32_t choice, std::string& out) const {
  out += head_;
  append_json_number(out, std::uint64_t{choice});
  out += R"(,"delta":{)";
  if (!std::exchange(state.started, true)) append_field(out, "role", "assistant");
}

// From the end of the delta object to the end of the event.
void ChatStream::end_delta(std::string_view logprobs, std::string_view finish,
                           std::string& out) const {
  out += R"(},"logprobs":)";
  if (logprobs.empty()) {
    out += "null";
  } else {
    out.append(R"({"content":[)").append(logprobs).append(R"(],"refusal":null})");
  }
  out += R"(,"finish_reason":)";
  if (finish.empty()) {
    out += "null";
  } else {
    out.append("\"").append(finish).append("\"");
  }
  out += tail_;
}

void ChatStream::text_chunk(ChatChoiceState& state, const ChatDelta& delta, std::string_view name,
                            std::string_view text, std::string_view logprobs,
                            std::string& out) const {
  const bool first = !state.started;
  begin_delta(state, delta.choice, out);
  // Some clients take the first delta's content for granted.
  if (first && name != "content") append_field(out, "content", "");
  append_field(out, name, text);
  end_delta(logprobs, {}, out);
}

// A chunk for the call that is open: its first piece (id and name, no arguments), or arguments.
void ChatStream::tool_chunk(ChatChoiceState& state, std::uint32_t choice, bool opens,
                            std::string_view arguments, std::string& out) const {
  const bool first = !state.started;
  begin_delta(state, choice, out);
  if (first) append_field(out, "content", "");
  out += out.back() == '{' ? R"("tool_calls":[)" : R"(,"tool_calls":[)";
  auto& call = state.calls.back();
  call.has_arguments |= !arguments.empty();
  append_tool_piece(out, static_cast<std::uint32_t>(state.calls.size() - 1),
                    opens ? &call : nullptr, arguments);
  out += ']';
  end_delta({}, {}, out);
}

void ChatStream::tool_chunks(ChatChoiceState& state, const ChatDelta& delta,
                             std::string& out) const {
  for (const ToolCallPiece& piece : delta.tool_calls) {
    const bool opens = piece.index == state.calls.size();
    if (opens && !state.calls.empty() && !state.calls.back().has_arguments) {
      tool_chunk(state, delta.choice, false, "{}", out);  // the call before turned out to have none
    }
    if (open_call(state, piece)) tool_chunk(state, delta.choice, true, {}, out);
    if (!piece.arguments.empty()) tool_chunk(state, delta.choice, false, piece.arguments, out);
  }
}

void ChatStream::start(std::uint32_t choice, std::string& out) {
  ENSURE(!over_);
  auto& state = open_choice(choices_, choice);
  if (state.started) return;
  begin_delta(state, choice, out);
  append_field(out, "content", "");
  end_delta({}, {}, out);
}

void ChatStream::add(const ChatDelta& delta, std::string& out) {
  ENSURE(!over_);
  auto& state = open_choice(choices_, delta.choice);
  std::string logprobs;
  if (answer_.logprobs) append_logprobs(logprobs, delta.logprobs);
  if (!delta.reasoning.empty()) {
    const bool last = delta.content.empty();
    text_chunk(state, delta, "reasoning_content", delta.reasoning, last ? logprobs : "", out);
    if (last) logprobs.clear();
  }
  if (!delta.content.empty() || !logprobs.empty()) {
    text_chunk(state, delta, "content", delta.content, logprobs, out);
  }
  tool_chunks(state, delta, out);
}

void ChatStream::finish(std::uint32_t choice, ChatFinish reason, std::string& out) {
  ENSURE(!over_);
  auto& state = open_choice(choices_, choice);
  start(choice, out);
  if (!state.calls.empty() && !state.calls.back().has_arguments) {
    tool_chunk(state, choice, false, "{}", out);
  }
  begin_delta(state, choice, out);
  end_delta({}, finish_name(reason), out);
  state.finished = true;
}

void ChatStream::end(const Usage& usage, std::string& out) {
  ENSURE(!std::exchange(over_, true));
  for (const auto& state : choices_)
    ENSURE(state.finished);
  if (answer_.include_usage) {
    out += "data: {";
    append_identity(out, answer_, "chat.completion.chunk");
    out += R"(,"choices":[],"usage":)";
    append_usage(out, usage);
    out += "}\n\n";
  }
  out += kSseDone;
}

void ChatStream::fail(const Error& error, std::string& out) {
  ENSURE(!std::exchange(over_, true));
  append_sse_event(out, error_object(error));
}

ChatCollector::ChatCollector(ChatAnswer answer)
    : answer_(std::move(answer)), choices_(answer_.choices) {}

void ChatCollector::add(const ChatDelta& delta) {
  auto& state = open_choice(choices_, delta.choice);
  append_valid_utf8(state.reasoning, delta.reasoning);
  append_valid_utf8(state.content, delta.content);
  for (const ToolCallPiece& piece : delta.tool_calls) {
    open_call(state, piece);
    append_valid_utf8(state.calls.back().arguments, piece.arguments);
  }
  if (answer_.logprobs && !delta.logprobs.empty()) {
    if (!state.logprobs.empty()) state.logprobs += ',';
    append_logprobs(state.logprobs, delta.logprobs);
  }
}

void ChatCollector::finish(std::uint32_t choice, ChatFinish reason) {
  auto& state = open_choice(choices_, choice);
  state.finish = reason;
  state.finished = true;
}

std::string ChatCollector::body(const Usage& usage) const {
  std::string out = "{";
  append_identity(out, answer_, "chat.completion");
  out += R"(,"choices":[)";
  for (std::uint32_t i = 0; i < choices_.size(); ++i) {
    const auto& state = choices_[i];
    ENSURE(state.finished);
    out += i == 0 ? R"({"index":)" : R"(,{"index":)";
    append_json_number(out, std::uint64_t{i});
    out += R"(,"message":{"role":"assistant","content":)";
    if (state.content.empty() && !state.calls.empty()) {
      out += "null";
    } else {
      append_json_string(out, state.content);
    }
    if (!state.reasoning.empty()) append_field(out, "reasoning_content", state.reasoning);
    out += R"(,"refusal":null)";
    if (!state.calls.empty()) out += R"(,"tool_calls":[)";
    for (const auto& call : state.calls) {
      if (out.back() == '}') out += ',';
      out += R"({"id":)";
      append_json_string(out, call.id);
      out += R"(,"type":"function","function":{"name":)";
      append_json_string(out, call.name);
      out += R"(,"arguments":)";
      append_json_string(out, call.arguments.empty() ? "{}" : call.arguments);
      out += "}}";
    }
    if (!state.calls.empty()) out += ']';
    out += R"(},"logprobs":)";
    if (answer_.logprobs) {
      out.append(R"({"content":[)").append(state.logprobs).append(R"(],"refusal":null})");
    } else {
      out += "null";
    }
    out.append(R"(,"finish_reason":")").append(finish_name(*state.finish)).append("\"}");
  }
  out += R"(],"usage":)";
  append_usage(out, usage);
  out += '}';
  return out;
}

namespace {

class ChatStreamWriter final : public AnswerWriter {
 public:
  ChatStreamWriter(const ChatAnswer& answer, ToolChoice tool_choice)
      : stream_(answer), tool_choice_(std::move(tool_choice)) {}

  void start(const Usage&, std::string&) override {}
  void add(const ChatDelta& delta, std::string& out) override { stream_.add(delta, out); }
  void finish(std::uint32_t choice, const ChoiceEnd& end, std::string& out) override {
    stream_.finish(choice, chat_finish(end.reason, end.called_tools, tool_choice_), out);
  }
  void end(const Usage& usage, std::string& out) override { stream_.end(usage, out); }
  void fail(const Error& error, std::string& out) override { stream_.fail(error, out); }
  void keep_alive(std::string& out) override { out += kSseKeepAlive; }

 private:
  ChatStream stream_;
  ToolChoice tool_choice_;
};

class ChatCollectorWriter final : public AnswerWriter {
 public:
  ChatCollectorWriter(const ChatAnswer& answer, ToolChoice tool_choice)
      : collector_(answer), tool_choice_(std::move(tool_choice)) {}

  void start(const Usage&, std::string&) override {}
  void add(const ChatDelta& delta, std::string&) override { collector_.add(delta); }
  void finish(std::uint32_t choice, const ChoiceEnd& end, std::string&) override {
    collector_.finish(choice, chat_finish(end.reason, end.called_tools, tool_choice_));
  }
  void end(const Usage& usage, std::string& out) override { out += collector_.body(usage); }
  void fail(const Error&, std::string&) override {}
  void keep_alive(std::string&) override {}

 private:
  ChatCollector collector_;
  ToolChoice tool_choice_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_chat_stream(const ChatAnswer& answer, ToolChoice tool_choice) {
  return std::make_unique<ChatStreamWriter>(answer, std::move(tool_choice));
}

std::unique_ptr<AnswerWriter> make_chat_collector(const ChatAnswer& answer,
                                                  ToolChoice tool_choice) {
  return std::make_unique<ChatCollectorWriter>(answer, std::move(tool_choice));
}

}  // namespace penstock::protocol
