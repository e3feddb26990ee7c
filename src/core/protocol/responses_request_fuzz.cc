// Bytes as a Responses request. Checks: no crash; an accepted request has texts in UTF-8 and ranges
// as its header promises; what is repeated and what is stored of it is JSON on one line, and what
// is stored reads back as the same messages.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "core/protocol/errors.h"
#include "core/protocol/json_document.h"
#include "core/protocol/json_writer.h"
#include "core/protocol/responses_request.h"

namespace penstock::protocol {
namespace {

const Seal kSeal{[](std::string_view, std::string_view text) { return std::string(text); },
                 [](std::string_view purpose, std::string_view sealed) {
                   const bool ours = purpose == kSealedReasoning || sealed.starts_with('[');
                   return ours ? std::optional(std::string(sealed)) : std::nullopt;
                 }};

void check_json(const std::string& text) {
  ENSURE(text.find('\n') == std::string::npos);
  ENSURE(JsonDocument::parse(text).has_value());
}

void check_request(std::string_view body, const ResponsesRequest& r) {
  const auto& s = r.chat.sampling;
  ENSURE(!r.chat.model.empty());
  ENSURE(s.max_tokens == 0 || s.max_tokens >= 16);
  ENSURE(s.temperature >= 0 && s.temperature <= 2 && s.top_p > 0 && s.top_p <= 1);
  ENSURE(s.top_logprobs >= -1 && s.top_logprobs <= 20 && s.choices == 1);
  ENSURE(r.store || !r.background);
  for (const auto& m : r.chat.conversation.messages) {
    ENSURE(find_invalid_utf8(m.text) == std::string_view::npos);
    ENSURE(find_invalid_utf8(m.reasoning) == std::string_view::npos);
  }
  check_json("{" + r.echo + "}");
  if (r.needs_stored()) return;
  const auto document = JsonDocument::parse(body);
  ENSURE(document.has_value());
  const auto stored = stored_input(document->root(), "x", {});
  check_json(stored);
  ResponseItemReader reader(kSeal, nullptr);
  ENSURE(reader.read_all(stored).has_value());
  const auto& all = r.chat.conversation.messages;
  const auto& again = reader.messages();
  ENSURE(again.size() <= all.size() && all.size() <= again.size() + 1);  // instructions
  ENSURE(std::equal(again.begin(), again.end(),
                    all.end() - static_cast<std::ptrdiff_t>(again.size())));
}

}  // namespace
}  // namespace penstock::protocol

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::protocol;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  if (const auto request = parse_responses_request(body, kSeal)) {
    check_request(body, *request);
  } else {
    const auto answer = error_answer(request.error());
    ENSURE(answer.status >= 400 && answer.status < 500);
    ENSURE(JsonDocument::parse(answer.body).has_value());
  }
  return 0;
}
