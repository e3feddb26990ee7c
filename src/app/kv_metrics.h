// The KV daemon's numbers as gauges of the gateway. Concurrency: any thread; Metrics is
// thread-safe.
#pragma once

#include "io/kv/kv_index_feed.h"
#include "io/telemetry/metrics.h"

namespace penstock {

void publish_kv_metrics(const kv::KvIndexFeed& feed, Metrics& metrics);

}  // namespace penstock
