// `penstock doctor`: looks at everything serve needs and says what to do about what is wrong.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <csignal>
#include <filesystem>

#include "app/api_client.h"
#include "app/chat_encodings.h"
#include "app/command_line.h"
#include "app/commands.h"
#include "app/console.h"
#include "app/listen_address.h"
#include "app/text_layout.h"
#include "app/values.h"
#include "base/sha256.h"
#include "core/prompt/tokenizer.h"
#include "engine/engine.h"
#include "io/fetch/image_fetch.h"
#include "io/files/api_keys.h"
#include "io/files/certificate.h"
#include "io/files/files.h"
#include "io/files/machine.h"

namespace penstock {
namespace {

enum class Level : std::uint8_t { kOk, kWarn, kFail };

struct Check {
  std::string name;
  Level level = Level::kOk;
  std::string what;
  std::string advice;  // what to do; empty when nothing is
};

std::string_view level_name(Level level) {
  constexpr std::string_view kNames[] = {"ok", "warn", "fail"};
  return kNames[static_cast<std::size_t>(level)];
}

Check failed(std::string name, const Error& error, std::string advice = {}) {
  return {std::move(name), Level::kFail, error.message, std::move(advice)};
}

Check check_configuration(const Options& o) {
  if (auto status = check_options(o, Command::kServe); !status)
    return failed("configuration", status.error());
  return {"configuration",
          Level::kOk,
          o.config_file.empty() ? "defaults and flags" : "read from " + o.config_file,
          {}};
}

Check check_processor(const Machine& machine) {
  const auto set = engine::best_instruction_set();
  Check check{"processor",
              Level::kOk,
              fmt::format("{}, {} cores usable, kernels: {}",
                          machine.cpu_model.empty() ? "unknown" : machine.cpu_model, machine.cores,
                          engine::to_string(set)),
              {}};
  if (set == engine::InstructionSet::kPortable) {
    check.level = Level::kWarn;
    check.advice = "answers are right but slow: use a machine with AVX2, or expose it to the guest";
  }
  return check;
}

Check check_memory(const Options& o, const Machine& machine) {
  Check check{"memory",
              Level::kOk,
              fmt::format("{} available of {}, {} for keys and values",
                          describe_bytes(machine.memory_available),
                          describe_bytes(machine.memory_total), describe_bytes(o.kv_memory)),
              {}};
  if (o.kv_memory > machine.memory_available) {
    check.level = Level::kFail;
    check.advice = "give a smaller --kv-memory or free memory";
  } else if (o.kv_memory.value > machine.memory_available.value / 10 * 8) {
    check.level = Level::kWarn;
    check.advice = "little is left for anything else: give a smaller --kv-memory";
  }
  return check;
}

Check check_huge_pages(const Machine& machine) {
  Check check{"huge pages",
              Level::kOk,
              fmt::format("transparent: {}, reserved and free: {}",
                          machine.transparent_huge_pages.empty() ? "unknown"
                                                                 : machine.transparent_huge_pages,
                          machine.huge_pages_free),
              {}};
  if (machine.transparent_huge_pages == "never") {
    check.level = Level::kWarn;
    check.advice = "for speed: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
  }
  return check;
}

Check check_open_files(const Options& o) {
  constexpr std::uint64_t kOurOwn = 256;  // sockets to workers, logs, libraries
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  Check check{"open files", Level::kOk, fmt::format("limit {}", limit.rlim_cur), {}};
  const std::uint64_t wanted = o.connections_max + kOurOwn;
  if (limit.rlim_cur < wanted) {
    check.level = Level::kWarn;
    check.what += fmt::format(", but {} connections are allowed", o.connections_max);
    check.advice = fmt::format("ulimit -n {}, or lower --max-connections", wanted);
  }
  return check;
}

// Leaves nothing behind: a folder that is not there yet is only checked to be possible.
Check check_data_folder(const Options& o) {
  const std::string advice = "give a --data-dir that this user can write";
  std::error_code error;
  const std::filesystem::path existing = nearest_existing(o.data_dir);
  const bool made = existing == std::filesystem::path(o.data_dir);
  const std::string probe = o.data_dir + "/doctor-probe";
  if (made) {
    // access(2) would say yes on a full disk, so something is really written.
    if (auto status = write_file_atomically(probe, "x"); !status)
      return failed("data folder", status.error(), advice);
    std::remove(probe.c_str());
  } else if (!std::filesystem::is_directory(existing, error) ||
             ::access(existing.c_str(), W_OK | X_OK) != 0) {
    return {"data folder", Level::kFail,
            fmt::format("{} cannot be made in {}", o.data_dir, existing.string()), advice};
  }
  const auto space = disk_space(existing.string());
  if (!space) return failed("data folder", space.error());
  Check check{"data folder",
              Level::kOk,
              fmt::format("{} {}, {} free", o.data_dir, made ? "is writable" : "can be made",
                          describe_bytes(space->available)),
              {}};
  constexpr Bytes kEnough{std::int64_t{1} << 30};
  if (space->available < kEnough) {
    check.level = Level::kWarn;
    check.advice = "free some disk space or give another --data-dir";
  }
  return check;
}

// What answers on the configured port, if anything: ours, a stranger, or nobody.
std::vector<Check> check_port(const Options& o) {
  const auto url = listen_url(o.host, o.port, !o.tls_cert.empty());
  const auto free = check_port_free(o.host, o.port);
  if (free)
    return {{"port", Level::kOk, fmt::format("{} on {} is free", o.port, o.host), {}},
            {"server", Level::kOk, fmt::format("none is running on {}", url), {}}};
  if (free.error().code != ErrorCode::kConflict) return {failed("port", free.error())};
  ApiTarget target;
  target.url = url;
  target.key = key_from_environment();
  target.verify_certificate = false;  // only whether it answers; nothing secret is asked
  if (!o.tls_cert.empty()) target.key.clear();
  const auto models = list_models(target);
  const bool answers = models || models.error().code == ErrorCode::kUnauthenticated;
  if (!answers) return {failed("port", free.error())};
  return {{"port",
           Level::kOk,
           fmt::format("{} on {} is in use by a running server", o.port, o.host),
           {}},
          {"server",
           Level::kOk,
           models ? fmt::format("{} answers, models: {}", url, fmt::join(*models, ", "))
                  : fmt::format("{} answers and wants an API key", url),
           {}}};
}

Status check_tokenizer(const Options& o, const Assignment& model) {
  TRY(const auto text, read_file(model.value + "/tokenizer.json", Bytes(Tokenizer::kJsonBytesMax)));
  TRY(auto tokenizer, Tokenizer::from_json(text));
  const Assignment* own = find_assignment(o.chat_templates, model.name);
  TRY_STATUS(chat_encoding_of(model.value, own != nullptr ? own->value : "", std::move(tokenizer)));
  return {};
}

Check check_model(const Options& o, const Assignment& model) {
  const std::string name = "model " + model.name;
  engine::EngineOptions options;
  options.checkpoint_dir = model.value;
  options.model_name = model.name;
  options.threads = 1;
  options.kv_blocks = 64;  // enough to load; the real size is checked under "memory"
  options.kv_dtype = o.kv_dtype == "f32" ? engine::KvDtype::kF32 : engine::KvDtype::kBf16;
  const std::string advice =
      "the folder needs config.json, model.safetensors and tokenizer.json of a supported model";
  const auto opened = engine::Engine::open(options);
  if (!opened) return failed(name, opened.error(), advice);
  if (auto status = check_tokenizer(o, model); !status) return failed(name, status.error(), advice);
  const auto& description = (*opened)->description();
  return {name,
          Level::kOk,
          fmt::format("{} loads: context {} tokens, vocabulary {}", model.value,
                      description.context_length, description.vocab_size),
          {}};
}

Check check_tls(const Options& o) {
  const auto info = check_certificate(o.tls_cert, o.tls_key);
  if (!info) return failed("TLS", info.error());
  Check check{
      "TLS", Level::kOk, fmt::format("{}, {} days left", info->subject, info->days_left), {}};
  if (info->days_left < 0) {
    check.level = Level::kFail;
    check.what = fmt::format("the certificate of {} has expired", info->subject);
    check.advice = "renew it";
  } else if (info->days_left < 14) {
    check.level = Level::kWarn;
    check.advice = "renew it soon";
  }
  return check;
}

std::vector<Check> run_checks(const Options& o) {
  const Machine machine = read_machine();
  std::vector<Check> checks = {check_configuration(o),   check_processor(machine),
                               check_memory(o, machine), check_huge_pages(machine),
                               check_open_files(o),      check_data_folder(o)};
  for (auto& check : check_port(o))
    checks.push_back(std::move(check));
  for (const auto& model : o.models)
    checks.push_back(check_model(o, model));
  if (!o.tls_cert.empty() && !o.tls_key.empty()) checks.push_back(check_tls(o));
  if (!o.api_key_file.empty()) {
    const auto keys = ApiKeys::load(o.api_key_file);
    checks.push_back(keys ? Check{"API keys",
                                  Level::kOk,
                                  fmt::format("{} in {}", keys->size(), o.api_key_file),
                                  {}}
                          : failed("API keys", keys.error()));
  }
  return checks;
}

// Whether an image that a user names would be fetched from this machine.
Check check_fetch(const std::string& url) {
  std::signal(SIGPIPE, SIG_IGN);  // a server may close at any time
  const auto image = fetch_image(url);
  if (!image) return failed("fetch", image.error());
  return {"fetch",
          Level::kOk,
          fmt::format("{} from {} after {} redirects: {}, {} x {} pixels, {} bytes, SHA-256 {:02x}",
                      image->url, to_string(image->address), image->redirects,
                      media::media_type(image->info.type), image->info.width, image->info.height,
                      image->bytes.size(), fmt::join(sha256(image->bytes), "")),
          {}};
}

std::string as_json(const std::vector<Check>& checks, bool ok) {
  boost::json::array list;
  for (const auto& check : checks) {
    list.push_back(boost::json::object{{"name", check.name},
                                       {"level", level_name(check.level)},
                                       {"what", check.what},
                                       {"advice", check.advice}});
  }
  return boost::json::serialize(boost::json::object{{"ok", ok}, {"checks", std::move(list)}});
}

std::string as_text(const std::vector<Check>& checks) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& check : checks) {
    rows.push_back({std::string(level_name(check.level)), check.name, check.what});
    if (!check.advice.empty()) rows.push_back({"", "", "-> " + check.advice});
  }
  return table(rows);
}

}  // namespace

Result<int> run_doctor(const Options& options) {
  const auto checks =
      options.url.empty() ? run_checks(options) : std::vector{check_fetch(options.url)};
  const bool ok =
      std::ranges::none_of(checks, [](const Check& c) { return c.level == Level::kFail; });
  TRY_STATUS(print_data(options.json ? as_json(checks, ok) : as_text(checks)));
  return ok ? 0 : 1;
}

}  // namespace penstock
