// P/D: one request as two legs on two engines (core/dialects/pd_run.h says what happens when).
#include <fmt/format.h>
#include <algorithm>
#include <chrono>
#include <utility>

#include "core/dialects/json_values.h"
#include "core/dialects/pd_legs.h"
#include "service/foreign/relay.h"

namespace penstock::foreign {

using dialects::Edit;
using dialects::Ending;
using dialects::PdAction;
using dialects::PdRun;
using enum ErrorCode;

namespace {

bool has(const PdRun::Actions& actions, PdAction action) {
  return std::ranges::find(actions, action) != actions.end();
}

}  // namespace

Place Relay::pick_prefill(const Place& decode, std::span<const WorkerId> tried) {
  return pick(
      {model_, api_, prompt_head(), tried, decode.engine.get(), prompt_ ? &*prompt_ : nullptr});
}

void Relay::begin_legs(const Place& prefill, const Place& decode) {
  if (!record_.queue) record_.queue = context_.clock.now() - exchange_.request().received_at;
  record_.placement = fmt::format("{} -> {} ({})", prefill.engine->config.name,
                                  decode.engine->config.name, decode.engine->dialect().name);
  explain();
}

// Sends the leg and reads its whole reply.
Task<Result<std::string>> Relay::prefill_leg(const Place& place, dialects::EditedBody body) {
  Engine& engine = *place.engine;
  Permit permit(context_.clock, place);
  placed(place);
  const auto call = engine.upstream->call({"POST",
                                           std::string(dialects::path_of(api_)),
                                           engine_headers(place),
                                           {},
                                           std::move(body.pieces)});
  prefill_call_ = call.get();
  struct Under {
    UpstreamCall*& call;
    ~Under() { call = nullptr; }
  } under{prefill_call_};
  const Instant until = std::min(deadline(), context_.clock.now() + context_.legs.prefill_max);
  const auto head = co_await call->head(until);
  Result<std::string> reply = std::string();
  if (!head) {
    reply = std::unexpected(head.error());
  } else if (head->status == 200) {
    reply = co_await read_whole(*call, context_.limits.answer_bytes_max, until);
  } else {
    permit.ended(dialects::ending_of_status(head->status));
    co_return fail(head->status >= 400 && head->status < 500 && head->status != 429
                       ? kInvalidArgument
                       : kUnavailable,
                   fmt::format("prefill engine {} refused ({})", engine.config.name, head->status));
  }
  if (reply) {
    permit.ended(Ending::kGood);
  } else if (reply.error().code != kCancelled) {
    permit.ended(Ending::kBad);
    reply = fail(kUnavailable,
                 fmt::format("prefill engine {}: {}", engine.config.name, reply.error().message));
  }
  co_return reply;
}

Task<Relay::Try> Relay::decode_leg(const Place& place, std::span<const Edit> edits,
                                   Instant send_by) {
  Engine& decode = *place.engine;
  auto body = edited_body(decode, edits);
  if (!body) {
    error_ = std::move(body).error();
    co_return Try::kFailed;
  }
  Permit permit(context_.clock, place);
  heard_out_ = too_late_ = false;
  const Try outcome = co_await talk(place, permit, std::move(*body), send_by);
  if (!heard_out_ && names_requests(decode)) context_.engines.abort(place.engine, rid_);
  co_return outcome;
}

// vLLM with NIXL: the reply of the prefill names the blocks that decode fetches.
Task<Relay::Try> Relay::attempt_serial(const Place& decode) {
  PdRun run(dialects::PdProtocol::kSerial, context_.legs);
  std::vector<WorkerId> tried;
  dialects::PrefillReply reply;
  Place prefill;
  PdRun::Actions actions = run.begin(context_.clock.now());
  while (!actions.empty() && actions.front() == PdAction::kSendPrefill) {
    prefill = pick_prefill(decode, tried);
    if (!prefill) {
      if (tried.empty())
        error_ = {kUnavailable,
                  fmt::format("no prefill engine of the model {} can take the request now", model_),
                  {},
                  {}};
      actions = run.prefill_failed(context_.clock.now(), false);
      break;
    }
    tried.push_back(prefill.engine->config.id);
    begin_legs(prefill, decode);
    auto edits = dialects::nixl_prefill_edits(*body_, api_);
    edits.insert(edits.end(), encoded_.begin(), encoded_.end());
    auto body = edited_body(*prefill.engine, edits);
    if (!body) {
      error_ = std::move(body).error();
      co_return Try::kFailed;
    }
    const auto answer = co_await prefill_leg(prefill, std::move(*body));
    if (!answer) {
      if (over()) co_return gone_ ? Try::kAnswered : Try::kFailed;
      error_ = answer.error();
      // What the client got wrong is wrong everywhere.
      const bool again = error_.code != kInvalidArgument && context_.retries.take();
      actions = run.prefill_failed(context_.clock.now(), again);
      if (error_.code == kInvalidArgument) co_return co_await decode_leg(decode, encoded_);
      continue;
    }
    reply = dialects::read_prefill_reply(*answer);
    if (!reply.params) context_.engines.tell_no_blocks(*prefill.engine);
    cached_ = reply.cached_tokens;
    if (reply.cached_told) observe(prefill, reply.cached_tokens, reply.prompt_tokens);
    computes_ = {};  // what decode calls cached came from here
    std::optional<Duration> left;
    if (reply.expires_at && context_.unix_seconds)
      left = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
          std::clamp(*reply.expires_at - context_.unix_seconds(), 0.0, 86400.0)));
    actions = run.prefill_done(context_.clock.now(), reply.params.has_value(), left);
  }
  if (actions.front() == PdAction::kSendDecode) {
    const Edit edit = dialects::nixl_decode_edit(*reply.params);
    const Instant send_by = run.params_usable_until();
    Try outcome = gone_ ? Try::kAnswered : Try::kFailed;
    taken_ = false;
    if (!over()) outcome = co_await decode_leg(decode, std::span(&edit, 1), send_by);
    const Instant now = context_.clock.now();
    if (!too_late_ || over()) {
      if (taken_) run.decode_took(now);
      actions = over()                 ? run.client_gone(now)
                : heard_out_ && taken_ ? run.decode_done(now)
                                       : run.decode_failed(now);
      if (has(actions, PdAction::kRelease))
        release_blocks(prefill, decode, std::span(&edit, 1), send_by);
      co_return outcome;
    }
    // Reaching the engine took longer than the blocks are held.
    actions = run.params_expired(now);
  }
  if (over()) co_return gone_ ? Try::kAnswered : Try::kFailed;
  if (!actions.empty() && actions.front() == PdAction::kSendDecodePlain) {
    cached_.reset();
    co_return co_await decode_leg(decode, encoded_);
  }
  co_return Try::kFailed;
}

