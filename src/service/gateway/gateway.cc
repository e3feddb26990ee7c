#include "service/gateway/gateway.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "core/protocol/embeddings.h"
#include "core/protocol/models.h"
#include "core/protocol/sse.h"
#include "core/protocol/tokenize.h"
#include "service/gateway/answers.h"
#include "service/gateway/generation.h"
#include "service/gateway/routes.h"

namespace penstock::gateway {
namespace {

enum class RouteId : std::uint8_t {
  kRoot,
  kChat,
  kCompletion,
  kMessages,
  kCountTokens,
  kResponses,
  kSocket,
  kResponse,
  kDeleteResponse,
  kPostResponse,
  kTokenize,
  kDetokenize,
  kEmbeddings,
  kPooling,
  kScore,
  kRerank,
  kGenerate,
  kModels,
  kModel,
  kHealth,
  kReady,
  kMetrics,
  kExplain,
  kEngines,
  kEngine
};
// An operator is who has the token of this process, which only its user can read (`penstock
// explain` does); an API key does not help.
enum class Access : std::uint8_t { kPublic, kWithKey, kOperator };
// Whose shapes a route speaks; kEither is Anthropic's for clients that send its version header.
enum class Api : std::uint8_t { kOpenAi, kAnthropic, kEither };

struct Route {
  RouteId id;
  std::string_view method;   // HEAD goes wherever GET goes
  std::string_view pattern;  // a last "{}" stands for the rest of the path
  Access access;
  Api api = Api::kOpenAi;
};

constexpr std::array kRoutes = {
    Route{RouteId::kRoot, "GET", "/", Access::kPublic},
    Route{RouteId::kHealth, "GET", "/healthz", Access::kPublic},
    Route{RouteId::kReady, "GET", "/readyz", Access::kPublic},
    Route{RouteId::kMetrics, "GET", "/metrics", Access::kWithKey},
    Route{RouteId::kChat, "POST", "/v1/chat/completions", Access::kWithKey},
    Route{RouteId::kChat, "POST", "/chat/completions", Access::kWithKey},
    Route{RouteId::kChat, "POST", "/beta/chat/completions", Access::kWithKey},
    Route{RouteId::kCompletion, "POST", "/v1/completions", Access::kWithKey},
    Route{RouteId::kCompletion, "POST", "/completions", Access::kWithKey},
    Route{RouteId::kCompletion, "POST", "/beta/completions", Access::kWithKey},
    Route{RouteId::kMessages, "POST", "/v1/messages", Access::kWithKey, Api::kAnthropic},
    Route{RouteId::kMessages, "POST", "/anthropic/v1/messages", Access::kWithKey, Api::kAnthropic},
    Route{RouteId::kCountTokens, "POST", "/v1/messages/count_tokens", Access::kWithKey,
          Api::kAnthropic},
    Route{RouteId::kCountTokens, "POST", "/anthropic/v1/messages/count_tokens", Access::kWithKey,
          Api::kAnthropic},
    Route{RouteId::kResponses, "POST", "/v1/responses", Access::kWithKey},
    Route{RouteId::kResponses, "POST", "/responses", Access::kWithKey},
    Route{RouteId::kSocket, "GET", "/v1/responses", Access::kWithKey},
    Route{RouteId::kSocket, "GET", "/responses", Access::kWithKey},
    Route{RouteId::kResponse, "GET", "/v1/responses/{}", Access::kWithKey},
    Route{RouteId::kResponse, "GET", "/responses/{}", Access::kWithKey},
    Route{RouteId::kDeleteResponse, "DELETE", "/v1/responses/{}", Access::kWithKey},
    Route{RouteId::kDeleteResponse, "DELETE", "/responses/{}", Access::kWithKey},
    Route{RouteId::kPostResponse, "POST", "/v1/responses/{}", Access::kWithKey},
    Route{RouteId::kPostResponse, "POST", "/responses/{}", Access::kWithKey},
    Route{RouteId::kTokenize, "POST", "/tokenize", Access::kWithKey},
    Route{RouteId::kDetokenize, "POST", "/detokenize", Access::kWithKey},
    Route{RouteId::kEmbeddings, "POST", "/v1/embeddings", Access::kWithKey},
    Route{RouteId::kEmbeddings, "POST", "/embeddings", Access::kWithKey},
    Route{RouteId::kPooling, "POST", "/pooling", Access::kWithKey},
    Route{RouteId::kScore, "POST", "/score", Access::kWithKey},
    Route{RouteId::kRerank, "POST", "/v1/rerank", Access::kWithKey},
    Route{RouteId::kRerank, "POST", "/rerank", Access::kWithKey},
    Route{RouteId::kGenerate, "POST", "/inference/v1/generate", Access::kWithKey},
    Route{RouteId::kModels, "GET", "/v1/models", Access::kWithKey, Api::kEither},
    Route{RouteId::kModels, "GET", "/models", Access::kWithKey, Api::kEither},
    Route{RouteId::kModels, "GET", "/beta/models", Access::kWithKey, Api::kEither},
    Route{RouteId::kModels, "GET", "/anthropic/v1/models", Access::kWithKey, Api::kAnthropic},
    Route{RouteId::kModel, "GET", "/v1/models/{}", Access::kWithKey, Api::kEither},
    Route{RouteId::kModel, "GET", "/models/{}", Access::kWithKey, Api::kEither},
    Route{RouteId::kModel, "GET", "/beta/models/{}", Access::kWithKey, Api::kEither},
    Route{RouteId::kModel, "GET", "/anthropic/v1/models/{}", Access::kWithKey, Api::kAnthropic},
    Route{RouteId::kExplain, "GET", "/admin/explain/{}", Access::kOperator},
    Route{RouteId::kEngines, "GET", "/admin/engines", Access::kOperator},
    Route{RouteId::kEngine, "POST", "/admin/engines/{}", Access::kOperator},
};

// The API of a route that foreign engines answer.
std::optional<dialects::WireApi> wire_api(RouteId route) {
  using enum dialects::WireApi;
  switch (route) {
    case RouteId::kChat:
      return kChat;
    case RouteId::kCompletion:
      return kCompletion;
    case RouteId::kMessages:
      return kMessages;
    case RouteId::kCountTokens:
      return kCountTokens;
    case RouteId::kResponses:
      return kResponses;
    case RouteId::kTokenize:
      return kTokenize;
    case RouteId::kDetokenize:
      return kDetokenize;
    case RouteId::kEmbeddings:
      return kEmbeddings;
    case RouteId::kPooling:
      return kPooling;
    case RouteId::kScore:
      return kScore;
    case RouteId::kRerank:
      return kRerank;
    case RouteId::kGenerate:
      return kGenerate;
    default:
      return std::nullopt;
  }
}

// What stands for "{}" in the pattern; empty for a pattern without; nullopt when it does not match.
std::optional<std::string_view> match(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with("{}"))
    return pattern == path ? std::optional(std::string_view()) : std::nullopt;
  const std::string_view prefix = pattern.substr(0, pattern.size() - 2);
  if (!path.starts_with(prefix) || path.size() == prefix.size()) return std::nullopt;
  return path.substr(prefix.size());
}

struct Found {
  const Route* route = nullptr;
  std::string_view rest;
  std::string_view allowed;  // the method of the last route whose path matched
  Api api = Api::kOpenAi;    // its API
};

Found find_route(const HttpRequest& request) {
  const std::string_view method =
      request.method == "HEAD" ? "GET" : std::string_view(request.method);
  Found found;
  for (const Route& route : kRoutes) {
    const auto rest = match(route.pattern, request.path);
    if (!rest || (route.id == RouteId::kSocket && !ResponsesApi::wants_socket(request))) continue;
    found.allowed = route.method;
    found.api = route.api;
    if (route.method == method) return {&route, *rest, route.method, route.api};
  }
  return found;
}

// The shape of what this request is answered with.
ErrorShape shape_of(const HttpRequest& request, Api api) {
  const bool anthropic = api == Api::kAnthropic ||
                         (api == Api::kEither && !request.header("anthropic-version").empty());
  return anthropic ? ErrorShape::kAnthropic : ErrorShape::kOpenAi;
}

// `prefix` is in lower case.
bool starts_with_any_case(std::string_view text, std::string_view prefix) {
  if (text.size() < prefix.size()) return false;
  for (std::size_t i = 0; i < prefix.size(); ++i) {
    const char c = text[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c) != prefix[i]) return false;
  }
  return true;
}

