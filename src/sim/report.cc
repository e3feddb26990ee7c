#include "sim/report.h"

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

double Report::ttft_share() const {
  return arrivals == 0 ? 1 : static_cast<double>(met) / static_cast<double>(arrivals);
}

bool Report::meets_slo(double tau_seconds) const {
  return ttft_share() >= 0.99 && gaps.quantile(0.99) <= tau_seconds;
}

std::string to_json(const Report& r) {
  const boost::json::object object{
      {"prefill_policy", r.prefill_policy},
      {"decode_policy", r.decode_policy},
      {"measured_seconds", r.measured_seconds},
      {"arrivals", r.arrivals},
      {"refused", r.refused},
      {"finished", r.finished},
      {"first_token_in_time", r.ttft_share()},
      {"ttft", print(r.ttft)},
      {"token_gap", print(r.gaps)},
      {"prompt_tokens_per_second",
       r.measured_seconds > 0 ? r.prompt_tokens / r.measured_seconds : 0},
      {"output_tokens_per_second",
       r.measured_seconds > 0 ? r.output_tokens / r.measured_seconds : 0},
      {"hit_rate", r.hit_rate()},
      {"prefill_busy", r.prefill_busy},
      {"preemptions", r.preemptions},
      {"balance", boost::json::object{{"prefill_quota", r.prefill_quota.mean()},
                                      {"decode_requests", r.decode_requests.mean()},
                                      {"decode_kv", r.decode_kv.mean()}}},
      {"events", r.events},
      {"digest", fmt::format("{:016x}", r.digest)}};
  return boost::json::serialize(object);
}

}  // namespace penstock::sim
