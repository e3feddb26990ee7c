#include "app/command_line.h"
#include "app/cluster_store.h"
#include "app/foreign_engines.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>
#include <deque>

#include "app/config_file.h"
#include "app/data_plane.h"
#include "app/option_table.h"
#include "app/pools.h"
#include "app/suggest.h"
#include "app/values.h"
#include "io/files/machine.h"

namespace penstock {
namespace {

// What CLI11 found: per row the values in order, or for a switch how often it stood there.
struct Given {
  const OptionInfo* row;
  std::vector<std::string> values;
  CLI::Option* option = nullptr;
};

std::unexpected<Error> usage_error(const CommandInfo& command, std::string_view what) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{}. See `penstock {} --help`.", what, command.name));
}

std::unexpected<Error> unknown_flag(const CommandInfo& command, std::string_view argument) {
  const auto name = argument.substr(argument.find_first_not_of('-') == std::string_view::npos
                                        ? argument.size()
                                        : argument.find_first_not_of('-'));
  const auto word = name.substr(0, name.find('='));
  std::vector<std::string_view> known = {"help"};
  for (const auto* row : flags_of(command.id))
    known.push_back(row->flag);
  const auto hint = did_you_mean(word, known, "--");
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("unknown flag {}{} See `penstock {} --help`.", argument,
                          hint.empty() ? "." : hint, command.name));
}

std::unexpected<Error> unknown_command(std::string_view word) {
  std::vector<std::string_view> known;
  for (const auto& command : command_table())
    known.push_back(command.name);
  const auto hint = did_you_mean(word, known);
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("unknown command \"{}\"{} `penstock` lists the commands.", word,
                          hint.empty() ? "." : hint));
}

Status apply_flags(const std::deque<Given>& given, const Environment& environment,
                   Options& options) {
  for (const auto& [row, values, option] : given) {
    const auto flag_name = fmt::format("--{}", row->flag);
    const auto* list = std::get_if<std::vector<Assignment> Options::*>(&row->field);
    if (list != nullptr && !values.empty()) (options.**list).clear();
    if (row->form == OptionForm::kWords && !values.empty()) {
      TRY_STATUS(set_option(options, *row, fmt::format("{}", fmt::join(values, " "))));
      continue;
    }
    if (list == nullptr && values.size() > 1)
      return fail(ErrorCode::kInvalidArgument, fmt::format("{} is given twice", flag_name),
                  flag_name);
    for (const auto& value : values) {
      std::string text = value;
      if (row->form == OptionForm::kPath && !(row->fallback == "auto" && value == "auto")) {
        const auto split = list == nullptr ? 0 : value.find('=') + 1;  // NAME=PATH: only the path
        text = value.substr(0, split) + absolute_path(std::string_view(value).substr(split),
                                                      environment.working_dir, environment);
      }
      if (auto status = set_option(options, *row, text); !status) {
        auto error = std::move(status).error();
        error.field = flag_name;
        return std::unexpected(std::move(error).within(flag_name));
      }
    }
  }
  return {};
}

// Splits the arguments of one command with CLI11.
Status split(const CommandInfo& command, std::vector<std::string> arguments,
             std::deque<Given>& given, std::vector<std::string>& words, bool& help) {
  CLI::App app;
  app.set_help_flag();
  app.add_flag("-h,--help", help);
  app.allow_extras();
  app.add_option("words", words);
  for (const auto* row : flags_of(command.id)) {
    auto& entry = given.emplace_back(Given{row, {}, nullptr});
    const auto name = fmt::format("{}--{}", row->flag == "out" ? "-o," : "", row->flag);
    entry.option = std::holds_alternative<bool Options::*>(row->field)
                       ? app.add_flag(name)
                       : app.add_option(name, entry.values)->allow_extra_args(false);
  }
  std::ranges::reverse(arguments);  // CLI11 takes them last first
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return usage_error(command, error.what());
  }
  for (const auto& extra : app.remaining()) {
    if (extra == "--") continue;  // the mark itself; what follows it is in `words`
    if (extra.size() > 1 && extra.starts_with('-')) return unknown_flag(command, extra);
    words.push_back(extra);
  }
  for (auto& entry : given) {
    const bool is_flag = std::holds_alternative<bool Options::*>(entry.row->field);
    if (is_flag && entry.option->count() > 0) entry.values = {entry.option->results().back()};
  }
  if (!help && words.size() > command.words_max)
    return usage_error(command,
                       fmt::format("unexpected argument \"{}\"", words[command.words_max]));
  return {};
}

