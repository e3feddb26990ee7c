#include "core/protocol/errors.h"

#include <algorithm>

#include "core/protocol/json_writer.h"

namespace penstock::protocol {

std::string error_object(const Error& error) {
  const auto& info = error_info(error.code);
  const std::string_view code =
      error.openai_code.empty() ? info.openai_code : std::string_view(error.openai_code);
  std::string out = R"({"error":{"message":)";
  append_json_string(out, error.message);
  out += R"(,"type":)";
  append_json_string(out, info.openai_type);
  out += R"(,"param":)";
  if (error.field.empty()) {
    out += "null";
  } else {
    append_json_string(out, error.field);
  }
  out += R"(,"code":)";
  if (code.empty()) {
    out += "null";
  } else {
    append_json_string(out, code);
  }
  out += "}}";
  return out;
}

ErrorAnswer error_answer(const Error& error, Duration retry_after) {
  const auto& info = error_info(error.code);
  ErrorAnswer answer;
  answer.status = info.http_status;
  answer.body = error_object(error);
  const bool may_retry = info.retry != RetryAdvice::kNever;
  // Clients retry these by their status alone, so the advice is said aloud.
  const bool retried_by_status = info.http_status == 408 || info.http_status == 409 ||
                                 info.http_status == 429 || info.http_status >= 500;
  if (retried_by_status) {
    answer.headers.emplace_back("x-should-retry", may_retry ? "true" : "false");
  }
  const bool says_when = info.http_status == 429 || info.http_status == 503;
  if (says_when && may_retry) {
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(retry_after).count();
    answer.headers.emplace_back("retry-after", std::to_string(std::max<std::int64_t>(1, seconds)));
  }
  return answer;
}

}  // namespace penstock::protocol
