#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include "io/files/files.h"
#include "io/telemetry/access_log.h"
#include "io/telemetry/log.h"
#include "io/telemetry/metrics.h"

#include <doctest/doctest.h>

namespace penstock {
namespace {

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

RequestRecord named(std::string request_id) {
  RequestRecord record;
  record.request_id = std::move(request_id);
  return record;
}

}  // namespace

TEST_CASE("docs/metrics.md is fresh") {
  const std::string path = "docs/metrics.md";
  if (std::getenv("UPDATE") != nullptr) REQUIRE(write_file_atomically(path, metrics_markdown()));
  CHECK_MESSAGE(read_file(path, Bytes(1 << 20)) == metrics_markdown(),
                "run the tests with UPDATE=1 and review the difference");
}

TEST_CASE("names follow the conventions and are unique") {
  std::set<std::string_view> names;
  for (const auto& row : metric_table()) {
    CHECK(names.insert(row.name).second);
    CHECK_MESSAGE((row.name.starts_with("penstock_") || row.name.starts_with("gen_ai_")), row.name);
    CHECK_MESSAGE(row.name.ends_with("_total") == (row.kind == MetricKind::kCounter), row.name);
    CHECK(row.series_max >= 1);
  }
}

TEST_CASE("values show up in the exposition") {
  Metrics metrics;
  metrics.counter(Metric::kGatewayRequests, {"/v1/models", "200"}).add();
  metrics.counter(Metric::kGatewayRequests, {"/v1/models", "200"}).add(2);
  metrics.gauge(Metric::kGatewayRequestsInFlight).set(7);
  metrics.gauge(Metric::kGatewayRequestsInFlight).add(-3);
  metrics.histogram(Metric::kGatewayOverhead).observe(std::chrono::microseconds(70));
  const std::string text = metrics.exposition();
  CHECK(has(text, "penstock_gateway_requests_total{route=\"/v1/models\",status=\"200\"} 3\n"));
  CHECK(has(text, "# TYPE penstock_gateway_requests_total counter\n"));
  CHECK(has(text, "penstock_gateway_requests_in_flight 4\n"));
  CHECK(has(text, "penstock_gateway_overhead_seconds_bucket{le=\"5e-05\"} 0\n"));
  CHECK(has(text, "penstock_gateway_overhead_seconds_bucket{le=\"0.0001\"} 1\n"));
  CHECK(has(text, "penstock_gateway_overhead_seconds_count 1\n"));
  CHECK(has(text, "process_resident_memory_bytes "));
}

TEST_CASE("label values are escaped") {
  Metrics metrics;
  metrics.counter(Metric::kGatewayTokens, {"a\"b\\c\nd", "prompt"}).add();
  CHECK(has(metrics.exposition(), R"(model="a\"b\\c\nd")"));
}

TEST_CASE("a metric's series are bounded, the rest is other") {
  Metrics metrics;
  const auto limit =
      metric_table()[static_cast<std::size_t>(Metric::kGatewayStreamAborts)].series_max;
  for (int i = 0; i < 100; ++i)
    metrics.counter(Metric::kGatewayStreamAborts, {std::to_string(i)}).add();
  const std::string text = metrics.exposition();
  std::size_t series = 0;
  for (std::size_t at = 0;
       (at = text.find("penstock_gateway_stream_aborts_total{", at)) != std::string::npos; ++at)
    ++series;
  CHECK(series == limit);
  const auto lost = std::to_string(100 - (limit - 1));
  CHECK(has(text, "penstock_gateway_stream_aborts_total{side=\"other\"} " + lost + "\n"));
  CHECK(has(
      text,
      "penstock_metrics_series_dropped_total{metric=\"penstock_gateway_stream_aborts_total\"} " +
          lost + "\n"));
}

TEST_CASE("a removed series is gone and may come again") {
  Metrics metrics;
  metrics.gauge(Metric::kWorkerConnected, {"w1"}).set(1);
  metrics.remove(Metric::kWorkerConnected, {"w1"});
  metrics.remove(Metric::kWorkerConnected, {"never"});
  CHECK(!has(metrics.exposition(), "worker=\"w1\""));
  metrics.gauge(Metric::kWorkerConnected, {"w1"}).set(0);
  CHECK(has(metrics.exposition(), "penstock_worker_connected{worker=\"w1\"} 0\n"));
}

TEST_CASE("shards count together") {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&metrics, t] {
      for (int i = 0; i < 1000; ++i)
        metrics.counter(Metric::kGatewayTokens, {t % 2 == 0 ? "a" : "b", "prompt"}).add();
    });
  for (auto& thread : threads)
    thread.join();
  const std::string text = metrics.exposition();
  CHECK(has(text, "{model=\"a\",type=\"prompt\"} 2000\n"));
  CHECK(has(text, "{model=\"b\",type=\"prompt\"} 2000\n"));
}

