// Encode legs: a chat's media on encode engines, before its prompt is computed
// (core/dialects/ec_legs.h).
#include <fmt/format.h>
#include <algorithm>
#include <utility>

#include "core/dialects/ec_legs.h"
#include "service/foreign/relay.h"
#include "service/gateway/answers.h"

namespace penstock::foreign {

using dialects::Ending;
using enum ErrorCode;

namespace {

constexpr std::size_t kEnginesTried = 2;

}  // namespace

// The media of one request under way.
struct Relay::Encoding {
  const Engine& computes;  // the prompt
  std::vector<UpstreamCall*> calls;
  std::vector<std::string> replies;  // by item
  std::optional<Error> failed;

  // What is awaited ends inside, and the relay may go with the last one.
  static void cancel(const std::shared_ptr<Encoding>& self) {
    for (UpstreamCall* const call : std::vector(self->calls)) {
      if (std::ranges::find(self->calls, call) != self->calls.end()) call->cancel();
    }
  }
};

void Relay::cancel_encoding() {
  if (const auto run = encoding_) Encoding::cancel(run);
}

// The encode engines' replies become an edit of the body that computes the prompt. All items at
// once: each goes to the engine that has seen it before, if it has room.
Task<Status> Relay::encode_media(const Engine& computes) {
  encoded_.clear();
  if (api_ != dialects::WireApi::kChat || !context_.engines.has_encoders(computes, model_))
    co_return Status();
  const auto items = dialects::media_items(*body_);
  if (items.empty()) co_return Status();
  const auto run = std::make_shared<Encoding>(Encoding{computes, {}, {}, {}});
  run->replies.resize(items.size());
  encoding_ = run;
  Gate gate;
  for (std::size_t i = 0; i < items.size(); ++i)
    gate.start(encode_item(run, i, items[i]));
  co_await gate.drained();
  encoding_.reset();
  if (run->failed) co_return std::unexpected(*run->failed);
  if (over()) co_return fail(kCancelled, "nobody waits for it any more");
  std::string merged;
  for (const std::string& reply : run->replies) {
    if (!dialects::merge_encoded(reply, merged))
      co_return fail(kUnavailable, "an encode engine's reply is no chat completion");
  }
  if (auto edit = dialects::encoded_edit(merged)) encoded_.push_back(std::move(*edit));
  co_return Status();
}

Task<void> Relay::encode_item(std::shared_ptr<Encoding> run, std::size_t index,
                              std::string_view item) {
  std::vector<WorkerId> tried;
  Error error{kUnavailable,
              fmt::format("no encode engine of the model {} can take the request now", model_),
              {},
              {}};
  while (!run->failed && !over()) {
    const Place place =
        context_.engines.pick({model_, api_, item, tried, nullptr, nullptr, &run->computes});
    if (!place || tried.size() >= kEnginesTried || (!tried.empty() && !context_.retries.take())) {
      run->failed = error;
      break;
    }
    tried.push_back(place.engine->config.id);
    const auto answer = co_await encode_on(*run, place, index, item);
    if (answer) {
      run->replies[index] = *answer;
      co_return;
    }
    if (run->failed || over()) co_return;
    error = answer.error();
    // What the client got wrong is wrong everywhere.
    if (error.code == kInvalidArgument) run->failed = error;
  }
  if (run->failed) Encoding::cancel(run);
}

Task<Result<std::string>> Relay::encode_on(Encoding& run, const Place& place, std::size_t index,
                                           std::string_view item) {
  Engine& engine = *place.engine;
  CO_TRY(dialects::EditedBody body, edited_body(engine, dialects::encode_edits(*body_, item)));
  auto headers = engine_headers(place);
  for (HttpHeader& header : headers) {
    if (header.name == "x-request-id")
      header.value += fmt::format(":{}:{}", index, gateway::random_name(context_.rng));
  }
  Permit permit(context_.clock, place);
  const auto call = engine.upstream->call({"POST",
                                           std::string(dialects::path_of(api_)),
                                           std::move(headers),
                                           {},
                                           std::move(body.pieces)});
  run.calls.push_back(call.get());
  const Instant until = std::min(deadline(), context_.clock.now() + context_.legs.prefill_max);
  const auto head = co_await call->head(until);
  Result<std::string> reply = std::string();
  if (head && head->status == 200)
    reply = co_await read_whole(*call, context_.limits.answer_bytes_max, until);
  std::erase(run.calls, call.get());
  if (head && head->status != 200) {
    const Ending ending = dialects::ending_of_status(head->status);
    permit.ended(ending);
    co_return fail(ending == Ending::kNeutral ? kInvalidArgument : kUnavailable,
                   fmt::format("encode engine {} refused ({})", engine.config.name, head->status));
  }
  const Error* const bad = !head ? &head.error() : !reply ? &reply.error() : nullptr;
  if (bad == nullptr) {
    permit.ended(Ending::kGood);
    co_return reply;
  }
  if (bad->code != kCancelled) permit.ended(Ending::kBad);
  co_return fail(kUnavailable,
                 fmt::format("encode engine {}: {}", engine.config.name, bad->message));
}

}  // namespace penstock::foreign
