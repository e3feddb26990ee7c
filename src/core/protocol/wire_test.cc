#include <string>
#include <vector>

#include "core/protocol/errors.h"
#include "core/protocol/models.h"
#include "core/protocol/sse.h"

#include <doctest/doctest.h>

namespace penstock::protocol {
namespace {

std::string header(const ErrorAnswer& answer, std::string_view name) {
  for (const auto& [key, value] : answer.headers) {
    if (key == name) return value;
  }
  return "-";
}

}  // namespace

TEST_CASE("errors have all four keys, and say whether to retry where clients would") {
  using namespace std::chrono_literals;
  const auto bad = error_answer({ErrorCode::kInvalidArgument, "no \"x\"\n", "a.b", "invalid_type"});
  CHECK(bad.status == 400);
  CHECK(bad.body ==
        R"({"error":{"message":"no \"x\"\n","type":"invalid_request_error","param":"a.b",)"
        R"("code":"invalid_type"}})");
  CHECK(bad.headers.empty());
  const auto busy = error_answer({ErrorCode::kOverloaded, "busy", {}, {}}, 1500ms);
  CHECK(busy.status == 503);
  CHECK(busy.body == R"({"error":{"message":"busy","type":"server_error","param":null,)"
                     R"("code":"overloaded"}})");
  CHECK(header(busy, "retry-after") == "2");
  CHECK(header(busy, "x-should-retry") == "true");
  const auto broke = error_answer({ErrorCode::kQuotaExhausted, "spent", {}, {}});
  CHECK(broke.status == 429);
  CHECK(header(broke, "retry-after") == "-");
  CHECK(header(broke, "x-should-retry") == "false");
  CHECK(header(error_answer({ErrorCode::kRateLimited, "", {}, {}}, 0ms), "retry-after") == "1");
  CHECK(header(error_answer({ErrorCode::kDataLoss, "", {}, {}}), "x-should-retry") == "false");
}

TEST_CASE("errors in Anthropic's shape have its types, its 529 and the request's id") {
  const auto answer = [](ErrorCode code) {
    return error_answer({code, "why", "a.b", {}}, ErrorShape::kAnthropic, "req-1");
  };
  struct Case {
    ErrorCode code;
    int status;
    const char* type;
  };
  for (const Case& c : {Case{ErrorCode::kInvalidArgument, 400, "invalid_request_error"},
                        Case{ErrorCode::kUnsupported, 400, "invalid_request_error"},
                        Case{ErrorCode::kUnauthenticated, 401, "authentication_error"},
                        Case{ErrorCode::kPermissionDenied, 403, "permission_error"},
                        Case{ErrorCode::kModelNotFound, 404, "not_found_error"},
                        Case{ErrorCode::kMethodNotAllowed, 405, "invalid_request_error"},
                        Case{ErrorCode::kConflict, 409, "conflict_error"},
                        Case{ErrorCode::kPayloadTooLarge, 413, "request_too_large"},
                        Case{ErrorCode::kRateLimited, 429, "rate_limit_error"},
                        Case{ErrorCode::kQuotaExhausted, 429, "rate_limit_error"},
                        Case{ErrorCode::kInternal, 500, "api_error"},
                        Case{ErrorCode::kDeadlineExceeded, 504, "timeout_error"},
                        Case{ErrorCode::kUnavailable, 529, "overloaded_error"},
                        Case{ErrorCode::kOverloaded, 529, "overloaded_error"}}) {
    const auto got = answer(c.code);
    CHECK(got.status == c.status);
    CHECK(got.body == R"({"type":"error","error":{"type":")" + std::string(c.type) +
                          R"(","message":"why"},"request_id":"req-1"})");
  }
  CHECK(header(answer(ErrorCode::kOverloaded), "retry-after") == "1");
  CHECK(header(answer(ErrorCode::kQuotaExhausted), "x-should-retry") == "false");
  CHECK(error_answer({ErrorCode::kOverloaded, "", {}, {}}, ErrorShape::kOpenAi, "").status == 503);
}

TEST_CASE("models in OpenAI's shape") {
  CHECK(model_list({}) == R"({"object":"list","data":[]})");
  const std::vector<ModelCard> models = {{.id = "nano", .created = 7, .context_length = 4096},
                                         {.id = "a\"b", .created = 8, .owned_by = "x"}};
  CHECK(model_list(models) ==
        R"({"object":"list","data":[{"id":"nano","object":"model","created":7,)"
        R"("owned_by":"penstock","context_length":4096,"max_model_len":4096},)"
        R"({"id":"a\"b","object":"model","created":8,"owned_by":"x"}]})");
  CHECK(model_object(models[1]) == R"({"id":"a\"b","object":"model","created":8,"owned_by":"x"})");
}

TEST_CASE("models in Anthropic's shape") {
  CHECK(anthropic_model_list({}) ==
        R"({"data":[],"has_more":false,"first_id":null,"last_id":null})");
  const std::vector<ModelCard> models = {
      {.id = "nano", .created = 1700000000, .context_length = 4096}, {.id = "b", .created = 0}};
  CHECK(anthropic_model_list(models) ==
        R"({"data":[{"type":"model","id":"nano","display_name":"nano",)"
        R"("created_at":"2023-11-14T22:13:20Z","max_input_tokens":4096},)"
        R"({"type":"model","id":"b","display_name":"b","created_at":"1970-01-01T00:00:00Z"}],)"
        R"("has_more":false,"first_id":"nano","last_id":"b"})");
  CHECK(anthropic_model_object(models[1]) ==
        R"({"type":"model","id":"b","display_name":"b","created_at":"1970-01-01T00:00:00Z"})");
}

TEST_CASE("events are read the same however the bytes are cut; comments are skipped") {
  std::string stream(kSseKeepAlive);
  append_sse_event(stream, "{\"a\":1}");
  stream += "event: x\r\ndata:one\r\ndata: two\r\n\r\n: c\rid: 3\rdata\r\r";
  stream += kSseDone;
  const std::vector<std::string> expected = {"{\"a\":1}", "one\ntwo", "", "[DONE]"};
  for (std::size_t step = 1; step <= stream.size(); ++step) {
    SseReader reader;
    std::vector<std::string> events;
    for (std::size_t i = 0; i < stream.size(); i += step) {
      CHECK(reader.feed(std::string_view(stream).substr(i, step), events));
    }
    CHECK(events == expected);
  }
  SseReader small(10);
  std::vector<std::string> events;
  CHECK_FALSE(small.feed("data: 0123456789", events));
  CHECK_FALSE(small.feed("\n\n", events));
  CHECK(events.empty());
}

TEST_CASE("a keep-alive comment is one line, without a blank one") {
  CHECK(kSseKeepAlive == ": keep-alive\n");
}

TEST_CASE("request ids of clients are taken only when they are harmless") {
  CHECK(request_id_is_safe("req_0-A.b:c"));
  CHECK(request_id_is_safe(std::string(128, 'a')));
  for (const std::string& bad :
       {std::string(), std::string(129, 'a'), std::string("a b"), std::string("a\r\nb"),
        std::string("\xc3\xa9"), std::string("a/b"), std::string("a\0b", 3), std::string("<x>")}) {
    CHECK_FALSE(request_id_is_safe(bad));
  }
}

}  // namespace penstock::protocol
