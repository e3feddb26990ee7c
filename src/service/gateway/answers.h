// Small pieces that all routes use to answer: headers, errors, names.
// Concurrency: pure, but for the Rng given.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "core/protocol/answer_writer.h"
#include "core/protocol/errors.h"
#include "domain/request_record.h"
#include "port/http.h"

namespace penstock::gateway {

using protocol::ErrorShape;

enum class HeaderSet : std::uint8_t { kWhole, kStream };

// 24 random hexadecimal digits.
std::string random_name(Rng& rng);
// At most 64 bytes of a client's string, for messages.
std::string printable_name(std::string_view name);
// "stop", "length" or "tool_calls", for the record.
std::string_view outcome_name(const protocol::ChoiceEnd& end);

// The request's id as x-request-id and, in Anthropic's API, as request-id too; cache-control (and
// what proxies need to pass a stream on).
std::vector<HttpHeader> answer_headers(const RequestRecord& record, HeaderSet set,
                                       ErrorShape api = ErrorShape::kOpenAi);
// The API's error object; sets the record's status and outcome.
HttpResponse error_response(const Error& error, RequestRecord& record,
                            ErrorShape api = ErrorShape::kOpenAi);
HttpResponse json_response(std::string body, RequestRecord& record, int status = 200,
                           ErrorShape api = ErrorShape::kOpenAi);

}  // namespace penstock::gateway
