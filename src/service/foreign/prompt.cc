// What a request's prompt is known by where caches are looked up, and what came of a prediction.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/hash.h"
#include "core/dialects/ec_legs.h"
#include "service/foreign/relay.h"

namespace penstock::foreign {

using namespace std::string_view_literals;
using dialects::Edit;

namespace {

// What comes before a prompt's text in a template, or goes with it: another value is another
// prefix from near its start.
constexpr std::array kBefore = {"tools"sv, "system"sv, "instructions"sv, "cache_salt"sv};

std::uint64_t text_context(const dialects::JsonBody& body, std::string_view model) {
  std::uint64_t context = checksum64(model);
  for (const std::string_view key : kBefore)
    context = context * 31 + checksum64(body.value(key).value_or(""));
  return context;
}

}  // namespace

Task<void> Relay::name_prompt() {
  PrefixSource* const prefixes = context_.engines.prefixes();
  if (prefixes == nullptr || !generates() || !context_.engines.has_choice(model_)) co_return;
  const std::string_view text = prompt_text();
  if (text.empty()) co_return;
  PromptName& name = prompt_.emplace();
  name.text = text_keys(prefixes->chain(), text_context(*body_, model_), text);
  name.text_tokens = static_cast<std::uint32_t>(text.size() / kBytesPerToken);
  co_await name_ids(*prefixes);
}

// Token ids where an engine tells what it holds by them: the client's own, or an engine's account.
Task<void> Relay::name_ids(PrefixSource& prefixes) {
  const auto engines = context_.engines.engines();
  const auto one = std::ranges::find_if(engines, [&](const auto& engine) {
    return engine->serves(model_) && prefixes.has_events(engine->config.id);
  });
  if (one == engines.end()) co_return;
  const auto model = std::ranges::find((*one)->models, model_, &dialects::EngineModel::id);
  const std::string adapter = model->is_adapter ? model_ : "";
  std::optional<dialects::RenderedPrompt> prompt;
  if (const auto value = body_->value("prompt"); value && api_ == dialects::WireApi::kCompletion) {
    if (auto ids = dialects::parse_token_ids(*value)) prompt = {std::move(*ids), {}};
  }
  // Its body is what a render route answers.
  if (api_ == dialects::WireApi::kGenerate)
    prompt = dialects::parse_rendered(exchange_.request().body);
  if (!prompt) {
    const Edit edit{"model", dialects::quoted(model_)};
    std::string body =
        record_.alias.empty() ? exchange_.request().body : body_->edited(std::span(&edit, 1));
    const auto tools = body_->value("tools");
    traits_ = {tools && *tools != "null" && *tools != "[]",
               body_->has("cache_salt") || !dialects::media_items(*body_).empty()};
    auto rendered = co_await context_.engines.render(model_, api_, std::move(body), traits_);
    if (!rendered) co_return;
    rendered_by_ = std::move(rendered->engine);
    prompt = std::move(rendered->prompt);
  }
  if (!prompt) co_return;
  std::vector<EngineKvMedia> media;
  for (const auto& each : prompt->media)
    media.push_back({each.token, kv_media(each.hash)});
  const std::string salt = body_->string("cache_salt").value_or("");
  prefixes.chain().extend(prefixes.chain().root(kv_context(adapter, salt)), prompt->tokens, media,
                          prompt_->ids);
  prompt_->id_count = static_cast<std::uint32_t>(prompt->tokens.size());
}

Place Relay::pick(const Wanted& wanted) {
  gateway::LegExplanation leg;
  const bool told = context_.keep_explanation != nullptr;
  Place place = context_.engines.pick(wanted, told ? &leg : nullptr);
  if (!told || !place) return place;
  const bool decides = place.engine->config.role == EngineRole::kDecode;
  (decides ? explanation_.decode : explanation_.prefill) = std::move(leg);
  if (!decides && prompt_ && place.predicted > 0)
    explanation_.cached_tokens = static_cast<std::uint32_t>(
        prompt_->tokens() - std::min<std::uint64_t>(prompt_->tokens(), place.to_compute));
  return place;
}

void Relay::placed(const Place& place) {
  computes_ = {};
  if (!prompt_ || !place.rank) return;
  computes_ = place;
  context_.engines.prefixes()->sent(place.id(), *prompt_);
}

void Relay::observe(const Place& place, std::uint64_t cached, std::uint64_t prompt) {
  if (!prompt_ || !place.rank || prompt == 0) return;
  context_.engines.prefixes()->observed(place.id(), *prompt_, {place.predicted, cached, prompt});
  computes_ = {};
}

void Relay::explain() {
  if (!context_.keep_explanation) return;
  explanation_.request_id = record_.request_id;
  explanation_.model = model_;
  explanation_.placement = record_.moves;
  explanation_.tokens = prompt_ ? prompt_->tokens() : 0;
  explanation_.queued = record_.queue.value_or(Duration::zero());
  explanation_.summary = record_.placement;
  context_.keep_explanation(std::exchange(explanation_, {}));
}

}  // namespace penstock::foreign