void Relay::release_blocks(const Place& prefill, const Place& decode, std::span<const Edit> edits,
                           Instant send_by) {
  Place by = decode;
  if (!over()) {
    std::vector<WorkerId> others = tried_;
    others.push_back(decode.engine->config.id);
    by = context_.engines.pick({model_, api_, prompt_head(), others});
    if (!by || by.engine->config.role != EngineRole::kDecode ||
        !prefill.engine->pairs_with(*by.engine))
      return;  // the lease ends it
  }
  auto all = dialects::one_token_edits(*body_, api_);
  all.insert(all.end(), edits.begin(), edits.end());
  auto body = edited_body(*by.engine, all);
  if (!body) return;
  context_.engines.send_aside(by, {"POST",
                                   std::string(dialects::path_of(api_)),
                                   engine_headers(by),
                                   body->text(),
                                   {},
                                   send_by});
}

// A batched completion has several prompts; a prompt of token ids is one.
std::size_t Relay::prompts() const {
  const auto value = api_ == dialects::WireApi::kCompletion ? body_->value("prompt") : std::nullopt;
  const auto list = value ? dialects::elements(*value) : std::nullopt;
  const bool several = list && !list->empty() && std::string_view("\"[").contains(list->front()[0]);
  return several ? list->size() : 1;
}

// What the two legs of a request are told of each other.
Task<Result<Relay::Pairing>> Relay::pair_legs(const Place& prefill, const Place& decode) {
  const EngineConfig& at = prefill.engine->config;
  if (!decode.engine->config.mooncake) {
    const std::uint32_t ranks = prefill.engine->ranks;
    const dialects::Bootstrap bootstrap{
        at.bootstrap_host, at.bootstrap_port,
        dialects::bootstrap_room(context_.rng.next_u64(), ranks,
                                 prefill.rank.value_or(context_.rng.next_u64() % ranks))};
    auto edits = dialects::bootstrap_edits(bootstrap, prompts(), ranks);
    co_return Pairing{edits, edits};
  }
  CO_TRY(const std::string id,
         co_await context_.engines.mooncake_engine(prefill.engine, prefill.rank.value_or(0)));
  const std::string transfer =
      fmt::format("xfer-{:016x}{:016x}", context_.rng.next_u64(), context_.rng.next_u64());
  auto edits = dialects::mooncake_prefill_edits(*body_, api_, transfer);
  edits.insert(edits.end(), encoded_.begin(), encoded_.end());
  co_return Pairing{std::move(edits),
                    {dialects::mooncake_decode_edit({transfer, at.bootstrap_url(), id})}};
}

