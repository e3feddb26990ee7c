// `penstock bench`: runs the benches of bench/registry.cc and prints design section 10's JSON or a
// table.
#include <fmt/format.h>
#include <stdlib.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "app/cluster_store.h"
#include "app/commands.h"
#include "app/console.h"
#include "app/suggest.h"
#include "app/text_layout.h"
#include "app/values.h"
#include "bench.h"
#include "io/files/machine.h"

namespace penstock {
namespace {

namespace json = boost::json;

struct Ran {
  const bench::Bench* bench;
  std::vector<bench::Figure> figures;
};

json::object machine_json() {
  const Machine machine = read_machine();
  double load = 0;  // of the last minute, the bench's own included
  ::getloadavg(&load, 1);
  return {{"cpu", machine.cpu_model},
          {"cores", machine.cores},
          {"memory", format_bytes(machine.memory_total)},
          {"load_average", load}};
}

json::object figure_json(const bench::Figure& f) {
  json::object out{{"name", f.name},
                   {"value", f.value},
                   {"unit", f.unit},
                   {"baseline_name", f.baseline_name},
                   {"baseline", f.baseline},
                   {"ratio", f.ratio},
                   {"aim", f.aim}};
  if (!f.skipped.empty()) {
    for (const auto* absent : {"value", "baseline", "ratio"})
      out[absent] = nullptr;
    out["skipped"] = f.skipped;
  }
  return out;
}

json::object bench_json(const Ran& ran) {
  json::array figures;
  for (const auto& figure : ran.figures)
    figures.push_back(figure_json(figure));
  return {{"bench", ran.bench->name}, {"machine", machine_json()}, {"figures", std::move(figures)}};
}

std::string number(double value) {
  return value != 0 && (value >= 1e5 || value < 1e-2) ? fmt::format("{:.3g}", value)
                                                      : fmt::format("{:.2f}", value);
}

std::string bench_table(const Ran& ran) {
  std::vector<std::vector<std::string>> rows = {
      {"figure", "value", "unit", "baseline", "", "ratio", "aim", ""}};
  for (const auto& f : ran.figures) {
    if (f.skipped.empty()) {
      rows.push_back({f.name, number(f.value), f.unit, number(f.baseline), f.baseline_name,
                      number(f.ratio), number(f.aim), f.ratio >= f.aim ? "ok" : "below the aim"});
    } else {
      rows.push_back(
          {f.name, "-", f.unit, "-", f.baseline_name, "-", number(f.aim), "skipped: " + f.skipped});
    }
  }
  return fmt::format("{}: {}\n{}", ran.bench->name, ran.bench->summary,
                     table(rows, {false, true, false, true, false, true, true, false}));
}

Result<int> list_benches(bool as_json) {
  json::array names;
  std::vector<std::vector<std::string>> rows;
  for (const auto& each : bench::all()) {
    names.push_back(json::object{{"bench", each.name}, {"summary", each.summary}});
    rows.push_back({each.name, each.summary});
  }
  return print_data(as_json ? json::serialize(names) : table(rows));
}

Result<std::vector<const bench::Bench*>> chosen(const std::string& name) {
  std::vector<const bench::Bench*> benches;
  std::vector<std::string_view> known = {"all", "list"};
  for (const auto& each : bench::all()) {
    known.emplace_back(each.name);
    if (name == "all" || name == each.name) benches.push_back(&each);
  }
  if (!benches.empty()) return benches;
  const auto hint = did_you_mean(name, known);
  return fail(ErrorCode::kNotFound,
              fmt::format("no bench \"{}\"{} `penstock bench list` lists them.", name,
                          hint.empty() ? "." : hint));
}

}  // namespace

Result<int> run_bench(const Options& options) {
  if (options.words.empty())
    return fail(ErrorCode::kInvalidArgument,
                "which bench? `penstock bench list` lists them, `penstock bench all` runs all");
  if (options.words[0] == "list") return list_benches(options.json);
  TRY(const auto benches, chosen(options.words[0]));
  bench::Options with;
  with.model_dir = options.models.empty() ? "" : options.models[0].value;
  with.reference_dir = options.reference_dir;
  with.quick = options.quick;
  with.kv_tier = options.bench_tier;
  with.cluster_store = options.cluster_store;
  with.open_store = open_cluster_store;
  with.rados_arguments = rados_arguments;
  json::array objects;
  std::string text;
  for (const auto* each : benches) {
    fmt::print(stderr, "bench {}: {}\n", each->name, each->summary);
    auto figures = each->run(with);
    if (!figures)
      return std::unexpected(
          std::move(figures).error().within(fmt::format("bench {}", each->name)));
    const Ran ran{each, std::move(*figures)};
    objects.push_back(bench_json(ran));
    text += bench_table(ran) + "\n";
  }
  if (!options.json) return print_data(text);
  // One bench prints its object, `all` a list of them.
  return print_data(options.words[0] == "all" ? json::serialize(objects)
                                              : json::serialize(objects[0]));
}

}  // namespace penstock
