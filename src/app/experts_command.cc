// penstock experts: what the experts of a running service get, and where they should be.
#include <fmt/format.h>
#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <fstream>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>

#include "app/commands.h"
#include "app/console.h"
#include "app/expert_link.h"
#include "app/expert_options.h"
#include "app/suggest.h"
#include "app/text_layout.h"
#include "core/experts/record_plan.h"
#include "io/files/files.h"
#include "io/telemetry/log.h"

namespace penstock {
namespace {

namespace json = boost::json;

constexpr Duration kConnectMax = std::chrono::seconds(5);
constexpr Duration kAnswerMax = std::chrono::seconds(10);  // a step of a busy engine may be long
constexpr Bytes kRecordMax{std::int64_t{1} << 30};

Result<std::unique_ptr<ExpertLink>> open_link(const Options& options) {
  TRY(auto workers, service_workers(options));
  auto link = std::make_unique<ExpertLink>(std::move(workers));
  const auto missing = link->connect(kConnectMax);
  if (!missing.empty())
    return fail(ErrorCode::kUnavailable, fmt::format("no connection to {}; is the service running?",
                                                     fmt::join(missing, ", ")));
  return link;
}

// The ranks of the model that was asked for, or of the first there is.
Result<std::vector<RankExperts>> ask(ExpertLink& link, std::string& model) {
  std::vector<RankExperts> ranks = link.ask(kAnswerMax);
  if (ranks.empty())
    return fail(ErrorCode::kNotFound, "no worker serves a model with routed experts, or answers");
  std::vector<std::string_view> names;
  for (const RankExperts& rank : ranks)
    names.push_back(rank.model);
  if (model.empty()) model = ranks[0].model;
  if (std::ranges::find(names, model) == names.end())
    return fail(ErrorCode::kModelNotFound,
                fmt::format("no model \"{}\" with routed experts is served{}", model,
                            did_you_mean(model, names)),
                "--model");
  std::erase_if(ranks, [&](const RankExperts& rank) { return rank.model != model; });
  return ranks;
}

double busiest_over_mean(std::span<const std::uint64_t> loads) {
  std::vector<double> out(loads.begin(), loads.end());
  return experts::max_over_mean(out);
}

std::span<const std::uint64_t> row(const std::vector<std::uint64_t>& all, std::size_t layer,
                                   std::size_t width) {
  return std::span(all).subspan(layer * width, width);
}

// Most over mean of the expert ranks, pass by pass: of one layer, or of all of them together.
// Nothing without a map, or when no pass has been heard of.
std::optional<double> moe_lb(const RankExperts& rank, std::optional<std::uint32_t> layer = {}) {
  const ExpertUse& use = rank.use;
  if (rank.report.map.version == 0 || use.picks.size() != rank.report.layers) return std::nullopt;
  double picks = 0;
  double paced = 0;
  for (std::uint32_t i = layer.value_or(0); i < (layer ? *layer + 1 : rank.report.layers); ++i) {
    picks += static_cast<double>(use.picks[i]);
    paced += static_cast<double>(use.paced[i]);
  }
  return picks > 0 ? std::optional(paced / picks) : std::nullopt;
}

json::value or_null(std::optional<double> number) {
  return number ? json::value(*number) : json::value(nullptr);
}

std::string show_json(const std::vector<RankExperts>& ranks) {
  json::array out;
  for (const RankExperts& rank : ranks) {
    const ExpertReport& report = rank.report;
    json::array layers;
    for (std::uint32_t layer = 0; layer < report.layers; ++layer) {
      const auto picks = row(report.picks, layer, report.experts);
      json::object entry{{"layer", report.first_layer + layer},
                         {"picks", json::array(picks.begin(), picks.end())},
                         {"busiest_expert_over_mean", busiest_over_mean(picks)}};
      if (report.map.version != 0) {
        const auto loads = row(report.rank_picks, layer, report.map.ranks);
        const auto slots = std::span(report.map.slots)
                               .subspan(layer * report.map.layer_slots(), report.map.layer_slots());
        entry["slots"] = json::array(slots.begin(), slots.end());
        entry["rank_picks"] = json::array(loads.begin(), loads.end());
        entry["busiest_rank_over_mean"] = busiest_over_mean(loads);
        entry["moe_lb"] = or_null(moe_lb(rank, layer));
      }
      layers.emplace_back(std::move(entry));
    }
    out.emplace_back(json::object{{"worker", rank.worker_name},
                                  {"epoch", fmt::format("{:016x}", rank.epoch.value)},
                                  {"rank", rank.rank},
                                  {"model", rank.model},
                                  {"map_version", report.map.version},
                                  {"expert_ranks", report.map.ranks},
                                  {"slots_per_rank", report.map.slots_per_rank},
                                  {"moe_lb", or_null(moe_lb(rank))},
                                  {"layers", std::move(layers)}});
  }
  return json::serialize(json::object{{"ranks", std::move(out)}});
}

std::string show_text(const std::vector<RankExperts>& ranks) {
  std::string out;
  for (const RankExperts& rank : ranks) {
    const ExpertReport& report = rank.report;
    const ExpertMap& map = report.map;
    out += fmt::format("{} rank {}: {}, {} layers of {} experts, {}\n", rank.worker_name, rank.rank,
                       rank.model, report.layers, report.experts,
                       map.version == 0 ? "no map"
                                        : fmt::format("map {} on {} expert ranks with {} slots",
                                                      map.version, map.ranks, map.slots_per_rank));
    std::vector<std::vector<std::string>> rows = {
        {"layer", "picks", "busiest expert/mean", "busiest rank/mean", "moe_lb"}};
    const auto number = [](std::optional<double> x) { return x ? fmt::format("{:.3f}", *x) : "-"; };
    for (std::uint32_t layer = 0; layer < report.layers; ++layer) {
      const auto picks = row(report.picks, layer, report.experts);
      rows.push_back(
          {fmt::to_string(report.first_layer + layer),
           fmt::to_string(std::accumulate(picks.begin(), picks.end(), std::uint64_t{0})),
           fmt::format("{:.3f}", busiest_over_mean(picks)),
           map.version == 0
               ? "-"
               : fmt::format("{:.3f}", busiest_over_mean(row(report.rank_picks, layer, map.ranks))),
           number(moe_lb(rank, layer))});
    }
    rows.push_back({"all", "", "", "", number(moe_lb(rank))});
    out += table(rows, {true, true, true, true, true}) + "\n";
  }
  return out;
}

Result<int> show(const Options& options) {
  TRY(const auto link, open_link(options));
  std::string model = options.chat_model;
  TRY(const auto ranks, ask(*link, model));
  return print_data(options.json ? pretty_json(show_json(ranks)) : show_text(ranks));
}

// Picks of a worker's ranks together, by worker; nothing for one whose counts can't be compared.
class WindowMaker {
 public:
  // The windows since the last call; the first call gives none.
  std::vector<experts::RecordedWindow> next(const std::vector<RankExperts>& ranks) {
    std::map<std::string, Seen> now;
    for (const RankExperts& rank : ranks) {
      Seen& seen = now[rank.worker_name];
      seen.epoch = rank.epoch;
      ++seen.ranks;
      seen.picks.resize(rank.report.picks.size());
      for (std::size_t i = 0; i < seen.picks.size(); ++i)
        seen.picks[i] += rank.report.picks[i];
    }
    std::vector<experts::RecordedWindow> windows;
    for (const auto& [name, seen] : now) {
      const auto before = last_.find(name);
      if (before == last_.end()) continue;
      if (before->second.epoch != seen.epoch || before->second.ranks != seen.ranks) {
        log_warning("worker {} began anew: this window is left out", name);
        continue;
      }
      experts::RecordedWindow window{0, name, 0, seen.picks};
      for (std::size_t i = 0; i < seen.picks.size(); ++i)
        window.picks[i] -= before->second.picks[i];
      windows.push_back(std::move(window));
    }
    last_ = std::move(now);
    return windows;
  }

