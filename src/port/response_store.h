// ResponseStore: answers of the Responses API that are kept, with what they answered.
//
// A stored response is its object, its own input items and its output items as JSON; a conversation
// is a chain of them, each naming the one before. One that is made in the background is stored as
// running, with its events as they come, until it is finished by who runs it or ended from outside,
// whichever is first. Everything expires; the oldest go first when the store is full.
//
// Invariants: nothing is found under another owner's name; once a response is not running its
// object never changes, and no event is added. Units: times in seconds since 1970.
// Errors: kIo, kDataLoss; kOverloaded when one does not fit. Blocks on a disk: service code calls
// it on a pool of one thread (run_on), never on a shard. Concurrency: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock {

struct StoredResponse {
  std::string id;     // "resp_..."
  std::string owner;  // name of the API key; empty when none is needed
  std::string previous_id = {};
  std::int64_t created = 0;
  bool background = false;
  bool running = false;
  std::string input = "[]";   // JSON arrays of items
  std::string output = "[]";  // what is complete
  std::string body = {};      // the response object
};

struct StoredEvent {
  std::uint64_t sequence = 0;
  std::string text;  // as it goes out, with its blank line
};

// How a running response ends from outside, given its state and the next sequence number.
struct ResponseEnding {
  std::string body;
  std::vector<StoredEvent> events;
};
using MakeEnding =
    std::function<ResponseEnding(const StoredResponse&, std::uint64_t next_sequence)>;

class ResponseStore {
 public:
  virtual ~ResponseStore() = default;
  virtual Status put(const StoredResponse& response) = 0;
  virtual Result<std::optional<StoredResponse>> find(std::string_view owner,
                                                     std::string_view id) = 0;
  // The response and those before it, oldest first; empty when one of them is not there.
  virtual Result<std::vector<StoredResponse>> chain(std::string_view owner,
                                                    std::string_view id) = 0;
  // False when there was none. One that runs is gone too: its next append() says so.
  virtual Result<bool> erase(std::string_view owner, std::string_view id) = 0;

  // Events of a running response. False when it does not run any more: stop making it.
  virtual Result<bool> append(std::string_view id, const std::vector<StoredEvent>& events) = 0;
  // The same, with its end; `response` is what it became.
  virtual Result<bool> finish(const StoredResponse& response,
                              const std::vector<StoredEvent>& events) = 0;
  // Ends it from outside if it runs, then returns it; nothing for an unknown one.
  virtual Result<std::optional<StoredResponse>> end(std::string_view owner, std::string_view id,
                                                    const MakeEnding& make) = 0;
  // Ends all that run: at start, what ran in the process before. Returns how many there were.
  virtual Result<std::size_t> end_all(const MakeEnding& make) = 0;
  // At most `count_max` events after `after` (-1: from the first).
  virtual Result<std::vector<StoredEvent>> events(std::string_view id, std::int64_t after,
                                                  std::size_t count_max) = 0;
  // Removes what has expired by `now`.
  virtual Status expire(std::int64_t now) = 0;
};

}  // namespace penstock
