#include "core/protocol/responses_response.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/check.h"
#include "core/protocol/chat_response.h"
#include "core/protocol/json_document.h"
#include "core/protocol/json_writer.h"
#include "core/protocol/sse.h"

namespace penstock::protocol {
namespace {

void append_text_field(std::string& out, std::string_view name, std::string_view text) {
  out.append(",\"").append(name).append("\":");
  append_json_string(out, text);
}

void append_number_field(std::string& out, std::string_view name, std::uint64_t value) {
  out.append(",\"").append(name).append("\":");
  append_json_number(out, value);
}

void append_event_head(std::string& out, std::string_view type, std::uint64_t sequence) {
  out.append("event: ").append(type).append("\ndata: {\"type\":\"").append(type).append("\"");
  append_number_field(out, "sequence_number", sequence);
}

// {"type":"error",...}: at the top level, as clients of this API look for it.
void append_error_event(std::string& out, const Error& error, std::uint64_t sequence) {
  const auto& info = error_info(error.code);
  append_event_head(out, "error", sequence);
  const std::string_view own = error.openai_code;
  const std::string_view code = !own.empty()                ? own
                                : !info.openai_code.empty() ? info.openai_code
                                                            : info.openai_type;
  append_text_field(out, "code", code);
  append_text_field(out, "message", error.message);
  out += R"(,"param":)";
  if (error.field.empty()) {
    out += "null";
  } else {
    append_json_string(out, error.field);
  }
  out += "}\n\n";
}

void append_object_event(std::string& out, std::string_view type, std::string_view body,
                         std::uint64_t sequence) {
  append_event_head(out, type, sequence);
  out.append(",\"response\":").append(body).append("}\n\n");
}

}  // namespace

void append_responses_usage(std::string& out, const Usage& usage) {
  out += R"({"input_tokens":)";
  append_json_number(out, usage.prompt_tokens);
  out += R"(,"input_tokens_details":{"cached_tokens":)";
  append_json_number(out, usage.cached_tokens);
  out += R"(},"output_tokens":)";
  append_json_number(out, usage.completion_tokens);
  out += R"(,"output_tokens_details":{"reasoning_tokens":)";
  append_json_number(out, usage.reasoning_tokens);
  out += R"(},"total_tokens":)";
  append_json_number(out, usage.prompt_tokens + usage.completion_tokens);
  out += '}';
}

std::string responses_error(const Error& error) {
  const bool limited = error.code == ErrorCode::kRateLimited;
  std::string out = limited ? R"({"code":"rate_limit_exceeded","message":)"
                            : R"({"code":"server_error","message":)";
  append_json_string(out, error.message);
  return out += '}';
}

void ResponsesWriter::open_event(std::string& out, std::string_view type) {
  append_event_head(out, type, sequence_++);
}

void ResponsesWriter::close_event(std::string& out) {
  out += "}\n\n";
}

std::string ResponsesWriter::item_id() const {
  constexpr std::array<std::string_view, 4> kPrefixes = {"", "rs", "msg", "fc"};
  return fmt::format("{}_{}_{}", kPrefixes[static_cast<std::size_t>(open_)], answer_.name, items_);
}

// The name that the client declared for the function of the open call.
std::string_view ResponsesWriter::declared_name() const {
  const auto space = answer_.spaces.find(call_name_);
  return space != answer_.spaces.end() ? std::string_view(space->second.name) : call_name_;
}

void ResponsesWriter::open_item_event(std::string& out, std::string_view type) {
  open_event(out, type);
  append_text_field(out, "item_id", item_id());
  append_number_field(out, "output_index", items_);
  if (open_ != Item::kCall) append_number_field(out, "content_index", 0);
}

void ResponsesWriter::object_event(std::string& out, std::string_view type) {
  if (!answer_.stream) return;
  append_object_event(out, type, body(), sequence_++);
}

std::string ResponsesWriter::body() const {
  std::string out = R"({"id":)";
  append_json_string(out, id());
  out += R"(,"object":"response","created_at":)";
  append_json_number(out, answer_.created);
  append_text_field(out, "status", status_);
  out += R"(,"completed_at":)";
  if (status_ == "completed") {
    append_json_number(out, completed_at_);
  } else {
    out += "null";
  }
  out.append(R"(,"error":)").append(error_);
  out += status_ == "incomplete" ? R"(,"incomplete_details":{"reason":"max_output_tokens"})"
                                 : R"(,"incomplete_details":null)";
  append_text_field(out, "model", answer_.model);
  out.append(R"(,"output":[)").append(output_).append(R"(],"usage":)").append(usage_);
  if (!answer_.echo.empty()) out.append(",").append(answer_.echo);
  return out += '}';
}

// The open item, as it stands.
void ResponsesWriter::append_item(std::string& out, std::string_view status) const {
  out += R"({"id":)";
  append_json_string(out, item_id());
  const bool begun = status != "in_progress";
  if (open_ == Item::kCall) {
    append_text_field(out, "type", "function_call");
    append_text_field(out, "status", status);
    append_text_field(out, "call_id", call_id_);
    append_text_field(out, "name", declared_name());
    if (const auto space = answer_.spaces.find(call_name_); space != answer_.spaces.end())
      append_text_field(out, "namespace", space->second.space);
    append_text_field(out, "arguments", text_);
    out += '}';
    return;
  }
  const bool reasoning = open_ == Item::kReasoning;
  append_text_field(out, "type", reasoning ? "reasoning" : "message");
  append_text_field(out, "status", status);
  out += reasoning ? R"(,"summary":[])" : R"(,"role":"assistant")";
  out += R"(,"content":[)";
  if (begun) append_part(out);
  out += ']';
  if (reasoning && begun && answer_.encrypted_reasoning)
    append_text_field(out, "encrypted_content", answer_.seal.close(kSealedReasoning, text_));
  out += '}';
}

// The one part of the open reasoning or message.
void ResponsesWriter::append_part(std::string& out) const {
  const bool reasoning = open_ == Item::kReasoning;
  out += reasoning ? R"({"type":"reasoning_text")" : R"({"type":"output_text")";
  append_text_field(out, "text", text_);
  if (!reasoning) out.append(R"(,"annotations":[],"logprobs":[)").append(logprobs_).append("]");
  out += '}';
}

void ResponsesWriter::part_event(std::string& out, std::string_view type) {
  if (!answer_.stream) return;
  open_item_event(out, type);
  out += R"(,"part":)";
  append_part(out);
  close_event(out);
}

void ResponsesWriter::open_item(Item kind, std::string& out) {
  close_item("completed", out);
  open_ = kind;
  if (!answer_.stream) return;
  open_event(out, "response.output_item.added");
  append_number_field(out, "output_index", items_);
  out += R"(,"item":)";
  append_item(out, "in_progress");
  close_event(out);
  if (kind != Item::kCall) part_event(out, "response.content_part.added");
}

void ResponsesWriter::done_event(std::string& out) {
  if (!answer_.stream) return;
  open_item_event(out, open_ == Item::kCall        ? "response.function_call_arguments.done"
                       : open_ == Item::kReasoning ? "response.reasoning_text.done"
                                                   : "response.output_text.done");
  if (open_ == Item::kCall) {
    append_text_field(out, "name", declared_name());
  }
  append_text_field(out, open_ == Item::kCall ? "arguments" : "text", text_);
  if (open_ == Item::kMessage) out.append(R"(,"logprobs":[)").append(logprobs_).append("]");
  close_event(out);
}

void ResponsesWriter::close_item(std::string_view status, std::string& out) {
  if (open_ == Item::kNone) return;
  if (open_ == Item::kCall && text_.empty() && status == "completed") delta_event("{}", {}, out);
  done_event(out);
  if (open_ != Item::kCall) part_event(out, "response.content_part.done");
  std::string item;
  append_item(item, status);
  if (answer_.stream) {
    open_event(out, "response.output_item.done");
    append_number_field(out, "output_index", items_);
    out.append(R"(,"item":)").append(item);
    close_event(out);
  }
  if (!output_.empty()) output_ += ',';
  output_ += item;
  ++items_;
  open_ = Item::kNone;
  text_.clear();
  logprobs_.clear();
}

void ResponsesWriter::delta_event(std::string_view text, std::string_view logprobs,
                                  std::string& out) {
  // Kept as it goes out, so that the pieces join to the whole whatever the bytes were.
  append_valid_utf8(text_, text);
  if (!logprobs.empty()) {
    if (!logprobs_.empty()) logprobs_ += ',';
    logprobs_ += logprobs;
  }
  if (!answer_.stream) return;
  open_item_event(out, open_ == Item::kCall        ? "response.function_call_arguments.delta"
                       : open_ == Item::kReasoning ? "response.reasoning_text.delta"
                                                   : "response.output_text.delta");
  append_text_field(out, "delta", text);
  if (open_ == Item::kMessage) out.append(R"(,"logprobs":[)").append(logprobs).append("]");
  close_event(out);
}

void ResponsesWriter::add_text(Item kind, std::string_view text, std::string_view logprobs,
                               std::string& out) {
  if (open_ != kind) open_item(kind, out);
  delta_event(text, logprobs, out);
}

void ResponsesWriter::add_call(const ToolCallPiece& piece, std::string& out) {
  if (open_ != Item::kCall || piece.index != call_index_) {
    close_item("completed", out);
    call_index_ = piece.index;
    call_id_ = piece.id;
    call_name_ = piece.name;
    open_item(Item::kCall, out);
  }
  if (!piece.arguments.empty()) delta_event(piece.arguments, {}, out);
}

void ResponsesWriter::start(const Usage& /*usage*/, std::string& out) {
  ENSURE(!over_ && !std::exchange(started_, true));
  if (answer_.background) {
    status_ = "queued";
    object_event(out, "response.created");
    object_event(out, "response.queued");
    status_ = "in_progress";
  } else {
    object_event(out, "response.created");
  }
  object_event(out, "response.in_progress");
}

void ResponsesWriter::add(const ChatDelta& delta, std::string& out) {
  ENSURE(started_ && !over_);
  std::string logprobs;
  // Tokens of reasoning have no place for them here.
  if (answer_.logprobs && (!delta.content.empty() || open_ == Item::kMessage))
    append_logprobs(logprobs, delta.logprobs);
  if (!delta.reasoning.empty()) add_text(Item::kReasoning, delta.reasoning, {}, out);
  if (!delta.content.empty() || (!logprobs.empty() && open_ == Item::kMessage))
    add_text(Item::kMessage, delta.content, logprobs, out);
  for (const ToolCallPiece& piece : delta.tool_calls)
    add_call(piece, out);
}

void ResponsesWriter::finish(std::uint32_t choice, const ChoiceEnd& end, std::string& out) {
  ENSURE(started_ && !over_ && choice == 0 && status_ == "in_progress");
  const bool cut = end.reason == FinishReason::kLength;
  close_item(cut ? "incomplete" : "completed", out);
  status_ = cut ? "incomplete" : "completed";
}

void ResponsesWriter::terminate(std::string& out) {
  over_ = true;
  if (!answer_.stream) {
    out += body();
    return;
  }
  object_event(out, fmt::format("response.{}", status_));
  out += kSseDone;
}

void ResponsesWriter::end(const Usage& usage, std::string& out) {
  ENSURE(started_ && !over_ && status_ != "in_progress");
  usage_.clear();
  append_responses_usage(usage_, usage);
  completed_at_ = answer_.unix_seconds();
  terminate(out);
}

void ResponsesWriter::fail(const Error& error, std::string& out) {
  ENSURE(!over_);
  if (!started_) start({}, out);
  close_item("incomplete", out);
  status_ = "failed";
  error_ = responses_error(error);
  if (answer_.stream) append_error_event(out, error, sequence_++);
  terminate(out);
}

void ResponsesWriter::keep_alive(std::string& out) {
  if (answer_.stream) out += kSseKeepAlive;
}

std::string ended_response(std::string_view body, std::string_view status, std::string_view error) {
  const auto document = JsonDocument::parse(body);
  ENSURE(document && document->root().is_object());
  std::string out = "{";
  for (auto key = document->root().first_child(); key;) {
    const auto value = key.next_sibling();
    if (out.size() > 1) out += ',';
    out.append(key.text()).append(":");
    if (key.equals("status")) {
      append_json_string(out, status);
    } else {
      out += key.equals("error") ? error : value.text();
    }
    key = value.next_sibling();
  }
  return out += '}';
}

std::string ending_events(std::string_view ended_body, std::string_view status, const Error& error,
                          std::uint64_t sequence) {
  std::string out;
  if (status == "failed") append_error_event(out, error, sequence++);
  append_object_event(out, fmt::format("response.{}", status), ended_body, sequence);
  out += kSseDone;
  return out;
}

}  // namespace penstock::protocol
