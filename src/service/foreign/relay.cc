#include "service/foreign/relay.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "core/protocol/json_writer.h"
#include "core/protocol/sse.h"
#include "service/gateway/answers.h"

namespace penstock::foreign {
namespace {

using namespace std::chrono_literals;
using namespace std::string_view_literals;
using dialects::Edit;
using dialects::Ending;
using dialects::JsonBody;
using dialects::PdProtocol;
using dialects::WireApi;
using enum ErrorCode;

// What the gateway reads or sets. The second half is between it and the engines: a client that
// names a peer or a rank of its own would be believed.
constexpr std::array kControlled = {"model"sv,
                                    "stream"sv,
                                    "stream_options"sv,
                                    "rid"sv,
                                    "max_tokens"sv,
                                    "max_completion_tokens"sv,
                                    "max_output_tokens"sv,
                                    "min_tokens"sv,
                                    "messages"sv,
                                    "prompt"sv,
                                    "input"sv,
                                    "token_ids"sv,
                                    "sampling_params"sv,
                                    "tools"sv,
                                    "system"sv,
                                    "instructions"sv,
                                    "temperature"sv,
                                    "seed"sv,
                                    "n"sv,
                                    "best_of"sv,
                                    "cache_salt"sv,
                                    "kv_transfer_params"sv,
                                    "ec_transfer_params"sv,
                                    "bootstrap_host"sv,
                                    "bootstrap_port"sv,
                                    "bootstrap_room"sv,
                                    "routed_dp_rank"sv,
                                    "data_parallel_rank"sv,
                                    "disagg_prefill_resp"sv};
constexpr std::span kForbidden = std::span(kControlled).subspan(21);
constexpr std::array kUsageKey = {"include_usage"sv};

// Of the client's headers, what an engine may see.
constexpr std::array kPassed = {"accept"sv, "traceparent"sv, "tracestate"sv, "anthropic-version"sv,
                                "anthropic-beta"sv};

// Of the prompt, what binds conversations to an engine.
constexpr std::size_t kPromptHead = 4096;
constexpr std::size_t kEngineErrorMax = std::size_t{64} << 10;

protocol::ErrorShape shape_of(WireApi api) {
  return api == WireApi::kMessages || api == WireApi::kCountTokens
             ? protocol::ErrorShape::kAnthropic
             : protocol::ErrorShape::kOpenAi;
}

Duration retry_after(const UpstreamHead& head) {
  const std::string_view text = head.header("retry-after");
  std::uint32_t seconds = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), seconds);
  return parsed.ec == std::errc() ? Duration(std::chrono::seconds(seconds)) : Duration::zero();
}

std::string content_type_of(const UpstreamHead& head) {
  const std::string_view type = head.header("content-type");
  return type.empty() ? "application/json" : std::string(type);
}

}  // namespace

Relay::Relay(RelayContext& context, HttpExchange& exchange, RequestRecord& record, WireApi api)
    : context_(context), exchange_(exchange), record_(record), api_(api), watch_(api) {}

Instant Relay::deadline() const {
  return exchange_.request().received_at + context_.limits.request_time_max;
}

void Relay::stop(const Error& why) {
  stopped_ = why;
  cancel_calls();
}

// One is enough: whatever ends a leg ends the other. What is awaited ends inside, and this object
// may go with it.
void Relay::cancel_calls() {
  if (encoding_) return cancel_encoding();
  UpstreamCall* const call = call_ != nullptr ? call_ : prefill_call_;
  if (call != nullptr) call->cancel();
}

Task<void> Relay::run() {
  exchange_.set_deadline(deadline());
  exchange_.on_disconnect([this] {
    gone_ = true;
    cancel_calls();
  });
  if (const auto read = read_body(); !read) {
    error_ = read.error();
    co_return co_await answer_error();
  }
  context_.retries.request();
  co_await name_prompt();
  while (!over()) {
    const Place place = co_await find_engine();
    if (!place) break;
    const Try outcome = co_await attempt(place);
    if (outcome == Try::kAnswered) co_return settle();
    if (outcome == Try::kFailed) break;
    tried_.push_back(place.engine->config.id);
    if (tried_.size() >= context_.limits.tries_max || !context_.retries.take()) break;
    ++record_.moves;
  }
  co_await answer_error();
}

