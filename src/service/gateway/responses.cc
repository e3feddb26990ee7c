#include "service/gateway/responses.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/protocol/responses_listing.h"
#include "core/protocol/sse.h"
#include "service/gateway/answers.h"

namespace penstock::gateway {
namespace {

using protocol::JsonDocument;
using protocol::ResponsesRequest;
using protocol::Seal;

constexpr std::size_t kEventsAtOnce = 256;
constexpr Duration kFollowStep = std::chrono::milliseconds(50);
constexpr std::string_view kIdPrefix = "resp_";

Error not_found(std::string_view id) {
  return {ErrorCode::kNotFound,
          fmt::format("there is no response '{}' here: it was not stored, was deleted, or its time "
                      "is over",
                      printable_name(id)),
          {},
          {}};
}

Error previous_not_found(std::string_view id) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("previous_response_id: the response '{}', or one before it, is not stored "
                      "here; send the whole conversation as input",
                      printable_name(id)),
          "previous_response_id", "previous_response_not_found"};
}

// "resp_X" of an item's id "msg_X_0"; empty when it is none of ours.
std::string response_of_item(std::string_view item) {
  const auto begin = item.find('_');
  const auto end = item.rfind('_');
  if (begin == item.npos || end <= begin) return {};
  return std::string(kIdPrefix) + std::string(item.substr(begin + 1, end - begin - 1));
}

// "[a,b]" and "[c]" as "[a,b,c]".
std::string join_arrays(const std::vector<std::string>& arrays) {
  std::string out = "[";
  for (const std::string& array : arrays) {
    const auto inside = std::string_view(array).substr(1, array.size() - 2);
    if (inside.empty()) continue;
    if (out.size() > 1) out += ',';
    out += inside;
  }
  return out += ']';
}

}  // namespace

Seal ResponsesApi::seal_for(const RequestRecord& record) const {
  if (context_.seal_for) return context_.seal_for(record.key_name);
  return {{}, [](std::string_view, std::string_view) { return std::nullopt; }};
}

Task<void> ResponsesApi::answer(HttpExchange& exchange, RequestRecord& record,
                                Result<HttpResponse> response) {
  if (!response) response = error_response(response.error(), record);
  static_cast<void>(co_await exchange.respond(std::move(*response)));
}

Result<JsonDocument> ResponsesApi::read_body(const HttpExchange& exchange) const {
  return JsonDocument::parse(exchange.request().body, context_.limits.chat.json);
}

Task<ResponsesApi::Prepared> ResponsesApi::prepare(Result<JsonDocument> body,
                                                   const RequestRecord& record, const Seal& seal,
                                                   const SocketMemory* memory) {
  if (!body) co_return Prepared{{}, std::unexpected(std::move(body).error()), {}};
  const auto root = body->root();
  Prepared out{{}, protocol::read_responses_request(root, seal, context_.limits.chat), {}};
  if (out.request && out.request->needs_stored()) {
    Status done = co_await fetch(out, record.key_name, memory);
    if (done) done = protocol::complete_conversation(*out.request, root, seal, out.context);
    if (!done) out.request = std::unexpected(std::move(done).error());
  }
  out.body = std::move(*body);
  co_return out;
}

Task<Status> ResponsesApi::fetch(Prepared& prepared, const std::string& owner,
                                 const SocketMemory* memory) {
  const ResponsesRequest& request = *prepared.request;
  const std::string& previous = request.previous_response_id;
  if (memory != nullptr && !previous.empty() && memory->id == previous) {
    prepared.context.items = memory->items;
  } else if (!previous.empty()) {
    if (context_.responses == nullptr) co_return std::unexpected(previous_not_found(previous));
    CO_TRY(auto chain, co_await on_store<std::vector<StoredResponse>>(
                           context_, [&](ResponseStore& s) { return s.chain(owner, previous); }));
    if (chain.empty()) co_return std::unexpected(previous_not_found(previous));
    if (chain.back().running) {
      co_return fail(ErrorCode::kInvalidArgument,
                     "previous_response_id: that response is still running; wait for its end",
                     "previous_response_id");
    }
    for (StoredResponse& response : chain) {
      prepared.context.items.push_back(std::move(response.input));
      prepared.context.items.push_back(std::move(response.output));
    }
  }
  for (const std::string& item : request.references) {
    if (context_.responses == nullptr) break;  // not known, as complete_conversation() will say
    CO_TRY_STATUS(co_await fetch_reference(item, owner, prepared.context));
  }
  co_return Status{};
}

