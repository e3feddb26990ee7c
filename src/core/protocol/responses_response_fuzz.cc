// Bytes as a script of events, played into a stream and a whole answer: the stream must keep its
// promises and fold into the whole.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "core/protocol/fuzz_script.h"
#include "core/protocol/json_writer.h"
#include "core/protocol/responses_fold.h"
#include "core/protocol/responses_response.h"

namespace penstock::protocol {
namespace {

struct Players {
  explicit Players(ResponsesAnswer answer)
      : stream(answer), whole([&] {
          answer.stream = false;
          return answer;
        }()) {}
  template <typename Call>
  void each(const Call& call) {
    call(stream, events);
    call(whole, body);
  }

  ResponsesWriter stream;
  ResponsesWriter whole;
  std::string events;
  std::string body;
  std::uint32_t calls = 0;
};

void step(Script& script, Players& players) {
  const auto what = script.byte();
  ChatDelta delta;
  std::vector<LogprobEntry> logprobs;
  std::vector<ToolCallPiece> pieces;
  if ((what & 1U) != 0) delta.content = script.text();
  if ((what & 2U) != 0) delta.reasoning = script.text();
  if ((what & 4U) != 0) {
    if (players.calls == 0 || (what & 64U) != 0) ++players.calls;
    pieces.push_back({.index = players.calls - 1,
                      .id = script.text(),
                      .name = script.text(),
                      .arguments = script.text()});
    delta.tool_calls = pieces;
  }
  if ((what & 8U) != 0) {
    logprobs.push_back({{std::string(script.text()), -0.5F}, {}});
    delta.logprobs = logprobs;
  }
  if ((what & 16U) != 0) players.each([](auto& w, auto& out) { w.keep_alive(out); });
  players.each([&](auto& w, auto& out) { w.add(delta, out); });
}

}  // namespace
}  // namespace penstock::protocol

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock;
  using namespace penstock::protocol;
  Script script(data, size);
  const auto options = script.byte();
  ResponsesAnswer answer{
      .name = "1", .created = 1, .model = std::string(script.text()), .stream = true};
  answer.background = (options & 1U) != 0;
  answer.logprobs = (options & 2U) != 0;
  answer.encrypted_reasoning = (options & 4U) != 0;
  answer.spaces[std::string(script.text())] = {"n", "f"};
  answer.unix_seconds = [] { return std::int64_t{2}; };
  answer.seal.close = [](std::string_view, std::string_view text) { return std::string(text); };
  Players players(answer);
  const bool fails = (options & 8U) != 0;
  if (!fails || (options & 16U) == 0) {
    players.each([](auto& w, auto& out) { w.start({}, out); });
    while (!script.empty())
      step(script, players);
  }
  if (fails) {
    const Error error{ErrorCode::kUnavailable, std::string(script.text()), "f", {}};
    players.each([&](auto& w, auto& out) { w.fail(error, out); });
  } else {
    const auto reason = (options & 32U) != 0 ? FinishReason::kLength : FinishReason::kStop;
    players.each([&](auto& w, auto& out) { w.finish(0, {.reason = reason}, out); });
    players.each([](auto& w, auto& out) { w.end({9, 3, 5, 1}, out); });
  }
  ENSURE(find_invalid_utf8(players.events) == std::string_view::npos);
  const auto folded = ResponseFolder().fold(players.events);
  ENSURE(folded.problem.empty());
  ENSURE(folded.whole == boost::json::parse(players.body).as_object());
  // What was said can be said again in the next turn.
  const Seal seal{answer.seal.close, [](std::string_view, std::string_view sealed) {
                    return std::optional(std::string(sealed));
                  }};
  ResponseItemReader reader(seal, nullptr);
  const auto read = reader.read_all(players.stream.output());
  ENSURE(read.has_value() || read.error().openai_code == "invalid_value");  // ids and names: empty
  return 0;
}
