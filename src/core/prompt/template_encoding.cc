#include "core/prompt/template_encoding.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <optional>

#include "core/prompt/call_parser.h"
#include "core/prompt/conversation_checks.h"
#include "core/prompt/jinja/template.h"
#include "core/prompt/span_writer.h"

namespace penstock::prompt {
namespace {

using jinja::Dict;
using jinja::Origin;
using jinja::Template;
using jinja::Text;
using jinja::Value;
using TemplatePointer = std::shared_ptr<const Template>;

void put(Dict& dict, std::string_view key, Value value) {
  dict.set(std::make_shared<const Text>(std::string(key), Origin::kTemplate), std::move(value));
}

Value made(jinja::Fallible<Value> value) {
  return value ? std::move(*value) : Value();
}

// JSON of the request as a value, or what is wrong with it.
Result<Value> value_of(std::string_view json, std::string field) {
  auto value = jinja::from_json(json);
  if (value) return std::move(*value);
  return fail(ErrorCode::kInvalidArgument, value.error().why, std::move(field));
}

Result<Value> call_value(const Message& message, std::size_t index, std::size_t call_index) {
  const ToolCall& call = message.tool_calls[call_index];
  const auto field =
      fmt::format("messages[{}].tool_calls[{}].function.arguments", index, call_index);
  TRY(Value arguments, value_of(call.arguments, field));
  if (arguments.dict() == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "the arguments of a tool call must be a JSON object",
                field);
  }
  Dict function;
  put(function, "name", Value::of(call.name, Origin::kValue));
  put(function, "arguments", std::move(arguments));
  Dict out;
  put(out, "id", Value::of(call.id, Origin::kValue));
  put(out, "type", Value::of("function", Origin::kTemplate));
  put(out, "function", made(jinja::make_dict(std::move(function))));
  return made(jinja::make_dict(std::move(out)));
}

// How the answer to a conversation begins, by what its prompt ends in.
enum class Begins : std::uint8_t { kOpen, kThinking };

struct Marks {
  bool thinks = false;
  bool calls = false;      // <tool_call>
  bool call_list = false;  // [TOOL_CALLS]
  bool bare_calls = false;
  bool developers = false;
};

class TemplateEncoding : public ChatEncoding {
 public:
  TemplateEncoding(TemplatePointer plain, TemplatePointer with_tools, const ChatTemplate& from,
                   TemplateSupport support)
      : plain_(std::move(plain)), with_tools_(std::move(with_tools)), support_(std::move(support)) {
    const std::string all = from.source + from.tool_source;
    const auto has = [&](std::string_view mark) { return all.contains(mark); };
    marks_.thinks = has("<think>") || has("</think>");
    marks_.calls = has("<tool_call>");
    marks_.call_list = has("[TOOL_CALLS]");
    marks_.bare_calls = has("<|python_tag|>") || has("\"parameters\": ");
    marks_.developers = has("developer");
    for (const auto& [name, text] : from.special_tokens) {
      put(special_tokens_, name, Value::of(text, Origin::kTemplate));
      const auto spans = support_.split(text);
      const bool is_token = spans.size() == 1 && spans[0].kind == SpanKind::kSpecial;
      if (name == "bos_token" && has("bos_token") && is_token) begin_ = text;
    }
    for (std::size_t i = 0; i < begins_.size(); ++i) {
      Conversation probe;
      probe.messages.emplace_back().text = "x";
      probe.thinking = static_cast<Thinking>(i);
      const auto text = run(probe, true);
      if (!text) continue;
      const Text end = jinja::strip(*text, jinja::Ends::kBoth, nullptr);
      if (marks_.thinks && end.view().ends_with("<think>")) begins_[i] = Begins::kThinking;
    }
  }

  std::string_view name() const override { return "template"; }
  bool thinks(const Conversation& conversation) const override {
    return begins_[static_cast<std::size_t>(conversation.thinking)] == Begins::kThinking;
  }
  std::string_view text_begin() const override { return begin_; }
  // The mark of a list of calls is a special token where there is one.
  bool reads_special_tokens() const override { return marks_.call_list; }
  Result<std::vector<PromptSpan>> render(const Conversation& conversation) const override;
  std::unique_ptr<OutputParser> make_parser(const Conversation& conversation,
                                            std::vector<std::string> stop) const override;