// The token of a Bearer credential; the scheme's name has no case (RFC 9110). Empty if it is not
// one.
std::string_view bearer_token(std::string_view credential) {
  constexpr std::string_view kBearer = "bearer ";
  return starts_with_any_case(credential, kBearer) ? credential.substr(kBearer.size())
                                                   : std::string_view();
}

// Only this type: a browser sends no other page's request with it unasked, so a web page can't use
// a server without keys on this machine.
bool is_json(std::string_view content_type) {
  constexpr std::string_view kJson = "application/json";
  if (!starts_with_any_case(content_type, kJson)) return false;
  const std::string_view rest = content_type.substr(kJson.size());
  return rest.empty() || rest.front() == ';' || rest.front() == ' ';
}

Error not_json() {
  return {ErrorCode::kUnsupportedMediaType,
          "send the body with the header 'content-type: application/json'",
          {},
          {}};
}

// No engine here makes embeddings, so a request is wrong in itself, or asks for the wrong model.
Error embeddings_refusal(const GatewayContext& context, const HttpRequest& request) {
  if (!is_json(request.header("content-type"))) return not_json();
  const auto asked = protocol::parse_embeddings_request(request.body, context.limits.chat.json);
  if (!asked) return asked.error();
  if (context.catalog.find(asked->model) == nullptr) return context.catalog.not_found(asked->model);
  return {ErrorCode::kUnsupported,
          fmt::format("the model {} generates text and makes no embeddings",
                      printable_name(asked->model)),
          "model",
          {}};
}

