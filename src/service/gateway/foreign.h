// ForeignEngines: engines of others behind this gateway, as the routes see them.
//
// A gateway that has them gives every inference request to them: routes, keys, limits, draining and
// the request's record stay the gateway's (service/gateway/gateway.h), the rest is theirs
// (service/foreign).
//
// Concurrency: shard thread only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/task.h"
#include "core/dialects/wire_api.h"
#include "core/protocol/models.h"
#include "domain/request_record.h"
#include "port/http.h"

namespace penstock::gateway {

class ForeignEngines {
 public:
  virtual ~ForeignEngines() = default;
  // Answers the exchange and fills in the record.
  virtual Task<void> relay(HttpExchange& exchange, RequestRecord& record,
                           dialects::WireApi api) = 0;
  // Every name that is served now, aliases too, in order.
  virtual std::vector<protocol::ModelCard> models() const = 0;
  // Some engine can take requests.
  virtual bool ready() const = 0;
  // For operators, in JSON: all engines; and what was asked of one ("drain", ...).
  virtual std::string engines_json() const = 0;
  virtual Task<Result<std::string>> operate(std::string_view engine, std::string action) = 0;
  // Ends every running answer with this error.
  virtual void stop_running(const Error& why) = 0;
};

}  // namespace penstock::gateway
