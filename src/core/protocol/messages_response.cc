#include "core/protocol/messages_response.h"

#include <boost/json.hpp>

#include <optional>
#include <utility>

#include "base/check.h"
#include "core/protocol/errors.h"
#include "core/protocol/json_writer.h"
#include "core/protocol/sse.h"

namespace penstock::protocol {
namespace {

enum class Block : std::uint8_t { kNone, kThinking, kText, kToolUse };
enum class Form : std::uint8_t { kStream, kWhole };

void append_member(std::string& out, std::string_view name, std::string_view value) {
  out.append(",\"").append(name).append("\":");
  append_json_string(out, value);
}

void append_member(std::string& out, std::string_view name, std::uint64_t value) {
  out.append(",\"").append(name).append("\":");
  append_json_number(out, value);
}

void append_usage_member(std::string& out, const Usage& usage) {
  out += R"(,"usage":{"input_tokens":)";
  append_json_number(out, usage.prompt_tokens - usage.cached_tokens);
  append_member(out, "cache_creation_input_tokens", 0);
  append_member(out, "cache_read_input_tokens", usage.cached_tokens);
  out += R"(,"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":0})";
  append_member(out, "output_tokens", usage.completion_tokens);
  out += R"(,"output_tokens_details":{"thinking_tokens":)";
  append_json_number(out, usage.reasoning_tokens);
  out += R"(},"server_tool_use":null,"service_tier":"standard"})";
}

std::string_view stop_reason(const ChoiceEnd& end) {
  if (end.reason == FinishReason::kLength) {
    return end.context_full ? "model_context_window_exceeded" : "max_tokens";
  }
  if (!end.stop_string.empty()) return "stop_sequence";
  return end.called_tools ? "tool_use" : "end_turn";
}

// A model may write what is no JSON; its text is kept then.
void append_input(std::string& out, std::string_view arguments) {
  boost::json::error_code error;
  boost::json::parse_options options;
  options.max_depth = 128;
  const auto value = boost::json::parse(arguments, error, {}, options);
  if (!error && value.is_object()) {
    out += arguments;
  } else {
    out += R"({"raw":)";
    append_json_string(out, arguments);
    out += '}';
  }
}

class MessagesWriter final : public AnswerWriter {
 public:
  MessagesWriter(MessagesAnswer answer, Form form) : answer_(std::move(answer)), form_(form) {}

  void start(const Usage& usage, std::string& out) override {
    ENSURE(!std::exchange(started_, true));
    if (form_ == Form::kWhole) return;
    std::string event = R"({"type":"message_start","message":)";
    append_message(event, {}, nullptr, usage);
    event += '}';
    append_sse_event(out, "message_start", event);
  }

  void add(const ChatDelta& delta, std::string& out) override {
    ENSURE(started_ && !end_ && !over_);
    if (!delta.reasoning.empty()) {
      enter(Block::kThinking, out);
      add_piece(delta.reasoning, out);
    }
    if (!delta.content.empty()) {
      enter(Block::kText, out);
      add_piece(delta.content, out);
    }
    for (const ToolCallPiece& piece : delta.tool_calls) {
      if (piece.index == calls_) {
        close(out);
        ++calls_;
        call_id_ = piece.id;
        call_name_ = piece.name;
        enter(Block::kToolUse, out);
      }
      ENSURE(piece.index + 1 == calls_ && block_ == Block::kToolUse);
      if (!piece.arguments.empty()) add_piece(piece.arguments, out);
    }
  }

  void finish(std::uint32_t choice, const ChoiceEnd& end, std::string& out) override {
    ENSURE(choice == 0 && started_ && !end_ && !over_);
    close(out);
    end_ = end;
    stop_sequence_ = end.stop_string;
    end_->stop_string = stop_sequence_;
  }

  void end(const Usage& usage, std::string& out) override {
    ENSURE(end_ && !std::exchange(over_, true));
    if (form_ == Form::kWhole) {
      append_message(out, content_, &*end_, usage);
      return;
    }
    std::string event = R"({"type":"message_delta","delta":{)";
    append_stop(event, &*end_);
    event += '}';
    append_usage_member(event, usage);
    event += '}';
    append_sse_event(out, "message_delta", event);
    append_sse_event(out, "message_stop", R"({"type":"message_stop"})");
  }

  void fail(const Error& error, std::string& out) override {
    ENSURE(!std::exchange(over_, true));
    append_sse_event(out, "error", anthropic_error_object(error, answer_.request_id));
  }

  void keep_alive(std::string& out) override {
    if (form_ == Form::kWhole) return;
    // Nothing named may come before message_start.
    if (!started_) {
      out += kSseKeepAlive;
    } else {
      append_sse_event(out, "ping", R"({"type":"ping"})");
    }
  }