// Ends the record and reports it when the request's task ends, on every path.
class RecordGuard {
 public:
  RecordGuard(GatewayContext& context, RequestRecord& record, Instant received_at)
      : context_(context), record_(record), received_at_(received_at) {
    context_.observer.request_started();
  }
  RecordGuard(const RecordGuard&) = delete;
  RecordGuard& operator=(const RecordGuard&) = delete;
  ~RecordGuard() {
    record_.total = context_.clock.now() - received_at_;
    context_.observer.request_finished(record_);
  }

 private:
  GatewayContext& context_;
  RequestRecord& record_;
  Instant received_at_;
};

}  // namespace

ErrorShape error_shape_at(std::string_view path) {
  for (const Route& route : kRoutes) {
    if (match(route.pattern, path) && route.api == Api::kAnthropic) return ErrorShape::kAnthropic;
  }
  return ErrorShape::kOpenAi;
}

Task<void> Gateway::handle(std::unique_ptr<HttpExchange> exchange) {
  const HttpRequest& request = exchange->request();
  RequestRecord record = begin_record(request);
  const RecordGuard guard(context_, record, request.received_at);
  co_await dispatch(*exchange, record);
}

std::optional<HttpResponse> Gateway::refuse_head(const HttpRequest& head) {
  RequestRecord record = begin_record(head);
  std::optional<HttpResponse> response = refuse(head, record);
  if (!response && find_route(head).route->access == Access::kPublic) {
    const std::string message = fmt::format("{} {} takes no body", head.method, record.route);
    response = error_response({ErrorCode::kInvalidArgument, message, {}, {}}, record);
  }
  if (response) const RecordGuard guard(context_, record, head.received_at);
  return response;
}

