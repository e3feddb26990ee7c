// ForeignGateway: the engines of others behind one shard's gateway.
//
// Joins the set of engines with the relays of requests, and gives models their aliases.
//
// Invariants: no relay outlives its exchange. Errors: as relay.h. Concurrency: shard thread only.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "service/foreign/relay.h"
#include "service/gateway/foreign.h"

namespace penstock::foreign {

class ForeignGateway final : public gateway::ForeignEngines {
 public:
  // `aliases`: what clients may say -> the engines' name of the model.
  ForeignGateway(Clock& clock, EngineSet& engines, RelayLimits limits,
                 std::map<std::string, std::string, std::less<>> aliases, Rng rng,
                 std::function<double()> unix_seconds);

  // Hands every placement and its reasons to this.
  void explain_with(std::function<void(gateway::PlacementExplanation)> keep) {
    context_.keep_explanation = std::move(keep);
  }

  Task<void> relay(HttpExchange& exchange, RequestRecord& record, dialects::WireApi api) override;
  std::vector<protocol::ModelCard> models() const override;
  bool ready() const override { return engines_.ready(); }
  std::string engines_json() const override { return engines_.as_json(); }
  Task<Result<std::string>> operate(std::string_view engine, std::string action) override {
    return engines_.operate(engine, std::move(action));
  }
  void stop_running(const Error& why) override;

 private:
  EngineSet& engines_;
  std::map<std::string, std::string, std::less<>> aliases_;
  RelayContext context_;
  std::vector<Relay*> running_;
};

}  // namespace penstock::foreign
