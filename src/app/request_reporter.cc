#include "app/request_reporter.h"

#include <fmt/format.h>

#include "base/result.h"

namespace penstock {
namespace {

constexpr std::string_view kOperation = "chat";

}  // namespace

void RequestReporter::request_finished(const RequestRecord& record) {
  in_flight_.add(-1);
  log_.write(record);
  metrics_.counter(Metric::kGatewayRequests, {record.route, fmt::to_string(record.status)}).add();
  if (record.outcome == error_info(ErrorCode::kUnauthenticated).name) {
    const std::string_view reason = record.key_given ? "unknown" : "missing";
    metrics_.counter(Metric::kGatewayAuthFailures, {reason}).add();
  }
  if (!record.limit.empty()) {
    metrics_.counter(Metric::kGatewayLimitRejections, {record.limit}).add();
  }
  if (record.moves > 0) {
    metrics_.counter(Metric::kGatewayRetries, {"worker_lost"}).add(record.moves);
  }
  if (record.model.empty()) return;  // not an inference request, or refused before it was one

  const bool failed = record.status >= 400;
  const std::string_view error_type = failed ? std::string_view(record.outcome) : "";
  metrics_.histogram(Metric::kGenAiRequestDuration, {kOperation, record.model, error_type})
      .observe(record.total);
  if (failed && record.stream && record.time_to_first_token) {
    const bool by_client = record.status == error_info(ErrorCode::kCancelled).http_status;
    metrics_.counter(Metric::kGatewayStreamAborts, {by_client ? "client" : "server"}).add();
  }
  if (record.status >= 500) {
    metrics_.counter(Metric::kGatewayUpstreamErrors, {record.outcome}).add();
  }
  const Usage& usage = record.usage;
  const auto count = [&](std::string_view type, std::uint64_t tokens) {
    metrics_.counter(Metric::kGatewayTokens, {record.model, type}).add(static_cast<double>(tokens));
  };
  if (!record.queue) return;
  count("prompt", usage.prompt_tokens);
  count("cached", usage.cached_tokens);
  count("completion", usage.completion_tokens);
  count("reasoning", usage.reasoning_tokens);
  metrics_.histogram(Metric::kGatewayOverhead).observe(*record.queue);
  metrics_.histogram(Metric::kGenAiTokenUsage, {kOperation, record.model, "input"})
      .observe(static_cast<double>(usage.prompt_tokens));
  metrics_.histogram(Metric::kGenAiTokenUsage, {kOperation, record.model, "output"})
      .observe(static_cast<double>(usage.completion_tokens));
  if (!record.time_to_first_token) return;
  metrics_.histogram(Metric::kGenAiTimeToFirstToken, {kOperation, record.model})
      .observe(*record.time_to_first_token);
  metrics_.histogram(Metric::kGatewayQueueWait)
      .observe(*record.time_to_first_token - *record.queue);
  if (usage.completion_tokens > 1) {
    const auto gaps = static_cast<std::int64_t>(usage.completion_tokens - 1);
    metrics_.histogram(Metric::kGenAiTimePerOutputToken, {kOperation, record.model})
        .observe((record.total - *record.time_to_first_token) / gaps);
  }
}

}  // namespace penstock