RequestRecord Gateway::begin_record(const HttpRequest& request) {
  RequestRecord record;
  const std::string_view wanted_id = request.header("x-request-id");
  record.request_id = protocol::request_id_is_safe(wanted_id) ? std::string(wanted_id)
                                                              : "req-" + random_name(context_.rng);
  record.peer = request.peer;
  record.method = request.method;
  return record;
}

std::optional<HttpResponse> Gateway::refuse(const HttpRequest& request,
                                            RequestRecord& record) const {
  const Found found = find_route(request);
  if (found.route != nullptr) {
    record.route = found.route->pattern;
    if (found.route->access == Access::kPublic) return std::nullopt;
    const Status known = found.route->access == Access::kOperator ? check_operator(request)
                                                                  : authenticate(request, record);
    if (known) return std::nullopt;
    HttpResponse response =
        error_response(known.error(), record, shape_of(request, found.route->api));
    response.headers.push_back({"www-authenticate", "Bearer"});
    return response;
  }
  record.route = "unknown";
  const ErrorShape shape = shape_of(request, found.allowed.empty() ? Api::kEither : found.api);
  if (!found.allowed.empty()) {
    const std::string message = fmt::format("{} takes {}, not {}", printable_name(request.path),
                                            found.allowed, request.method);
    HttpResponse response =
        error_response({ErrorCode::kMethodNotAllowed, message, {}, {}}, record, shape);
    response.headers.push_back({"allow", std::string(found.allowed)});
    return response;
  }
  const std::string message =
      fmt::format("there is no {} {}; the API is under /v1/ (docs/protocol/api.md)", request.method,
                  printable_name(request.path));
  return error_response({ErrorCode::kNotFound, message, {}, {}}, record, shape);
}

Task<void> Gateway::dispatch(HttpExchange& exchange, RequestRecord& record) {
  const HttpRequest& request = exchange.request();
  std::optional<HttpResponse> response = refuse(request, record);
  if (!response) {
    const Found found = find_route(request);
    const ErrorShape shape = shape_of(request, found.api);
    const auto api = foreign_ != nullptr ? wire_api(found.route->id) : std::nullopt;
    if (api) co_return co_await relay(exchange, record, *api, shape);
    switch (found.route->id) {
      case RouteId::kChat: {
        ChatFormat format;
        co_await generate(exchange, record, format);
        co_return;
      }
      case RouteId::kCompletion: {
        CompletionFormat format;
        co_await generate(exchange, record, format);
        co_return;
      }
      case RouteId::kMessages: {
        MessagesFormat format(protocol::MessagesCall::kAnswer);
        co_await generate(exchange, record, format);
        co_return;
      }
      case RouteId::kCountTokens: {
        MessagesFormat format(protocol::MessagesCall::kCountTokens);
        co_await generate(exchange, record, format);
        co_return;
      }
      case RouteId::kResponses:
        co_return co_await responses_.create(exchange, record);
      case RouteId::kSocket:
        if (foreign_ == nullptr) co_return co_await responses_.converse(exchange, record);
        response = error_response({ErrorCode::kUnsupported,
                                   "the engines behind this gateway have no WebSocket; send the "
                                   "request as POST /v1/responses",
                                   {},
                                   {}},
                                  record, shape);
        break;
      case RouteId::kPooling:
      case RouteId::kScore:
      case RouteId::kRerank:
      case RouteId::kGenerate:
        response = error_response(
            {ErrorCode::kUnsupported, "no engine behind this gateway has this route", {}, {}},
            record);
        break;
      case RouteId::kResponse:
        co_return co_await responses_.get(exchange, record, found.rest);
      case RouteId::kDeleteResponse:
        co_return co_await responses_.erase(exchange, record, found.rest);
      case RouteId::kPostResponse:
        co_return co_await responses_.post(exchange, record, found.rest);
      case RouteId::kTokenize: {
        TokenizeFormat format;
        co_await generate(exchange, record, format);
        co_return;
      }
      case RouteId::kDetokenize:
        response = detokenize(request, record);
        break;
      case RouteId::kEmbeddings:
        response = error_response(embeddings_refusal(context_, request), record);
        break;
      case RouteId::kRoot:
        response = json_response(R"({"service":"penstock","api":"/v1"})", record);
        break;
      case RouteId::kModels:
        response = models(record, shape);
        break;
      case RouteId::kModel:
        response = model(found.rest, record, shape);
        break;
      case RouteId::kHealth:
        response = health(record);
        break;
      case RouteId::kReady:
        response = readiness(record);
        break;
      case RouteId::kMetrics:
        response = metrics(record);
        break;
      case RouteId::kExplain:
        response = explain(found.rest, record);
        break;
      case RouteId::kEngines:
        response = json_response(
            foreign_ != nullptr ? foreign_->engines_json() : R"({"engines":[]})", record);
        break;
      case RouteId::kEngine: {
        const auto slash = std::min(found.rest.find('/'), found.rest.size());
        Result<std::string> done =
            fail(ErrorCode::kNotFound, "there are no engines of others behind this gateway");
        if (foreign_ != nullptr)
          done = co_await foreign_->operate(
              found.rest.substr(0, slash),
              std::string(found.rest.substr(std::min(slash + 1, found.rest.size()))));
        response = done ? json_response(std::move(*done), record)
                        : error_response(done.error(), record, shape);
        break;
      }
    }
  }
  static_cast<void>(co_await exchange.respond(std::move(*response)));
}

