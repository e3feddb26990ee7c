// Metrics: a closed table of counters, gauges and histograms, and the Prometheus text of /metrics.
//
// Each metric is a row of metric_table(): name, kind, unit, labels and description; docs/metrics.md
// is generated from it. A caller asks once for a handle with the label values and keeps it: add(),
// set() and observe() on a handle are lock-free; asking for a handle takes a lock and a lookup
// (about 0.3 us).
//
// Invariants: names are penstock_area_noun_unit, or the OpenTelemetry gen_ai names in Prometheus
// form. A metric has at most `series_max` label combinations; later ones share the series whose
// labels are all "other" and count in penstock_metrics_series_dropped_total. No label carries a
// user, key, session or request id. Units: seconds and bytes, as Prometheus wants them. Errors: a
// wrong number of labels or a handle of another kind is a bug (ENSURE). Concurrency: everything is
// callable from any thread; handles live as long as their Metrics. Source: facts on gen_ai
// conventions; Prometheus exposition format 0.0.4.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace penstock {

enum class MetricKind : std::uint8_t { kCounter, kGauge, kHistogram };

enum class Metric : std::uint8_t {
  kBuildInfo,
  kGenAiRequestDuration,
  kGenAiTimeToFirstToken,
  kGenAiTimePerOutputToken,
  kGenAiTokenUsage,
  kGatewayRequests,
  kGatewayTokens,
  kGatewayRequestsInFlight,
  kGatewayConnectionsOpen,
  kGatewayConnectionsEnded,
  kGatewayBodyMemory,
  kGatewayOverhead,
  kGatewayQueueWait,
  kGatewayAuthFailures,
  kGatewayLimitRejections,
  kGatewayStreamAborts,
  kGatewayUpstreamErrors,
  kGatewayRetries,
  kGatewayDraining,
  kWorkerConnected,
  kWorkerRequestsRunning,
  kWorkerRequestsWaiting,
  kWorkerKvTokensUsed,
  kWorkerKvTokensCapacity,
  kWorkerSteps,
  kWorkerCacheLoads,
  kWorkerCacheLoadsOverlapped,
  kWorkerCacheHitTokens,
  kWorkerCacheOffers,
  kWorkerCacheOffersDropped,
  kWorkerCacheScopesRefused,
  kWorkerExpertPicks,
  kWorkerExpertPacedPicks,
  kWorkerMoeLb,
  kWorkerExpertMapVersion,
  kExpertPlans,
  kExpertMapsPushed,
  kHandoffOpen,
  kHandoffBlocksHeld,
  kHandoffPullsRunning,
  kHandoffReleased,
  kHandoffExpired,
  kHandoffWithdrawn,
  kHandoffPullsDone,
  kHandoffPullsFailed,
  kHandoffBytesPulled,
  kHandoffSlicesCorrupt,
  kHandoffEdges,
  kGatewayPermits,
  kGatewayQueued,
  kGatewayRunning,
  kGatewayCostError,
  kGatewayCostBias,
  kGatewayCostObservations,
  kEngineIndexBlocks,
  kEngineIndexBytes,
  kEngineKvEventMessages,
  kEngineKvEventGaps,
  kEngineKvEventPurges,
  kEngineKvEventsSilent,
  kEngineHitTokens,
  kEngineHitTrust,
  kKvDaemonConnected,
  kKvIndexBlocks,
  kKvTierBlocks,
  kKvTierUsed,
  kKvTierCapacity,
  kKvTierIdle,
  kKvDiskClassBytes,
  kKvTierInService,
  kKvTierHitBlocks,
  kKvHitTokens,
  kKvPrefixEnded,
  kKvTierRemovedBlocks,
  kKvStoredBlocks,
  kKvStoresRefused,
  kKvLoadsEnded,
  kKvDiskBytes,
  kKvDiskErrors,
  kKvCorruptBlocks,
  kKvLoadsDecided,
  kKvLoadsSlower,
  kKvDiskSpeed,
  kKvClusterBytes,
  kKvClusterLookUps,
  kKvClusterWritesEnded,
  kKvClusterWritesWaiting,
  kKvClusterWritesLost,
  kKvClusterBreaker,
  kKvClusterSpeed,
  kKvQuarantined,
  kKvHitRateEstimate,
  kAccessLogLinesDropped,
  kMetricsSeriesDropped,
  kCount,
};

struct MetricInfo {
  Metric id;
  std::string_view name;
  MetricKind kind;
  std::string_view labels;  // names with commas between, in the order of the values; may be empty
  std::uint32_t series_max;
  std::string_view help;
  std::span<const double> buckets;  // upper bounds; histograms only
};

// All rows, in the order of the enum.
std::span<const MetricInfo> metric_table();
// docs/metrics.md.
std::string metrics_markdown();

class Counter {
 public:
  Counter() = default;  // counts nowhere
  void add(double amount = 1) const;

 private:
  friend class Metrics;
  explicit Counter(void* target) : target_(target) {}
  void* target_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  void set(double value) const;
  void add(double amount) const;  // may be negative

 private:
  friend class Metrics;
  explicit Gauge(void* target) : target_(target) {}
  void* target_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;
  void observe(double value) const;
  void observe(std::chrono::nanoseconds duration) const;

 private:
  friend class Metrics;
  explicit Histogram(void* target) : target_(target) {}
  void* target_ = nullptr;
};

class Metrics {
 public:
  using LabelValues = std::initializer_list<std::string_view>;

  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The handle of one series; the same labels give the same series.
  Counter counter(Metric metric, LabelValues labels = {});
  Gauge gauge(Metric metric, LabelValues labels = {});
  Histogram histogram(Metric metric, LabelValues labels = {});
  // Ends a series, for gauges of something that is gone; its handles must not be used any more.
  void remove(Metric metric, LabelValues labels);

  // The text of /metrics (version 0.0.4), with the process's own memory, CPU time and open files.
  std::string exposition() const;
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
