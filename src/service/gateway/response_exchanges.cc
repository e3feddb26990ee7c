#include "service/gateway/response_exchanges.h"

#include <fmt/format.h>

#include "base/check.h"
#include "core/protocol/json_document.h"
#include "core/protocol/sse.h"

namespace penstock::gateway {
namespace {

// The events of what the writer said; comments and [DONE] are not kept.
std::vector<StoredEvent> split_events(std::string_view bytes, std::uint64_t& next_sequence) {
  constexpr std::string_view kEnd = "\n\n";
  std::vector<StoredEvent> events;
  while (!bytes.empty()) {
    if (bytes.starts_with(protocol::kSseKeepAlive)) {
      bytes.remove_prefix(protocol::kSseKeepAlive.size());
      continue;
    }
    const auto end = bytes.find(kEnd);
    const auto event = bytes.substr(0, end == bytes.npos ? end : end + kEnd.size());
    if (event != protocol::kSseDone) events.push_back({next_sequence++, std::string(event)});
    bytes.remove_prefix(event.size());
  }
  return events;
}

}  // namespace

Task<void> KeptExchange::keep_when_over() {
  const protocol::ResponsesWriter* writer = format_.writer();
  if (writer == nullptr || !writer->over() || std::exchange(kept_, true)) co_return;
  StoredResponse response;
  response.id = writer->id();
  response.owner = record_.key_name;
  response.previous_id = previous_id_;
  response.created = context_.unix_seconds();
  // Again, at the end: an index of the text needn't be kept as long as the answer takes.
  const auto body = protocol::JsonDocument::parse(request().body, context_.limits.chat.json);
  ENSURE(body);
  response.input = protocol::stored_input(body->root(), writer->id().substr(5), known_);
  response.output = writer->output();
  response.body = writer->body();
  const Status stored = co_await on_store<void>(
      context_, [&response](ResponseStore& store) { return store.put(response); });
  if (!stored) record_.placement += "; not stored: " + stored.error().message;
}

Task<Status> KeptExchange::respond(HttpResponse response) {
  co_await keep_when_over();
  co_return co_await inner_.respond(std::move(response));
}

Task<Status> KeptExchange::write(std::string chunk) {
  co_await keep_when_over();
  co_return co_await inner_.write(std::move(chunk));
}

Task<Status> BackgroundExchange::respond(HttpResponse response) {
  const auto body = protocol::JsonDocument::parse(response.body);
  const auto error = body ? body->root().find("error") : protocol::JsonRef();
  const auto message = error ? error.find("message") : protocol::JsonRef();
  if (response.status == 429) failure_.code = ErrorCode::kRateLimited;
  if (response.status < 429) failure_.code = ErrorCode::kInvalidArgument;
  if (message && message.is_string()) failure_.message = message.string();
  co_return Status{};
}

Task<Status> BackgroundExchange::write(std::string chunk) {
  const auto events = split_events(chunk, next_sequence_);
  const protocol::ResponsesWriter* writer = format_.writer();
  StoredResponse response;
  if (writer->over()) {
    response.id = id_;
    response.output = writer->output();
    response.body = writer->body();
  }
  const auto goes_on = co_await on_store<bool>(context_, [&](ResponseStore& store) {
    return response.id.empty() ? store.append(id_, events) : store.finish(response, events);
  });
  if (!goes_on) {
    failure_ = goes_on.error();
    co_return std::unexpected(goes_on.error());
  }
  if (!*goes_on) co_return fail(ErrorCode::kCancelled, "the response was cancelled or deleted");
  co_return Status{};
}

std::string socket_error(int status, std::string_view error_object) {
  return fmt::format(R"({{"type":"error","status":{},{})", status, error_object.substr(1));
}

Task<Status> SocketExchange::respond(HttpResponse response) {
  if (response.status == 200) co_return co_await write(std::move(response.body));
  co_return co_await socket_.send(socket_error(response.status, response.body));
}

Task<Status> SocketExchange::write(std::string chunk) {
  constexpr std::string_view kData = "data: ";
  for (const StoredEvent& event : split_events(chunk, sequence_)) {
    std::string_view json = event.text;
    json = json.substr(json.find(kData) + kData.size());
    json.remove_suffix(2);
    if (event.text.starts_with("event: response.completed\n") ||
        event.text.starts_with("event: response.incomplete\n")) {
      const auto document = protocol::JsonDocument::parse(json);
      ENSURE(document);
      output_ = std::string(document->root().find("response").find("output").text());
    }
    CO_TRY_STATUS(co_await socket_.send(std::string(json)));
  }
  co_return Status{};
}

MakeEnding cancelled_ending() {
  return [](const StoredResponse& response, std::uint64_t next) {
    ResponseEnding ending;
    ending.body = protocol::ended_response(response.body, "cancelled", "null");
    ending.events = split_events(protocol::ending_events(ending.body, "cancelled", {}, next), next);
    return ending;
  };
}

MakeEnding failed_ending(Error error) {
  return [error = std::move(error)](const StoredResponse& response, std::uint64_t next) {
    ResponseEnding ending;
    ending.body =
        protocol::ended_response(response.body, "failed", protocol::responses_error(error));
    ending.events = split_events(protocol::ending_events(ending.body, "failed", error, next), next);
    return ending;
  };
}

}  // namespace penstock::gateway