Status check_listener(const Options& o) {
  if (o.tls_cert.empty() != o.tls_key.empty())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is given without {}; TLS needs both",
                            o.tls_cert.empty() ? "--tls-key" : "--tls-cert",
                            o.tls_cert.empty() ? "--tls-cert" : "--tls-key"),
                o.tls_cert.empty() ? "listen.tls_cert" : "listen.tls_key");
  in6_addr address{};
  if (::inet_pton(AF_INET, o.host.c_str(), &address) != 1 &&
      ::inet_pton(AF_INET6, o.host.c_str(), &address) != 1)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("\"{}\" is not an IP address; use 127.0.0.1, ::1, 0.0.0.0 or another", o.host),
        "listen.host");
  if (!is_loopback(o.host) && o.api_key_file.empty())
    return fail(ErrorCode::kPermissionDenied,
                fmt::format("refusing to listen on {} without API keys: without keys only loopback "
                            "(127.0.0.1) is served. Give --api-key-file FILE with lines NAME KEY",
                            o.host),
                "listen.host");
  return {};
}

Status check_models(const Options& o) {
  TRY_STATUS(foreign_engines(o));
  if (serves_foreign(o)) return {};  // the engines say which models there are
  if (o.models.empty())
    return fail(ErrorCode::kInvalidArgument,
                "no model to serve: the bundled models/nano was not found; give --model NAME=DIR",
                "models");
  for (const auto& alias : o.aliases) {
    if (find_assignment(o.models, alias.name) != nullptr)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("alias \"{}\" is also the name of a model", alias.name), "aliases");
    if (find_assignment(o.models, alias.value) != nullptr) continue;
    std::vector<std::string_view> names;
    for (const auto& model : o.models)
      names.push_back(model.name);
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("alias \"{}\" names the unknown model \"{}\"{} (models: {})", alias.name,
                    alias.value, did_you_mean(alias.value, names), fmt::join(names, ", ")),
        "aliases");
  }
  for (const auto& chat_template : o.chat_templates) {
    if (find_assignment(o.models, chat_template.name) != nullptr) continue;
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("a chat template is given for the unknown model \"{}\"", chat_template.name),
        "chat_templates");
  }
  return {};
}

Status check_kv(const Options& o) {
  constexpr std::size_t kClassesMax = 7;  // marks of the disk index
  if (o.kv_classes.size() > kClassesMax) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} cache classes are given; at most {} are possible",
                            o.kv_classes.size(), kClassesMax),
                "kv.classes");
  }
  for (auto c = o.kv_classes.begin(); c != o.kv_classes.end(); ++c) {
    if (find_assignment(o.kv_classes, c->name) != &*c) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("the cache class \"{}\" is given twice", c->name), "kv.classes");
    }
    const auto ttl = parse_duration(c->value);
    if (ttl && *ttl >= std::chrono::seconds(1)) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("class {}: \"{}\" is no time of a second or more, such as 12h or 3d",
                            c->name, c->value),
                "kv.classes");
  }
  return check_cluster(o);
}

Status check_socket_path(const Options& o) {
  constexpr std::size_t kSunPathMax = 107;  // sizeof(sockaddr_un::sun_path) - 1
  std::vector<std::string> paths = {o.worker_socket};
  for (const PlannedWorker& worker : planned_workers(o))
    paths.push_back(worker.socket);
  const auto& longest = *std::ranges::max_element(paths, {}, &std::string::size);
  if (longest.size() <= kSunPathMax) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("the socket path {} is longer than {} bytes; choose a shorter --data-dir",
                          longest, kSunPathMax),
              "data.dir");
}

Status check_workers(const Options& o) {
  if (auto pools = parse_pools(o.pools); !pools) {
    Error error = std::move(pools).error();
    error.field = "pools";
    return std::unexpected(std::move(error));
  }
  const auto is_kind = [&](std::string_view kind) {
    return o.transport == kind || o.transport.starts_with(fmt::format("{}:", kind));
  };
  if (is_kind("shm") || is_kind("tcp") || is_kind("ucx")) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("\"{}\" is no transport; there are shm, tcp and ucx, or an address such "
                          "as tcp:10.0.0.5:7000",
                          o.transport),
              "worker.transport");
}

}  // namespace

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" ||
         (host.starts_with("127.") &&
          host.find_first_not_of("0123456789.") == std::string_view::npos);
}

