// Gateway: one shard's HTTP API: routes, authentication, limits, drain.
//
// Every route stands in one table with its methods and whether it is public; what is not in it does
// not exist, what is not public needs a key when keys are configured. A request gets an id (the
// client's own if it is safe to echo), a record, and an observer call at its end, whatever the end.
//
// Invariants: in_flight() falls back to zero; no handler outlives its exchange.
// Errors: answered as error objects of the API that the route belongs to. Concurrency: shard thread
// only. Source: docs/protocol/api.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/protocol/errors.h"
#include "core/protocol/models.h"
#include "port/http.h"
#include "service/gateway/context.h"
#include "service/gateway/foreign.h"
#include "service/gateway/responses.h"

namespace penstock::gateway {

class Generation;
class WireFormat;

class Gateway {
 public:
  explicit Gateway(GatewayContext& context)
      : context_(context),
        responses_(context,
                   [this](HttpExchange& exchange, RequestRecord& record, WireFormat& format) {
                     return generate(exchange, record, format);
                   }) {}

  // Inference goes to these from now on, which outlive the gateway's requests. Once, at start.
  void serve_foreign(ForeignEngines& engines) { foreign_ = &engines; }

  // The HttpHandler of this shard.
  Task<void> handle(std::unique_ptr<HttpExchange> exchange);
  // The answer to a request with a body that is refused whatever the body says: no such route, no
  // valid key, no body wanted. Reported like a handled one; nullopt when the body must be read.
  std::optional<HttpResponse> refuse_head(const HttpRequest& head);

  // No new work: chat requests are refused with 503 and /readyz fails; running ones go on.
  void begin_drain() { draining_ = true; }
  // Ends every running answer with this error: at a drain's time limit.
  void stop_running(const Error& why);
  // Resumes when nothing is generated in the background any more.
  auto background_ended() { return responses_.background_ended(); }
  std::uint32_t in_flight() const { return in_flight_; }
  // Every model has a worker, or some foreign engine can take requests.
  bool ready() const;

 private:
  RequestRecord begin_record(const HttpRequest& request);
  // The answer for an unknown route or method, or a missing or wrong key; fills in the route.
  std::optional<HttpResponse> refuse(const HttpRequest& request, RequestRecord& record) const;
  Task<void> dispatch(HttpExchange& exchange, RequestRecord& record);
  Task<void> generate(HttpExchange& exchange, RequestRecord& record, WireFormat& format);
  Task<void> relay(HttpExchange& exchange, RequestRecord& record, dialects::WireApi api,
                   protocol::ErrorShape shape);
  // Why no inference can begin now.
  std::optional<Error> refuse_work(const HttpRequest& request, RequestRecord& record) const;
  Status authenticate(const HttpRequest& request, RequestRecord& record) const;
  Status check_operator(const HttpRequest& request) const;
  HttpResponse explain(std::string_view id, RequestRecord& record) const;
  HttpResponse models(RequestRecord& record, protocol::ErrorShape shape) const;
  HttpResponse model(std::string_view name, RequestRecord& record,
                     protocol::ErrorShape shape) const;
  protocol::ModelCard card(std::string_view name, const ServedModel& served) const;
  HttpResponse detokenize(const HttpRequest& request, RequestRecord& record) const;
  HttpResponse health(RequestRecord& record) const;
  HttpResponse readiness(RequestRecord& record) const;
  HttpResponse metrics(RequestRecord& record) const;

  GatewayContext& context_;
  ForeignEngines* foreign_ = nullptr;
  std::uint32_t in_flight_ = 0;
  bool draining_ = false;
  std::vector<Generation*> running_;
  ResponsesApi responses_;
};

}  // namespace penstock::gateway