Result<void> Relay::read_body() {
  TRY(body_, JsonBody::read(exchange_.request().body, kControlled));
  for (const std::string_view key : kForbidden) {
    if (body_->has(key) && body_->value(key) != "null")
      return fail(kInvalidArgument,
                  fmt::format("{} is between the gateway and its engines; leave it out", key),
                  std::string(key));
  }
  record_.stream = body_->is_true("stream");
  if (record_.stream && dialects::StreamReplay::repeats(*body_, api_)) replay_.emplace(api_);
  const auto given = body_->string("model");
  if (!given && body_->has("model") && body_->value("model") != "null")
    return fail(kInvalidArgument, "model: expected a string", "model");
  if (given) {
    model_ = context_.real_name(*given);
  } else {
    const auto models = context_.engines.models();
    if (models.size() != 1)
      return std::unexpected(Error{kInvalidArgument,
                                   "model is missing; GET /v1/models lists what is served", "model",
                                   "missing_required_parameter"});
    model_ = models.front().id;
  }
  if (!context_.engines.knows(model_))
    return fail(kModelNotFound,
                fmt::format("the model \"{}\" is not served here; GET /v1/models lists those that "
                            "are",
                            gateway::printable_name(given.value_or(model_))),
                "model");
  record_.model = model_;
  if (given && *given != model_) record_.alias = *given;
  return {};
}

Result<dialects::EditedBody> Relay::edited_body(const Engine& engine, std::span<const Edit> more) {
  std::vector<Edit> edits;
  if (names_requests(engine)) {
    rid_ = "penstock-" + gateway::random_name(context_.rng);
    edits.push_back({"rid", dialects::quoted(rid_)});
  }
  if (!record_.alias.empty()) edits.push_back({"model", dialects::quoted(model_)});
  const bool says_usage_when_asked = api_ == WireApi::kChat || api_ == WireApi::kCompletion;
  if (record_.stream && says_usage_when_asked) {
    const auto options = body_->value("stream_options");
    if (!options || *options == "null") {
      edits.push_back({"stream_options", R"({"include_usage":true})"});
      adds_usage_ = true;
    } else {
      TRY(const JsonBody inner, JsonBody::read(*options, kUsageKey));
      adds_usage_ = !inner.is_true("include_usage");
      if (adds_usage_) {
        const Edit edit{"include_usage", "true"};
        edits.push_back({"stream_options", inner.edited(std::span(&edit, 1))});
      }
    }
  }
  for (const Edit& edit : more) {
    std::erase_if(edits, [&](const Edit& own) { return own.key == edit.key; });
    edits.push_back(edit);
  }
  return body_->edit(edits);
}

std::string_view Relay::prompt_text() const {
  for (const std::string_view key : {"messages"sv, "prompt"sv, "input"sv, "token_ids"sv}) {
    if (const auto value = body_->value(key)) return *value;
  }
  return {};
}

std::string_view Relay::prompt_head() const {
  return prompt_text().substr(0, kPromptHead);
}

bool Relay::generates() const {
  return api_ == WireApi::kChat || api_ == WireApi::kCompletion || api_ == WireApi::kResponses ||
         api_ == WireApi::kMessages || api_ == WireApi::kGenerate;
}

std::vector<HttpHeader> Relay::engine_headers(const Place& place) const {
  std::vector<HttpHeader> headers = {{"content-type", "application/json"},
                                     {"x-request-id", record_.request_id}};
  for (const std::string_view name : kPassed) {
    const std::string_view value = exchange_.request().header(name);
    if (!value.empty()) headers.push_back({std::string(name), std::string(value)});
  }
  if (place.pinned) headers.push_back({"x-data-parallel-rank", fmt::to_string(*place.rank)});
  for (HttpHeader& own : EngineSet::credentials(*place.engine))
    headers.push_back(std::move(own));
  return headers;
}

// Waits a little for an engine to come back; nothing when none does, and error_ says why.
Task<Place> Relay::find_engine() {
  const Wanted wanted{model_, api_, prompt_head(), tried_, {}, prompt_ ? &*prompt_ : nullptr};
  const Instant until =
      std::min(deadline(), context_.clock.now() + context_.limits.engine_wait_max);
  while (true) {
    if (Place place = pick(wanted)) co_return place;
    // After a try, what was wrong with it says more.
    if (!tried_.empty()) co_return Place();
    error_ = context_.engines.why_none(wanted);
    if (error_.code != kUnavailable || context_.clock.now() >= until || over()) co_return Place();
    co_await Sleep(context_.clock, 20ms);
  }
}

