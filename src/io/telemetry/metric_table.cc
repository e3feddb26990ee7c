#include <fmt/format.h>

#include <array>

#include "io/telemetry/metrics.h"

namespace penstock {
namespace {

using enum MetricKind;

// Buckets of the OpenTelemetry gen_ai conventions, so that dashboards made for them fit.
constexpr std::array kRequestSeconds = {0.01, 0.02, 0.04, 0.08,  0.16,  0.32,  0.64,
                                        1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92};
constexpr std::array kFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                           0.25,  0.5,   0.75, 1.0,  2.5,  5.0,  7.5,  10.0};
constexpr std::array kPerTokenSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                         0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1.0,   2.5};
constexpr std::array kTokens = {1.0,       4.0,       16.0,       64.0,      256.0,
                                1024.0,    4096.0,    16384.0,    65536.0,   262144.0,
                                1048576.0, 4194304.0, 16777216.0, 67108864.0};
// Our own time in a request: tens of microseconds when all is well.
constexpr std::array kOverheadSeconds = {0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001,
                                         0.002,   0.005,   0.01,   0.05,   0.1,    1.0};

constexpr std::string_view kGenAi = "gen_ai_operation_name,gen_ai_request_model";

constexpr std::array kTable = {
    MetricInfo{Metric::kBuildInfo,
               "penstock_build_info",
               kGauge,
               "version,process",
               4,
               "Always 1; the labels say what runs.",
               {}},
    MetricInfo{
        Metric::kGenAiRequestDuration, "gen_ai_server_request_duration_seconds", kHistogram,
        "gen_ai_operation_name,gen_ai_request_model,error_type", 200,
        "Time from the request's head to the last byte of the answer. error_type is empty for "
        "a success, else the error code.",
        kRequestSeconds},
    MetricInfo{Metric::kGenAiTimeToFirstToken, "gen_ai_server_time_to_first_token_seconds",
               kHistogram, kGenAi, 100,
               "Time from the request's head to the first token from the engine.",
               kFirstTokenSeconds},
    MetricInfo{Metric::kGenAiTimePerOutputToken, "gen_ai_server_time_per_output_token_seconds",
               kHistogram, kGenAi, 100,
               "Time per token after the first: (end - first token) / (tokens - 1).",
               kPerTokenSeconds},
    MetricInfo{Metric::kGenAiTokenUsage, "gen_ai_client_token_usage", kHistogram,
               "gen_ai_operation_name,gen_ai_request_model,gen_ai_token_type", 200,
               "Tokens of one request; gen_ai_token_type is input or output.", kTokens},
    MetricInfo{
        Metric::kGatewayRequests,
        "penstock_gateway_requests_total",
        kCounter,
        "route,status",
        200,
        "Answered requests by route pattern and HTTP status; the route is unknown when none fits, "
        "unparsed when the request was refused before it was complete.",
        {}},
    MetricInfo{
        Metric::kGatewayTokens,
        "penstock_gateway_tokens_total",
        kCounter,
        "model,type",
        200,
        "Tokens by type: prompt, cached (of the prompt, not computed), completion, reasoning "
        "(of the completion).",
        {}},
    MetricInfo{Metric::kGatewayRequestsInFlight,
               "penstock_gateway_requests_in_flight",
               kGauge,
               "",
               1,
               "Requests accepted and not yet answered.",
               {}},
    MetricInfo{Metric::kGatewayConnectionsOpen,
               "penstock_gateway_connections_open",
               kGauge,
               "",
               1,
               "Open client connections.",
               {}},
    MetricInfo{Metric::kGatewayConnectionsEnded,
               "penstock_gateway_connections_ended_total",
               kCounter,
               "reason",
               16,
               "Connections ended otherwise than after an answer; reason is header_timeout, "
               "body_timeout, idle_timeout, write_timeout, malformed, disconnect or tls.",
               {}},
    MetricInfo{Metric::kGatewayBodyMemory,
               "penstock_gateway_body_memory_bytes",
               kGauge,
               "",
               1,
               "Memory that request bodies hold, of limits.body_memory.",
               {}},
    MetricInfo{Metric::kGatewayOverhead, "penstock_gateway_overhead_seconds", kHistogram, "", 1,
               "The gateway's own time in a request, before it is submitted to a worker: parsing, "
               "authentication, prompt encoding, placement.",
               kOverheadSeconds},
    MetricInfo{Metric::kGatewayQueueWait, "penstock_gateway_queue_wait_seconds", kHistogram, "", 1,
               "Time from submission to a worker to the first output.", kFirstTokenSeconds},
    MetricInfo{Metric::kGatewayAuthFailures,
               "penstock_gateway_auth_failures_total",
               kCounter,
               "reason",
               8,
               "Requests without a valid key; reason is missing or unknown.",
               {}},
    MetricInfo{Metric::kGatewayLimitRejections,
               "penstock_gateway_limit_rejections_total",
               kCounter,
               "rule",
               32,
               "Requests and connections refused by a limit of the gateway; rule is the limit's "
               "configuration key.",
               {}},
    MetricInfo{Metric::kGatewayStreamAborts,
               "penstock_gateway_stream_aborts_total",
               kCounter,
               "side",
               8,
               "Streams that ended early; side is client or server.",
               {}},
    MetricInfo{Metric::kGatewayUpstreamErrors,
               "penstock_gateway_upstream_errors_total",
               kCounter,
               "class",
               32,
               "Errors of workers by error code.",
               {}},
    MetricInfo{Metric::kGatewayRetries,
               "penstock_gateway_retries_total",
               kCounter,
               "reason",
               8,
               "Requests submitted again after a worker failed, by reason.",
               {}},
    MetricInfo{Metric::kGatewayDraining,
               "penstock_gateway_draining",
               kGauge,
               "",
               1,
               "1 after SIGTERM, while running requests finish.",
               {}},
    MetricInfo{Metric::kWorkerConnected,
               "penstock_worker_connected",
               kGauge,
               "worker",
               256,
               "1 while the gateway has a stream to the worker.",
               {}},
    MetricInfo{Metric::kWorkerRequestsRunning,
               "penstock_worker_requests_running",
               kGauge,
               "worker,rank",
               1024,
               "Sequences in the running batch.",
               {}},
    MetricInfo{Metric::kWorkerRequestsWaiting,
               "penstock_worker_requests_waiting",
               kGauge,
               "worker,rank",
               1024,
               "Sequences that wait for a place in the batch.",
               {}},
    MetricInfo{Metric::kWorkerKvTokensUsed,
               "penstock_worker_kv_tokens_used",
               kGauge,
               "worker,rank",
               1024,
               "Tokens whose keys and values are held.",
               {}},
    MetricInfo{Metric::kWorkerKvTokensCapacity,
               "penstock_worker_kv_tokens_capacity",
               kGauge,
               "worker,rank",
               1024,
               "Tokens that the KV memory holds.",
               {}},
    MetricInfo{Metric::kWorkerSteps,
               "penstock_worker_steps",
               kGauge,
               "worker,rank",
               1024,
               "Engine steps since the worker started; standing still under load means hung.",
               {}},
    MetricInfo{Metric::kKvDaemonConnected,
               "penstock_kv_daemon_connected",
               kGauge,
               "",
               1,
               "1 while the KV daemon of this host is connected.",
               {}},
    MetricInfo{Metric::kKvIndexBlocks,
               "penstock_kv_index_blocks",
               kGauge,
               "",
               1,
               "Blocks that this gateway knows the daemons hold.",
               {}},
    MetricInfo{Metric::kKvTierBlocks,
               "penstock_kv_tier_blocks",
               kGauge,
               "tier",
               8,
               "Blocks held by the tier: host, disk.",
               {}},
    MetricInfo{Metric::kKvTierUsed,
               "penstock_kv_tier_used_bytes",
               kGauge,
               "tier",
               8,
               "Bytes of blocks held by the tier.",
               {}},
    MetricInfo{Metric::kKvTierCapacity,
               "penstock_kv_tier_capacity_bytes",
               kGauge,
               "tier",
               8,
               "Room of the tier.",
               {}},
    MetricInfo{Metric::kKvTierInService,
               "penstock_kv_tier_in_service",
               kGauge,
               "tier",
               8,
               "0 when the tier is out of service; the log and `penstock kv stat` say why.",
               {}},
    MetricInfo{Metric::kKvTierHitBlocks,
               "penstock_kv_tier_hit_blocks",
               kGauge,
               "tier",
               8,
               "Blocks served from the tier since the daemon started.",
               {}},
    MetricInfo{Metric::kKvHitTokens,
               "penstock_kv_hit_tokens",
               kGauge,
               "",
               1,
               "Tokens served from any tier since the daemon started.",
               {}},
    MetricInfo{Metric::kKvPrefixEnded,
               "penstock_kv_prefix_ended",
               kGauge,
               "reason",
               32,
               "Requests by the reason that ended their hit; none: all was there.",
               {}},
    MetricInfo{Metric::kKvTierRemovedBlocks,
               "penstock_kv_tier_removed_blocks",
               kGauge,
               "tier,reason",
               64,
               "Blocks removed from the tier by reason, since the daemon started.",
               {}},
    MetricInfo{Metric::kKvStoredBlocks,
               "penstock_kv_stored_blocks",
               kGauge,
               "",
               1,
               "Blocks taken from workers since the daemon started.",
               {}},
    MetricInfo{Metric::kKvStoresRefused,
               "penstock_kv_stores_refused",
               kGauge,
               "reason",
               32,
               "Blocks offered by workers and not taken.",
               {}},
    MetricInfo{Metric::kKvLoadsEnded,
               "penstock_kv_loads_ended",
               kGauge,
               "reason",
               32,
               "Loads from disk by their end; none: verified and in memory.",
               {}},
    MetricInfo{Metric::kKvDiskBytes,
               "penstock_kv_disk_transferred_bytes",
               kGauge,
               "direction",
               4,
               "Bytes of blocks read from and written to disk.",
               {}},
    MetricInfo{Metric::kKvDiskErrors,
               "penstock_kv_disk_errors",
               kGauge,
               "",
               1,
               "Disk operations that failed.",
               {}},
    MetricInfo{Metric::kKvCorruptBlocks,
               "penstock_kv_corrupt_blocks",
               kGauge,
               "tier",
               8,
               "Blocks whose checksum did not match.",
               {}},
    MetricInfo{Metric::kKvQuarantined,
               "penstock_kv_quarantined_bytes",
               kGauge,
               "",
               1,
               "Memory of silent holders, which is not used again until they end.",
               {}},
    MetricInfo{Metric::kKvHitRateEstimate,
               "penstock_kv_hit_rate_estimate",
               kGauge,
               "capacity",
               32,
               "Estimated hit rate of a cache with so many bytes (sampled reuse distance).",
               {}},
    MetricInfo{Metric::kAccessLogLinesDropped,
               "penstock_access_log_lines_dropped",
               kGauge,
               "",
               1,
               "Access log lines lost since start: the buffer was full or the file failed.",
               {}},
    MetricInfo{Metric::kMetricsSeriesDropped,
               "penstock_metrics_series_dropped_total",
               kCounter,
               "metric",
               64,
               "Label combinations that went to \"other\" at the metric's limit.",
               {}},
};

