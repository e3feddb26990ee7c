#include "service/gateway/generation.h"

#include <fmt/format.h>
#include <algorithm>

#include "base/hash.h"
#include "core/prompt/fill_in_middle.h"
#include "core/prompt/plain_parser.h"
#include "core/protocol/sse.h"
#include "service/gateway/answer_rules.h"
#include "service/gateway/answers.h"
#include "service/gateway/truncation.h"

namespace penstock::gateway {

using protocol::ReasoningEffort;
using protocol::ToolChoiceMode;

namespace {

Result<std::vector<PromptSpan>> fill_spans(const ServedModel& model, const RawPrompt& raw) {
  auto spans = prompt::fill_in_middle(
      [&](std::string_view token) { return model.tokenizer->token_id(token).has_value(); },
      raw.text, raw.suffix);
  if (spans) return std::move(*spans);
  return fail(ErrorCode::kUnsupported,
              fmt::format("suffix: the model '{}' does not fill in the middle of a text: its "
                          "vocabulary has no marks for it",
                          model.name),
              "suffix");
}

}  // namespace

Generation::Generation(GatewayContext& context, HttpExchange& exchange, RequestRecord& record,
                       WireFormat& format)
    : context_(context),
      exchange_(exchange),
      record_(record),
      format_(format),
      received_at_(exchange.request().received_at),
      ready_(context.clock, 2 * context.limits.chat.choices_max) {
  const Instant deadline = received_at_ + context.limits.request_time_max;
  parts_.emplace_back(context, deadline, record.request_id);
  exchange.set_deadline(deadline);
  exchange.on_disconnect(
      [this] { stop({ErrorCode::kCancelled, "the client closed the connection", {}, {}}); });
}

// Either wakes the task that waits, which may end this.
void Generation::stop(Error why) {
  if (!side_by_side_) return parts_[0].run.abandon(std::move(why));
  if (!stopped_) stopped_ = std::move(why);
  ready_.close();
}

Task<void> Generation::run() {
  Status status = co_await serve();
  // Engines don't know what the client called it.
  if (!status && status.error().field == "response_format")
    status.error().field = request_.constraint_field;
  settle(status);
  if (record_.moves > 0) {
    const auto moved =
        std::ranges::find_if(parts_, [](const Part& part) { return !part.run.moved_to().empty(); });
    record_.placement += fmt::format("; moved {} times, last: {}", record_.moves,
                                     moved == parts_.end() ? "" : moved->run.moved_to());
  }
  if (!status) co_await answer_error(status.error());
}

Task<Status> Generation::serve() {
  CO_TRY_STATUS(admit());
  CO_TRY_STATUS(co_await encode());
  if (format_.only_counts()) co_return co_await answer_count();
  if (parts_.size() == 1) {
    CO_TRY_STATUS(co_await place_and_submit(parts_[0]));
    CO_TRY_STATUS(co_await generate());
  } else {
    CO_TRY_STATUS(co_await generate_all());
  }
  co_return co_await end_answer();
}

Status Generation::admit() {
  TRY(request_, format_.parse(exchange_.request().body, context_.limits.chat));
  record_.stream = request_.stream;
  model_ = context_.catalog.find(request_.model);
  if (model_ == nullptr) return std::unexpected(context_.catalog.not_found(request_.model));
  record_.model = model_->name;
  if (request_.model != model_->name) record_.alias = request_.model;

  Conversation& conversation = request_.conversation;
  const auto& allowed = request_.tool_choice.allowed;
  if (request_.tool_choice.mode == ToolChoiceMode::kNone) conversation.tools.clear();
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
  if (!format_.only_counts()) {
    TRY(shape_, constrain_answer(request_, *model_, context_.checked));
  }
  TRY(cache_, cache_hints(context_.cache, request_, record_));
  if (!request_.has_seed) request_.sampling.seed = context_.rng.next_u64();
  return {};
}

Task<Status> Generation::encode() {
  std::vector<RawPrompt> raw = format_.take_raw_prompts();
  raw_ = !raw.empty();
  if (!raw_) {
    parts_[0].field = request_.prompt_field;
    CO_TRY_STATUS(co_await encode_conversation(parts_[0]));
  }
  for (std::size_t i = 0; i < raw.size(); ++i) {
    if (i > 0) {
      parts_.emplace_back(context_, received_at_ + context_.limits.request_time_max,
                          record_.request_id);
    }
    Part& part = parts_.back();
    part.first_choice = static_cast<std::uint32_t>(i) * request_.sampling.choices;
    part.field =
        raw.size() == 1 ? request_.prompt_field : fmt::format("{}[{}]", request_.prompt_field, i);
    CO_TRY_STATUS(co_await encode_raw(part, i, std::move(raw[i])));
  }
  for (Part& part : parts_) {
    if (part.prompt->empty() && !format_.only_counts())
      co_return fail(ErrorCode::kInvalidArgument, part.field + ": must not be empty", part.field);
    part.open_choices = request_.sampling.choices;
    record_.usage.prompt_tokens += part.prompt->size();
  }
  co_return Status{};
}

Task<Status> Generation::encode_conversation(Part& part) {
  if (request_.truncates && !format_.only_counts()) co_return co_await encode_truncated(part);
  CO_TRY(auto spans, model_->encoding->render(request_.conversation));
  co_return co_await encode_spans(part, std::move(spans));
}

// Drops as little as makes the rest fit, with an answer; when nothing does, check_length() says so.
Task<Status> Generation::encode_truncated(Part& part) {
  CO_TRY(const ModelDescription served, co_await part.run.find_model(model_->name));
  const Conversation whole = std::move(request_.conversation);
  const Truncation ways(whole);
  std::size_t too_few = 0;
  std::size_t enough = ways.steps();
  CO_TRY(bool fits, co_await encodes_to_fit(part, ways.after(0), served));
  if (fits) co_return Status{};
  while (too_few + 1 < enough) {
    const std::size_t steps = (too_few + enough) / 2;
    CO_TRY(fits, co_await encodes_to_fit(part, ways.after(steps), served));
    (fits ? enough : too_few) = steps;
  }
  request_.conversation = ways.after(enough);
  CO_TRY(auto spans, model_->encoding->render(request_.conversation));
  if (ways.dropped(enough) > 0)
    part.note = fmt::format("; dropped {} old messages to fit", ways.dropped(enough));
  co_return co_await encode_spans(part, std::move(spans));
}

Task<Result<bool>> Generation::encodes_to_fit(Part& part, Conversation conversation,
                                              const ModelDescription& served) {
  request_.conversation = std::move(conversation);
  CO_TRY(auto spans, model_->encoding->render(request_.conversation));
  const Status encoded = co_await encode_spans(part, std::move(spans));
  if (!encoded && encoded.error().code != ErrorCode::kContextLengthExceeded)
    co_return std::unexpected(encoded.error());
  // Without a word on the answer's length it gets an eighth of the context.
  const std::uint32_t asked = request_.sampling.max_tokens;
  const std::uint32_t room = asked > 0 ? asked : served.context_length / 8;
  co_return encoded&& part.prompt->size() + room <= served.context_length;
}

Task<Status> Generation::encode_spans(Part& part, std::vector<PromptSpan> spans) {
  if (!format_.only_counts()) CO_TRY_STATUS(check_size(part, spans));
  CO_TRY(part.prompt, co_await context_.encoder.encode(*model_->tokenizer, std::move(spans)));
  co_return Status{};
}

Task<Status> Generation::encode_raw(Part& part, std::size_t index, RawPrompt raw) {
  if (!raw.ids) {
    std::vector<PromptSpan> spans;
    const std::string_view begin = model_->encoding->text_begin();
    if (raw.begins && !begin.empty()) spans.push_back({SpanKind::kSpecial, std::string(begin)});
    if (raw.suffix.empty()) {
      spans.push_back({SpanKind::kPlain, std::move(raw.text)});
    } else {
      CO_TRY(const auto filling, fill_spans(*model_, raw));
      spans.insert(spans.end(), filling.begin(), filling.end());
    }
    co_return co_await encode_spans(part, std::move(spans));
  }
  CO_TRY_STATUS(model_->check_ids(*raw.ids, part.field));
  if (raw.wants_text) {
    format_.set_prompt_text(index, model_->tokenizer->decode(*raw.ids, Tokenizer::Special::kKeep));
  }
  part.prompt = std::make_shared<const std::vector<TokenId>>(std::move(*raw.ids));
  co_return Status{};
}

// What was only counted is not used.
Task<Status> Generation::answer_count() {
  record_.usage.prompt_tokens = 0;
  Status sent = co_await exchange_.respond(
      json_response(format_.tokens_body(*parts_[0].prompt), record_, 200, format_.error_shape()));
  unreachable_ = !sent;
  co_return sent;
}

// A token stands for so many bytes at most, so a text can be too long before it is encoded.
Status Generation::check_size(const Part& part, const std::vector<PromptSpan>& spans) const {
  std::size_t bytes = 0;
  for (const PromptSpan& span : spans)
    bytes += span.kind == SpanKind::kPlain ? span.text.size() : 0;
  const std::size_t tokens_min = bytes / model_->token_bytes_max;
  const auto context = context_length(context_.engines.workers(), model_->name);
  if (!context || tokens_min < *context) return {};
  return fail(ErrorCode::kContextLengthExceeded,
              fmt::format("the prompt has {} bytes of text, which is more than {} tokens, but the "
                          "model's context is {} tokens, answer included; shorten the {}",
                          bytes, tokens_min, *context, part.field),
              part.field);
}

Task<Status> Generation::place_and_submit(Part& part) {
  CO_TRY(const ModelDescription served, co_await part.run.find_model(model_->name));
  CO_TRY_STATUS(check_length(part, served));
  PlacementRequest wanted{model_->name, static_cast<std::uint32_t>(part.prompt->size())};
  wanted.set_cached(match(part, served));
  wanted.output = context_.costs.expected_answer(request_.sampling.max_tokens);
  wanted.choices = request_.sampling.choices;
  const std::string& session =
      request_.prompt_cache_key.empty() ? request_.user_id : request_.prompt_cache_key;
  if (!session.empty()) wanted.session = checksum64(record_.key_name + '\n' + session);
  CO_TRY_STATUS(co_await wait_for_room(part, wanted));
  CO_TRY(const Placement placement, co_await part.run.place(wanted));
  CO_TRY_STATUS(check_length(part, placement.model));  // workers may differ
  if (part.run.queued() >= std::chrono::microseconds(100)) {
    part.note += fmt::format("; queued {:.1f} ms",
                             std::chrono::duration<double>(part.run.queued()).count() * 1e3);
  }
  const bool first = part.first_choice == 0;
  if (first) record_.placement = placement.reason + part.note;
  if (writer_ == nullptr) begin_answer();
  record_.queue = context_.clock.now() - received_at_;
  EngineRequest request;
  request.model = model_->name;
  request.prompt = part.prompt;
  request.sampling = request_.sampling;
  // Equal prompts are to be answered alike only if the client gave a seed.
  if (!first && !request_.has_seed) request.sampling.seed = context_.rng.next_u64();
  request.cache = parts_.size() == 1 ? std::move(cache_) : cache_;
  request.constraint = std::move(request_.constraint);
  co_return part.run.submit(placement, std::move(request));
}

Task<Status> Generation::wait_for_room(Part& part, const PlacementRequest& wanted) {
  AdmissionTicket ticket;
  ticket.tenant = record_.key_name;
  if (const auto share = context_.tenants.find(record_.key_name); share != context_.tenants.end()) {
    ticket.weight = share->second.weight;
    ticket.priority = share->second.priority;
  }
  // Anybody may ask to be served later, nobody to be served sooner.
  if (request_.service_tier == "flex") --ticket.priority;
  auto entered = co_await part.run.enter(std::move(ticket), wanted);
  if (entered) co_return Status{};
  record_.limit = entered.error().limit;
  co_return std::unexpected(std::move(entered).error().error);
}

KvIndexMatch Generation::match(Part& part, const ModelDescription& model) {
  if (context_.kv_index == nullptr) return {};
  const KvIndexMatch known = context_.kv_index->match(model.kv, cache_, *part.prompt);
  record_.expected_cached_tokens += static_cast<std::uint64_t>(known.resumable.value);
  if (known.resumable.value == 0) return known;
  part.note += fmt::format(
      "; {} of {} prompt tokens cached (held in memory {}, on disk {}{})", known.resumable.value,
      part.prompt->size(), known.host.value, known.disk.value,
      known.cluster.value == 0 ? std::string()
                               : fmt::format(", in the cluster store {}", known.cluster.value));
  return known;
}

Status Generation::check_length(const Part& part, const ModelDescription& model) {
  const std::uint64_t prompt = part.prompt->size();
  std::uint32_t& max_tokens = request_.sampling.max_tokens;
  if (prompt >= model.context_length) {
    return fail(
        ErrorCode::kContextLengthExceeded,
        fmt::format("the prompt has {} tokens, but the model's context is {} tokens, answer "
                    "included; shorten the {}",
                    prompt, model.context_length, part.field),
        part.field);
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
  open_choices_ = request_.sampling.choices * static_cast<std::uint32_t>(parts_.size());
  for (std::uint32_t i = 0; i < open_choices_; ++i) {
    Choice::Options options;
    options.tokenizer = model_->tokenizer.get();
    const bool is_text = raw_ || shape_ == AnswerShape::kText;
    if (is_text) {
      options.parser = std::make_unique<prompt::PlainParser>(request_.stop);
    } else if (shape_ == AnswerShape::kJsonOrCalls) {
      options.parser =
          model_->encoding->make_json_or_calls_parser(request_.conversation, request_.stop);
    } else {
      options.parser = model_->encoding->make_parser(request_.conversation, request_.stop);
    }
    if (!is_text && model_->encoding->reads_special_tokens())
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
  Part& part = parts_[0];
  while (open_choices_ > 0) {
    const Instant wake_at = context_.clock.now() + context_.limits.keep_alive_interval;
    CO_TRY(const std::optional<EngineOutput> output, co_await part.run.next(wake_at));
    if (output) {
      CO_TRY_STATUS(co_await consume(part, *output));
    } else {
      CO_TRY_STATUS(co_await keep_alive());
    }
  }
  part.run.stop();
  co_return Status{};
}

Task<Status> Generation::keep_alive() {
  writer_->keep_alive(events_);
  co_return co_await send_events();
}

Task<Status> Generation::generate_all() {
  // What can be refused of any prompt is refused before one of them costs anything.
  CO_TRY(const ModelDescription served, co_await parts_[0].run.find_model(model_->name));
  for (const Part& part : parts_)
    CO_TRY_STATUS(check_length(part, served));
  begin_answer();
  side_by_side_ = true;
  for (std::size_t i = 0; i < parts_.size(); ++i)
    gate_.start(serve_part(i));
  record_.placement += fmt::format("; {} prompts, each placed on its own", parts_.size());
  Status status = co_await gather();
  for (Part& part : parts_) {
    part.run.abandon({ErrorCode::kCancelled, "the request is over", {}, {}});
    part.taken.close();
  }
  co_await gate_.drained();
  co_return status;
}

// From the queue to the last output of one prompt. Ends when nobody takes what it has, too.
Task<void> Generation::serve_part(std::size_t index) {
  Part& part = parts_[index];
  const Instant deadline = received_at_ + context_.limits.request_time_max;
  part.status = co_await place_and_submit(part);
  while (part.status && part.open_choices > 0) {
    auto output = co_await part.run.next(deadline);
    if (!output) {
      part.status = std::unexpected(std::move(output).error());
    } else if (*output) {
      part.output = std::move(**output);
      ready_.push(index);
      if (!co_await part.taken.pop(deadline)) break;
    }
  }
  part.run.stop();
  if (!part.status) ready_.push(index);
}

Task<Status> Generation::gather() {
  while (open_choices_ > 0) {
    const Instant wake_at = context_.clock.now() + context_.limits.keep_alive_interval;
    const std::optional<std::size_t> index = co_await ready_.pop(wake_at);
    if (stopped_) co_return std::unexpected(*stopped_);
    if (!index) {
      CO_TRY_STATUS(co_await keep_alive());
      continue;
    }
    Part& part = parts_[*index];
    if (!part.status) co_return part.status;
    const std::optional<EngineOutput> output = std::exchange(part.output, std::nullopt);
    CO_TRY_STATUS(co_await consume(part, *output));
    part.taken.push(true);
  }
  co_return Status{};
}

Task<Status> Generation::consume(Part& part, const EngineOutput& output) {
  const std::uint32_t index = part.first_choice + output.choice;
  if (output.choice >= request_.sampling.choices || choices_[index].finished()) co_return Status{};
  if (!record_.time_to_first_token && !output.tokens.empty()) {
    record_.time_to_first_token = context_.clock.now() - received_at_;
  }
  if (output.cached_tokens > part.cached_tokens) {
    record_.usage.cached_tokens += output.cached_tokens - part.cached_tokens;
    part.cached_tokens = output.cached_tokens;
  }
  if (!std::exchange(answer_begun_, true)) writer_->start(record_.usage, events_);
  Choice& choice = choices_[index];
  choice.consume(output,
                 [this](const protocol::ChatDelta& delta) { writer_->add(delta, events_); });
  if (choice.finished()) {
    const protocol::ChoiceEnd end = choice.end(context_is_cap_);
    writer_->finish(index, end, events_);
    if (index == 0) record_.outcome = outcome_name(end);
    --open_choices_;
    --part.open_choices;
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
  record_.moves = 0;
  for (const Part& part : parts_)
    record_.moves += part.run.moves();
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
