// ServerMetrics: one shard's HTTP server counters as metrics.
//
// The server counts for itself, since its start; the metrics belong to the process. publish() adds
// what is new since the last call, so that shards add up and a call may be skipped.
//
// Concurrency: one per shard; the metrics behind it are shared.
#pragma once

#include "io/http/server.h"
#include "io/telemetry/metrics.h"

namespace penstock {

class ServerMetrics {
 public:
  explicit ServerMetrics(Metrics& metrics) : metrics_(metrics) {}

  void publish(const http::ServerCounters& now);

 private:
  Metrics& metrics_;
  http::ServerCounters published_;
};

}  // namespace penstock
