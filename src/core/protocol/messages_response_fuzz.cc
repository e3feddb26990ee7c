// Bytes as a script of events, played into both writers: the stream must fold into the whole.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "core/protocol/fuzz_script.h"
#include "core/protocol/json_writer.h"
#include "core/protocol/messages_fold.h"
#include "core/protocol/messages_response.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::protocol;
  Script script(data, size);
  const MessagesAnswer answer{"msg_1", std::string(script.text()), std::string(script.text())};
  const auto stream = make_messages_stream(answer);
  const auto collector = make_messages_collector(answer);
  std::string events;
  std::string whole;
  const penstock::Usage usage{9, 3, 5, 1};
  const auto how = script.byte();
  stream->start(usage, events);
  collector->start(usage, whole);
  std::uint32_t calls = 0;
  bool in_call = false;
  while (!script.empty()) {
    const auto what = script.byte();
    ChatDelta delta;
    if ((what & 1U) != 0) delta.reasoning = script.text();
    if ((what & 2U) != 0) delta.content = script.text();
    in_call = in_call && delta.reasoning.empty() && delta.content.empty();
    ToolCallPiece piece;
    if ((what & 4U) != 0) {
      if (!in_call || (what & 8U) != 0) ++calls;
      in_call = true;
      piece = {calls - 1, script.text(), script.text(), script.text()};
      delta.tool_calls = {&piece, 1};
    }
    if ((what & 16U) != 0) stream->keep_alive(events);
    stream->add(delta, events);
    collector->add(delta, whole);
  }
  if (how % 8 == 7) {
    stream->fail({penstock::ErrorCode::kUnavailable, "gone", {}, {}}, events);
    const auto failed = MessagesFolder().fold(events);
    ENSURE(failed.problem.empty() && !failed.done && failed.error == "overloaded_error");
    return 0;
  }
  ChoiceEnd end;
  if ((how & 1U) != 0) end.reason = penstock::FinishReason::kLength;
  end.called_tools = calls > 0;
  end.context_full = (how & 2U) != 0;
  if ((how & 4U) != 0) end.stop_string = answer.model;
  for (auto* writer : {stream.get(), collector.get()})
    writer->finish(0, end, events);
  stream->end(usage, events);
  collector->end(usage, whole);
  ENSURE(find_invalid_utf8(events) == std::string_view::npos);
  ENSURE(find_invalid_utf8(whole) == std::string_view::npos);
  const auto folded = MessagesFolder().fold(events);
  ENSURE(folded.problem.empty() && folded.done);
  ENSURE(folded.whole == boost::json::parse(whole).as_object());
  return 0;
}