TEST_CASE("an access line is one JSON object with nulls for what does not apply") {
  RequestRecord record{.request_id = "req-1",
                       .peer = "127.0.0.1",
                       .key_name = "ci",
                       .method = "POST",
                       .route = "/v1/chat/completions",
                       .model = "nano",
                       .alias = "",
                       .placement = "worker-0: alone",
                       .stream = true,
                       .status = 200,
                       .outcome = "stop",
                       .usage = {12, 0, 5, 0},
                       .queue = std::chrono::microseconds(100),
                       .time_to_first_token = std::nullopt,
                       .total = std::chrono::milliseconds(31)};
  CHECK(
      format_access_line(record, 1'767'323'045'678) ==
      R"({"ts":"2026-01-02T03:04:05.678Z","request_id":"req-1","peer":"127.0.0.1","key":"ci",)"
      R"("method":"POST","route":"/v1/chat/completions","model":"nano","alias":null,"stream":true,)"
      R"("status":200,"outcome":"stop","prompt_tokens":12,"cached_tokens":0,"expected_cached_tokens":0,"completion_tokens":5,)"
      R"("queue_ms":0.100,"ttft_ms":null,"total_ms":31.000,"moves":0,)"
      R"("placement":"worker-0: alone"})");
  record.alias = std::string(255, 'x') + "\xC3\xA9" + "\n\"more";
  CHECK(has(format_access_line(record, 0), "\"alias\":\"" + std::string(255, 'x') + "\","));
}

TEST_CASE("the access log writes every line once, and can move to a new file") {
  const auto folder = TemporaryDirectory::make("penstock-access-log").value();
  const std::string path = folder.path() + "/access.log";
  {
    const auto log = AccessLog::open({.path = path}).value();
    for (int i = 0; i < 1000; ++i)
      log->write(named(std::to_string(i)));
    log->flush();
    std::filesystem::rename(path, path + ".1");
    REQUIRE(log->reopen());
    log->write(named("after"));
    CHECK(log->dropped() == 0);
  }
  const std::string first = read_file(path + ".1", Bytes(1 << 20)).value();
  CHECK(std::ranges::count(first, '\n') == 1000);
  CHECK(has(first, "\"request_id\":\"999\""));
  const std::string second = read_file(path, Bytes(1 << 20)).value();
  CHECK(std::ranges::count(second, '\n') == 1);
  CHECK(has(second, "\"request_id\":\"after\""));
}

TEST_CASE("lines that do not fit the buffer or cannot be written are counted") {
  const auto folder = TemporaryDirectory::make("penstock-access-log").value();
  const auto tiny =
      AccessLog::open({.path = folder.path() + "/access.log", .buffer_max = Bytes(10)}).value();
  tiny->write({});
  CHECK(tiny->dropped() == 1);
  const auto full = AccessLog::open({.path = "/dev/full"}).value();
  full->write({});
  full->write({});
  full->flush();
  CHECK(full->dropped() == 2);
  const auto refused = AccessLog::open({.path = folder.path() + "/no/such/folder"});
  REQUIRE(!refused);
  CHECK(refused.error().code == ErrorCode::kIo);
}

TEST_CASE("log levels and formats have names") {
  CHECK(parse_log_level("warning").value() == LogLevel::kWarning);
  CHECK(!parse_log_level("loud"));
  CHECK(parse_log_format("json").value() == LogFormat::kJson);
  CHECK(!parse_log_format("xml"));
}

}  // namespace penstock
