// AnswerWatch: reads along with an answer that passes through: what it used, how it ended, whether
// it ended at all.
//
// Engines say usage in the shapes of the APIs they speak; what is read here goes into the access
// log, the metrics and the bill, so it is taken from the members of the JSON, never from text that
// looks like them. A stream that closes without its API's last word (data: [DONE], message_stop,
// response.completed) was cut.
//
// Invariants: never throws and never changes what passes; what it does not understand it passes.
// Cost: events without "usage" or an end are searched for these words only, not parsed.
// Concurrency: one answer each.
// Source: facts/engines.md 4.1, 4.7, 4.8; facts/api.md 3.1 to 3.5.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/dialects/sse_splitter.h"
#include "core/dialects/wire_api.h"
#include "domain/usage.h"

namespace penstock::dialects {

class AnswerWatch {
 public:
  explicit AnswerWatch(WireApi api) : api_(api) {}

  enum class Says : std::uint8_t {
    kMore,
    kUsageOnly,  // of chat and completions: the extra chunk of stream_options.include_usage
    kEnd,        // the API's last word
    kError,      // the engine says that it failed
  };
  Says event(const SseEvent& event);
  // The body of an answer that is no stream.
  void whole(std::string_view body);

  // The last word came, or an error.
  bool ended() const { return ended_; }
  bool failed() const { return failed_; }
  // What the engine reported; nothing until it did.
  const std::optional<Usage>& usage() const { return usage_; }
  // It said how many of the prompt's tokens were cached, be it none.
  bool cached_told() const { return cached_told_; }
  // finish_reason, stop_reason or status, in the API's own word; empty until it came.
  const std::string& finish() const { return finish_; }

 private:
  Says chat_event(std::string_view data);
  Says messages_event(const SseEvent& event);
  Says responses_event(const SseEvent& event);
  void read_usage(std::string_view json);
  void read_timings(std::string_view json);

  WireApi api_;
  bool ended_ = false;
  bool failed_ = false;
  std::optional<Usage> usage_;
  std::string finish_;
  bool cached_told_ = false;
};

}  // namespace penstock::dialects
