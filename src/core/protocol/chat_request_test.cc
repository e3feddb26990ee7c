#include "core/protocol/chat_request.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "core/protocol/json_writer.h"
#include "tests/support/cases.h"

#include <doctest/doctest.h>

namespace penstock::protocol {
namespace {

std::string quote(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

// One line for each thing that is not at its default.
class Dump {
 public:
  template <typename T>
  void line(std::string_view name, const T& value, const T& usual) {
    if (value == usual) return;
    out_ += fmt::format("{}: {}\n", name, value);
  }
  void text(std::string_view name, std::string_view value) {
    if (!value.empty()) out_ += fmt::format("{}: {}\n", name, quote(value));
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

void dump_sampling(Dump& out, const SamplingParams& s) {
  const SamplingParams usual;
  out.line("temperature", s.temperature, usual.temperature);
  out.line("top_p", s.top_p, usual.top_p);
  out.line("top_k", s.top_k, usual.top_k);
  out.line("min_p", s.min_p, usual.min_p);
  out.line("presence_penalty", s.presence_penalty, usual.presence_penalty);
  out.line("frequency_penalty", s.frequency_penalty, usual.frequency_penalty);
  out.line("repetition_penalty", s.repetition_penalty, usual.repetition_penalty);
  for (const auto& [id, bias] : s.logit_bias)
    out.line(fmt::format("bias {}", id), bias, NAN);
  for (const auto id : s.stop_token_ids)
    out.line("stop_token", id, ~TokenId{0});
  out.line("ignore_eos", s.ignore_eos, false);
  out.line("top_logprobs", s.top_logprobs, -1);
  out.line("choices", s.choices, 1U);
  out.line("max_tokens", s.max_tokens, 0U);
}

std::string dump(const ChatRequest& r) {
  constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  constexpr std::string_view kModes[] = {"auto", "none", "required", "named"};
  Dump out;
  out.text("model", r.model);
  for (const auto& m : r.conversation.messages) {
    out.text(kRoles[static_cast<int>(m.role)], m.text.empty() ? "(nothing)" : m.text);
    out.text("  reasoning", m.reasoning);
    for (const auto& call : m.tool_calls) {
      out.text("  call", call.id + " " + call.name + " " + call.arguments);
    }
    out.text("  answers", m.tool_call_id);
  }
  for (const auto& tool : r.conversation.tools)
    out.text("tool " + tool.name, tool.schema);
  out.line("thinking", static_cast<int>(r.conversation.thinking), 0);
  out.line("continue", r.conversation.continue_last_assistant, false);
  dump_sampling(out, r.sampling);
  if (r.has_seed) out.line("seed", static_cast<std::int64_t>(r.sampling.seed), std::int64_t{-99});
  out.line("stream", r.stream, false);
  out.line("include_usage", r.include_usage, false);
  for (const auto& stop : r.stop)
    out.text("stop", stop);
  out.line("tool_choice", kModes[static_cast<int>(r.tool_choice.mode)], kModes[0]);
  out.text("  named", r.tool_choice.name);
  for (const auto& name : r.tool_choice.allowed)
    out.text("  allowed", name);
  out.line("parallel_tool_calls", r.parallel_tool_calls, true);
  out.line("effort", static_cast<int>(r.reasoning_effort), 0);
  out.text("user_id", r.user_id);
  out.text("prompt_cache_key", r.prompt_cache_key);
  out.text("cache_class", r.cache_class);
  out.text("service_tier", r.service_tier);
  for (const auto& [key, value] : r.metadata)
    out.text("metadata " + key, value);
  return out.take();
}

std::string run(const std::string& body) {
  const auto request = parse_chat_request(body);
  if (request) return dump(*request);
  const auto& error = request.error();
  return fmt::format("error: {} {}\nfield: {}\nmessage: {}\n", error_info(error.code).http_status,
                     error.openai_code, error.field, error.message);
}

std::string with(std::string_view member) {
  return fmt::format(R"({{"model":"m","messages":[{{"role":"user","content":"x"}}],{}}})", member);
}

}  // namespace

TEST_CASE("chat requests as text cases") {
  for (const char* file : {"chat_messages.txt", "chat_tools.txt", "chat_sampling.txt",
                           "chat_options.txt", "chat_errors.txt"}) {
    test::run_cases(std::string("protocol/") + file, run);
  }
}

TEST_CASE("every field refuses every wrong type, and takes null as absent unless it is required") {
  const struct {
    const char* name;
    const char* good;
  } fields[] = {{"temperature", "1"},
                {"top_p", "1"},
                {"top_k", "1"},
                {"min_p", "1"},
                {"presence_penalty", "1"},
                {"frequency_penalty", "1"},
                {"repetition_penalty", "1"},
                {"seed", "1"},
                {"n", "1"},
                {"max_tokens", "1"},
                {"max_completion_tokens", "1"},
                {"logit_bias", "{}"},
                {"logprobs", "true"},
                {"top_logprobs", "0"},
                {"stop", "\"a\""},
                {"stop_token_ids", "[]"},
                {"ignore_eos", "true"},
                {"stream", "true"},
                {"tools", "[]"},
                {"parallel_tool_calls", "true"},
                {"tool_choice", "\"auto\""},
                {"thinking", R"({"type":"enabled"})"},
                {"reasoning_effort", "\"low\""},
                {"metadata", "{}"},
                {"user", "\"u\""},
                {"user_id", "\"u\""},
                {"safety_identifier", "\"u\""},
                {"prompt_cache_key", "\"u\""},
                {"service_tier", "\"auto\""},
                {"verbosity", "\"low\""},
                {"response_format", R"({"type":"text"})"},
                {"modalities", R"(["text"])"}};
  const auto kind_of = [](const std::string& text) {
    return text == "true" || text == "false"  ? 'b'
           : text[0] == '1' || text[0] == '0' ? 'n'
                                              : text[0];
  };
  for (const auto& field : fields) {
    const auto body = [&](const std::string& value) {
      return with(fmt::format("\"{}\":{}", field.name, value));
    };
    CAPTURE(field.name);
    CHECK_MESSAGE(parse_chat_request(body(field.good)).has_value(), run(body(field.good)));
    CHECK(parse_chat_request(body("null")).has_value());
    for (const std::string wrong : {"true", "1", "\"zzz\"", "[1]", "{\"zzz\":1}"}) {
      CAPTURE(wrong);
      if (kind_of(wrong) == kind_of(field.good)) continue;
      if (field.name == std::string_view("stop") && wrong[0] == '[') continue;
      if (field.name == std::string_view("tool_choice") && wrong[0] == '{') continue;
      const auto result = parse_chat_request(body(wrong));
      REQUIRE_FALSE(result.has_value());
      CHECK(result.error().field == field.name);
      CHECK(result.error().openai_code == "invalid_type");
    }
  }
  CHECK(parse_chat_request(with("\"stream_options\":{}")).error().field == "stream_options");
}

TEST_CASE("limits hold at their edge") {
  const auto list = [](std::size_t n, const std::string& item) {
    std::string out = "[";
    for (std::size_t i = 0; i < n; ++i)
      out += (i ? "," : "") + item;
    return out + "]";
  };
  const auto ok = [](const std::string& member) {
    return parse_chat_request(with(member)).has_value();
  };
  CHECK(ok("\"stop\":" + list(16, "\"a\"")));
  CHECK_FALSE(ok("\"stop\":" + list(17, "\"a\"")));
  CHECK(ok("\"stop_token_ids\":" + list(256, "7")));
  CHECK_FALSE(ok("\"stop_token_ids\":" + list(257, "7")));
  CHECK(ok("\"stop\":\"" + std::string(4096, 'a') + "\""));
  CHECK_FALSE(ok("\"stop\":\"" + std::string(4097, 'a') + "\""));
  const auto biases = [](int n) {
    std::string out = "\"logit_bias\":{";
    for (int i = 0; i < n; ++i)
      out += fmt::format("{}\"{}\":1", i ? "," : "", i);
    return out + "}";
  };
  CHECK(ok(biases(1024)));
  CHECK_FALSE(ok(biases(1025)));
  const auto metadata = [](int n, int key, int value) {
    std::string out = "\"metadata\":{";
    for (int i = 0; i < n; ++i) {
      out += fmt::format("{}\"{:0>{}}\":\"{:\xc3\xa9>{}}\"", i ? "," : "", i, key, "", value);
    }
    return out + "}";
  };
  CHECK(ok(metadata(16, 64, 512)));
  CHECK_FALSE(ok(metadata(17, 2, 1)));
  CHECK_FALSE(ok(metadata(1, 65, 1)));
  CHECK_FALSE(ok(metadata(1, 1, 513)));
}

TEST_CASE("every truncation of a request is an error with a message, never a crash") {
  const auto body = with(R"("tools":[{"type":"function","function":{"name":"f","parameters":{}}}],
    "stop":["\u00e9\ud83d\ude00"],"logit_bias":{"1":-1.5e1}})");
  for (std::size_t n = 0; n + 2 < body.size(); ++n) {
    const auto result = parse_chat_request(std::string_view(body).substr(0, n));
    REQUIRE_FALSE(result.has_value());
    CHECK_FALSE(result.error().message.empty());
  }
}

}  // namespace penstock::protocol
