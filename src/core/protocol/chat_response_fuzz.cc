// Bytes as a script of events, played into both writers: the stream must fold into the whole.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "core/protocol/chat_fold.h"
#include "core/protocol/chat_response.h"
#include "core/protocol/fuzz_script.h"
#include "core/protocol/json_writer.h"

namespace penstock::protocol {
namespace {

struct Players {
  explicit Players(const ChatAnswer& answer)
      : stream(answer), collector(answer), calls(answer.choices), open(answer.choices, true) {}

  void add(const ChatDelta& delta) {
    stream.add(delta, out);
    collector.add(delta);
  }
  void finish(std::uint32_t choice, ChatFinish reason) {
    stream.finish(choice, reason, out);
    collector.finish(choice, reason);
    open[choice] = false;
  }

  ChatStream stream;
  ChatCollector collector;
  std::string out;
  std::vector<std::uint32_t> calls;
  std::vector<bool> open;
};

void step(Script& script, Players& players, const ChatAnswer& answer) {
  const auto what = script.byte();
  const std::uint32_t choice = script.byte() % answer.choices;
  if (!players.open[choice]) return;
  ChatDelta delta{.choice = choice};
  std::vector<LogprobEntry> logprobs;
  std::vector<ToolCallPiece> pieces;
  if (what % 16 == 15) {
    players.finish(choice, static_cast<ChatFinish>(script.byte() % 5));
    return;
  }
  if ((what & 1U) != 0) delta.content = script.text();
  if ((what & 2U) != 0) delta.reasoning = script.text();
  if ((what & 4U) != 0) {
    const bool opens = players.calls[choice] == 0 || (what & 64U) != 0;
    if (opens) ++players.calls[choice];
    pieces.push_back({.index = players.calls[choice] - 1,
                      .id = script.text(),
                      .name = script.text(),
                      .arguments = script.text()});
    delta.tool_calls = pieces;
  }
  if ((what & 8U) != 0) {
    logprobs.push_back(
        {{std::string(script.text()), -0.5F}, {{std::string(script.text()), -1.5F}}});
    delta.logprobs = logprobs;
  }
  players.add(delta);
}

}  // namespace
}  // namespace penstock::protocol

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::protocol;
  Script script(data, size);
  const auto options = script.byte();
  const ChatAnswer answer{.id = "chatcmpl-1",
                          .created = 1,
                          .model = std::string(script.text()),
                          .choices = 1 + options % 4,
                          .logprobs = (options & 4U) != 0,
                          .include_usage = true};
  Players players(answer);
  while (!script.empty())
    step(script, players, answer);
  for (std::uint32_t i = 0; i < answer.choices; ++i) {
    if (players.open[i]) players.finish(i, ChatFinish::kStop);
  }
  const penstock::Usage usage{.prompt_tokens = 9, .cached_tokens = 3, .completion_tokens = 5};
  players.stream.end(usage, players.out);
  ENSURE(find_invalid_utf8(players.out) == std::string_view::npos);
  const auto folded = StreamFolder().fold(players.out);
  ENSURE(folded.problem.empty() && folded.done);
  ENSURE(folded.whole == normalize_whole(players.collector.body(usage)));
  return 0;
}