 private:
  struct Seen {
    Epoch epoch;
    std::size_t ranks = 0;
    std::vector<std::uint64_t> picks;
  };
  std::map<std::string, Seen> last_;
};

Result<int> record(const Options& options) {
  TRY(const auto link, open_link(options));
  std::string model = options.chat_model;
  TRY(auto ranks, ask(*link, model));
  std::ofstream file;
  if (!options.out.empty()) {
    file.open(options.out);
    if (!file) return fail(ErrorCode::kIo, fmt::format("cannot write {}", options.out), "--out");
  }
  std::ostream& out = options.out.empty() ? std::cout : file;
  const experts::LoadRecord head{
      model, ranks[0].report.first_layer, ranks[0].report.layers, ranks[0].report.experts, {}};
  out << experts::print_header(head) << std::endl;
  WindowMaker maker;
  maker.next(ranks);
  const auto windows = std::max<std::int64_t>(
      1, std::chrono::seconds(options.record_seconds) / options.record_window);
  ProgressBar bar("recording", static_cast<std::size_t>(windows));
  auto last = std::chrono::steady_clock::now();
  const auto start = last;
  std::uint64_t picks = 0;
  for (std::int64_t w = 0; w < windows; ++w) {
    link->wait(std::chrono::duration_cast<Duration>(start + options.record_window * (w + 1) -
                                                    std::chrono::steady_clock::now()));
    TRY(ranks, ask(*link, model));
    const auto now = std::chrono::steady_clock::now();
    for (experts::RecordedWindow& window : maker.next(ranks)) {
      window.number = static_cast<std::uint64_t>(w);
      window.seconds = std::chrono::duration<double>(now - last).count();
      for (const std::uint64_t n : window.picks)
        picks += n;
      out << experts::print_window(head, window) << std::endl;
    }
    last = now;
    if (!out) return fail(ErrorCode::kIo, fmt::format("cannot write {}", options.out), "--out");
    bar.update(static_cast<std::size_t>(w) + 1);
  }
  if (picks == 0) log_warning("nothing was recorded: no request ran in that time");
  return 0;
}

using experts::PlanMethod;
using experts::RecordedLayerPlan;

struct Worth {
  double in_order = 0;
  double baseline = 0;
  double planned = 0;
  double floor = 0;
};

// Means over the layers that had any load.
Worth mean_worth(const std::vector<RecordedLayerPlan>& layers) {
  Worth sum;
  double n = 0;
  for (const RecordedLayerPlan& layer : layers) {
    if (layer.picks <= 0) continue;
    sum.in_order += layer.in_order;
    sum.baseline += layer.baseline;
    sum.planned += layer.planned;
    sum.floor += layer.floor;
    n += 1;
  }
  if (n == 0) return {1, 1, 1, 1};
  return {sum.in_order / n, sum.baseline / n, sum.planned / n, sum.floor / n};
}

std::string_view name_of(PlanMethod method) {
  switch (method) {
    case PlanMethod::kSearch:
      return "search";
    case PlanMethod::kBaseline:
      return "eplb";
    case PlanMethod::kWeighted:
      return "weighted";
  }
  return "";
}

std::string plan_json(const experts::LoadRecord& record, const experts::Shape& shape,
                      PlanMethod method, const std::vector<RecordedLayerPlan>& layers) {
  const auto worth = [](const auto& w) {
    return json::object{
        {"in_order", w.in_order}, {"eplb", w.baseline}, {"planned", w.planned}, {"floor", w.floor}};
  };
  json::array rows;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    json::object entry = worth(layers[i]);
    entry["layer"] = record.first_layer + i;
    entry["picks"] = layers[i].picks;
    rows.emplace_back(std::move(entry));
  }
  return json::serialize(
      json::object{{"method", name_of(method)},
                   {"max_over_mean", worth(mean_worth(layers))},
                   {"layers", std::move(rows)},
                   {"maps", json::parse(experts::print_maps(record, shape, layers))}});
}

std::string plan_text(const experts::LoadRecord& record, const experts::Shape& shape,
                      PlanMethod method, const std::vector<RecordedLayerPlan>& layers) {
  const auto number = [](double x) { return fmt::format("{:.3f}", x); };
  std::vector<std::vector<std::string>> rows = {
      {"layer", "picks", "in order", "EPLB", std::string(name_of(method)), "floor"}};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const RecordedLayerPlan& l = layers[i];
    rows.push_back({fmt::to_string(record.first_layer + i), fmt::format("{:.0f}", l.picks),
                    number(l.in_order), number(l.baseline), number(l.planned), number(l.floor)});
  }
  const Worth mean = mean_worth(layers);
  rows.push_back({"mean", "", number(mean.in_order), number(mean.baseline), number(mean.planned),
                  number(mean.floor)});
  return fmt::format("{}: {} experts on {} GPUs with {} slots; max/mean load of the GPUs\n{}",
                     record.model, shape.experts, shape.gpus, shape.slots_per_gpu,
                     table(rows, std::vector<bool>(6, true)));
}

