#include "service/gateway/generation.h"

#include <fmt/format.h>
#include <algorithm>

#include "base/hash.h"
#include "core/grammar/constraint.h"
#include "core/prompt/plain_parser.h"
#include "core/protocol/sse.h"
#include "service/gateway/answers.h"

namespace penstock::gateway {

using protocol::ReasoningEffort;
using protocol::ToolChoiceMode;

Generation::Generation(GatewayContext& context, HttpExchange& exchange, RequestRecord& record,
                       WireFormat& format)
    : context_(context),
      exchange_(exchange),
      record_(record),
      format_(format),
      received_at_(exchange.request().received_at),
      run_(context, received_at_ + context.limits.request_time_max, record.request_id) {
  exchange.set_deadline(received_at_ + context.limits.request_time_max);
  exchange.on_disconnect([this] {
    run_.abandon({ErrorCode::kCancelled, "the client closed the connection", {}, {}});
  });
}

Task<void> Generation::run() {
  const Status status = co_await serve();
  settle(status);
  if (record_.moves > 0)
    record_.placement += fmt::format("; moved {} times, last: {}", record_.moves, run_.moved_to());
  if (!status) co_await answer_error(status.error());
}

Task<Status> Generation::serve() {
  CO_TRY_STATUS(admit());
  CO_TRY_STATUS(co_await encode());
  if (format_.only_counts()) co_return co_await answer_count();
  CO_TRY_STATUS(co_await place_and_submit());
  CO_TRY_STATUS(co_await generate());
  co_return co_await end_answer();
}

Status Generation::admit() {
  TRY(request_, format_.parse(exchange_.request().body, context_.limits.chat));
  record_.stream = request_.stream;
  model_ = context_.catalog.find(request_.model);
  if (model_ == nullptr) return std::unexpected(context_.catalog.not_found(request_.model));
  record_.model = model_->name;
  if (request_.model != model_->name) record_.alias = request_.model;

  const ToolChoiceMode mode = request_.tool_choice.mode;
  if (mode == ToolChoiceMode::kRequired || mode == ToolChoiceMode::kNamed) {
    return fail(ErrorCode::kUnsupported,
                "tool_choice can't force a call yet; use \"auto\" or \"none\"", "tool_choice");
  }
  Conversation& conversation = request_.conversation;
  const auto& allowed = request_.tool_choice.allowed;
  if (mode == ToolChoiceMode::kNone) conversation.tools.clear();
  if (!allowed.empty()) {
    std::erase_if(conversation.tools, [&](const ToolDefinition& tool) {
      return std::ranges::find(allowed, tool.name) == allowed.end();
    });
  }
  if (conversation.thinking == Thinking::kDefault &&
      request_.reasoning_effort != ReasoningEffort::kDefault) {
    const bool off = request_.reasoning_effort == ReasoningEffort::kNone;
    conversation.thinking = off ? Thinking::kDisabled : Thinking::kEnabled;
  }
  TRY_STATUS(check_constraint());
  TRY(cache_, cache_hints(context_.cache, request_, record_));
  if (!request_.has_seed) request_.sampling.seed = context_.rng.next_u64();
  return {};
}

Status Generation::check_constraint() {
  Constraint& constraint = request_.constraint;
  if (!constraint) return {};
  const std::string field(request_.constraint_field);
  const Conversation& conversation = request_.conversation;
  if (!conversation.tools.empty() || conversation.continue_last_assistant) {
    return fail(ErrorCode::kUnsupported,
                "an answer in JSON can't go with tools or with prefix completion here yet; send "
                "tool_choice \"none\", or leave one of them out",
                field);
  }
  if (const auto grammar = grammar::compile(constraint); !grammar)
    return fail(grammar.error().code, grammar.error().message, field);
  if (!model_->encoding->thinks(conversation)) return {};
  constraint.after = model_->tokenizer->token_id(model_->encoding->reasoning_end());
  if (constraint.after) return {};
  return fail(ErrorCode::kUnsupported,
              "this model's reasoning has no end that is a token, so what follows can't be held to "
              "a format; turn thinking off",
              field);
}

Task<Status> Generation::encode() {
  std::vector<PromptSpan> spans;
  if (auto raw = format_.take_raw_prompt()) {
    raw_ = true;
    if (raw->ids) co_return take_ids(std::move(*raw));
    const std::string_view begin = model_->encoding->text_begin();
    if (raw->begins && !begin.empty()) spans.push_back({SpanKind::kSpecial, std::string(begin)});
    spans.push_back({SpanKind::kPlain, std::move(raw->text)});
  } else {
    CO_TRY(spans, model_->encoding->render(request_.conversation));
  }
  if (!format_.only_counts()) CO_TRY_STATUS(check_size(spans));
  CO_TRY(prompt_, co_await context_.encoder.encode(*model_->tokenizer, std::move(spans)));
  if (prompt_->empty() && !format_.only_counts())
    co_return fail(ErrorCode::kInvalidArgument, "prompt: must not be empty", "prompt");
  record_.usage.prompt_tokens = prompt_->size();
  co_return Status{};
}

Status Generation::take_ids(RawPrompt raw) {
  TRY_STATUS(model_->check_ids(*raw.ids, "prompt"));
  if (raw.wants_text)
    format_.set_prompt_text(model_->tokenizer->decode(*raw.ids, Tokenizer::Special::kKeep));
  prompt_ = std::make_shared<const std::vector<TokenId>>(std::move(*raw.ids));
  record_.usage.prompt_tokens = prompt_->size();
  return {};
}

// What was only counted is not used.
Task<Status> Generation::answer_count() {
  record_.usage.prompt_tokens = 0;
  Status sent = co_await exchange_.respond(
      json_response(format_.tokens_body(*prompt_), record_, 200, format_.error_shape()));
  unreachable_ = !sent;
  co_return sent;
}

// A token stands for so many bytes at most, so a text can be too long before it is encoded.
Status Generation::check_size(const std::vector<PromptSpan>& spans) const {
  std::size_t bytes = 0;
  for (const PromptSpan& span : spans)
    bytes += span.kind == SpanKind::kPlain ? span.text.size() : 0;
  const std::size_t tokens_min = bytes / model_->token_bytes_max;
  const auto context = context_length(context_.engines.workers(), model_->name);
  if (!context || tokens_min < *context) return {};
  return fail(ErrorCode::kContextLengthExceeded,
              fmt::format("the prompt has {} bytes of text, which is more than {} tokens, but the "
                          "model's context is {} tokens, answer included; shorten the {}",
                          bytes, tokens_min, *context, request_.prompt_field),
              std::string(request_.prompt_field));
}

Task<Status> Generation::place_and_submit() {
  CO_TRY(const ModelDescription served, co_await run_.find_model(model_->name));
  CO_TRY_STATUS(check_length(served));
  PlacementRequest wanted{model_->name, static_cast<std::uint32_t>(prompt_->size())};
  wanted.set_cached(match(served));
  wanted.output = context_.costs.expected_answer(request_.sampling.max_tokens);
  wanted.choices = request_.sampling.choices;
  const std::string& session =
      request_.prompt_cache_key.empty() ? request_.user_id : request_.prompt_cache_key;
  if (!session.empty()) wanted.session = checksum64(record_.key_name + '\n' + session);
  CO_TRY_STATUS(co_await wait_for_room(wanted));
  CO_TRY(const Placement placement, co_await run_.place(wanted));
  CO_TRY_STATUS(check_length(placement.model));  // workers may differ
  record_.placement = placement.reason + record_.placement;
  if (run_.queued() >= std::chrono::microseconds(100)) {
    record_.placement += fmt::format("; queued {:.1f} ms",
                                     std::chrono::duration<double>(run_.queued()).count() * 1e3);
  }
  begin_answer();
  record_.queue = context_.clock.now() - received_at_;
  EngineRequest request;
  request.model = model_->name;
  request.prompt = prompt_;
  request.sampling = request_.sampling;
  request.cache = std::move(cache_);
  request.constraint = std::move(request_.constraint);
  co_return run_.submit(placement, std::move(request));
}

Task<Status> Generation::wait_for_room(const PlacementRequest& wanted) {
  AdmissionTicket ticket;
  ticket.tenant = record_.key_name;
  if (const auto share = context_.tenants.find(record_.key_name); share != context_.tenants.end()) {
    ticket.weight = share->second.weight;
    ticket.priority = share->second.priority;
  }
  // Anybody may ask to be served later, nobody to be served sooner.
  if (request_.service_tier == "flex") --ticket.priority;
  auto entered = co_await run_.enter(std::move(ticket), wanted);
  if (entered) co_return Status{};
  record_.limit = entered.error().limit;
  co_return std::unexpected(std::move(entered).error().error);
}

KvIndexMatch Generation::match(const ModelDescription& model) {
  if (context_.kv_index == nullptr) return {};
  const KvIndexMatch known = context_.kv_index->match(model.kv, cache_, *prompt_);
  record_.expected_cached_tokens = static_cast<std::uint64_t>(known.resumable.value);
  if (known.resumable.value == 0) return known;
  record_.placement +=
      fmt::format("; {} of {} prompt tokens cached (held in memory {}, on disk {})",
                  known.resumable.value, prompt_->size(), known.host.value, known.disk.value);
  return known;
}

Status Generation::check_length(const ModelDescription& model) {
  const std::uint64_t prompt = prompt_->size();
  std::uint32_t& max_tokens = request_.sampling.max_tokens;
  if (prompt >= model.context_length) {
    return fail(
        ErrorCode::kContextLengthExceeded,
        fmt::format("the prompt has {} tokens, but the model's context is {} tokens, answer "
                    "included; shorten the {}",
                    prompt, model.context_length, request_.prompt_field),
        std::string(request_.prompt_field));
  }
  const auto room = static_cast<std::uint32_t>(model.context_length - prompt);
  if (max_tokens > room && request_.fit_max_tokens) {
    max_tokens = room;
    context_is_cap_ = true;
  }
  if (max_tokens > room) {
    return fail(
        ErrorCode::kContextLengthExceeded,
        fmt::format("{} prompt tokens and {} tokens of answer exceed the model's context of "
                    "{}; ask for at most {}",
                    prompt, max_tokens, model.context_length, room),
        std::string(request_.max_tokens_field));
  }
  if (max_tokens == 0) {
    const bool thinks = model_->encoding->thinks(request_.conversation);
    max_tokens = std::min(room, thinks ? context_.limits.default_max_tokens_thinking
                                       : context_.limits.default_max_tokens);
  }
  return {};
}

void Generation::begin_answer() {
  writer_ = format_.make_writer(
      request_, {random_name(context_.rng), context_.unix_seconds(), record_.request_id});
  open_choices_ = request_.sampling.choices;
  for (std::uint32_t i = 0; i < open_choices_; ++i) {
    Choice::Options options;
    options.tokenizer = model_->tokenizer.get();
    options.parser = raw_ ? std::make_unique<prompt::PlainParser>(request_.stop)
                          : model_->encoding->make_parser(request_.conversation, request_.stop);
    if (!raw_ && model_->encoding->reads_special_tokens())
      options.special = Tokenizer::Special::kKeep;
    options.logprobs = request_.logprobs();
    options.parallel_tool_calls = request_.parallel_tool_calls;
    options.new_call_id = [this] {
      return std::string(format_.call_prefix()) + random_name(context_.rng);
    };
    choices_.emplace_back(i, std::move(options));
  }
}

Task<Status> Generation::generate() {
  while (open_choices_ > 0) {
    const Instant wake_at = context_.clock.now() + context_.limits.keep_alive_interval;
    CO_TRY(const std::optional<EngineOutput> output, co_await run_.next(wake_at));
    if (output) {
      CO_TRY_STATUS(co_await consume(*output));
    } else {
      writer_->keep_alive(events_);
      CO_TRY_STATUS(co_await send_events());
    }
  }
  run_.stop();
  co_return Status{};
}

Task<Status> Generation::consume(const EngineOutput& output) {
  if (output.choice >= choices_.size() || choices_[output.choice].finished()) co_return Status{};
  if (!record_.time_to_first_token && !output.tokens.empty()) {
    record_.time_to_first_token = context_.clock.now() - received_at_;
  }
  record_.usage.cached_tokens =
      std::max<std::uint64_t>(record_.usage.cached_tokens, output.cached_tokens);
  if (!std::exchange(answer_begun_, true)) writer_->start(record_.usage, events_);
  Choice& choice = choices_[output.choice];
  choice.consume(output,
                 [this](const protocol::ChatDelta& delta) { writer_->add(delta, events_); });
  if (choice.finished()) {
    const protocol::ChoiceEnd end = choice.end(context_is_cap_);
    writer_->finish(output.choice, end, events_);
    if (output.choice == 0) record_.outcome = outcome_name(end);
    --open_choices_;
  }
  co_return co_await send_events();
}

Task<Status> Generation::send_events() {
  if (events_.empty()) co_return Status{};
  if (!stream_begun_) {
    stream_begun_ = true;
    record_.status = 200;
    exchange_.begin_stream(200, std::string(protocol::kSseContentType),
                           answer_headers(record_, HeaderSet::kStream, format_.error_shape()));
  }
  Status sent = co_await exchange_.write(std::exchange(events_, {}));
  unreachable_ = !sent;
  co_return sent;
}

Task<Status> Generation::end_answer() {
  settle({});
  writer_->end(record_.usage, events_);
  if (request_.stream) {
    CO_TRY_STATUS(co_await send_events());
    Status finished = co_await exchange_.finish();
    unreachable_ = !finished;
    co_return finished;
  }
  HttpResponse response;
  response.headers = answer_headers(record_, HeaderSet::kWhole, format_.error_shape());
  response.body = std::exchange(events_, {});
  record_.status = 200;
  Status sent = co_await exchange_.respond(std::move(response));
  unreachable_ = !sent;
  co_return sent;
}

Task<void> Generation::answer_error(const Error& error) {
  // Nobody is there to read it.
  if (error.code == ErrorCode::kCancelled || unreachable_) co_return;
  if (!stream_begun_) {
    HttpResponse response = error_response(error, record_, format_.error_shape());
    static_cast<void>(co_await exchange_.respond(std::move(response)));
    co_return;
  }
  events_.clear();
  writer_->fail(error, events_);
  if (co_await send_events()) static_cast<void>(co_await exchange_.finish());
}

// Exact usage of what was generated, whatever the end; an error's name and status on top.
void Generation::settle(const Status& status) {
  Usage& usage = record_.usage;
  usage.completion_tokens = 0;
  usage.reasoning_tokens = 0;
  for (const Choice& choice : choices_) {
    usage.completion_tokens += choice.tokens();
    usage.reasoning_tokens += choice.reasoning_tokens();
  }
  record_.moves = run_.moves();
  if (status && !settled_ && !choices_.empty())
    context_.costs.answer_ended(usage.completion_tokens / choices_.size());
  settled_ = true;
  if (!status) {
    const ErrorInfo& info = error_info(status.error().code);
    record_.outcome = info.name;
    record_.status = info.http_status;
  }
}

}  // namespace penstock::gateway
