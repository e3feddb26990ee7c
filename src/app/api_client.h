// The OpenAI API from the client's side, for chat, eval and doctor.
//
// Errors: what the HTTP client reports; an HTTP error becomes an Error with the code of that status
// and the server's message. Concurrency: calls are independent and block their thread.
#pragma once

#include <boost/json/object.hpp>

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace penstock {

struct ApiTarget {
  std::string url;      // "http://127.0.0.1:8080", with or without a slash at the end
  std::string key;      // empty: none
  std::string ca_file;  // PEM; empty: the system's
  bool verify_certificate = true;
};

// The key in $PENSTOCK_API_KEY, or empty.
std::string key_from_environment();

// Names of the models the server lists, in its order.
Result<std::vector<std::string>> list_models(const ApiTarget& target);

// GET of another path; the body of the answer.
Result<std::string> fetch(const ApiTarget& target, std::string_view path);

// POST /v1/chat/completions, not streamed; the body of the answer.
Result<std::string> complete(const ApiTarget& target, const std::string& body);

// What one event of a streamed answer adds.
struct ChatDelta {
  std::string content;
  std::string reasoning;
  std::string finish_reason;
  boost::json::object usage;  // in the last one; else empty
};
// Reads the JSON of one event. kDataLoss when it is not a chunk; the server's error when it is one.
Result<ChatDelta> parse_delta(std::string_view event);

struct StreamHooks {
  std::function<void(const ChatDelta&)> on_delta;
  const std::atomic<bool>* cancel = nullptr;
};
// POST /v1/chat/completions with "stream": true; returns after the end of the stream. kDataLoss
// when it ends without [DONE], kCancelled by `cancel`.
Status stream_chat(const ApiTarget& target, boost::json::object body, const StreamHooks& hooks);

}  // namespace penstock