Result<int> plan(const Options& options) {
  if (options.words.size() != 2)
    return fail(ErrorCode::kInvalidArgument,
                "give the file that `penstock experts record` wrote: `penstock experts plan FILE`");
  if (options.baseline && options.weighted)
    return fail(ErrorCode::kInvalidArgument, "--baseline and --weighted exclude each other");
  const std::string& path = options.words[1];
  TRY(const std::string text, read_file(path, kRecordMax));
  auto record = experts::parse_load_record(text);
  if (!record) return std::unexpected(std::move(record).error().within(path));
  const experts::Shape shape = experts::shape_for(live_planner_options(options), record->experts);
  TRY_STATUS(experts::check(shape));
  const PlanMethod method = options.baseline   ? PlanMethod::kBaseline
                            : options.weighted ? PlanMethod::kWeighted
                                               : PlanMethod::kSearch;
  std::vector<RecordedLayerPlan> layers;
  {
    ProgressBar bar("planning", record->layers);
    for (std::uint32_t layer = 0; layer < record->layers; ++layer) {
      TRY(auto planned, experts::plan_recorded_layer(*record, layer, shape, method));
      layers.push_back(std::move(planned));
      bar.update(layer + 1);
    }
  }
  if (!options.out.empty()) {
    const std::string file = options.map_format == "sglang"
                                 ? experts::print_sglang_location(*record, shape, layers)
                                 : experts::print_maps(*record, shape, layers);
    TRY_STATUS(write_file_atomically(options.out, file + "\n"));
    log_info("wrote {}", options.out);
  }
  return print_data(options.json ? plan_json(*record, shape, method, layers)
                                 : plan_text(*record, shape, method, layers));
}

}  // namespace

Result<int> run_experts(const Options& options) {
  const std::string what = options.words.empty() ? "" : options.words[0];
  if (what == "plan") return plan(options);
  if (options.words.size() > 1)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("unexpected argument \"{}\"", options.words[1]));
  if (what == "show") return show(options);
  if (what == "record") return record(options);
  constexpr std::string_view kNames[] = {"show", "record", "plan"};
  return fail(ErrorCode::kInvalidArgument,
              what.empty()
                  ? "say what to do, such as `penstock experts show`. See `penstock experts --help`"
                  : fmt::format("unknown: experts {}{} See `penstock experts --help`", what,
                                did_you_mean(what, kNames)));
}

}  // namespace penstock
