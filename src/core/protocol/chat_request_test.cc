#include "core/protocol/chat_request.h"

#include <fmt/format.h>

#include <string>

#include "core/protocol/chat_dump.h"
#include "tests/support/cases.h"

#include <doctest/doctest.h>

namespace penstock::protocol {
namespace {

std::string run(const std::string& body) {
  const auto request = parse_chat_request(body);
  if (request) return dump(*request);
  return dump(request.error());
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
