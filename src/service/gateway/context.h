// GatewayContext: what every request of one shard uses: ports, models, limits. Plain references.
// Concurrency: one per shard; `catalog` is shared and immutable.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/rng.h"
#include "core/grammar/checked_constraints.h"
#include "core/protocol/chat_request.h"
#include "core/protocol/seal.h"
#include "port/clock.h"
#include "port/engine_client.h"
#include "port/kv_index.h"
#include "port/observer.h"
#include "port/response_store.h"
#include "service/gateway/admission.h"
#include "service/gateway/cache_policy.h"
#include "service/gateway/engine_costs.h"
#include "service/gateway/model_catalog.h"
#include "service/gateway/placement.h"
#include "service/gateway/prompt_encoder.h"
#include "service/gateway/rank_ledger.h"

namespace penstock::gateway {

struct GatewayLimits {
  std::uint32_t in_flight_max = 1024;  // requests accepted and not answered
  Duration request_time_max = std::chrono::minutes(10);
  Duration keep_alive_interval = std::chrono::seconds(10);
  Duration worker_wait_max = std::chrono::seconds(10);  // for a worker to (re)connect
  Duration worker_wait_step = std::chrono::milliseconds(20);
  std::uint32_t moves_max = 3;              // placements after the first, per request
  std::uint32_t default_max_tokens = 8192;  // when the client gives none
  std::uint32_t default_max_tokens_thinking = 65536;
  PlacementLimits placement;
  AdmissionLimits admission;
  protocol::ChatLimits chat;
};

// Whose requests go first, and who gets how much of the engines when they are short.
struct TenantShare {
  int priority = 0;
  double weight = 1;
};

struct GatewayContext {
  Clock& clock;
  EngineClient& engines;
  PromptEncoder& encoder;
  RequestObserver& observer;
  const ModelCatalog& catalog;
  GatewayLimits limits;
  Rng rng;  // request ids and seeds; seeded from the system at start
  std::function<std::int64_t()> unix_seconds;
  // The name of an API key, or nothing when it is wrong. Empty function: no keys are needed.
  std::function<std::optional<std::string>(std::string_view)> authenticate;
  std::function<std::string()> metrics_text;
  CachePolicy cache = {};
  KvIndex* kv_index = nullptr;  // null: nothing is known of KV held elsewhere
  RankLedger ledger = {};       // what this shard has under way
  // Draws what nobody can guess: whoever knows a handoff's id may read its KV. Empty: from `rng`,
  // for tests.
  std::function<HandoffId()> new_handoff_id = {};
  EngineCosts costs = {};
  grammar::CheckedConstraints checked = {};  // formats and tools that were asked for before
  Placer placer = {};
  Admission admission{clock, limits.admission};                  // the context stays where it is
  std::map<std::string, TenantShare, std::less<>> tenants = {};  // by the name of an API key
  // Keeps why a request was placed; empty: nobody asks.
  std::function<void(PlacementExplanation)> keep_explanation = {};
  // What was kept of a request, as JSON; nothing for an unknown id.
  std::function<std::optional<std::string>(std::string_view)> explain = {};
  // Answers that are kept, and the pool of one thread on which the store is called; null: none is.
  ResponseStore* responses = nullptr;
  ComputePool* response_pool = nullptr;
  // Seals what the clients of one API key carry for us. Empty: nothing is sealed.
  std::function<protocol::Seal(std::string_view owner)> seal_for = {};
  // Whether it is the token of this process's operator. Empty: there is no /admin.
  std::function<bool(std::string_view)> is_operator = {};

  PlacementState placement_state() {
    return {engines.workers(), ledger, costs, limits.placement, clock.now(), rng};
  }
};

}  // namespace penstock::gateway
