#include "app/kv_metrics.h"

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <string>
#include <string_view>

namespace penstock {
namespace {

namespace json = boost::json;

// What `path` leads to, or null.
const json::value* find(const json::value& from, std::string_view part, std::string_view key) {
  const json::value* const inner = from.as_object().if_contains(part);
  return inner == nullptr || !inner->is_object() ? nullptr : inner->get_object().if_contains(key);
}

class Publisher {
 public:
  Publisher(const json::value& stat, Metrics& metrics) : stat_(stat), metrics_(metrics) {}

  void number(Metric metric, Metrics::LabelValues labels, std::string_view part,
              std::string_view key) {
    const json::value* const value = find(stat_, part, key);
    if (value == nullptr) return;
    const double amount =
        value->is_bool() ? (value->get_bool() ? 1.0 : 0.0) : value->to_number<double>();
    metrics_.gauge(metric, labels).set(amount);
  }

  // What each class holds on disk.
  void classes() {
    const json::value* const classes = find(stat_, "disk", "classes");
    if (classes == nullptr || !classes->is_array()) return;
    for (const json::value& one : classes->get_array()) {
      metrics_.gauge(Metric::kKvDiskClassBytes, {one.at("class").as_string()})
          .set(one.at("bytes").to_number<double>());
    }
  }

  // One series per reason; `tier` empty: the reason is the only label.
  void reasons(Metric metric, std::string_view tier, std::string_view part, std::string_view key) {
    const json::value* const counts = find(stat_, part, key);
    if (counts == nullptr || !counts->is_object()) return;
    for (const auto& [reason, count] : counts->get_object()) {
      const auto amount = count.to_number<double>();
      if (tier.empty()) {
        metrics_.gauge(metric, {reason}).set(amount);
      } else {
        metrics_.gauge(metric, {tier, reason}).set(amount);
      }
    }
  }

 private:
  const json::value& stat_;
  Metrics& metrics_;
};

void publish(const json::value& stat, Metrics& metrics) {
  Publisher to(stat, metrics);
  to.number(Metric::kKvTierBlocks, {"host"}, "host", "blocks");
  to.number(Metric::kKvTierBlocks, {"disk"}, "disk", "blocks");
  to.number(Metric::kKvTierUsed, {"host"}, "host", "bytes");
  to.number(Metric::kKvTierUsed, {"disk"}, "disk", "bytes");
  to.number(Metric::kKvTierCapacity, {"host"}, "host", "arena_bytes");
  to.number(Metric::kKvTierCapacity, {"disk"}, "disk", "bytes_total");
  for (const char* tier : {"host", "disk"}) {
    to.number(Metric::kKvTierIdle, {tier, "oldest"}, tier, "oldest_idle_seconds");
    to.number(Metric::kKvTierIdle, {tier, "median"}, tier, "median_idle_seconds");
  }
  to.classes();
  to.number(Metric::kKvTierInService, {"disk"}, "disk", "in_service");
  to.number(Metric::kKvTierHitBlocks, {"host"}, "acquires", "hit_blocks_host");
  to.number(Metric::kKvTierHitBlocks, {"disk"}, "acquires", "hit_blocks_disk");
  to.number(Metric::kKvTierHitBlocks, {"peer"}, "acquires", "hit_blocks_peer");
  to.number(Metric::kKvTierBlocks, {"peer"}, "peers", "blocks");
  to.number(Metric::kKvTierInService, {"peer"}, "peers", "in_service");
  to.number(Metric::kKvTierHitBlocks, {"cluster"}, "acquires", "hit_blocks_cluster");
  to.number(Metric::kKvTierInService, {"cluster"}, "cluster", "in_service");
  to.number(Metric::kKvTierBlocks, {"cluster"}, "cluster", "told_blocks");
  to.number(Metric::kKvTierUsed, {"cluster"}, "cluster", "bytes");
  to.number(Metric::kKvTierCapacity, {"cluster"}, "cluster", "bytes_total");
  to.number(Metric::kKvClusterBytes, {"read"}, "cluster", "read_bytes");
  to.number(Metric::kKvClusterBytes, {"write"}, "cluster", "write_bytes");
  to.number(Metric::kKvClusterLookUps, {"all"}, "cluster", "look_ups");
  to.number(Metric::kKvClusterLookUps, {"slow"}, "cluster", "look_ups_slow");
  to.reasons(Metric::kKvClusterWritesEnded, "", "cluster", "writes_ended");
  to.number(Metric::kKvClusterWritesWaiting, {}, "cluster", "writes_queued");
  to.number(Metric::kKvClusterWritesLost, {}, "cluster", "writes_lost");
  to.number(Metric::kKvTierUsed, {"spill"}, "cluster", "spill_bytes");
  to.number(Metric::kKvClusterBreaker, {}, "cluster", "breaker_openings");
  to.number(Metric::kKvClusterSpeed, {}, "loads", "cluster_bytes_per_second");
  to.number(Metric::kKvHitTokens, {}, "acquires", "hit_tokens");
  to.reasons(Metric::kKvPrefixEnded, "", "acquires", "prefix_ended_by");
  to.reasons(Metric::kKvTierRemovedBlocks, "host", "host", "removals");
  to.reasons(Metric::kKvTierRemovedBlocks, "disk", "disk", "removals");
  to.number(Metric::kKvStoredBlocks, {}, "stores", "blocks");
  to.reasons(Metric::kKvStoresRefused, "", "stores", "refused");
  to.reasons(Metric::kKvLoadsEnded, "", "loads", "ended");
  to.number(Metric::kKvDiskBytes, {"read"}, "disk", "read_bytes");
  to.number(Metric::kKvDiskBytes, {"write"}, "disk", "write_bytes");
  to.number(Metric::kKvDiskErrors, {}, "disk", "io_errors");
  to.number(Metric::kKvCorruptBlocks, {"disk"}, "disk", "corrupt");
  to.number(Metric::kKvCorruptBlocks, {"host"}, "reports", "confirmed");
  to.number(Metric::kKvCorruptBlocks, {"cluster"}, "cluster", "corrupt");
  to.number(Metric::kKvLoadsDecided, {}, "loads", "decided");
  to.number(Metric::kKvLoadsSlower, {}, "loads", "slower_than_recompute");
  to.number(Metric::kKvDiskSpeed, {}, "loads", "disk_bytes_per_second");
  to.number(Metric::kKvQuarantined, {}, "host", "quarantined_bytes");
  const json::value* const curve = find(stat, "capacity", "hit_rate_by_bytes");
  if (curve == nullptr || !curve->is_array()) return;
  for (const json::value& point : curve->get_array()) {
    const std::string capacity = std::to_string(point.at("bytes").to_number<std::int64_t>());
    metrics.gauge(Metric::kKvHitRateEstimate, {capacity})
        .set(point.at("hit_rate").to_number<double>());
  }
}

}  // namespace

void publish_kv_metrics(const kv::KvIndexFeed& feed, Metrics& metrics) {
  metrics.gauge(Metric::kKvDaemonConnected).set(feed.connected());
  metrics.gauge(Metric::kKvIndexBlocks).set(static_cast<double>(feed.blocks()));
  boost::system::error_code error;
  const json::value stat = json::parse(feed.stat(), error);
  if (!error && stat.is_object()) publish(stat, metrics);
}

}  // namespace penstock