 private:
  static void append_stop(std::string& out, const ChoiceEnd* end) {
    out += R"("stop_reason":)";
    if (end == nullptr) {
      out += "null";
    } else {
      append_json_string(out, stop_reason(*end));
    }
    const bool stopped_by_string = end != nullptr && stop_reason(*end) == "stop_sequence";
    if (stopped_by_string) {
      append_member(out, "stop_sequence", end->stop_string);
    } else {
      out += R"(,"stop_sequence":null)";
    }
  }

  void append_message(std::string& out, std::string_view content, const ChoiceEnd* end,
                      const Usage& usage) const {
    out += R"({"id":)";
    append_json_string(out, answer_.id);
    out += R"(,"type":"message","role":"assistant")";
    append_member(out, "model", answer_.model);
    out.append(R"(,"content":[)").append(content).append("],");
    append_stop(out, end);
    append_usage_member(out, usage);
    out += '}';
  }

  void enter(Block block, std::string& out) {
    if (block_ == block) return;
    close(out);
    block_ = block;
    text_.clear();
    has_pieces_ = false;
    if (form_ == Form::kWhole) return;
    std::string event = R"({"type":"content_block_start")";
    append_member(event, "index", index_);
    event += R"(,"content_block":)";
    append_block(event, "{}");
    event += '}';
    append_sse_event(out, "content_block_start", event);
  }

  // The block that is open, with `text_`, or `input` for a tool's.
  void append_block(std::string& out, std::string_view input) const {
    if (block_ == Block::kText) {
      out += R"({"type":"text")";
      append_member(out, "text", text_);
    } else if (block_ == Block::kThinking) {
      out += R"({"type":"thinking")";
      append_member(out, "thinking", text_);
      append_member(out, "signature", form_ == Form::kWhole ? std::string_view(answer_.id) : "");
    } else {
      out += R"({"type":"tool_use")";
      append_member(out, "id", call_id_);
      append_member(out, "name", call_name_);
      out.append(R"(,"input":)").append(input);
    }
    out += '}';
  }

  void add_piece(std::string_view text, std::string& out) {
    has_pieces_ = true;
    if (form_ == Form::kWhole) {
      append_valid_utf8(text_, text);
    } else if (block_ == Block::kText) {
      delta_event("text_delta", "text", text, out);
    } else if (block_ == Block::kThinking) {
      delta_event("thinking_delta", "thinking", text, out);
    } else {
      delta_event("input_json_delta", "partial_json", text, out);
    }
  }

  void delta_event(std::string_view type, std::string_view field, std::string_view text,
                   std::string& out) const {
    std::string event = R"({"type":"content_block_delta")";
    append_member(event, "index", index_);
    event.append(R"(,"delta":{"type":")").append(type).append("\"");
    append_member(event, field, text);
    event += "}}";
    append_sse_event(out, "content_block_delta", event);
  }

  void close(std::string& out) {
    if (block_ == Block::kNone) return;
    if (block_ == Block::kToolUse && !has_pieces_) add_piece("{}", out);
    if (form_ == Form::kWhole) {
      if (!content_.empty()) content_ += ',';
      std::string input;
      if (block_ == Block::kToolUse) append_input(input, text_);
      append_block(content_, input);
    } else {
      if (block_ == Block::kThinking) delta_event("signature_delta", "signature", answer_.id, out);
      std::string event = R"({"type":"content_block_stop")";
      append_member(event, "index", index_);
      event += '}';
      append_sse_event(out, "content_block_stop", event);
    }
    block_ = Block::kNone;
    ++index_;
  }

  MessagesAnswer answer_;
  Form form_;
  bool started_ = false;
  bool over_ = false;
  std::optional<ChoiceEnd> end_;
  std::string stop_sequence_;

  Block block_ = Block::kNone;  // the one that is open
  std::uint64_t index_ = 0;     // of the block that is open, or comes next
  std::uint32_t calls_ = 0;     // begun
  std::string call_id_;
  std::string call_name_;
  std::string text_;         // of the open block; whole answers only, as content_
  bool has_pieces_ = false;  // the open block has begun to say something
  std::string content_;      // finished blocks as JSON, comma-separated
};

}  // namespace

std::unique_ptr<AnswerWriter> make_messages_stream(MessagesAnswer answer) {
  return std::make_unique<MessagesWriter>(std::move(answer), Form::kStream);
}

std::unique_ptr<AnswerWriter> make_messages_collector(MessagesAnswer answer) {
  return std::make_unique<MessagesWriter>(std::move(answer), Form::kWhole);
}

std::string messages_token_count(std::uint64_t tokens) {
  std::string out = R"({"input_tokens":)";
  append_json_number(out, tokens);
  out += '}';
  return out;
}

}  // namespace penstock::protocol
