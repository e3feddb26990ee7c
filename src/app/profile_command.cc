// penstock profile: measures the embedded engine on this machine and writes a profile.
#include <fmt/format.h>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <memory>

#include "app/commands.h"
#include "app/console.h"
#include "app/engine_profile.h"
#include "app/text_layout.h"
#include "app/values.h"
#include "core/routing/profile.h"
#include "engine/kv_pool.h"
#include "io/files/files.h"
#include "io/files/machine.h"
#include "io/telemetry/log.h"

namespace penstock {
namespace {

namespace json = boost::json;

// Round trips to the daemon and to the other worker, of the right order; bandwidths of ways that
// a laptop does not have. Said so in the profile.
constexpr routing::FlowCoefficients kDisk{5e-4, 5e8};
constexpr routing::FlowCoefficients kPeer{5e-4, 1e9};
constexpr routing::FlowCoefficients kCluster{5e-3, 4e8};
constexpr routing::FlowCoefficients kOtherZone{2e-3, 5e8};
constexpr double kHostLatency = 5e-5;
constexpr double kTransferLatency = 1e-4;

double percent(double log_error) {
  return (std::exp(log_error) - 1) * 100;
}

routing::Profile make_profile(const Options& options, engine::Engine& engine,
                              const EngineCosts& costs, double copy_rate) {
  const ModelDescription& model = engine.description();
  const Machine machine = read_machine();
  routing::Profile profile;
  profile.name = "embedded-" + model.name;
  profile.engine = fmt::format("embedded, model {}, {} thread{}", model.name,
                               options.engine_threads, options.engine_threads == 1 ? "" : "s");
  profile.basis = routing::ProfileBasis::kMeasured;
  profile.sources = {
      fmt::format("`penstock profile` on a machine with {} cores and {} of memory; the engine: {}.",
                  machine.cores, describe_bytes(machine.memory_total), engine.summary()),
      fmt::format(
          "prefill: {} chunks, the fastest of several passes each; the law is off by {:.1f} "
          "% in the mean.",
          costs.prefill_points.size(), percent(costs.prefill_error)),
      fmt::format("step: {} batches, the fastest of several steps each; the law is off by {:.1f} % "
                  "in the mean.",
                  costs.step_points.size(), percent(costs.step_error)),
      "load.host, transfer_same_zone: the rate is that of copying and checking KV slices out of "
      "cache; the latencies are estimates.",
      "load.disk, load.peer, load.cluster, transfer_other_zone: estimates, not measured.",
      "moe_lb: one engine is a group of one rank, which waits for nobody."};
  const routing::PoolProfile pool{1, 1, 1, engine.load().kv_tokens_total.value,
                                  options.max_sequences};
  profile.prefill_pool = profile.decode_pool = pool;
  profile.costs.prefill = costs.prefill;
  profile.costs.step = costs.step;
  profile.costs.load[static_cast<std::size_t>(KvTier::kHost)] = {kHostLatency, copy_rate};
  profile.costs.load[static_cast<std::size_t>(KvTier::kDisk)] = kDisk;
  profile.costs.load[static_cast<std::size_t>(KvTier::kPeer)] = kPeer;
  profile.costs.load[static_cast<std::size_t>(KvTier::kCluster)] = kCluster;
  profile.costs.transfer_same_zone = {kTransferLatency, copy_rate};
  profile.costs.transfer_other_zone = kOtherZone;
  profile.block_tokens = engine::kBlockTokens;
  profile.kv_bytes_per_token = model.kv_token_bytes;
  profile.chunk_tokens_max = options.max_batch_tokens;
  profile.context_tokens_max = model.context_length;
  return profile;
}

json::array points_json(const std::vector<CostPoint>& points, const char* work, const char* kv) {
  json::array out;
  for (const CostPoint& p : points)
    out.emplace_back(json::object{{work, p.work},
                                  {kv, p.context},
                                  {"seconds", p.seconds},
                                  {"predicted_seconds", p.predicted}});
  return out;
}

std::string report_json(const routing::Profile& profile, const EngineCosts& costs) {
  return json::serialize(json::object{
      {"profile", json::parse(routing::print_profile(profile))},
      {"prefill_error", costs.prefill_error},
      {"step_error", costs.step_error},
      {"prefill_points", points_json(costs.prefill_points, "new_tokens", "context_tokens")},
      {"step_points", points_json(costs.step_points, "requests", "kv_tokens")}});
}

std::string report_text(const EngineCosts& costs, double copy_rate) {
  const std::vector<std::vector<std::string>> rows = {
      {"prefill",
       fmt::format("{:.3g} ms + {:.3g} us a token + {:.3g} ns a pair of tokens",
                   costs.prefill.base * 1e3, costs.prefill.per_token * 1e6,
                   costs.prefill.per_pair * 1e9),
       fmt::format("off by {:.1f} % at {} points", percent(costs.prefill_error),
                   costs.prefill_points.size())},
      {"step",
       fmt::format("{:.3g} ms + {:.3g} us a request + {:.3g} ns a KV token", costs.step.base * 1e3,
                   costs.step.per_request * 1e6, costs.step.per_kv_token * 1e9),
       fmt::format("off by {:.1f} % at {} points", percent(costs.step_error),
                   costs.step_points.size())},
      {"KV copied and checked", fmt::format("{:.2f} GB/s", copy_rate / 1e9), ""}};
  return table(rows);
}

}  // namespace

Result<int> run_profile(const Options& options) {
  if (options.models.empty())
    return fail(ErrorCode::kInvalidArgument,
                "no model to measure: the bundled models/nano was not found; give --model NAME=DIR",
                "models");
  engine::EngineOptions wanted;
  wanted.checkpoint_dir = options.models[0].value;
  wanted.model_name = options.models[0].name;
  wanted.threads = options.engine_threads;
  wanted.kv_bytes = options.kv_memory;
  wanted.kv_dtype = options.kv_dtype == "f32" ? engine::KvDtype::kF32 : engine::KvDtype::kBf16;
  wanted.max_batch_tokens = options.max_batch_tokens;
  wanted.max_sequences = options.max_sequences;
  TRY(const auto engine, engine::Engine::open(std::move(wanted)));
  log_info("measuring {}", engine->summary());
  ProfileEffort effort;
  if (options.quick) effort = {3, 4096};
  EngineCosts costs;
  {
    std::unique_ptr<ProgressBar> bar;
    TRY(costs, measure_costs(*engine, effort, [&](std::size_t done, std::size_t total) {
          if (bar == nullptr) bar = std::make_unique<ProgressBar>("measuring", total);
          bar->update(done);
        }));
  }
  const double copy_rate = measure_copy_rate(engine->pool().layout().slice_bytes());
  const routing::Profile profile = make_profile(options, *engine, costs, copy_rate);
  TRY_STATUS(routing::validate(profile));
  const std::string text = routing::print_profile(profile);
  if (!options.out.empty()) {
    TRY_STATUS(write_file_atomically(options.out, text + (text.ends_with('\n') ? "" : "\n")));
    log_info("wrote {}", options.out);
  }
  if (options.json) return print_data(pretty_json(report_json(profile, costs)));
  return print_data(options.out.empty() ? text : report_text(costs, copy_rate));
}

}  // namespace penstock
