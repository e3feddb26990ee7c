// The WebSocket of the Responses API.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/protocol/json_document.h"
#include "core/protocol/json_writer.h"
#include "core/protocol/responses_response.h"
#include "service/gateway/answers.h"
#include "service/gateway/responses.h"

namespace penstock::gateway {
namespace {

constexpr Duration kSocketLife = std::chrono::minutes(60);
// Of all WebSockets of a shard. Beyond it a response that is not stored can't be gone on from.
constexpr std::size_t kRememberedBytesMax = std::size_t{256} << 20;

// Close codes of RFC 6455 7.4.1.
constexpr std::uint16_t kNormal = 1000;
constexpr std::uint16_t kGoingAway = 1001;
constexpr std::uint16_t kNotUtf8 = 1007;

std::string refusal(const Error& error) {
  const protocol::ErrorAnswer answer = protocol::error_answer(error);
  return socket_error(answer.status, answer.body);
}

Error life_is_over() {
  return {ErrorCode::kInvalidArgument,
          "this connection has reached its limit of 60 minutes; open a new one, and go on from a "
          "stored response or send the whole conversation",
          {},
          "websocket_connection_limit_reached"};
}

Result<SocketMessage> read_message_head(protocol::JsonRef root) {
  const auto type = root.is_object() ? root.find("type") : protocol::JsonRef();
  if (!type || !type.is_string() || type.string() != "response.create") {
    return fail(ErrorCode::kInvalidArgument,
                "type: must be \"response.create\", beside the members of a request", "type");
  }
  for (const char* name : {"background", "stream_id"}) {
    const auto value = root.find(name);
    if (!value || value.is_null() || value.text() == "false") continue;
    return fail(ErrorCode::kUnsupported, fmt::format("{}: is not supported on a WebSocket", name),
                name);
  }
  SocketMessage head;
  if (const auto previous = root.find("previous_response_id"); previous && previous.is_string())
    head.previous_response_id = previous.string();
  const auto generate = root.find("generate");
  if (!generate || generate.is_null()) return head;
  if (generate.text() != "true" && generate.text() != "false")
    return fail(ErrorCode::kInvalidArgument, "generate: must be a boolean", "generate");
  head.generates = generate.text() == "true";
  return head;
}

}  // namespace

std::size_t SocketMemory::bytes() const {
  std::size_t sum = 0;
  for (const std::string& item : items)
    sum += item.size();
  return sum;
}

bool ResponsesApi::wants_socket(const HttpRequest& request) {
  return request.method == "GET" && !request.header("upgrade").empty();
}

Task<void> ResponsesApi::converse(HttpExchange& exchange, RequestRecord& record) {
  const HttpRequest& request = exchange.request();
  // A browser lets any page open a WebSocket to this machine, and says whose page it is.
  if (!context_.authenticate && !request.header("origin").empty()) {
    co_return co_await answer(
        exchange, record,
        fail(ErrorCode::kPermissionDenied,
             "a server without API keys takes no WebSocket from a web page", "origin"));
  }
  const auto opened = co_await exchange.accept_websocket(answer_headers(record, HeaderSet::kWhole));
  if (!opened) {
    HttpResponse response = error_response(opened.error(), record);
    if (opened.error().code == ErrorCode::kUnsupported) {
      record.status = response.status = 426;
      response.headers.push_back({"sec-websocket-version", "13"});
      response.headers.push_back({"upgrade", "websocket"});
    }
    co_return co_await answer(exchange, record, std::move(response));
  }
  WebSocket& socket = **opened;
  record.status = 101;
  record.outcome = "ok";
  record.stream = true;
  const Instant until = context_.clock.now() + kSocketLife;
  SocketMemory memory;
  while (true) {
    auto message = co_await socket.receive(until);
    if (!message) {
      socket.close(kGoingAway, message.error().message);
      break;
    }
    if (!*message || context_.clock.now() >= until) {
      static_cast<void>(co_await socket.send(refusal(life_is_over())));
      socket.close(kNormal, "60 minutes are over");
      break;
    }
    if (protocol::find_invalid_utf8(**message) != std::string_view::npos) {
      socket.close(kNotUtf8, "messages must be UTF-8");
      break;
    }
    co_await answer_message(exchange, socket, record, std::move(**message), memory);
  }
  remember(memory, {});
}

// Every message is a request of its own to limits, log and metrics.
Task<void> ResponsesApi::answer_message(HttpExchange& connection, WebSocket& socket,
                                        RequestRecord record, std::string message,
                                        SocketMemory& memory) {
  const Instant begun_at = context_.clock.now();
  record.request_id = "req-" + random_name(context_.rng);
  context_.observer.request_started();
  HttpRequest request;
  request.method = "POST";
  request.path = connection.request().path;
  request.headers = {{"content-type", "application/json"}};
  request.body = std::move(message);
  request.peer = record.peer;
  request.received_at = begun_at;
  SocketExchange exchange(connection, socket, std::move(request));
  auto body = read_body(exchange);
  const auto head =
      body ? read_message_head(body->root()) : std::unexpected(std::move(body).error());
  if (head) {
    co_await create_on_socket(exchange, record, std::move(*body), *head, memory);
  } else {
    error_response(head.error(), record);  // for the record
    static_cast<void>(co_await socket.send(refusal(head.error())));
  }
  record.total = context_.clock.now() - begun_at;
  context_.observer.request_finished(record);
}

Task<void> ResponsesApi::create_on_socket(SocketExchange& exchange, RequestRecord& record,
                                          protocol::JsonDocument body, const SocketMessage& message,
                                          SocketMemory& memory) {
  const protocol::Seal seal = seal_for(record);
  Prepared prepared = co_await prepare(std::move(body), record, seal, &memory);
  const AnswerIdentity identity{random_name(context_.rng), context_.unix_seconds(), {}};
  SocketMemory next;
  next.id = "resp_" + identity.name;
  const std::string& previous = message.previous_response_id;
  bool stored = false;
  protocol::ResponsesAnswer ready;
  if (prepared.request) {
    protocol::ResponsesRequest& request = *prepared.request;
    request.chat.stream = true;
    stored = request.store && message.generates && context_.responses != nullptr;
    ready = begin_response(request, request.chat.model, identity);
    next.items = std::move(prepared.context.items);
    next.items.push_back(
        protocol::stored_input(prepared.body->root(), identity.name, prepared.context.known));
  }
  prepared.body.reset();
  const bool goes_on_here = !previous.empty() && previous == memory.id;
  ResponsesFormat format(std::move(prepared.request), seal, context_.unix_seconds, identity.name);
  if (!message.generates) {
    format.only_count([&](std::uint64_t) {
      std::string events;
      ready.stream = true;
      ready.unix_seconds = context_.unix_seconds;
      protocol::ResponsesWriter writer(std::move(ready));
      writer.start({}, events);
      writer.finish(0, {}, events);
      writer.end({}, events);
      return events;
    });
  }
  if (stored) {
    KeptExchange keeping(context_, exchange, format, record, previous,
                         std::move(prepared.context.known));
    co_await generate_(keeping, record, format);
  } else {
    co_await generate_(exchange, record, format);
  }
  if (exchange.output()) {
    next.items.push_back(*exchange.output());
    // What is stored is gone on from there, so that it can be deleted.
    if (!stored || goes_on_here) remember(memory, std::move(next));
  } else if (goes_on_here) {
    remember(memory, {});  // a failed answer ends the chain
  }
}

void ResponsesApi::remember(SocketMemory& memory, SocketMemory next) {
  remembered_bytes_ -= memory.bytes();
  const std::size_t bytes = next.bytes();
  if (bytes > kRememberedBytesMax - remembered_bytes_) next = {};
  remembered_bytes_ += next.bytes();
  memory = std::move(next);
}

}  // namespace penstock::gateway
