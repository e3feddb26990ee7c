#include "sim/report.h"

#include <algorithm>
#include <boost/json.hpp>

#include <fmt/format.h>

namespace penstock::sim {
namespace {

boost::json::object print(const Histogram& h) {
  return {{"count", h.count()},
          {"mean_seconds", h.mean()},
          {"p50_seconds", h.quantile(0.5)},
          {"p90_seconds", h.quantile(0.9)},
          {"p99_seconds", h.quantile(0.99)},
          {"max_seconds", h.max()}};
}

}  // namespace

void Balance::add(std::span<const float> ranks) {
  double total = 0;
  double most = 0;
  for (const float value : ranks) {
    total += static_cast<double>(value);
    most = std::max(most, static_cast<double>(value));
  }
  if (total <= 0) return;
  sum += most * static_cast<double>(ranks.size()) / total;
  ++samples;
}

void Report::add_gap(double seconds, std::uint64_t times) {
  gaps.add(seconds, times);
  // Steps are rounded to nanoseconds.
  if (seconds > slo.tau * (1 + 1e-9) + 1e-9) slow_gaps += times;
}

double TenantReport::in_time_share() const {
  return arrivals == 0 ? 1 : static_cast<double>(first_in_time) / static_cast<double>(arrivals);
}

double Report::first_in_time_share() const {
  return arrivals == 0 ? 1 : static_cast<double>(first_in_time) / static_cast<double>(arrivals);
}

double Report::served_share() const {
  return arrivals == 0 ? 1 : static_cast<double>(met) / static_cast<double>(arrivals);
}

bool Report::meets_slo() const {
  return !stopped_early &&
         static_cast<double>(arrivals - met) <=
             slo.missed_share * static_cast<double>(arrivals) * (1 + 1e-9) &&
         static_cast<double>(slow_gaps) <=
             slo.gap_share * static_cast<double>(gaps.count()) * (1 + 1e-9);
}

std::string to_json(const Report& r) {
  boost::json::object object{
      {"prefill_policy", r.prefill_policy},
      {"decode_policy", r.decode_policy},
      {"measured_seconds", r.measured_seconds},
      {"arrivals", r.arrivals},
      {"refused", r.refused},
      {"finished", r.finished},
      {"unfinished", r.unfinished},
      {"first_token_in_time", r.first_in_time_share()},
      {"served_in_time", r.served_share()},
      {"meets_slo", r.meets_slo()},
      {"ttft", print(r.ttft)},
      {"token_gap", print(r.gaps)},
      {"prompt_tokens_per_second",
       r.measured_seconds > 0 ? r.prompt_tokens / r.measured_seconds : 0},
      {"output_tokens_per_second",
       r.measured_seconds > 0 ? r.output_tokens / r.measured_seconds : 0},
      {"hit_rate", r.hit_rate()},
      {"hit_blocks",
       boost::json::object{
           {"host", r.hit_blocks[0]}, {"disk", r.hit_blocks[1]}, {"cluster", r.hit_blocks[2]}}},
      {"loads_through_decode", r.loads_through_decode},
      {"prompts_on_decode", r.prompts_on_decode},
      {"prefill_busy", r.prefill_busy},
      {"preemptions", r.preemptions},
      {"engine_failures", r.failures},
      {"placed_anew", r.placed_anew},
      {"balance", boost::json::object{{"prefill_quota", r.prefill_quota.mean()},
                                      {"decode_requests", r.decode_requests.mean()},
                                      {"decode_kv", r.decode_kv.mean()}}},
      {"events", r.events},
      {"digest", fmt::format("{:016x}", r.digest)}};
  boost::json::array tenants;
  for (const TenantReport& tenant : r.tenants)
    tenants.push_back(boost::json::object{{"name", tenant.name},
                                          {"arrivals", tenant.arrivals},
                                          {"refused", tenant.refused},
                                          {"first_token_in_time", tenant.in_time_share()},
                                          {"prefill_seconds", tenant.prefill_seconds},
                                          {"ttft", print(tenant.ttft)}});
  if (!tenants.empty()) object["tenants"] = std::move(tenants);
  return boost::json::serialize(object);
}

}  // namespace penstock::sim
