// StreamChunk: what one event of a streamed answer says, as far as two streams of one answer are
// compared (stream_replay.h).
//
// An event is at most one piece of text on a channel (the answer, its reasoning, the arguments of
// one tool call, a block of Messages, an item of Responses) and at most one mark: that a block
// begins or ends, which tool is called. What engines name anew each time (ids) is listed apart, as
// are the sequence numbers of Responses.
//
// Invariants: views are into the event's data. Errors: nothing where an event has what can't be
// compared: several choices, two texts, calls that come several at once, unknown kinds of blocks.
// Concurrency: pure. Source: facts/api.md 3.1 to 3.5; facts/engines.md 4.1, 4.7, 4.8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dialects/sse_splitter.h"
#include "core/dialects/wire_api.h"

namespace penstock::dialects {

struct StreamChunk {
  bool last = false;    // the API's last word
  bool choice = false;  // of chat, completions and tokens: it has one; if not, it may be the usage
  bool finishes = false;  // with a finish_reason
  bool by_token = false;  // what goes with single tokens stands beside the text

  std::string channel;
  std::string text;            // of the channel; empty: it has none. Token ids as "12,13,"
  std::string_view text_json;  // as it stands
  bool is_ids = false;

  std::string mark;                     // once in an answer; empty: it has none
  std::vector<std::string_view> named;  // values that go with the mark, and are null without it
};

// Nothing: it can't be compared.
std::optional<StreamChunk> read_stream_chunk(const SseEvent& event, WireApi api);

// What engines name anew: what it is, and its name as JSON text.
using StreamNames = std::vector<std::pair<std::string, std::string_view>>;
StreamNames names_in(const SseEvent& event, WireApi api);
// Members of such names, in whatever event.
bool holds_name(std::string_view key);

}  // namespace penstock::dialects
