// `penstock serve`: prepares the data folder, supervises KV daemon, workers and gateway, tells
// where they are.
#include <fmt/format.h>
#include <unistd.h>

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>

#include "app/commands.h"
#include "app/config_file.h"
#include "app/console.h"
#include "app/foreign_engines.h"
#include "app/listen_address.h"
#include "app/pools.h"
#include "app/supervisor.h"
#include "app/text_layout.h"
#include "app/values.h"
#include "io/files/api_keys.h"
#include "io/files/certificate.h"
#include "io/files/files.h"
#include "io/files/machine.h"
#include "io/telemetry/log.h"

namespace penstock {
namespace {

// Beyond the drain time, for the gateway to notice and the engine to finish its step.
constexpr Duration kStopGrace = std::chrono::seconds(5);

// For the KV daemon's last writes to disk.
constexpr Duration kKvStopGrace = std::chrono::seconds(15);

std::vector<ReadyFact> all_facts(const std::vector<ReadyReport>& reports) {
  std::vector<ReadyFact> facts;
  for (const auto& report : reports)
    facts.insert(facts.end(), report.facts.begin(), report.facts.end());
  return facts;
}

// What a person needs to find things and to try them, on stderr.
void tell_people(const Options& o, const std::string& url,
                 const std::vector<ReadyReport>& reports) {
  std::vector<std::vector<std::string>> rows;
  const auto row = [&](std::string what, std::string value) {
    rows.push_back({"", std::move(what), std::move(value)});
  };
  for (const auto& report : reports) {
    for (const auto& fact : report.facts)
      row(fact.what, fact.value);
  }
  for (const auto& model : o.models)
    row("  from", model.value);
  for (const auto& alias : o.aliases)
    row("alias " + alias.name, alias.value);
  const bool foreign = serves_foreign(o);
  if (!foreign) row("KV memory", describe_bytes(o.kv_memory));
  row("data", o.data_dir);
  row("API keys", o.api_key_file.empty() ? "none, so only this machine is served (loopback)"
                                         : "from " + o.api_key_file);
  row("stop",
      fmt::format("Ctrl-C; running requests get up to {}", format_duration(o.drain_timeout)));
  const std::string key = o.api_key_file.empty() ? "" : " -H \"authorization: Bearer $KEY\"";
  if (foreign) {
    row("engines", o.engine);
    row("models", fmt::format("curl {}{}/v1/models{}", o.tls_cert.empty() ? "" : "-k ", url, key));
    fmt::print(stderr, "{}", table(rows));
    return;
  }
  row("try", "penstock chat" + (o.port == 8080 && o.tls_cert.empty() ? "" : " --url " + url));
  row("", fmt::format("curl {}{}/v1/chat/completions{} -H 'content-type: application/json' \\",
                      o.tls_cert.empty() ? "" : "-k ", url, key));
  row("",
      fmt::format(
          R"(  -d '{{"model":"{}","messages":[{{"role":"user","content":"What is 17 + 25?"}}]}}')",
          o.models[0].name));
  fmt::print(stderr, "{}", table(rows));
}

std::string ready_json(const Options& o, const std::string& url,
                       const std::vector<ReadyReport>& reports) {
  boost::json::object facts;
  for (const auto& report : reports) {
    for (const auto& fact : report.facts)
      facts[fact.what] = fact.value;
  }
  boost::json::object models;
  for (const auto& model : o.models)
    models[model.name] = model.value;
  return boost::json::serialize(boost::json::object{{"ready", true},
                                                    {"url", url},
                                                    {"host", o.host},
                                                    {"port", o.port},
                                                    {"pid", ::getpid()},
                                                    {"data_dir", o.data_dir},
                                                    {"models", std::move(models)},
                                                    {"kv_memory", format_bytes(o.kv_memory)},
                                                    {"facts", std::move(facts)}});
}

// The workers of all pools; they share out memory and threads.
void add_workers(const Options& o, const std::string& program, const std::string& config,
                 SupervisorPlan& plan) {
  const std::vector<PlannedWorker> workers = planned_workers(o);
  const auto count = static_cast<std::int64_t>(workers.size());
  for (const PlannedWorker& worker : workers) {
    std::vector<std::string> arguments = {program, "worker", "--config", config};
    const auto flag = [&](std::string name, std::string value) {
      arguments.push_back("--" + std::move(name));
      arguments.push_back(std::move(value));
    };
    flag("name", worker.name);
    flag("role", std::string(to_string(worker.role)));
    flag("worker-socket", worker.socket);
    flag("kv-memory", format_bytes(Bytes(o.kv_memory.value / count)));
    flag("engine-threads", fmt::to_string(std::max<std::int64_t>(1, o.engine_threads / count)));
    plan.children.push_back({"worker " + worker.name, std::move(arguments), kStopGrace});
  }
}

// Mistakes that would otherwise show up in a child, later and less clearly.
Status check_before_start(const Options& o) {
  TRY_STATUS(check_port_free(o.host, o.port));
  if (!o.api_key_file.empty()) TRY_STATUS(ApiKeys::load(o.api_key_file));
  if (!o.tls_cert.empty()) TRY_STATUS(check_certificate(o.tls_cert, o.tls_key));
  TRY_STATUS(check_engine_keys(o));
  if (serves_foreign(o)) return {};
  for (const auto& model : o.models) {
    auto config = read_file(model.value + "/config.json", Bytes(16 << 20));
    if (!config)
      return std::unexpected(std::move(config).error().within(
          fmt::format("model {}: not a checkpoint folder", model.name)));
  }
  return {};
}

Result<int> serve(const Options& given) {
  Options options = given;
  const std::string run_dir = options.data_dir + "/run";
  const std::string config = run_dir + "/config.json";
  TRY_STATUS(make_directories(options.data_dir, 0700));
  TRY_STATUS(make_directories(run_dir, 0700));
  auto lock = FileLock::acquire(options.data_dir + "/lock");
  if (!lock && lock.error().code == ErrorCode::kConflict)
    return fail(ErrorCode::kConflict,
                fmt::format("another penstock serve uses the data folder {} ({}); stop it or give "
                            "another --data-dir",
                            options.data_dir, lock.error().message),
                "data.dir");
  if (!lock) return std::unexpected(std::move(lock).error());
  TRY_STATUS(check_before_start(options));
  TRY_STATUS(write_file_atomically(config, effective_config(options), 0600));

  const std::string program = executable_path();
  SupervisorPlan plan;
  if (options.kv_cache == "on") {
    plan.children.push_back({"KV daemon", {program, "kvd", "--config", config}, kKvStopGrace});
  }
  add_workers(options, program, config, plan);
  plan.children.push_back(
      {"gateway", {program, "gateway", "--config", config}, options.drain_timeout + kStopGrace});
  plan.on_ready = [&](const std::vector<ReadyReport>& reports) -> Status {
    if (options.port == 0) {
      // A gateway that is restarted must come back on the port people know.
      options.port = reports.back().port;
      TRY_STATUS(write_file_atomically(config, effective_config(options), 0600));
    }
    report_ready(options.ready_fd, {static_cast<std::uint16_t>(options.port), all_facts(reports)});
    if (options.ready_fd != 0) return {};  // the one who started us tells people
    const auto url = listen_url(options.host, options.port, !options.tls_cert.empty());
    if (options.json) {
      TRY_STATUS(print_data(ready_json(options, url, reports)));
      return {};
    }
    TRY_STATUS(print_data(fmt::format("penstock is ready on {}", url)));
    tell_people(options, url, reports);
    return {};
  };
  TRY(const int code, supervise(plan));
  if (code == 0) log_info("stopped");
  return code;
}

}  // namespace

Result<int> run_serve(const Options& options) {
  auto code = serve(options);
  if (!code) report_failure(options.ready_fd, code.error());
  return code;
}

}  // namespace penstock
