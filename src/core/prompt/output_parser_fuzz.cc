// Any bytes as an answer: what a parser makes of them doesn't depend on how they were cut, calls
// are whole, arguments are JSON objects, and nothing crashes.
//
// The first byte chooses the family and the request, the second where the answer is cut.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "core/prompt/json_fields.h"
#include "core/prompt/prompt_testing.h"
#include "core/prompt/unicode_utf8.h"

namespace {

using namespace penstock::prompt;  // NOLINT: a fuzzer is one file

void check_calls(const std::vector<OutputEvent>& events) {
  using Kind = OutputEvent::Kind;
  std::string arguments;
  bool open = false;
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case Kind::kToolBegin:
        ENSURE(!open);
        open = true;
        arguments.clear();
        break;
      case Kind::kToolArguments:
        ENSURE(open);
        arguments += event.text;
        break;
      case Kind::kToolEnd:
        ENSURE(open);
        ENSURE(json_fields(arguments).has_value());
        open = false;
        break;
      default:
        ENSURE(!open);
    }
  }
  ENSURE(!open);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::string_view kNames[] = {"qwen3", "deepseek_v4", "llama3_1", "gpt_oss"};
  if (size < 2) return 0;
  const std::uint8_t choice = data[0];
  const auto encoding = *make_chat_encoding(kNames[choice % std::size(kNames)]);
  penstock::Conversation conversation;
  conversation.messages.resize(1);
  if ((choice & 0x10) == 0) conversation.tools = {{"f", R"({"name":"f"})"}, {"g", "{}"}};
  if ((choice & 0x20) != 0) conversation.thinking = penstock::Thinking::kDisabled;
  if ((choice & 0x40) != 0) conversation.thinking = penstock::Thinking::kEnabled;
  std::vector<std::string> stop;
  if ((choice & 0x80) != 0) stop = {"END", "\n\n"};
  // Parsers get what a detokenizer makes: well-formed text, though cut anywhere here.
  std::string answer;
  penstock::unicode::append_repaired({reinterpret_cast<const char*>(data) + 2, size - 2}, answer);

  std::vector<OutputEvent> whole;
  const auto parser = encoding->make_parser(conversation, stop);
  parser->feed(answer, whole);
  parser->finish(whole);
  check_calls(whole);

  std::vector<OutputEvent> pieces;
  const auto second = encoding->make_parser(conversation, stop);
  std::uint32_t state = data[1];
  for (std::size_t at = 0; at < answer.size();) {
    state = state * 1664525 + 1013904223;
    const std::size_t count = data[1] == 0 ? 1 : 1 + (state >> 28);
    second->feed(std::string_view(answer).substr(at, count), pieces);
    at += count;
  }
  second->finish(pieces);
  ENSURE(testing::fold(pieces) == testing::fold(whole));
  ENSURE(second->stop_string() == parser->stop_string());
  return 0;
}