std::optional<Error> Gateway::refuse_work(const HttpRequest& request, RequestRecord& record) const {
  if (!is_json(request.header("content-type"))) return not_json();
  if (draining_)
    return Error{ErrorCode::kUnavailable, "this gateway is shutting down; try again", {}, {}};
  if (in_flight_ < context_.limits.in_flight_max) return std::nullopt;
  record.limit = "limits.in_flight";
  return Error{ErrorCode::kOverloaded,
               fmt::format("{} requests are in flight, which is the limit (limits.in_flight); "
                           "try again shortly",
                           in_flight_),
               {},
               {}};
}

Task<void> Gateway::relay(HttpExchange& exchange, RequestRecord& record, dialects::WireApi api,
                          ErrorShape shape) {
  if (const auto refusal = refuse_work(exchange.request(), record)) {
    static_cast<void>(co_await exchange.respond(error_response(*refusal, record, shape)));
    co_return;
  }
  ++in_flight_;
  co_await foreign_->relay(exchange, record, api);
  --in_flight_;
}

Task<void> Gateway::generate(HttpExchange& exchange, RequestRecord& record, WireFormat& format) {
  if (const auto refusal = refuse_work(exchange.request(), record)) {
    static_cast<void>(
        co_await exchange.respond(error_response(*refusal, record, format.error_shape())));
    co_return;
  }
  ++in_flight_;
  {
    Generation generation(context_, exchange, record, format);
    running_.push_back(&generation);
    co_await generation.run();
    std::erase(running_, &generation);
    // The callback refers to the generation, which ends here.
    exchange.on_disconnect([] {});
  }
  --in_flight_;
}

Status Gateway::authenticate(const HttpRequest& request, RequestRecord& record) const {
  if (!context_.authenticate) return {};
  const std::string_view bearer = bearer_token(request.header("authorization"));
  const std::string_view given = bearer.empty() ? request.header("x-api-key") : bearer;
  record.key_given = !given.empty();
  if (given.empty()) {
    return fail(ErrorCode::kUnauthenticated,
                "this server needs an API key; send it as 'Authorization: Bearer KEY'");
  }
  auto name = context_.authenticate(given);
  if (!name) return fail(ErrorCode::kUnauthenticated, "the API key is not valid");
  record.key_name = std::move(*name);
  return {};
}

Status Gateway::check_operator(const HttpRequest& request) const {
  const std::string_view token = bearer_token(request.header("authorization"));
  if (context_.is_operator && !token.empty() && context_.is_operator(token)) return {};
  return fail(ErrorCode::kUnauthenticated,
              "this is for the operator of this server; use `penstock explain` on its machine");
}

