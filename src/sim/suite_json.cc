// The suite's result as people and programs read it.
#include <boost/json.hpp>

#include <fmt/format.h>

#include "sim/suite.h"

namespace penstock::sim {
namespace {

namespace json = boost::json;

json::object print(const PolicyResult& p) {
  return {{"policy", p.policy},
          {"queue_in_front", p.queue},
          {"ahead_steps", p.ahead_steps},
          {"copies", p.copies},
          {"copies_in_sweep", p.copies_swept},
          {"copies_without_queue", p.copies_alone},
          {"requests_per_second", p.requests_per_second},
          {"efficiency", p.efficiency},
          {"vs_offline_benchmark", p.vs_offline_benchmark},
          {"served_in_time", p.figures.served_share},
          {"refused", p.figures.refused},
          {"ttft_p50_seconds", p.figures.ttft_p50},
          {"ttft_p99_seconds", p.figures.ttft_p99},
          {"token_gap_p99_seconds", p.figures.gap_p99},
          {"hit_rate", p.figures.hit_rate},
          {"prefill_busy", p.figures.prefill_busy},
          {"prefill_balance", p.figures.prefill_balance},
          {"bound_copies", p.bound_copies},
          {"decode_requests_balance", p.figures.requests_balance},
          {"decode_kv_balance", p.figures.kv_balance},
          {"digest", fmt::format("{:016x}", p.figures.digest)}};
}

json::object print(std::string_view policy, const RunFigures& r) {
  return {{"policy", policy},
          {"hit_rate", r.hit_rate},
          {"prefill_balance", r.prefill_balance},
          {"decode_requests_balance", r.requests_balance},
          {"decode_kv_balance", r.kv_balance},
          {"served_in_time", r.served_share},
          {"ttft_p50_seconds", r.ttft_p50},
          {"ttft_p99_seconds", r.ttft_p99}};
}

}  // namespace

std::string to_json(const SuiteResult& r) {
  json::array policies;
  for (const PolicyResult& p : r.policies)
    policies.push_back(print(p));
  json::object object{
      {"suite", "balance"},
      {"measured_seconds", r.seconds},
      {"sweep_seconds", r.sweep_seconds},
      {"bound", json::object{{"copies", r.bound_copies},
                             {"requests_per_second", r.bound_requests_per_second},
                             {"hit_rate", r.bound_hit_rate}}},
      {"clairvoyant",
       json::object{
           {"copies", r.clairvoyant_copies},
           {"efficiency", r.bound_copies > 0 ? r.clairvoyant_copies / r.bound_copies : 0}}},
      {"offline_benchmark", json::object{{"copies", r.benchmark.copies},
                                         {"prefill_copies", r.benchmark.prefill_copies},
                                         {"decode_copies", r.benchmark.decode_copies}}},
      {"default", r.policies.empty() || r.policies.front().policy != "default"
                      ? json::object{}
                      : print(r.policies.front())},
      {"policies", policies},
      {"digest", fmt::format("{:016x}", r.digest)}};
  if (!r.variants.empty()) {
    json::array variants;
    for (const PolicyResult& p : r.variants)
      variants.push_back(print(p));
    object["variants"] = std::move(variants);
  }
  if (r.affinity)
    object["affinity"] =
        json::object{{"copies", r.affinity->copies},
                     {"default", print("prefill-balancer", r.affinity->balancer)},
                     {"prefix_affinity", print("prefix-affinity", r.affinity->affinity)},
                     {"prefix_affinity_engine_caches",
                      print("prefix-affinity", r.affinity->affinity_engine_caches)}};
  if (r.long_prompt)
    object["long_prompt"] =
        json::object{{"short_ttft_p99_seconds", r.long_prompt->p99_with},
                     {"short_ttft_p99_seconds_without", r.long_prompt->p99_without},
                     {"ratio", r.long_prompt->ratio()}};
  return json::serialize(object);
}

}  // namespace penstock::sim
