// ResponsesApi: the routes under /v1/responses of one shard.
//
//   create         read, fetch what it goes on from, generate (kept when asked for), or begin in
//                  the background
//   get            the object, or its events as a stream that follows a running one
//   erase, cancel, input_items, input_tokens, compact
//   converse       a WebSocket: messages {"type":"response.create",...} that are answered in order
//
// A response in the background is a task of the gate here, with no client: whoever wants to see it
// follows the store, on any shard and over any number of connections. One shard's cancel reaches
// another's run through the store, at the run's next event.
//
// Without a store nothing is kept: `store` is taken and has no effect, ids are not found, and
// `background` is refused. Errors: answered to the client. Concurrency: shard thread only.
// Source: facts/api.md 3.3; docs/protocol/api.md.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/protocol/responses_request.h"
#include "domain/request_record.h"
#include "port/http.h"
#include "service/gateway/context.h"
#include "service/gateway/response_exchanges.h"
#include "service/gateway/wire_format.h"

namespace penstock::gateway {

// What a WebSocket can go on from without a store: the last response that was not stored, or that
// goes on from one that was not.
struct SocketMemory {
  std::string id;
  std::vector<std::string> items;  // as StoredContext::items, the response's own included
  std::size_t bytes() const;
};
// What stands in a message beside the request itself.
struct SocketMessage {
  bool generates = true;  // false: it only gets its input ready
  std::string previous_response_id = {};
};

class ResponsesApi {
 public:
  // Answers an exchange in a format, within the gateway's limits.
  using Generate = std::function<Task<void>(HttpExchange&, RequestRecord&, WireFormat&)>;

  ResponsesApi(GatewayContext& context, Generate generate)
      : context_(context), generate_(std::move(generate)) {}

  // Resumes when no response runs in the background any more; one waiter at a time.
  auto background_ended() { return background_.drained(); }

  Task<void> create(HttpExchange& exchange, RequestRecord& record);
  // Whether it asks for a WebSocket, which GET /v1/responses is for.
  static bool wants_socket(const HttpRequest& request);
  Task<void> converse(HttpExchange& exchange, RequestRecord& record);
  // `rest` is the path after /v1/responses/.
  Task<void> get(HttpExchange& exchange, RequestRecord& record, std::string_view rest);
  Task<void> erase(HttpExchange& exchange, RequestRecord& record, std::string_view rest);
  Task<void> post(HttpExchange& exchange, RequestRecord& record, std::string_view rest);

 private:
  struct Prepared {
    std::optional<protocol::JsonDocument> body;  // of a request that was read
    Result<protocol::ResponsesRequest> request;
    protocol::StoredContext context;
  };
  protocol::Seal seal_for(const RequestRecord& record) const;
  Result<protocol::JsonDocument> read_body(const HttpExchange& exchange) const;
  // The text that the document indexes stays where it is until the Prepared has gone.
  Task<Prepared> prepare(Result<protocol::JsonDocument> body, const RequestRecord& record,
                         const protocol::Seal& seal, const SocketMemory* memory = nullptr);
  Task<Status> fetch(Prepared& prepared, const std::string& owner, const SocketMemory* memory);
  Task<void> answer_message(HttpExchange& connection, WebSocket& socket, RequestRecord record,
                            std::string message, SocketMemory& memory);
  Task<void> create_on_socket(SocketExchange& exchange, RequestRecord& record,
                              protocol::JsonDocument body, const SocketMessage& message,
                              SocketMemory& memory);
  // Keeps what the next message may go on from, if there is room for it.
  void remember(SocketMemory& memory, SocketMemory next);
  Task<Status> fetch_reference(const std::string& item, const std::string& owner,
                               protocol::StoredContext& context);
  Task<void> begin_background(HttpExchange& exchange, RequestRecord& record, Prepared prepared,
                              const protocol::Seal& seal);
  Task<void> run_background(HttpRequest request, RequestRecord record,
                            protocol::ResponsesRequest wanted, protocol::Seal seal,
                            std::string name);
  Task<Result<StoredResponse>> find(std::string owner, std::string id);
  Task<Result<HttpResponse>> show(const HttpRequest& request, RequestRecord& record,
                                  std::string_view rest);
  Task<void> follow(HttpExchange& exchange, RequestRecord& record, StoredResponse response,
                    std::int64_t after);
  Task<Result<HttpResponse>> cancel(RequestRecord& record, std::string id);
  Task<void> count(HttpExchange& exchange, RequestRecord& record);
  Task<void> compact(HttpExchange& exchange, RequestRecord& record);
  Task<void> answer(HttpExchange& exchange, RequestRecord& record, Result<HttpResponse> response);

  GatewayContext& context_;
  Generate generate_;
  std::map<std::string, const BackgroundExchange*> running_;  // of this shard
  std::size_t remembered_bytes_ = 0;                          // by all its WebSockets
  Gate background_;
};

}  // namespace penstock::gateway