// SGLang goes on with a request whose client has gone, unless it is told its name.
bool Relay::names_requests(const Engine& engine) const {
  return engine.dialect().abort == dialects::AbortBy::kCloseAndRequest &&
         (api_ == WireApi::kChat || api_ == WireApi::kCompletion) && !body_->has("rid");
}

Task<Relay::Try> Relay::attempt(const Place& place) {
  Engine& engine = *place.engine;
  if (const Status encoded = co_await encode_media(engine); !encoded) {
    if (over()) co_return gone_ ? Try::kAnswered : Try::kFailed;
    error_ = encoded.error();
    co_return Try::kFailed;
  }
  if (engine.config.role == EngineRole::kDecode && dialects::splits(engine.pd(), api_)) {
    if (engine.pd() == PdProtocol::kSerial) co_return co_await attempt_serial(place);
    co_return co_await attempt_concurrent(place);
  }
  auto body = edited_body(engine, encoded_);
  if (!body) {
    error_ = std::move(body).error();
    co_return Try::kFailed;
  }
  Permit permit(context_.clock, place);
  placed(place);
  if (!record_.queue) record_.queue = context_.clock.now() - exchange_.request().received_at;
  record_.placement =
      place.pinned
          ? fmt::format("{}/{} ({})", engine.config.name, *place.rank, engine.dialect().name)
          : fmt::format("{} ({})", engine.config.name, engine.dialect().name);
  explain();
  heard_out_ = false;
  const Try outcome = co_await talk(place, permit, std::move(*body));
  if (!heard_out_ && names_requests(engine)) context_.engines.abort(place.engine, rid_);
  co_return outcome;
}

Task<Relay::Try> Relay::talk(const Place& place, Permit& permit, dialects::EditedBody body,
                             Instant send_by) {
  Engine& engine = *place.engine;
  // `body` and the client's outlive the call.
  const auto call = engine.upstream->call({"POST",
                                           std::string(dialects::path_of(api_)),
                                           engine_headers(place),
                                           {},
                                           std::move(body.pieces),
                                           send_by});
  call_ = call.get();
  struct Under {
    UpstreamCall*& call;
    ~Under() { call = nullptr; }
  } under{call_};
  taken_ = false;
  const auto head = co_await call->head(deadline());
  // What an engine refuses as wrong or for being busy it refuses before it looks at blocks.
  taken_ = head ? head->status != 503 && (head->status < 400 || head->status >= 500) : call->sent();
  if (!head) co_return lost(permit, head.error(), engine);
  if (streaming_ &&
      (head->status != 200 || !content_type_of(*head).starts_with("text/event-stream"))) {
    permit.ended(dialects::ending_of_status(head->status), retry_after(*head));
    co_return again();  // what was wrong before is what the client hears of
  }
  if (head->status != 200) co_return co_await refused(*call, *head, permit);
  const bool stream = content_type_of(*head).starts_with("text/event-stream");
  if (stream) co_return co_await relay_stream(*call, *head, permit);
  co_return co_await relay_whole(*call, *head, permit);
}

// The connection failed, or was ended by us.
Relay::Try Relay::lost(Permit& permit, const Error& error, const Engine& engine) {
  if (over()) return gone_ ? Try::kAnswered : Try::kFailed;
  if (cut_error_) {
    // Cancelled by us, as the other leg had failed: nothing is said about this engine.
    error_ = *cut_error_;
    return again();
  }
  too_late_ = error.code == kConflict;
  if (too_late_) return Try::kAgain;
  permit.ended(Ending::kBad);
  const ErrorCode code = error.code == kDeadlineExceeded ? error.code : kUnavailable;
  error_ = {code, fmt::format("engine {}: {}", engine.config.name, error.message), {}, {}};
  return context_.clock.now() >= deadline() ? Try::kFailed : again();
}

Relay::Try Relay::again() {
  if (!streaming_) return Try::kAgain;
  resumes_ = replay_ && replay_->begin_again();
  if (!resumes_) return Try::kFailed;
  watch_ = dialects::AnswerWatch(api_);
  return Try::kAgain;
}

