// Small pieces that all routes use to answer: headers, errors, names.
// Concurrency: pure, but for the Rng given.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "core/protocol/chat_response.h"
#include "domain/request_record.h"
#include "port/http.h"

namespace penstock::gateway {

enum class HeaderSet : std::uint8_t { kWhole, kStream };

// 24 random hexadecimal digits.
std::string random_name(Rng& rng);
// At most 64 bytes of a client's string, for messages.
std::string printable_name(std::string_view name);
std::string_view finish_name(protocol::ChatFinish finish);

// x-request-id and cache-control (and what proxies need to pass a stream on).
std::vector<HttpHeader> answer_headers(const RequestRecord& record, HeaderSet set);
// The OpenAI error object; sets the record's status and outcome.
HttpResponse error_response(const Error& error, RequestRecord& record);
HttpResponse json_response(std::string body, RequestRecord& record, int status = 200);

}  // namespace penstock::gateway