Task<Status> ResponsesApi::fetch_reference(const std::string& item, const std::string& owner,
                                           protocol::StoredContext& context) {
  if (context.known.contains(item)) co_return Status{};
  const std::string id = response_of_item(item);
  CO_TRY(const auto response, co_await on_store<std::optional<StoredResponse>>(
                                  context_, [&](ResponseStore& s) { return s.find(owner, id); }));
  if (!response) co_return Status{};
  for (const std::string* items : {&response->output, &response->input}) {
    if (auto found = protocol::find_item(*items, item)) {
      context.known[item] = std::move(*found);
      break;
    }
  }
  co_return Status{};
}

Task<void> ResponsesApi::create(HttpExchange& exchange, RequestRecord& record) {
  const Seal seal = seal_for(record);
  Prepared prepared = co_await prepare(read_body(exchange), record, seal);
  if (prepared.request && prepared.request->background) {
    co_await begin_background(exchange, record, std::move(prepared), seal);
    co_return;
  }
  const bool kept = prepared.request && prepared.request->store && context_.responses != nullptr;
  std::string previous = prepared.request ? prepared.request->previous_response_id : std::string();
  prepared.body.reset();
  ResponsesFormat format(std::move(prepared.request), seal, context_.unix_seconds);
  if (!kept) {
    co_await generate_(exchange, record, format);
    co_return;
  }
  KeptExchange keeping(context_, exchange, format, record, std::move(previous),
                       std::move(prepared.context.known));
  co_await generate_(keeping, record, format);
}

Task<void> ResponsesApi::begin_background(HttpExchange& exchange, RequestRecord& record,
                                          Prepared prepared, const Seal& seal) {
  ResponsesRequest& request = *prepared.request;
  std::optional<Error> refusal;
  if (context_.responses == nullptr) {
    refusal = Error{ErrorCode::kUnsupported,
                    "background: this server stores no responses (responses.retention is 0)",
                    "background",
                    {}};
  } else if (context_.catalog.find(request.chat.model) == nullptr) {
    refusal = context_.catalog.not_found(request.chat.model);
  }
  if (refusal) {
    co_await answer(exchange, record, std::unexpected(std::move(*refusal)));
    co_return;
  }
  const AnswerIdentity identity{random_name(context_.rng), context_.unix_seconds(), {}};
  StoredResponse response;
  response.id = std::string(kIdPrefix) + identity.name;
  response.owner = record.key_name;
  response.previous_id = request.previous_response_id;
  response.created = identity.created;
  response.background = true;
  response.running = true;
  response.input =
      protocol::stored_input(prepared.body->root(), identity.name, prepared.context.known);
  const auto begun =
      protocol::ResponsesWriter(begin_response(request, request.chat.model, identity)).body();
  response.body = protocol::ended_response(begun, "queued", "null");
  const Status stored =
      co_await on_store<void>(context_, [&](ResponseStore& s) { return s.put(response); });
  if (!stored) {
    co_await answer(exchange, record, std::unexpected(stored.error()));
    co_return;
  }
  HttpRequest copy = exchange.request();
  RequestRecord own = record;
  const bool streamed = std::exchange(request.chat.stream, true);
  background_.start(
      run_background(std::move(copy), std::move(own), std::move(request), seal, identity.name));
  if (streamed) {
    co_await follow(exchange, record, std::move(response), -1);
  } else {
    co_await answer(exchange, record, json_response(std::move(response.body), record));
  }
}