void resolve_automatic(Options& o, const Environment& environment) {
  if (o.host == "localhost") o.host = "127.0.0.1";
  if (o.data_dir.empty()) {
    o.data_dir = !environment.data_home.empty() ? environment.data_home + "/penstock"
                 : !environment.home.empty()    ? environment.home + "/.local/share/penstock"
                                                : environment.working_dir + "/penstock-data";
  }
  if (o.worker_socket.empty()) o.worker_socket = o.data_dir + "/run/" + o.worker_name + ".sock";
  if (o.kv_socket.empty()) o.kv_socket = o.data_dir + "/run/kvd.sock";
  if (o.kv_dir.empty()) o.kv_dir = o.data_dir + "/kv";
  if (o.kv_secret_file.empty()) o.kv_secret_file = o.data_dir + "/kv.secret";
  if (o.kv_classes.empty()) o.kv_classes = {{"default", "1d"}, {"chat", "7d"}, {"agent", "3d"}};
  const bool foreign = serves_foreign(o);  // a mistake in it is reported by check_options()
  if (foreign) o.kv_cache = "off";
  if (o.models.empty() && !foreign && foreign_engines(o)) {
    if (auto nano = find_bundled_model(environment); !nano.empty())
      o.models.push_back({"nano", std::move(nano)});
  }
  if (o.suite_dir.empty() && !o.models.empty()) o.suite_dir = o.models[0].value + "/heldout";
  if (o.reference_dir.empty() && !o.models.empty()) {
    o.reference_dir = o.models[0].value + "/../../tools/tokenizer_reference";
  }
  const auto cores = environment.machine.cores;
  if (o.engine_threads == 0) o.engine_threads = std::min(cores, 1024U);
  if (o.gateway_threads == 0) o.gateway_threads = std::clamp(cores / 8, 1U, 256U);
  const auto share = [](Bytes of, std::int64_t part, std::int64_t least_mib,
                        std::int64_t most_mib) {
    constexpr std::int64_t kMiB = 1 << 20;
    return Bytes(std::clamp(of.value / part / kMiB, least_mib, most_mib) * kMiB);
  };
  const Bytes memory = environment.machine.memory_available;
  if (o.kv_memory.value == 0) o.kv_memory = share(memory, 8, 64, 8 << 10);
  if (o.kv_host_memory.value == 0) o.kv_host_memory = share(memory, 8, 64, 64 << 10);
  if (o.kv_disk_size.value == 0) {
    const auto space = disk_space(nearest_existing(o.kv_dir));
    o.kv_disk_size = share(space ? space->available : Bytes(0), 10, 1024, 256 << 10);
  }
}

Status check_options(const Options& options, Command command) {
  if (command == Command::kServe || command == Command::kGateway)
    TRY_STATUS(check_listener(options));
  if (command == Command::kServe || command == Command::kGateway || command == Command::kWorker) {
    TRY_STATUS(check_models(options));
    TRY_STATUS(check_workers(options));
    TRY_STATUS(check_socket_path(options));
    TRY_STATUS(check_kv(options));
  }
  if (command == Command::kWorker && serves_foreign(options))
    return fail(ErrorCode::kInvalidArgument,
                "a worker runs an engine of this program; engines of others are the gateway's",
                "engine.kind");
  if (command == Command::kServe || command == Command::kWorker) {
    if (auto handoff = handoff_options(options); !handoff)
      return std::unexpected(std::move(handoff).error());
  }
  if (command == Command::kKvd) TRY_STATUS(check_kv(options));
  if (command == Command::kBench) TRY_STATUS(check_cluster(options));
  return {};
}

Result<CommandLine> parse_command_line(std::vector<std::string> arguments,
                                       const Environment& environment) {
  CommandLine line;
  if (arguments.empty()) {
    line.help = true;
    return line;
  }
  std::string first = std::move(arguments.front());
  arguments.erase(arguments.begin());
  if (first == "help") {
    line.help = true;
    if (arguments.empty()) return line;
    line.command = find_command(arguments.front());
    if (line.command == nullptr) return unknown_command(arguments.front());
    return line;
  }
  line.version = first == "--version" || first == "-V";
  line.help = first == "--help" || first == "-h";
  if (line.version || line.help) return line;
  line.command = find_command(first);
  if (line.command == nullptr) return unknown_command(first);

  std::deque<Given> given;  // CLI11 keeps pointers into it
  std::vector<std::string> words;
  TRY_STATUS(split(*line.command, std::move(arguments), given, words, line.help));
  if (line.help) return line;

  Options& options = line.options;
  options = default_options();
  options.command = line.command->name;
  options.words = std::move(words);
  // --config first: the file lies below the other flags.
  options.config_file =
      find_flag(line.command->id, "config") == nullptr ? "" : environment.config_file;
  for (const auto& entry : given) {
    if (entry.row->flag == "config" && !entry.values.empty())
      options.config_file = absolute_path(entry.values[0], environment.working_dir, environment);
  }
  if (!options.config_file.empty())
    TRY_STATUS(load_config_file(options.config_file, environment, options));
  TRY_STATUS(apply_flags(given, environment, options));
  resolve_automatic(options, environment);
  TRY_STATUS(check_options(options, line.command->id));
  return line;
}

}  // namespace penstock
