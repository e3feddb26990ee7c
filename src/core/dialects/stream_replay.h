// StreamReplay: a stream that broke off, found again in the stream of another engine.
//
// A request that is greedy or has a seed gives the same text once more. When its engine dies in
// mid-stream, another one is asked the same; what it says again is compared with what the client
// has, and left out; what comes after goes on, with the ids that the client knows. The two streams
// need not be cut alike: an event that holds both is shortened. A text that differs is found out,
// and nothing of it passes.
//
// What is compared (stream_chunk.h): the text of each channel byte by byte, so tool calls by the
// JSON text of their arguments, and the marks between. Until all that was sent has been found again
// nothing passes. Responses number their events: those that pass go on counting.
//
// Invariants: what the client gets, all in all, is one stream that an engine could have sent. Of
// choices there is one. Errors: none; what can't be told is not resumed.
// Cost: a copy of the stream, kBytesMax at most; nothing is parsed before it breaks off.
// Concurrency: one answer each. Source: docs/engines.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/dialects/json_body.h"
#include "core/dialects/sse_splitter.h"
#include "core/dialects/wire_api.h"

namespace penstock::dialects {

class StreamReplay {
 public:
  static constexpr std::size_t kBytesMax = std::size_t{1} << 20;

  // Whether this request's stream can be found again: the keys it looks at are to be controlled.
  // Not where the engine would run tools of its own, as that may do something twice.
  static bool repeats(const JsonBody& body, WireApi api);
  static constexpr std::array<std::string_view, 6> kKeys = {
      "temperature", "seed", "n", "best_of", "tools", "sampling_params"};

  explicit StreamReplay(WireApi api) : api_(api) {}

  // The client gets this event as it is.
  void sent(std::string_view raw);
  // The stream broke off; from here on the events of another one come. False: it can't be found
  // again, as what was sent is too much or has what can't be compared.
  bool begin_again();

  enum class Says : std::uint8_t { kGood, kDiffers };
  // An event of the other stream: appends to `out` what of it is new to the client.
  Says event(const SseEvent& event, std::string& out);

 private:
  struct Part {
    std::string_view of;  // the event's bytes
    std::string with;
  };
  bool caught_up() const;
  void learn_names(const SseEvent& event);
  void rename(std::string_view data, std::vector<Part>& parts) const;
  bool pass(const SseEvent& event, std::vector<Part> parts, std::string& out);

  WireApi api_;
  std::string log_;
  bool too_long_ = false;
  // Of what was sent.
  std::map<std::string, std::string, std::less<>> text_;  // by channel
  std::set<std::string, std::less<>> marks_;
  std::map<std::string, std::string, std::less<>> names_;  // as JSON, by what they name
  std::optional<std::int64_t> next_number_;                // of Responses' next event
  std::string created_at_;                                 // of the response, as JSON
  bool began_ = false;
  bool finished_ = false;
  // How far it was found again.
  std::map<std::string, std::size_t, std::less<>> found_;
  std::set<std::string, std::less<>> found_marks_;
  std::map<std::string, std::string, std::less<>> renamed_;  // the other engine's names to ours
};

}  // namespace penstock::dialects