Task<void> ResponsesApi::run_background(HttpRequest request, RequestRecord record,
                                        ResponsesRequest wanted, Seal seal, std::string name) {
  const Instant begun_at = context_.clock.now();
  request.received_at = begun_at;
  context_.observer.request_started();
  const std::string id = std::string(kIdPrefix) + name;
  ResponsesFormat format(std::move(wanted), std::move(seal), context_.unix_seconds, name);
  BackgroundExchange exchange(context_, std::move(request), format, id);
  running_[id] = &exchange;
  co_await generate_(exchange, record, format);
  running_.erase(id);
  // Nothing happens here when it ended by itself, or was ended by somebody.
  static_cast<void>(
      co_await on_store<std::optional<StoredResponse>>(context_, [&](ResponseStore& s) {
        return s.end(record.key_name, id, failed_ending(exchange.failure()));
      }));
  record.total = context_.clock.now() - begun_at;
  context_.observer.request_finished(record);
}

Task<Result<StoredResponse>> ResponsesApi::find(std::string owner, std::string id) {
  if (context_.responses == nullptr) co_return std::unexpected(not_found(id));
  CO_TRY(auto found, co_await on_store<std::optional<StoredResponse>>(
                         context_, [&](ResponseStore& s) { return s.find(owner, id); }));
  if (!found) co_return std::unexpected(not_found(id));
  co_return std::move(*found);
}

Task<void> ResponsesApi::get(HttpExchange& exchange, RequestRecord& record, std::string_view rest) {
  const HttpRequest& request = exchange.request();
  if (protocol::query_value(request.query, "stream") != "true" || rest.contains('/')) {
    co_await answer(exchange, record, co_await show(request, record, rest));
    co_return;
  }
  const auto after = protocol::starting_after(request.query);
  auto found = co_await find(record.key_name, std::string(rest));
  if (found && !found->background) {
    found =
        fail(ErrorCode::kInvalidArgument,
             "stream: only responses made with \"background\": true keep their events", "stream");
  }
  if (!after || !found) {
    co_await answer(exchange, record, std::unexpected(!after ? after.error() : found.error()));
    co_return;
  }
  co_await follow(exchange, record, std::move(*found), *after);
}

Task<Result<HttpResponse>> ResponsesApi::show(const HttpRequest& request, RequestRecord& record,
                                              std::string_view rest) {
  const std::string id(rest.substr(0, rest.find('/')));
  const std::string_view part = rest.substr(id.size());
  if (!part.empty() && part != "/input_items") co_return std::unexpected(not_found(rest));
  CO_TRY(StoredResponse found, co_await find(record.key_name, id));
  if (!part.empty()) {
    CO_TRY(auto page, protocol::item_page(found.input, request.query));
    co_return json_response(std::move(page), record);
  }
  if (found.running) {
    CO_TRY(const auto first, co_await on_store<std::vector<StoredEvent>>(
                                 context_, [&](ResponseStore& s) { return s.events(id, -1, 1); }));
    if (!first.empty()) found.body = protocol::ended_response(found.body, "in_progress", "null");
  }
  co_return json_response(std::move(found.body), record);
}

// Events as the store has them, until the response has ended and all were sent.
Task<void> ResponsesApi::follow(HttpExchange& exchange, RequestRecord& record,
                                StoredResponse response, std::int64_t after) {
  bool gone = false;
  exchange.on_disconnect([&gone] { gone = true; });
  record.stream = true;
  record.status = 200;
  record.outcome = "ok";
  exchange.begin_stream(200, std::string(protocol::kSseContentType),
                        answer_headers(record, HeaderSet::kStream));
  bool ended = !response.running;
  Instant spoken_at = context_.clock.now();
  while (!gone) {
    const auto events = co_await on_store<std::vector<StoredEvent>>(
        context_, [&](ResponseStore& s) { return s.events(response.id, after, kEventsAtOnce); });
    if (!events) break;
    std::string out;
    for (const StoredEvent& event : *events)
      out += event.text;
    if (!events->empty()) after = static_cast<std::int64_t>(events->back().sequence);
    const bool all = ended && events->size() < kEventsAtOnce;
    if (all) out += protocol::kSseDone;
    if (out.empty() && context_.clock.now() - spoken_at >= context_.limits.keep_alive_interval)
      out = protocol::kSseKeepAlive;
    if (!out.empty()) {
      spoken_at = context_.clock.now();
      if (!co_await exchange.write(std::move(out))) break;
    }
    if (all) {
      static_cast<void>(co_await exchange.finish());
      break;
    }
    if (!events->empty()) continue;
    co_await Sleep(context_.clock, kFollowStep);
    // Looked at before the events, so that none is missed at the end.
    const auto now = co_await find(response.owner, response.id);
    if (!now) break;  // deleted: the stream is cut
    ended = !now->running;
  }
  exchange.on_disconnect([] {});
}

