#include "app/api_client.h"

#include <fmt/format.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdlib>
#include <optional>

#include "core/protocol/sse.h"
#include "io/http/client.h"

namespace penstock {
namespace {

namespace json = boost::json;

http::ClientRequest request_to(const ApiTarget& target, std::string_view path) {
  http::ClientRequest request;
  auto base = std::string_view(target.url);
  while (base.ends_with('/'))
    base.remove_suffix(1);
  request.url = fmt::format("{}{}", base, path);
  if (!target.key.empty()) request.headers.push_back({"authorization", "Bearer " + target.key});
  request.ca_file = target.ca_file;
  request.verify_certificate = target.verify_certificate;
  return request;
}

ErrorCode code_of(int status) {
  for (int i = 0; i <= static_cast<int>(ErrorCode::kInternal); ++i) {
    const auto code = static_cast<ErrorCode>(i);
    if (error_info(code).http_status == status) return code;
  }
  return status >= 500 ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument;
}

// The message of {"error": {"message"}}, or nothing.
std::optional<std::string> error_message(const json::value& body) {
  const auto* const object = body.if_object();
  const auto* const error = object == nullptr ? nullptr : object->if_contains("error");
  const auto* const details = error == nullptr ? nullptr : error->if_object();
  const auto* const message = details == nullptr ? nullptr : details->if_contains("message");
  if (message == nullptr || !message->is_string()) return std::nullopt;
  return std::string(message->as_string());
}

std::unexpected<Error> status_error(int status, std::string_view body) {
  boost::system::error_code ignored;
  const auto message = error_message(json::parse(body, ignored));
  auto text = fmt::format("the server answered {}: {}", status,
                          message.value_or(std::string(body.substr(0, 200))));
  if (status == 401) text += " (set PENSTOCK_API_KEY)";
  return fail(code_of(status), std::move(text));
}

Result<http::ClientResponse> send_ok(const http::ClientRequest& request) {
  TRY(auto response, http::send(request));
  if (response.status != 200) return status_error(response.status, response.body);
  return response;
}

std::string text_of(const json::object& object, std::string_view key) {
  const auto* const value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->as_string()) : std::string();
}

// Feeds the stream's bytes to the hooks, event by event.
class StreamReader {
 public:
  explicit StreamReader(const StreamHooks& hooks) : hooks_(hooks) {}

  // False stops the transfer; `error` says why.
  bool take(std::string_view bytes) {
    std::vector<std::string> events;
    if (!reader_.feed(bytes, events))
      return stop({ErrorCode::kDataLoss, "an event without an end", {}, {}});
    for (const auto& event : events) {
      if (event == "[DONE]") {
        done_ = true;
        continue;
      }
      auto delta = parse_delta(event);
      if (!delta) return stop(std::move(delta).error());
      hooks_.on_delta(*delta);
    }
    return true;
  }

  Status result() const {
    if (error) return std::unexpected(*error);
    if (!done_) return fail(ErrorCode::kDataLoss, "the answer ended before it was complete");
    return {};
  }

  std::optional<Error> error;

 private:
  bool stop(Error why) {
    error = std::move(why);
    return false;
  }

  const StreamHooks& hooks_;
  protocol::SseReader reader_;
  bool done_ = false;
};

}  // namespace

std::string key_from_environment() {
  const char* const key = std::getenv("PENSTOCK_API_KEY");
  return key == nullptr ? std::string() : std::string(key);
}

Result<std::vector<std::string>> list_models(const ApiTarget& target) {
  TRY(const auto response, send_ok(request_to(target, "/v1/models")));
  boost::system::error_code error;
  const json::value body = json::parse(response.body, error);
  const auto* const object = error ? nullptr : body.if_object();
  const auto* const data = object == nullptr ? nullptr : object->if_contains("data");
  if (data == nullptr || !data->is_array())
    return fail(
        ErrorCode::kDataLoss,
        fmt::format("{} does not list models: is it an OpenAI-compatible server?", target.url));
  std::vector<std::string> names;
  for (const auto& model : data->as_array()) {
    if (const auto* each = model.if_object(); each != nullptr)
      names.push_back(text_of(*each, "id"));
  }
  return names;
}

Result<std::string> fetch(const ApiTarget& target, std::string_view path) {
  TRY(auto response, send_ok(request_to(target, path)));
  return std::move(response.body);
}

Result<std::string> complete(const ApiTarget& target, const std::string& body) {
  auto request = request_to(target, "/v1/chat/completions");
  request.method = "POST";
  request.body = body;
  TRY(auto response, send_ok(request));
  return std::move(response.body);
}

Result<ChatDelta> parse_delta(std::string_view event) {
  boost::system::error_code error;
  const json::value chunk = json::parse(event, error);
  const auto* const object = error ? nullptr : chunk.if_object();
  if (object == nullptr)
    return fail(ErrorCode::kDataLoss, fmt::format("not a chunk: {}", event.substr(0, 200)));
  if (const auto message = error_message(chunk))
    return fail(ErrorCode::kUnavailable, fmt::format("the answer broke off: {}", *message));
  ChatDelta out;
  if (const auto* usage = object->if_contains("usage"); usage != nullptr && usage->is_object())
    out.usage = usage->as_object();
  const auto* const choices = object->if_contains("choices");
  if (choices == nullptr || !choices->is_array())
    return fail(ErrorCode::kDataLoss, fmt::format("not a chunk: {}", event.substr(0, 200)));
  if (choices->as_array().empty()) return out;
  const auto* const choice = choices->as_array()[0].if_object();
  if (choice == nullptr) return out;
  out.finish_reason = text_of(*choice, "finish_reason");
  const auto* const delta = choice->if_contains("delta");
  if (delta != nullptr && delta->is_object()) {
    out.content = text_of(delta->as_object(), "content");
    out.reasoning = text_of(delta->as_object(), "reasoning_content");
  }
  return out;
}

Status stream_chat(const ApiTarget& target, json::object body, const StreamHooks& hooks) {
  body["stream"] = true;
  body["stream_options"] = json::object{{"include_usage", true}};
  auto request = request_to(target, "/v1/chat/completions");
  request.method = "POST";
  request.body = json::serialize(body);
  request.cancel = hooks.cancel;
  StreamReader reader(hooks);
  request.on_body = [&](std::string_view bytes) { return reader.take(bytes); };
  const auto response = send_ok(request);
  if (reader.error || response) return reader.result();
  return std::unexpected(response.error());
}

}  // namespace penstock
