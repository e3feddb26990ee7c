#include "port/http.h"

#include <algorithm>

namespace penstock {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const HttpHeader& h : headers) {
    if (std::ranges::equal(h.name, name, {}, lower, lower)) return h.value;
  }
  return {};
}

Task<Result<WebSocket*>> HttpExchange::accept_websocket(std::vector<HttpHeader> /*headers*/) {
  co_return fail(ErrorCode::kUnsupported, "this connection can't become a WebSocket");
}

}  // namespace penstock
