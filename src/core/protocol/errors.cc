#include "core/protocol/errors.h"

#include <algorithm>

#include "core/protocol/json_writer.h"

namespace penstock::protocol {
namespace {

constexpr int kOverloadedStatus = 529;  // Anthropic's own

std::string_view anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 409:
      return "conflict_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

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

std::string anthropic_error_object(const Error& error, std::string_view request_id) {
  std::string out = R"({"type":"error","error":{"type":)";
  append_json_string(out, anthropic_type(error_info(error.code).http_status));
  out += R"(,"message":)";
  append_json_string(out, error.message);
  out += R"(},"request_id":)";
  append_json_string(out, request_id);
  out += '}';
  return out;
}

ErrorAnswer error_answer(const Error& error, ErrorShape shape, std::string_view request_id,
                         Duration retry_after) {
  ErrorAnswer answer = error_answer(error, retry_after);
  if (shape == ErrorShape::kAnthropic) {
    answer.body = anthropic_error_object(error, request_id);
    if (answer.status == 503) answer.status = kOverloadedStatus;
  }
  return answer;
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