Task<void> ResponsesApi::erase(HttpExchange& exchange, RequestRecord& record,
                               std::string_view rest) {
  const std::string id(rest);
  Result<bool> done = false;
  if (context_.responses != nullptr) {
    done = co_await on_store<bool>(context_,
                                   [&](ResponseStore& s) { return s.erase(record.key_name, id); });
  }
  Result<HttpResponse> response = std::unexpected(done ? not_found(id) : done.error());
  if (done && *done) {
    if (const auto run = running_.find(id); run != running_.end()) run->second->stop();
    response = json_response(protocol::deleted_response(id), record);
  }
  co_await answer(exchange, record, std::move(response));
}

Task<void> ResponsesApi::post(HttpExchange& exchange, RequestRecord& record,
                              std::string_view rest) {
  constexpr std::string_view kCancel = "/cancel";
  if (rest == "input_tokens") co_return co_await count(exchange, record);
  if (rest == "compact") co_return co_await compact(exchange, record);
  Result<HttpResponse> response = std::unexpected(not_found(rest));
  if (rest.ends_with(kCancel)) {
    rest.remove_suffix(kCancel.size());
    response = co_await cancel(record, std::string(rest));
  }
  co_await answer(exchange, record, std::move(response));
}

Task<Result<HttpResponse>> ResponsesApi::cancel(RequestRecord& record, std::string id) {
  CO_TRY(StoredResponse found, co_await find(record.key_name, id));
  if (!found.background) {
    co_return fail(ErrorCode::kInvalidArgument,
                   "only responses made with \"background\": true can be cancelled");
  }
  CO_TRY(auto ended,
         co_await on_store<std::optional<StoredResponse>>(context_, [&](ResponseStore& s) {
           return s.end(record.key_name, id, cancelled_ending());
         }));
  if (!ended) co_return std::unexpected(not_found(id));
  if (const auto run = running_.find(id); run != running_.end()) run->second->stop();
  co_return json_response(std::move(ended->body), record);
}

Task<void> ResponsesApi::count(HttpExchange& exchange, RequestRecord& record) {
  const Seal seal = seal_for(record);
  Prepared prepared = co_await prepare(read_body(exchange), record, seal);
  prepared.body.reset();
  ResponsesFormat format(std::move(prepared.request), seal, context_.unix_seconds);
  format.only_count(protocol::input_tokens_object);
  co_await generate_(exchange, record, format);
}

Task<void> ResponsesApi::compact(HttpExchange& exchange, RequestRecord& record) {
  const Seal seal = seal_for(record);
  Prepared prepared = co_await prepare(read_body(exchange), record, seal);
  if (prepared.request && !seal.close) {
    prepared.request =
        fail(ErrorCode::kUnsupported, "this server has no secret to seal a compaction with");
  }
  protocol::Compaction compaction{random_name(context_.rng), context_.unix_seconds(), {}};
  std::vector<std::string> items = std::move(prepared.context.items);
  if (prepared.request) {
    items.push_back(
        protocol::stored_input(prepared.body->root(), compaction.name, prepared.context.known));
  }
  prepared.body.reset();
  ResponsesFormat format(std::move(prepared.request), seal, context_.unix_seconds);
  format.only_count([&](std::uint64_t tokens) {
    compaction.usage.prompt_tokens = tokens;
    return protocol::compaction_object(join_arrays(items), compaction, seal);
  });
  co_await generate_(exchange, record, format);
}

}  // namespace penstock::gateway
