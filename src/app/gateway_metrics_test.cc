#include <string>
#include <string_view>

#include "app/request_reporter.h"
#include "app/server_metrics.h"
#include "io/files/files.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// A reporter that logs into a file of its own.
struct Rig {
  TemporaryDirectory folder = TemporaryDirectory::make("penstock-reporter").value();
  std::unique_ptr<AccessLog> log = AccessLog::open({.path = folder.path() + "/log"}).value();
  Metrics metrics;
  RequestReporter reporter{metrics, *log};

  std::string report(const RequestRecord& record) {
    reporter.request_started();
    reporter.request_finished(record);
    return metrics.exposition();
  }
};

RequestRecord refused(std::string_view outcome, int status) {
  RequestRecord record;
  record.route = "/v1/chat/completions";
  record.status = status;
  record.outcome = outcome;
  return record;
}

RequestRecord answered(bool stream, int status) {
  RequestRecord record = refused(status == 200 ? "stop" : "cancelled", status);
  record.model = "nano";
  record.stream = stream;
  record.usage = {12, 3, 5, 2};
  record.queue = std::chrono::milliseconds(1);
  record.time_to_first_token = std::chrono::milliseconds(2);
  record.total = std::chrono::milliseconds(6);
  return record;
}

}  // namespace

TEST_CASE("a missing key and an unknown one are told apart") {
  Rig rig;
  RequestRecord record = refused("unauthenticated", 401);
  rig.report(record);
  rig.report(record);
  record.key_given = true;
  const std::string text = rig.report(record);
  CHECK(has(text, "penstock_gateway_auth_failures_total{reason=\"missing\"} 2\n"));
  CHECK(has(text, "penstock_gateway_auth_failures_total{reason=\"unknown\"} 1\n"));
  CHECK(has(text,
            "penstock_gateway_requests_total{route=\"/v1/chat/completions\",status=\"401\"} 3\n"));
  CHECK(has(text, "penstock_gateway_requests_in_flight 0\n"));
}

TEST_CASE("only a limit of the gateway counts as a limit's rejection") {
  Rig rig;
  RequestRecord record = refused("overloaded", 503);
  CHECK(!has(rig.report(record), "penstock_gateway_limit_rejections_total{"));
  record.limit = "limits.in_flight";
  CHECK(has(rig.report(record),
            "penstock_gateway_limit_rejections_total{rule=\"limits.in_flight\"} 1\n"));
}

TEST_CASE("aborts are counted for streams only, by side; tokens by type") {
  Rig rig;
  CHECK(!has(rig.report(answered(true, 200)), "penstock_gateway_stream_aborts_total{"));
  CHECK(!has(rig.report(answered(false, 499)), "penstock_gateway_stream_aborts_total{"));
  rig.report(answered(true, 499));
  const std::string text = rig.report(answered(true, 503));
  CHECK(has(text, "penstock_gateway_stream_aborts_total{side=\"client\"} 1\n"));
  CHECK(has(text, "penstock_gateway_stream_aborts_total{side=\"server\"} 1\n"));
  CHECK(has(text, "penstock_gateway_tokens_total{model=\"nano\",type=\"prompt\"} 48\n"));
  CHECK(has(text, "penstock_gateway_tokens_total{model=\"nano\",type=\"cached\"} 12\n"));
  CHECK(has(text, "penstock_gateway_tokens_total{model=\"nano\",type=\"completion\"} 20\n"));
  CHECK(has(text, "penstock_gateway_tokens_total{model=\"nano\",type=\"reasoning\"} 8\n"));
}

TEST_CASE("the counters of several servers add up, however often they are published") {
  Metrics metrics;
  ServerMetrics first(metrics);
  ServerMetrics second(metrics);
  http::ServerCounters counters;
  counters.bodies_too_large = 2;
  counters.connections_now = 3;
  counters.body_bytes_now = 1000;
  first.publish(counters);
  first.publish(counters);
  second.publish(counters);
  counters.bodies_too_large = 5;
  counters.connections_now = 1;
  counters.body_bytes_now = 0;
  counters.tls_failures = 1;
  first.publish(counters);
  const std::string text = metrics.exposition();
  CHECK(has(text, "penstock_gateway_limit_rejections_total{rule=\"limits.request_body\"} 7\n"));
  CHECK(has(text, "penstock_gateway_limit_rejections_total{rule=\"limits.body_memory\"} 0\n"));
  CHECK(has(text, "penstock_gateway_connections_ended_total{reason=\"tls\"} 1\n"));
  CHECK(has(text, "penstock_gateway_connections_open 4\n"));
  CHECK(has(text, "penstock_gateway_body_memory_bytes 1000\n"));
}

}  // namespace penstock
