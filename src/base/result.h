// Errors as values: Result<T> is std::expected<T, Error>.
//
// An outside fault (client, peer, file, engine) becomes an Error and travels up as a value; a bug
// is a CHECK (base/check.h). The code table is closed: each code has one HTTP status, one OpenAI
// error type and code string, a retry advice and a process exit code, so every surface answers
// alike.
//
// Invariants: every ErrorCode has a row in error_info(); messages say what, where, why, what to do.
// Errors: none. Concurrency: values, no shared state.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace penstock {

enum class ErrorCode : std::uint8_t {
  kInvalidArgument,        // the request is malformed or a value is out of range
  kContextLengthExceeded,  // prompt + answer do not fit the model's context
  kUnsupported,            // understood, changes the meaning, and is not supported
  kUnauthenticated,        // missing or wrong API key
  kPermissionDenied,       // known key, not allowed
  kNotFound,               // unknown route or object
  kModelNotFound,          // unknown model name or alias
  kMethodNotAllowed,       // known route, wrong HTTP method
  kConflict,               // duplicate id, state does not allow it
  kPayloadTooLarge,        // body over the limit
  kHeadersTooLarge,        // header count or size over the limit
  kUnsupportedMediaType,   // content type is not JSON
  kRateLimited,            // the client should slow down
  kQuotaExhausted,         // the tenant's budget is spent; retrying does not help
  kCancelled,              // the client went away or asked to stop
  kDeadlineExceeded,       // took longer than its limit
  kUnavailable,            // nothing can serve it now; retry later
  kOverloaded,             // a queue or another limit of ours is full
  kDataLoss,               // stored or received bytes do not match their checksum or format
  kIo,                     // a file, socket or device failed
  kInternal,               // a fault of ours that we survived
};

// What a client should do with the same request.
enum class RetryAdvice : std::uint8_t { kNever, kAfterDelay, kNow };

struct ErrorInfo {
  ErrorCode code;
  std::string_view name;         // snake_case, stable: logs and metrics
  int http_status;               // 499 stands for "client closed request" in logs
  std::string_view openai_type;  // error.type of the OpenAI error object
  std::string_view openai_code;  // error.code, empty for null
  RetryAdvice retry;
  int exit_code;  // sysexits-like, for the command line
};

// Returns the row of the code table; total for every ErrorCode.
const ErrorInfo& error_info(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  // for a person: what, where, why, what to do next
  std::string field;    // request field or config key at fault ("messages[0].role"), empty if none
  std::string openai_code;  // overrides the table's code string when not empty

  // Prefixes the message with where it happened: "loading X: <message>".
  Error&& within(std::string_view where) &&;
};

template <typename T>
using Result = std::expected<T, Error>;
using Status = Result<void>;

// Builds the unexpected value: `return fail(ErrorCode::kIo, "...")`.
[[nodiscard]] std::unexpected<Error> fail(ErrorCode code, std::string message,
                                          std::string field = {});

// "code_name: message (field)", for logs and terminals.
std::string to_string(const Error& error);

// Returns early with the error of `expr`, or assigns its value: TRY(auto x, f());
// CO_TRY is the same inside a coroutine, where `expr` may hold a co_await.
#define PENSTOCK_CONCAT_(a, b) a##b
#define PENSTOCK_CONCAT(a, b) PENSTOCK_CONCAT_(a, b)
#define PENSTOCK_TRY_IMPL(leave, tmp, decl, expr)          \
  auto tmp = (expr);                                       \
  if (!tmp) leave std::unexpected(std::move(tmp).error()); \
  decl = std::move(*tmp)
#define PENSTOCK_TRY_STATUS_IMPL(leave, tmp, expr)                              \
  do {                                                                          \
    if (auto tmp = (expr); !tmp) leave std::unexpected(std::move(tmp).error()); \
  } while (false)
#define TRY(decl, expr) \
  PENSTOCK_TRY_IMPL(return, PENSTOCK_CONCAT(try_result_, __LINE__), decl, expr)
#define CO_TRY(decl, expr) \
  PENSTOCK_TRY_IMPL(co_return, PENSTOCK_CONCAT(try_result_, __LINE__), decl, expr)
#define TRY_STATUS(expr) \
  PENSTOCK_TRY_STATUS_IMPL(return, PENSTOCK_CONCAT(try_status_, __LINE__), expr)
#define CO_TRY_STATUS(expr) \
  PENSTOCK_TRY_STATUS_IMPL(co_return, PENSTOCK_CONCAT(try_status_, __LINE__), expr)

}  // namespace penstock
