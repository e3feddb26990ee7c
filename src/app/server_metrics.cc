#include "app/server_metrics.h"

#include <array>
#include <string_view>

namespace penstock {
namespace {

using Counters = http::ServerCounters;

struct Row {
  Metric metric;
  std::string_view label;
  std::uint64_t Counters::* field;
};

// The in-flight limit is not the server's: RequestReporter counts it.
constexpr std::array kRows = {
    Row{Metric::kGatewayLimitRejections, "limits.connections", &Counters::connections_refused},
    Row{Metric::kGatewayLimitRejections, "limits.request_headers", &Counters::headers_too_large},
    Row{Metric::kGatewayLimitRejections, "limits.request_body", &Counters::bodies_too_large},
    Row{Metric::kGatewayLimitRejections, "limits.body_memory", &Counters::bodies_over_memory},
    Row{Metric::kGatewayConnectionsEnded, "header_timeout", &Counters::header_timeouts},
    Row{Metric::kGatewayConnectionsEnded, "body_timeout", &Counters::body_timeouts},
    Row{Metric::kGatewayConnectionsEnded, "idle_timeout", &Counters::idle_timeouts},
    Row{Metric::kGatewayConnectionsEnded, "write_timeout", &Counters::write_timeouts},
    Row{Metric::kGatewayConnectionsEnded, "malformed", &Counters::malformed},
    Row{Metric::kGatewayConnectionsEnded, "disconnect", &Counters::disconnects},
    Row{Metric::kGatewayConnectionsEnded, "tls", &Counters::tls_failures},
};

}  // namespace

void ServerMetrics::publish(const Counters& now) {
  for (const Row& row : kRows) {
    const std::uint64_t fresh = now.*row.field - published_.*row.field;
    metrics_.counter(row.metric, {row.label}).add(static_cast<double>(fresh));
  }
  const auto change = [](std::uint64_t to, std::uint64_t from) {
    return static_cast<double>(to) - static_cast<double>(from);
  };
  metrics_.gauge(Metric::kGatewayConnectionsOpen)
      .add(change(now.connections_now, published_.connections_now));
  metrics_.gauge(Metric::kGatewayBodyMemory)
      .add(change(now.body_bytes_now, published_.body_bytes_now));
  published_ = now;
}

}  // namespace penstock
