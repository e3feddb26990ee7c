// `penstock plan`: how large a deployment has to be for a load, by src/sim/plan.h.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>

#include "app/commands.h"
#include "app/console.h"
#include "app/simulate_inputs.h"
#include "app/text_layout.h"
#include "app/values.h"
#include "core/experts/record_plan.h"
#include "io/files/files.h"
#include "sim/plan.h"

namespace penstock {
namespace {

namespace json = boost::json;

constexpr Bytes kRecordMax{std::int64_t{1} << 30};

// Loads by Zipf's law, as a record of one window.
experts::LoadRecord made_up_loads(std::uint32_t count, double exponent) {
  experts::LoadRecord record;
  record.model = "made up";
  record.layers = 1;
  record.experts = count;
  experts::RecordedWindow& window = record.windows.emplace_back();
  window.seconds = 1;
  for (std::uint32_t e = 0; e < count; ++e)
    window.picks.push_back(static_cast<std::uint64_t>(1e6 * std::pow(e + 1.0, -exponent)));
  return record;
}

struct ExpertSlots {
  std::int64_t gpus = 0;
  std::size_t slots_per_gpu = 0;
  std::size_t redundant = 0;
  double balance = 1;   // of the worst layer: most loaded GPU over mean
  bool enough = false;  // for the balance that the profile assumes
};

// The fewest slots a GPU with which no layer is less balanced than the profile's moe_lb, up to
// twice as many as experts need.
Result<ExpertSlots> slots_for(const experts::LoadRecord& record, std::int64_t gpus,
                              double balance) {
  ExpertSlots found{.gpus = gpus};
  const auto width = static_cast<std::size_t>(gpus);
  const std::size_t least = (record.experts + width - 1) / width;
  // A GPU with more slots than experts would hold one twice.
  const std::size_t most = std::min<std::size_t>(2 * least, record.experts);
  for (std::size_t slots = least; slots <= most && !found.enough; ++slots) {
    const experts::Shape shape{.experts = record.experts, .gpus = width, .slots_per_gpu = slots};
    TRY_STATUS(experts::check(shape));
    found.slots_per_gpu = slots;
    found.redundant = shape.slots() - record.experts;
    found.balance = 1;
    for (std::uint32_t layer = 0; layer < record.layers; ++layer) {
      TRY(const auto planned,
          experts::plan_recorded_layer(record, layer, shape, experts::PlanMethod::kSearch));
      found.balance = std::max(found.balance, planned.planned);
    }
    found.enough = found.balance <= balance;
  }
  return found;
}

Result<std::vector<ExpertSlots>> expert_slots(const Options& o, const routing::Profile& profile,
                                              const sim::PlanCase& plan) {
  std::vector<ExpertSlots> result;
  experts::LoadRecord record = made_up_loads(o.plan_experts, o.plan_expert_skew);
  if (!o.plan_expert_loads.empty()) {
    TRY(const std::string text, read_file(o.plan_expert_loads, kRecordMax));
    auto parsed = experts::parse_load_record(text);
    if (!parsed) return std::unexpected(std::move(parsed).error().within(o.plan_expert_loads));
    record = std::move(*parsed);
  }
  if (record.experts == 0) return result;
  TRY(const auto prefill,
      slots_for(record, plan.prefill.group_ranks, std::max(1.0, profile.costs.prefill_moe.mean)));
  TRY(const auto decode,
      slots_for(record, plan.decode.group_ranks, std::max(1.0, profile.costs.decode_moe.mean)));
  return std::vector{prefill, decode};
}

std::string rate(double bytes) {
  return fmt::format("{:.3g} Gbit/s", bytes * 8e-9);
}

std::string groups(const sim::PoolSize& pool) {
  return fmt::format("{} ({} of EP/DP {})", pool.ranks, pool.ranks / pool.group_ranks,
                     pool.group_ranks);
}

std::string text_of(const sim::Plan& plan, const std::vector<ExpertSlots>& slots) {
  const sim::PlanCase& base = plan.base;
  const sim::Demand& d = base.demand;
  std::vector<std::vector<std::string>> rows = {
      {"load", fmt::format("{:.4g} requests a second; tokens a second: prompts {:.4g} (not in the "
                           "cache {:.4g}), answers {:.4g}",
                           d.requests, d.prompt_tokens, d.uncached_tokens, d.output_tokens)},
      {"running", fmt::format("{:.4g} answers with {:.4g} KV tokens, at a token in {:.3g} ms",
                              d.requests_running, d.kv_tokens_running, 1e3 * plan.slo.tau)},
      {"prefill ranks",
       fmt::format("{}; closed form {:.2f} at full use (work {:.2f}, loads of hits {:.2f})",
                   groups(base.prefill), base.closed.prefill, base.closed.prefill_for_work,
                   base.closed.prefill_for_loads)},
      {"decode ranks",
       fmt::format("{}; closed form {:.2f} (work {:.2f}, KV {:.2f}, requests {:.2f})",
                   groups(base.decode), base.closed.decode, base.closed.decode_for_work,
                   base.closed.decode_for_kv, base.closed.decode_for_requests)},
      {"P:D", fmt::format("{:.2f}", static_cast<double>(base.prefill.ranks) /
                                        static_cast<double>(base.decode.ranks))},
      {"simulated", fmt::format("{:.2f} % served in time, first token p99 {:.2f} s, gap p99 {:.1f} "
                                "ms",
                                100 * plan.report.served_share(), plan.report.ttft.quantile(0.99),
                                1e3 * plan.report.gaps.quantile(0.99))}};
  for (const ExpertSlots& s : slots)
    rows.push_back(
        {"expert slots",
         fmt::format(
             "{} a GPU over {} GPUs, {} redundant: the fullest GPU has {:.3f} of the mean{}",
             s.slots_per_gpu, s.gpus, s.redundant, s.balance,
             s.enough ? "" : ", more than the profile assumes")});
  rows.push_back(
      {"KV store",
       fmt::format("{} for {:.4g} s unused; busiest ten seconds: read {}, write {}",
                   describe_bytes(Bytes(static_cast<std::int64_t>(d.kv_stored_bytes))),
                   plan.kv_ttl_seconds, rate(plan.kv_read_bytes), rate(plan.kv_write_bytes))});
  rows.push_back(
      {"interconnect",
       fmt::format("of 8 GPUs in the busiest ten seconds, KV alone: prefill in {}, out "
                   "{}; decode in {}",
                   rate(plan.per_eight_gpus.prefill_in), rate(plan.per_eight_gpus.prefill_out),
                   rate(plan.per_eight_gpus.decode_in))});
  if (plan.gpu_hour_price > 0)
    rows.push_back(
        {"cost",
         fmt::format(
             "{:.2f} an hour for {} GPUs, {:.3g} a million answer tokens", plan.cost_per_hour(base),
             base.gpus(),
             d.output_tokens > 0 ? plan.cost_per_hour(base) / 3600 / d.output_tokens * 1e6 : 0)});
  std::string text = table(rows);
  std::vector<std::vector<std::string>> cases = {
      {"what if", "hits", "closed P", "P", "closed D", "D", "GPUs", "cost/h"}};
  const auto add = [&](const sim::PlanCase& c) {
    cases.push_back({c.name, fmt::format("{:.1f} %", 100 * c.demand.hit_rate()),
                     fmt::format("{:.2f}", c.closed.prefill), std::to_string(c.prefill.ranks),
                     fmt::format("{:.2f}", c.closed.decode), std::to_string(c.decode.ranks),
                     std::to_string(c.gpus()),
                     plan.gpu_hour_price > 0 ? fmt::format("{:.2f}", plan.cost_per_hour(c)) : ""});
  };
  add(base);
  for (const sim::PlanCase& c : plan.sensitivities)
    add(c);
  return text + "\n" + table(cases, {false, true, true, true, true, true, true, true});
}

std::string json_of(const sim::Plan& plan, const std::vector<ExpertSlots>& slots) {
  json::object object = json::parse(sim::to_json(plan)).as_object();
  const char* pools[] = {"prefill", "decode"};
  json::object experts;
  for (std::size_t i = 0; i < slots.size(); ++i)
    experts[pools[i]] = json::object{{"gpus", slots[i].gpus},
                                     {"slots_per_gpu", slots[i].slots_per_gpu},
                                     {"redundant_slots", slots[i].redundant},
                                     {"max_over_mean", slots[i].balance},
                                     {"as_the_profile_assumes", slots[i].enough}};
  object["expert_slots"] = std::move(experts);
  if (plan.gpu_hour_price > 0) object["gpu_hour_price"] = plan.gpu_hour_price;
  return json::serialize(object);
}

}  // namespace

Result<int> run_plan(const Options& options_given) {
  const Options o = with_simulated_times(options_given);
  TRY(const auto profile, simulated_profile(o));
  sim::PlanOptions options;
  options.load = simulated_load(o);
  options.copies = o.sim_load;
  options.gpu_hour_price = o.plan_gpu_price;
  TRY(const auto trace, simulated_trace(o, options.load.duration));
  TRY(options.cluster, simulated_cluster(o));
  const auto plan = sim::plan_deployment(profile, trace, options);
  end_progress(options.load);
  if (!plan) return std::unexpected(plan.error());
  TRY(const auto slots, expert_slots(o, profile, plan->base));
  return print_data(o.json ? json_of(*plan, slots) : text_of(*plan, slots));
}

}  // namespace penstock
