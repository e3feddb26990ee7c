#include "service/foreign/foreign_gateway.h"

#include <algorithm>
#include <utility>

namespace penstock::foreign {

ForeignGateway::ForeignGateway(Clock& clock, EngineSet& engines, RelayLimits limits,
                               std::map<std::string, std::string, std::less<>> aliases, Rng rng,
                               std::function<double()> unix_seconds)
    : engines_(engines),
      aliases_(std::move(aliases)),
      context_{clock, engines, limits, {}, rng, std::move(unix_seconds)} {
  context_.real_name = [this](std::string_view name) {
    const auto alias = aliases_.find(name);
    return std::string(alias == aliases_.end() ? name : std::string_view(alias->second));
  };
}

Task<void> ForeignGateway::relay(HttpExchange& exchange, RequestRecord& record,
                                 dialects::WireApi api) {
  Relay relay(context_, exchange, record, api);
  running_.push_back(&relay);
  co_await relay.run();
  std::erase(running_, &relay);
  // The callback refers to the relay, which ends here.
  exchange.on_disconnect([] {});
}

std::vector<protocol::ModelCard> ForeignGateway::models() const {
  std::map<std::string, protocol::ModelCard> cards;
  for (const dialects::EngineModel& model : engines_.models())
    cards[model.id] = {.id = model.id, .context_length = model.context_length};
  for (const auto& [alias, name] : aliases_) {
    const auto real = cards.find(name);
    if (real == cards.end()) continue;
    protocol::ModelCard card = real->second;
    card.id = alias;
    cards.emplace(alias, std::move(card));
  }
  std::vector<protocol::ModelCard> out;
  for (auto& [name, card] : cards)
    out.push_back(std::move(card));
  return out;
}

void ForeignGateway::stop_running(const Error& why) {
  // Stopping one may end it at once, so the list is walked as a copy.
  for (Relay* relay : std::vector(running_)) {
    if (std::ranges::find(running_, relay) != running_.end()) relay->stop(why);
  }
}

}  // namespace penstock::foreign
