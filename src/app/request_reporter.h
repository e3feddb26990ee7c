// RequestReporter: the gateway's observer: every finished request becomes a log line and metrics.
// Concurrency: one per shard; the metrics and the log behind it are shared.
#pragma once

#include <map>
#include <string>

#include "io/telemetry/access_log.h"
#include "io/telemetry/metrics.h"
#include "port/observer.h"

namespace penstock {

class RequestReporter final : public RequestObserver {
 public:
  RequestReporter(Metrics& metrics, AccessLog& log) : metrics_(metrics), log_(log) {
    in_flight_ = metrics_.gauge(Metric::kGatewayRequestsInFlight);
  }

  void request_started() override { in_flight_.add(1); }
  void request_finished(const RequestRecord& record) override;

 private:
  Metrics& metrics_;
  AccessLog& log_;
  Gauge in_flight_;
};

}  // namespace penstock
