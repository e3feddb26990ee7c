#include "port/http.h"

#include <algorithm>
#include <span>

#include "port/upstream.h"

namespace penstock {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string_view find(std::span<const HttpHeader> headers, std::string_view name) {
  for (const HttpHeader& h : headers) {
    if (std::ranges::equal(h.name, name, {}, lower, lower)) return h.value;
  }
  return {};
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  return find(headers, name);
}

std::string_view UpstreamHead::header(std::string_view name) const {
  return find(headers, name);
}

Task<Result<WebSocket*>> HttpExchange::accept_websocket(std::vector<HttpHeader> /*headers*/) {
  co_return fail(ErrorCode::kUnsupported, "this connection can't become a WebSocket");
}

}  // namespace penstock