// SGLang, and vLLM with Mooncake: both legs at once; the client gets the decode engine's answer.
Task<Relay::Try> Relay::attempt_concurrent(const Place& decode) {
  std::vector<WorkerId> tried;
  while (true) {
    const Place prefill = pick_prefill(decode, tried);
    if (!prefill) {
      if (!tried.empty()) co_return Try::kAgain;
      error_ = {kUnavailable,
                fmt::format("no prefill engine of the model {} can take the request now", model_),
                {},
                {}};
      co_return Try::kFailed;
    }
    tried.push_back(prefill.engine->config.id);
    begin_legs(prefill, decode);
    const Try outcome = co_await both_legs(prefill, decode);
    if (outcome != Try::kAnswered) EngineSet::forget_mooncake(*prefill.engine);
    if (outcome != Try::kAgain || !cut_error_ || over()) co_return outcome;
    // What the client got wrong is wrong everywhere.
    if (cut_error_->code == kInvalidArgument) co_return Try::kFailed;
    // It was the decode engine that was slow: another one may do it.
    if (cut_error_->code == kDeadlineExceeded) co_return Try::kAgain;
    // The decode engine is not to blame: once more with another prefill engine.
    if (tried.size() >= context_.legs.prefill_tries || !context_.retries.take())
      co_return Try::kAgain;
    ++record_.moves;
  }
}

Task<Relay::Try> Relay::both_legs(const Place& prefill, const Place& decode) {
  cut_error_.reset();
  const auto pairing = co_await pair_legs(prefill, decode);
  if (over()) co_return gone_ ? Try::kAnswered : Try::kFailed;
  auto body = pairing ? edited_body(*prefill.engine, pairing->prefill)
                      : Result<dialects::EditedBody>(std::unexpected(pairing.error()));
  if (!body) {
    error_ = body.error();
    if (pairing) co_return Try::kFailed;
    cut_error_ = error_;  // it is the prefill engine that can't
    co_return Try::kAgain;
  }
  const std::string prefill_rid = rid_;
  PdRun run(dialects::PdProtocol::kConcurrent, context_.legs);
  run.begin(context_.clock.now());
  heard_out_ = taken_ = false;
  const auto cut = [this](Error why) {
    cut_error_ = std::move(why);
    if (call_ != nullptr) call_->cancel();
  };
  // A stream shows its first token, which comes soon once the prompt is computed.
  Clock::TimerId timer = 0;
  const auto other_leg = [&](Place place, dialects::EditedBody leg) -> Task<void> {
    const auto answer = co_await prefill_leg(place, std::move(leg));
    const Instant now = context_.clock.now();
    if (!answer) {
      if (names_requests(*place.engine)) context_.engines.abort(place.engine, prefill_rid);
      if (has(run.prefill_failed(now, false), PdAction::kCancelDecode)) cut(answer.error());
      co_return;
    }
    // SGLang's prefill answers when its blocks were fetched, Mooncake's when they wait for that.
    run.prefill_done(now, place.engine->config.mooncake, std::nullopt);
    if (!record_.stream || streaming_ || run.over()) co_return;
    timer = context_.clock.call_at(run.next_deadline(), [&] {
      timer = 0;
      if (!streaming_)
        cut({kDeadlineExceeded,
             fmt::format("engine {} did not begin its answer in time", decode.engine->config.name),
             {},
             {}});
    });
  };
  Gate gate;
  gate.start(other_leg(prefill, std::move(*body)));
  computes_ = {};  // what decode calls cached says nothing of the prefill's cache
  Try outcome = Try::kAgain;
  if (cut_error_) {
    error_ = *cut_error_;
  } else {
    outcome = co_await decode_leg(decode, pairing->decode);
  }
  if (timer != 0) context_.clock.cancel(std::exchange(timer, 0));
  // Whatever ended the answer ends the other leg.
  const Instant now = context_.clock.now();
  if (taken_) run.decode_took(now);
  const auto actions = heard_out_ && taken_ ? run.decode_done(now) : run.decode_failed(now);
  if (has(actions, PdAction::kCancelPrefill) && prefill_call_ != nullptr) prefill_call_->cancel();
  if (has(actions, PdAction::kRelease) && pairing)
    release_blocks(prefill, decode, pairing->decode, Instant::max());
  co_await gate.drained();
  co_return outcome;
}

}  // namespace penstock::foreign
