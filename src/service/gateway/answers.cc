#include "service/gateway/answers.h"

#include <fmt/format.h>

namespace penstock::gateway {

std::string random_name(Rng& rng) {
  return fmt::format("{:016x}{:08x}", rng.next_u64(), static_cast<std::uint32_t>(rng.next_u64()));
}

std::string printable_name(std::string_view name) {
  constexpr std::size_t kShown = 64;
  if (name.size() <= kShown) return std::string(name);
  std::size_t end = kShown;
  // Cut before a character, not inside one.
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80)
    --end;
  return std::string(name.substr(0, end)) + "...";
}

std::string_view outcome_name(const protocol::ChoiceEnd& end) {
  if (end.reason == FinishReason::kLength) return "length";
  return end.called_tools ? "tool_calls" : "stop";
}

std::vector<HttpHeader> answer_headers(const RequestRecord& record, HeaderSet set, ErrorShape api) {
  std::vector<HttpHeader> headers = {{"x-request-id", record.request_id},
                                     {"cache-control", "no-store"}};
  if (api == ErrorShape::kAnthropic) headers.push_back({"request-id", record.request_id});
  if (set == HeaderSet::kStream) headers.push_back({"x-accel-buffering", "no"});
  return headers;
}

HttpResponse error_response(const Error& error, RequestRecord& record, ErrorShape api) {
  protocol::ErrorAnswer answer = protocol::error_answer(error, api, record.request_id);
  record.status = answer.status;
  record.outcome = error_info(error.code).name;
  HttpResponse response;
  response.status = answer.status;
  response.body = std::move(answer.body);
  response.headers = answer_headers(record, HeaderSet::kWhole, api);
  for (auto& [name, value] : answer.headers) {
    response.headers.push_back({std::move(name), std::move(value)});
  }
  return response;
}

HttpResponse json_response(std::string body, RequestRecord& record, int status, ErrorShape api) {
  record.status = status;
  record.outcome = "ok";
  HttpResponse response;
  response.status = status;
  response.headers = answer_headers(record, HeaderSet::kWhole, api);
  response.body = std::move(body);
  return response;
}

}  // namespace penstock::gateway