HttpResponse Gateway::explain(std::string_view id, RequestRecord& record) const {
  auto kept = context_.explain ? context_.explain(id) : std::nullopt;
  if (kept) return json_response(std::move(*kept), record);
  return error_response(
      {ErrorCode::kNotFound,
       fmt::format("nothing is known of the request {}: it was not placed, or is not among the "
                   "last ones; its id is in the access log and in the answer's x-request-id header",
                   printable_name(id)),
       {},
       {}},
      record);
}

HttpResponse Gateway::models(RequestRecord& record, ErrorShape shape) const {
  std::vector<protocol::ModelCard> cards;
  if (foreign_ != nullptr) cards = foreign_->models();
  for (const auto& [name, served] : context_.catalog.all_names())
    cards.push_back(card(name, *served));
  return json_response(shape == ErrorShape::kAnthropic ? protocol::anthropic_model_list(cards)
                                                       : protocol::model_list(cards),
                       record, 200, shape);
}

HttpResponse Gateway::detokenize(const HttpRequest& request, RequestRecord& record) const {
  if (!is_json(request.header("content-type"))) return error_response(not_json(), record);
  auto asked = protocol::parse_detokenize_request(request.body, context_.limits.chat);
  if (!asked) return error_response(asked.error(), record);
  const ServedModel* served = context_.catalog.find(asked->model);
  if (served == nullptr) return error_response(context_.catalog.not_found(asked->model), record);
  if (const Status known = served->check_ids(asked->tokens, "tokens"); !known)
    return error_response(known.error(), record);
  return json_response(protocol::detokenize_answer(
                           served->tokenizer->decode(asked->tokens, Tokenizer::Special::kKeep)),
                       record);
}

HttpResponse Gateway::model(std::string_view name, RequestRecord& record, ErrorShape shape) const {
  protocol::ModelCard found;
  if (foreign_ != nullptr) {
    const auto cards = foreign_->models();
    const auto it = std::ranges::find(cards, name, &protocol::ModelCard::id);
    if (it != cards.end()) found = *it;
  } else if (const ServedModel* served = context_.catalog.find(name)) {
    found = card(name, *served);
  }
  if (found.id.empty()) return error_response(context_.catalog.not_found(name), record, shape);
  return json_response(shape == ErrorShape::kAnthropic ? protocol::anthropic_model_object(found)
                                                       : protocol::model_object(found),
                       record, 200, shape);
}

protocol::ModelCard Gateway::card(std::string_view name, const ServedModel& served) const {
  return {std::string(name), served.created, "penstock",
          context_length(context_.engines.workers(), served.name).value_or(0)};
}

HttpResponse Gateway::health(RequestRecord& record) const {
  return json_response(R"({"status":"ok"})", record);
}

bool Gateway::ready() const {
  if (draining_) return false;
  if (foreign_ != nullptr) return foreign_->ready();
  for (const auto& served : context_.catalog.models()) {
    if (!is_served(context_.engines.workers(), served->name)) return false;
  }
  return true;
}

HttpResponse Gateway::readiness(RequestRecord& record) const {
  if (ready()) return json_response(R"({"status":"ready"})", record);
  return json_response(
      draining_ ? R"({"status":"draining"})" : R"({"status":"waiting for a worker"})", record, 503);
}

HttpResponse Gateway::metrics(RequestRecord& record) const {
  HttpResponse response = json_response(context_.metrics_text(), record);
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  return response;
}

void Gateway::stop_running(const Error& why) {
  if (foreign_ != nullptr) foreign_->stop_running(why);
  // Stopping one may end it at once, so the list is walked as a copy.
  for (Generation* generation : std::vector(running_)) {
    if (std::ranges::find(running_, generation) != running_.end()) generation->stop(why);
  }
}

}  // namespace penstock::gateway
