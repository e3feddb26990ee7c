#include "base/result.h"

#include <fmt/format.h>
#include <array>

#include "base/check.h"

namespace penstock {
namespace {

using enum ErrorCode;
using enum RetryAdvice;
constexpr std::string_view kRequestError = "invalid_request_error";
constexpr std::string_view kServerError = "server_error";

constexpr std::array kTable = {
    ErrorInfo{kInvalidArgument, "invalid_argument", 400, kRequestError, "invalid_value", kNever,
              64},
    ErrorInfo{kContextLengthExceeded, "context_length_exceeded", 400, kRequestError,
              "context_length_exceeded", kNever, 64},
    ErrorInfo{kUnsupported, "unsupported", 400, kRequestError, "unsupported_parameter", kNever, 64},
    ErrorInfo{kUnauthenticated, "unauthenticated", 401, kRequestError, "invalid_api_key", kNever,
              77},
    ErrorInfo{kPermissionDenied, "permission_denied", 403, kRequestError, "permission_denied",
              kNever, 77},
    ErrorInfo{kNotFound, "not_found", 404, kRequestError, "not_found", kNever, 66},
    ErrorInfo{kModelNotFound, "model_not_found", 404, kRequestError, "model_not_found", kNever, 66},
    ErrorInfo{kMethodNotAllowed, "method_not_allowed", 405, kRequestError, "method_not_allowed",
              kNever, 64},
    ErrorInfo{kConflict, "conflict", 409, kRequestError, "conflict", kNever, 73},
    ErrorInfo{kPayloadTooLarge, "payload_too_large", 413, kRequestError, "request_too_large",
              kNever, 64},
    ErrorInfo{kHeadersTooLarge, "headers_too_large", 431, kRequestError, "headers_too_large",
              kNever, 64},
    ErrorInfo{kUnsupportedMediaType, "unsupported_media_type", 415, kRequestError,
              "unsupported_media_type", kNever, 64},
    ErrorInfo{kRateLimited, "rate_limited", 429, "requests", "rate_limit_exceeded", kAfterDelay,
              75},
    ErrorInfo{kQuotaExhausted, "quota_exhausted", 429, "insufficient_quota", "insufficient_quota",
              kNever, 75},
    ErrorInfo{kCancelled, "cancelled", 499, kServerError, "cancelled", kNever, 130},
    ErrorInfo{kDeadlineExceeded, "deadline_exceeded", 504, kServerError, "timeout", kAfterDelay,
              75},
    ErrorInfo{kUnavailable, "unavailable", 503, kServerError, "unavailable", kAfterDelay, 69},
    ErrorInfo{kOverloaded, "overloaded", 503, kServerError, "overloaded", kAfterDelay, 75},
    ErrorInfo{kDataLoss, "data_loss", 500, kServerError, "data_loss", kNever, 65},
    ErrorInfo{kIo, "io", 500, kServerError, "io_error", kAfterDelay, 74},
    ErrorInfo{kInternal, "internal", 500, kServerError, "internal_error", kNow, 70},
};

consteval bool table_is_in_order() {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<std::size_t>(kTable[i].code) != i) return false;
  }
  return kTable.size() == static_cast<std::size_t>(kInternal) + 1;
}
static_assert(table_is_in_order(), "error_info() indexes the table by the code");

}  // namespace

const ErrorInfo& error_info(ErrorCode code) {
  const auto index = static_cast<std::size_t>(code);
  ENSURE(index < kTable.size());
  return kTable[index];
}

Error&& Error::within(std::string_view where) && {
  message = fmt::format("{}: {}", where, message);
  return std::move(*this);
}

std::unexpected<Error> fail(ErrorCode code, std::string message, std::string field) {
  return std::unexpected(Error{code, std::move(message), std::move(field), {}});
}

std::string to_string(const Error& error) {
  const auto name = error_info(error.code).name;
  if (error.field.empty()) return fmt::format("{}: {}", name, error.message);
  return fmt::format("{}: {} ({})", name, error.message, error.field);
}

}  // namespace penstock