 private:
  Result<Text> run(const Conversation& conversation, bool generate) const;
  Result<Value> message_value(const Message& message, std::size_t index) const;
  Result<Text> unfinished(const Conversation& conversation) const;

  TemplatePointer plain_;
  TemplatePointer with_tools_;
  TemplateSupport support_;
  Marks marks_;
  Dict special_tokens_;
  std::string begin_;
  std::array<Begins, 3> begins_{};  // by Thinking
};

Result<Value> TemplateEncoding::message_value(const Message& message, std::size_t index) const {
  constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                      "tool"};
  std::string_view role = kRoles[static_cast<std::size_t>(message.role)];
  if (message.role == Role::kDeveloper && !marks_.developers) role = "system";
  Dict out;
  put(out, "role", Value::of(role, Origin::kTemplate));
  put(out, "content", Value::of(message.text, Origin::kValue));
  if (!message.reasoning.empty()) {
    put(out, "reasoning_content", Value::of(message.reasoning, Origin::kValue));
  }
  if (message.role == Role::kTool) {
    put(out, "tool_call_id", Value::of(message.tool_call_id, Origin::kValue));
  }
  if (!message.tool_calls.empty()) {
    std::vector<Value> calls;
    for (std::size_t i = 0; i < message.tool_calls.size(); ++i) {
      TRY(Value call, call_value(message, index, i));
      calls.push_back(std::move(call));
    }
    put(out, "tool_calls", made(jinja::make_list(std::move(calls))));
  }
  return made(jinja::make_dict(std::move(out)));
}

Result<Text> TemplateEncoding::run(const Conversation& conversation, bool generate) const {
  Dict variables = special_tokens_;
  std::vector<Value> messages;
  for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
    TRY(Value message, message_value(conversation.messages[i], i));
    messages.push_back(std::move(message));
  }
  std::vector<Value> tools;
  for (std::size_t i = 0; i < conversation.tools.size(); ++i) {
    const auto json = R"({"type":"function","function":)" + conversation.tools[i].schema + '}';
    TRY(Value tool, value_of(json, fmt::format("tools[{}].function", i)));
    tools.push_back(std::move(tool));
  }
  const bool has_tools = !tools.empty();
  auto list = jinja::make_list(std::move(messages));
  auto tool_list = jinja::make_list(std::move(tools));
  if (!list || !tool_list) {
    return fail(ErrorCode::kPayloadTooLarge, "the conversation is too large for a chat template",
                "messages");
  }
  jinja::Limits limits;
  const std::size_t input = jinja::weight_of(*list) + jinja::weight_of(*tool_list);
  limits.bytes = (std::size_t{64} << 20) + 64 * input;
  put(variables, "messages", std::move(*list));
  put(variables, "tools", has_tools ? std::move(*tool_list) : Value(jinja::None{}));
  put(variables, "documents", Value(jinja::None{}));
  put(variables, "add_generation_prompt", Value(generate));
  if (conversation.thinking != Thinking::kDefault) {
    const Value thinking(conversation.thinking == Thinking::kEnabled);
    put(variables, "enable_thinking", thinking);
    put(variables, "thinking", thinking);
  }
  std::optional<std::int64_t> now;
  if (support_.now) now = support_.now();
  auto text = (has_tools ? with_tools_ : plain_)->render(variables, now, limits);
  if (text) return std::move(*text);
  const jinja::Failure& failure = text.error();
  if (failure.refused) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the model's chat template refuses this conversation: {}", failure.why),
                "messages");
  }
  return fail(ErrorCode::kUnsupported,
              fmt::format("the model's chat template fails on this conversation at its line {}: {}",
                          failure.line, failure.why),
              "messages");
}

// The last message is to be continued: what the template writes behind its text goes.
Result<Text> TemplateEncoding::unfinished(const Conversation& conversation) const {
  std::string text = conversation.messages.back().text;
  if (text.empty()) {
    Conversation before = conversation;
    before.messages.pop_back();
    before.continue_last_assistant = false;
    return run(before, true);
  }
  TRY(Text whole, run(conversation, false));
  std::size_t at = whole.view().rfind(text);
  if (at == std::string_view::npos) {
    text = jinja::strip(Text(text, Origin::kValue), jinja::Ends::kBoth, nullptr).bytes();
    at = whole.view().rfind(text);
  }
  if (at != std::string_view::npos) return whole.substr(0, at + text.size());
  return fail(ErrorCode::kUnsupported,
              "the model's chat template changes the text of the last message, so it can't be "
              "continued",
              "messages");
}

