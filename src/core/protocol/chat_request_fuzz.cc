// Bytes as a chat request. Checks: no crash; what we accept Boost.JSON accepts too, with equal
// strings and the same shape; an accepted request keeps the ranges its header promises; messages
// are UTF-8.
#include <boost/json.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "core/protocol/chat_request.h"
#include "core/protocol/errors.h"
#include "core/protocol/json_document.h"
#include "core/protocol/json_writer.h"

namespace penstock::protocol {
namespace {

void compare(JsonRef ours, const boost::json::value& theirs) {
  ENSURE(!ours.path().empty() || ours.text().data() != nullptr);
  if (theirs.is_string()) {
    ENSURE(ours.is_string());
    ENSURE(ours.equals(std::string_view(theirs.as_string())));
    ENSURE(ours.string() == std::string_view(theirs.as_string()));
  } else if (theirs.is_array()) {
    ENSURE(ours.is_array());
    auto item = ours.first_child();
    for (const auto& value : theirs.as_array()) {
      ENSURE(static_cast<bool>(item));
      compare(item, value);
      item = item.next_sibling();
    }
    ENSURE(!item);
  } else if (theirs.is_object()) {
    ENSURE(ours.is_object());
    for (const auto& [key, value] : theirs.as_object())
      compare(ours.find(key), value);
  } else if (theirs.is_number()) {
    ENSURE(ours.is_number());
    ENSURE(std::isfinite(ours.number()));
    if (theirs.is_int64()) ENSURE(ours.integer() == theirs.as_int64());
  } else {
    ENSURE(ours.is_null() || ours.is_bool());
  }
}

void check_document(std::string_view text) {
  const auto ours = JsonDocument::parse(text);
  boost::json::parse_options options;
  options.max_depth = 128;
  boost::json::error_code error;
  const auto theirs = boost::json::parse(text, error, {}, options);
  if (ours) {
    // Boost counts an exponent of many digits as an overflow even when it is negative.
    ENSURE(!error || error == boost::json::error::exponent_overflow);
    if (!error) compare(ours->root(), theirs);
  } else {
    const auto& code = ours.error().openai_code;
    const bool ours_alone = code == "duplicate_key" || code == "invalid_value";
    ENSURE(error || ours_alone);
    ENSURE(!ours.error().message.empty());
  }
}

void check_request(const ChatRequest& r) {
  const auto& s = r.sampling;
  ENSURE(!r.conversation.messages.empty() && !r.model.empty());
  ENSURE(s.temperature >= 0 && s.temperature <= 2 && s.top_p > 0 && s.top_p <= 1);
  ENSURE(s.min_p >= 0 && s.min_p <= 1 && s.repetition_penalty > 0 && s.repetition_penalty <= 2);
  ENSURE(std::fabs(s.presence_penalty) <= 2 && std::fabs(s.frequency_penalty) <= 2);
  ENSURE(s.choices >= 1 && s.choices <= 128 && s.top_logprobs >= -1 && s.top_logprobs <= 20);
  for (const auto& m : r.conversation.messages) {
    for (const std::string_view text : {std::string_view(m.text), std::string_view(m.reasoning)}) {
      ENSURE(find_invalid_utf8(text) == std::string_view::npos);
    }
  }
  for (const auto& stop : r.stop)
    ENSURE(!stop.empty());
}

}  // namespace
}  // namespace penstock::protocol

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::protocol;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  check_document(body);
  if (const auto request = parse_chat_request(body)) {
    check_request(*request);
  } else {
    const auto answer = error_answer(request.error());
    ENSURE(answer.status >= 400 && answer.status < 500);
    ENSURE(JsonDocument::parse(answer.body).has_value());
  }
  return 0;
}