consteval bool table_is_in_order() {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<std::size_t>(kTable[i].id) != i) return false;
    if ((kTable[i].kind == kHistogram) == kTable[i].buckets.empty()) return false;
  }
  return kTable.size() == static_cast<std::size_t>(Metric::kCount);
}
static_assert(table_is_in_order(), "Metrics indexes the table by the enum");

std::string_view kind_name(MetricKind kind) {
  switch (kind) {
    case kCounter:
      return "counter";
    case kGauge:
      return "gauge";
    case kHistogram:
      return "histogram";
  }
  return "";
}

}  // namespace

std::span<const MetricInfo> metric_table() {
  return kTable;
}

std::string metrics_markdown() {
  std::string out =
      "# Metrics\n\n"
      "`GET /metrics` gives these in the Prometheus text format. This page is generated from the\n"
      "table in `src/io/telemetry/metric_table.cc`; `UPDATE=1` with the telemetry tests rewrites "
      "it.\n"
      "A metric has at most the given number of label combinations; later ones are counted under\n"
      "`other`. The process's own `process_*` metrics come with them.\n\n"
      "| metric | kind | labels | series at most | meaning |\n|---|---|---|--:|---|\n";
  for (const auto& row : kTable) {
    std::string labels;
    for (const char c : row.labels)
      labels += c == ',' ? std::string("`, `") : std::string(1, c);
    out += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.name, kind_name(row.kind),
                       labels.empty() ? "" : "`" + labels + "`", row.series_max, row.help);
  }
  return out;
}

}  // namespace penstock