Result<std::vector<PromptSpan>> TemplateEncoding::render(const Conversation& conversation) const {
  TRY_STATUS(check_order(conversation));
  TRY(const Text text,
      conversation.continue_last_assistant ? unfinished(conversation) : run(conversation, true));
  SpanWriter out;
  std::size_t begin = 0;
  for (const Text::Run& part : text.runs()) {
    const std::string_view bytes = text.view().substr(begin, part.end - begin);
    begin = part.end;
    if (part.origin == Origin::kValue) {
      out.plain(bytes);
      continue;
    }
    for (const PromptSpan& span : support_.split(bytes)) {
      span.kind == SpanKind::kSpecial ? out.special(span.text) : out.plain(span.text);
    }
  }
  return out.take();
}

std::unique_ptr<OutputParser> TemplateEncoding::make_parser(const Conversation& conversation,
                                                            std::vector<std::string> stop) const {
  CallMarkup markup;
  if (marks_.thinks) {
    markup.think_open = "<think>";
    markup.think_close = "</think>";
  }
  if (!conversation.tools.empty()) {
    if (marks_.calls) {
      markup.call_open = "<tool_call>";
      markup.call_close = "</tool_call>";
    } else if (marks_.call_list) {
      markup.call_open = "[TOOL_CALLS]";
      markup.call_close = "]";
      markup.list = true;
    } else if (marks_.bare_calls) {
      markup.call_open = "<|python_tag|>";
      markup.bare = true;
      for (const ToolDefinition& tool : conversation.tools)
        markup.names.push_back(tool.name);
    }
  }
  const bool continues = conversation.continue_last_assistant && !conversation.messages.empty() &&
                         !conversation.messages.back().text.empty();
  const auto start = continues              ? CallParser::Start::kContent
                     : thinks(conversation) ? CallParser::Start::kReasoning
                                            : CallParser::Start::kAnswer;
  return std::make_unique<CallParser>(std::move(markup), start, std::move(stop));
}

Result<TemplatePointer> parsed(std::string_view source) {
  auto made_template = Template::parse(source);
  if (made_template) return std::move(*made_template);
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("the chat template, line {}: {}", made_template.error().line,
                          made_template.error().why));
}

}  // namespace

Result<ChatTemplate> read_chat_template(std::string_view tokenizer_config_json) {
  const auto config = jinja::from_json(tokenizer_config_json);
  if (!config || config->dict() == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                config ? "not a JSON object" : std::string(config.error().why));
  }
  ChatTemplate out;
  for (const auto& [key, value] : config->dict()->entries) {
    if (!key->view().ends_with("_token")) continue;
    const Value* content = value.dict() != nullptr ? value.dict()->find("content") : &value;
    if (content != nullptr && content->text() != nullptr) {
      out.special_tokens.emplace_back(key->bytes(), content->text()->bytes());
    }
  }
  const Value* source = config->dict()->find("chat_template");
  if (source == nullptr) return out;
  if (source->text() != nullptr) {
    out.source = source->text()->bytes();
  } else if (source->list() != nullptr) {  // several, by name
    for (const Value& item : source->list()->items) {
      const Value* name = item.dict() != nullptr ? item.dict()->find("name") : nullptr;
      const Value* text = item.dict() != nullptr ? item.dict()->find("template") : nullptr;
      if (name == nullptr || name->text() == nullptr || text == nullptr ||
          text->text() == nullptr) {
        return fail(ErrorCode::kInvalidArgument,
                    "an entry of chat_template has no name and template", "chat_template");
      }
      if (name->text()->view() == "default") out.source = text->text()->bytes();
      if (name->text()->view() == "tool_use") out.tool_source = text->text()->bytes();
    }
  }
  return out;
}

Result<std::unique_ptr<ChatEncoding>> make_template_encoding(const ChatTemplate& chat_template,
                                                             TemplateSupport support) {
  TRY(auto plain, parsed(chat_template.source));
  auto with_tools = plain;
  if (!chat_template.tool_source.empty()) {
    TRY(with_tools, parsed(chat_template.tool_source));
  }
  return std::make_unique<TemplateEncoding>(std::move(plain), std::move(with_tools), chat_template,
                                            std::move(support));
}

}  // namespace penstock::prompt