Task<Relay::Try> Relay::refused(UpstreamCall& call, const UpstreamHead& head, Permit& permit) {
  const std::string& name = permit.engine().config.name;
  const Ending ending = dialects::ending_of_status(head.status);
  heard_out_ = true;
  permit.ended(ending, retry_after(head));
  if (ending == Ending::kBusy) {
    error_ = {kOverloaded, fmt::format("engine {} is busy ({})", name, head.status), {}, {}};
    co_return Try::kAgain;
  }
  if (head.status == 401 || head.status == 403) {
    permit.ended(Ending::kBad);
    error_ = {kUnavailable,
              fmt::format("engine {} refuses this gateway's credentials ({})", name, head.status),
              {},
              {}};
    co_return Try::kAgain;
  }
  if (ending != Ending::kNeutral) {
    error_ = {kInternal, fmt::format("engine {} failed ({})", name, head.status), {}, {}};
    co_return Try::kAgain;
  }
  // What the client got wrong, in the engine's words.
  auto body = co_await read_whole(call, context_.limits.answer_bytes_max, deadline());
  if (!body || body->size() > kEngineErrorMax) {
    if (over()) co_return gone_ ? Try::kAnswered : Try::kFailed;
    body = std::string();
  }
  HttpResponse response;
  response.status = head.status;
  response.content_type = content_type_of(head);
  response.headers = gateway::answer_headers(record_, gateway::HeaderSet::kWhole, shape_of(api_));
  response.body = std::move(*body);
  record_.status = head.status;
  record_.outcome = error_info(kInvalidArgument).name;
  static_cast<void>(co_await exchange_.respond(std::move(response)));
  co_return Try::kAnswered;
}

Task<Relay::Try> Relay::relay_whole(UpstreamCall& call, const UpstreamHead& head, Permit& permit) {
  auto body = co_await read_whole(call, context_.limits.answer_bytes_max, deadline());
  if (!body) co_return lost(permit, body.error(), permit.engine());
  permit.ended(Ending::kGood);
  heard_out_ = true;
  watch_.whole(*body);
  record_.time_to_first_token = context_.clock.now() - exchange_.request().received_at;
  record_.status = head.status;
  HttpResponse response;
  response.content_type = content_type_of(head);
  response.headers = gateway::answer_headers(record_, gateway::HeaderSet::kWhole, shape_of(api_));
  response.body = std::move(*body);
  gone_ = !co_await exchange_.respond(std::move(response)) || gone_;
  co_return Try::kAnswered;
}

// What of the event goes to the client.
void Relay::take(const dialects::SseEvent& event, std::string& out) {
  if (watch_.ended() || died_ || differs_) return;  // nothing follows the last word
  const auto says = watch_.event(event);
  if (says == dialects::AnswerWatch::Says::kError && replay_ && replay_->begin_again()) {
    died_ = true;
    return;
  }
  if (says == dialects::AnswerWatch::Says::kUsageOnly && adds_usage_) return;
  const std::size_t before = out.size();
  if (resumes_) {
    differs_ = replay_->event(event, out) == dialects::StreamReplay::Says::kDiffers;
  } else {
    if (replay_) replay_->sent(event.raw);
    out.append(event.raw);
  }
  if (event.has_data && out.size() > before) ++events_;
}

Task<Relay::Try> Relay::relay_stream(UpstreamCall& call, const UpstreamHead& head, Permit& permit) {
  dialects::SseSplitter splitter;
  std::string out;
  died_ = differs_ = false;
  // When what goes out is out. What differs says nothing of the engine.
  const auto broken = [&] {
    if (died_)
      return lost(permit, {kUnavailable, "it says that it failed", {}, {}}, permit.engine());
    error_ = {kUnavailable,
              fmt::format("the engine died in mid-answer, and {} gives another answer",
                          permit.engine().config.name),
              {},
              {}};
    return Try::kFailed;
  };
  while (!watch_.ended()) {
    const Instant silence =
        streaming_ ? context_.clock.now() + context_.limits.keep_alive_interval : Instant::max();
    auto bytes = co_await call.read(std::min(deadline(), silence));
    if (!bytes && bytes.error().code == kDeadlineExceeded && context_.clock.now() < deadline()) {
      if (!co_await exchange_.write(std::string(protocol::kSseKeepAlive))) gone_ = true;
      if (over()) co_return lost(permit, bytes.error(), permit.engine());
      continue;
    }
    if (!bytes) co_return lost(permit, bytes.error(), permit.engine());
    if (bytes->empty())
      co_return lost(permit, {kDataLoss, "it ended the stream in mid-answer", {}, {}},
                     permit.engine());
    if (!splitter.feed(*bytes, [&](const dialects::SseEvent& event) { take(event, out); })) {
      replay_.reset();  // what is in `out` never went out
      co_return lost(permit, {kDataLoss, "it sent an event beyond any limit", {}, {}},
                     permit.engine());
    }
    if (out.empty() && (died_ || differs_)) co_return broken();
    if (out.empty()) continue;
    permit.answer_begins();
    if (!streaming_) {
      streaming_ = true;
      record_.status = head.status;
      record_.time_to_first_token = context_.clock.now() - exchange_.request().received_at;
      exchange_.begin_stream(
          head.status, content_type_of(head),
          gateway::answer_headers(record_, gateway::HeaderSet::kStream, shape_of(api_)));
    }
    if (!co_await exchange_.write(std::exchange(out, {}))) gone_ = true;
    if (over()) co_return lost(permit, {}, permit.engine());
    if (died_ || differs_) co_return broken();
  }
  permit.ended(watch_.failed() ? Ending::kBad : Ending::kGood);
  heard_out_ = true;
  if (!streaming_) {
    error_ = {kInternal,
              fmt::format("engine {} sent a stream without events", permit.engine().config.name),
              {},
              {}};
    co_return Try::kAgain;
  }
  const bool gone = !co_await exchange_.finish() || gone_;
  // What closes the body came with the last event or comes now: read, it gives the connection back.
  static_cast<void>(co_await call.read(std::min(deadline(), context_.clock.now() + 100ms)));
  gone_ = gone;  // a client that goes now has all of it
  co_return Try::kAnswered;
}

std::string Relay::in_band_error(const Error& error) {
  std::string out;
  switch (api_) {
    case WireApi::kMessages:
      protocol::append_sse_event(out, "error",
                                 protocol::anthropic_error_object(error, record_.request_id));
      break;
    case WireApi::kResponses: {
      const auto& info = error_info(error.code);
      std::string json = fmt::format(R"({{"type":"error","sequence_number":{},"code":)", events_);
      protocol::append_json_string(json,
                                   info.openai_code.empty() ? info.openai_type : info.openai_code);
      json += R"(,"message":)";
      protocol::append_json_string(json, error.message);
      json += R"(,"param":null})";
      protocol::append_sse_event(out, "error", json);
      break;
    }
    default:
      protocol::append_sse_event(out, protocol::error_object(error));
  }
  return out;
}

Task<void> Relay::answer_error() {
  if (stopped_) error_ = *stopped_;
  if (gone_) co_return settle();
  if (!streaming_) {
    HttpResponse response = gateway::error_response(error_, record_, shape_of(api_));
    static_cast<void>(co_await exchange_.respond(std::move(response)));
  } else {
    record_.status = error_info(error_.code).http_status;
    record_.outcome = error_info(error_.code).name;
    if (co_await exchange_.write(in_band_error(error_)))
      static_cast<void>(co_await exchange_.finish());
  }
  take_usage();
}

// What a decode engine got from a prefill engine it calls cached; what was, the prefill engine
// says.
void Relay::take_usage() {
  if (watch_.usage()) record_.usage = *watch_.usage();
  if (watch_.usage() && watch_.cached_told() && computes_)
    observe(computes_, record_.usage.cached_tokens, record_.usage.prompt_tokens);
  if (watch_.usage() && rendered_by_ && prompt_ && record_.usage.prompt_tokens > 0)
    context_.engines.rendered_as(*std::exchange(rendered_by_, nullptr), traits_, prompt_->id_count,
                                 record_.usage.prompt_tokens);
  if (cached_) record_.usage.cached_tokens = std::min(*cached_, record_.usage.prompt_tokens);
}

// What the answer used and how it ended.
void Relay::settle() {
  take_usage();
  if (gone_) {
    record_.status = error_info(kCancelled).http_status;
    record_.outcome = error_info(kCancelled).name;
  } else if (watch_.failed()) {
    record_.outcome = "engine_error";
  } else if (record_.status == 200) {
    record_.outcome = watch_.finish().empty() ? "ok" : watch_.finish();
  }
}

}  // namespace penstock::foreign
