// penstock worker: loads the models into embedded engines and serves them over the control plane.
#include <fmt/format.h>
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <vector>

#include "app/commands.h"
#include "app/data_plane.h"
#include "app/entropy.h"
#include "app/pools.h"
#include "app/ready.h"
#include "app/scripted_engine.h"
#include "app/stop_signal.h"
#include "core/prompt/tokenizer.h"
#include "io/control/engine_server.h"
#include "io/embedded/embedded_engine.h"
#include "io/embedded/grammar_constraints.h"
#include "io/files/files.h"
#include "io/files/machine.h"
#include "io/telemetry/log.h"

namespace penstock {
namespace {

constexpr Bytes kScriptMax{64 << 20};

Result<engine::KvDtype> kv_dtype(const std::string& name) {
  if (name == "bf16") return engine::KvDtype::kBf16;
  if (name == "f32") return engine::KvDtype::kF32;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("KV dtype '{}' is not known; there are bf16 and f32", name), "kv_dtype");
}

KvConnectorOptions kv_options(const Options& options, const std::string& rank) {
  KvConnectorOptions kv;
  kv.socket = options.kv_socket;
  kv.secret_file = options.kv_secret_file;
  kv.name = options.worker_name + "/" + rank;
  kv.budget_base = options.kv_fetch_base;
  kv.budget_per_1k_tokens = options.kv_fetch_per_1k;
  kv.log = [](int, const char* text) { log_info("KV cache: {}", text); };
  return kv;
}

struct LoadedEngines {
  std::vector<std::unique_ptr<service::WorkerEngine>> engines;
  std::vector<EmbeddedEngine*> embedded;  // the same
  std::vector<ReadyFact> facts;
};

engine::EngineOptions engine_options(const Options& options, const Assignment& model,
                                     engine::KvDtype dtype) {
  const auto ranks = static_cast<std::int64_t>(options.models.size()) * options.ranks;
  engine::EngineOptions wanted;
  wanted.checkpoint_dir = model.value;
  wanted.model_name = model.name;
  wanted.threads = std::max(1U, options.engine_threads / options.ranks);
  wanted.kv_bytes = Bytes(options.kv_memory.value / ranks);
  wanted.kv_dtype = dtype;
  wanted.max_batch_tokens = options.max_batch_tokens;
  wanted.max_sequences = options.max_sequences;
  return wanted;
}

Result<std::unique_ptr<engine::Engine>> open_engine(const Options& options,
                                                    engine::EngineOptions wanted) {
  if (options.engine == "embedded") {
    if (options.script.empty()) return engine::Engine::open(std::move(wanted));
    return fail(ErrorCode::kInvalidArgument, "--script goes with --engine scripted", "script");
  }
  if (options.script.empty())
    return fail(ErrorCode::kInvalidArgument, "--engine scripted needs --script FILE", "script");
  TRY(const std::string script, read_file(options.script, kScriptMax));
  auto opened = open_scripted_engine(std::move(wanted), script);
  if (opened) return opened;
  return std::unexpected(std::move(opened).error().within(options.script));
}

// Lets the engine serve structured output, if its vocabulary does.
void constrain(engine::Engine& engine, const Assignment& model) {
  const auto open = [&]() -> Result<std::unique_ptr<GrammarConstraints>> {
    TRY(const std::string text,
        read_file(model.value + "/tokenizer.json", Bytes(Tokenizer::kJsonBytesMax)));
    return GrammarConstraints::open(text, engine.description().vocab_size);
  };
  if (auto constraints = open()) {
    engine.set_constraints(std::move(*constraints));
  } else {
    log_info("model {}: no structured output: {}", model.name, constraints.error().message);
  }
}

// Opens the ranks of every model; the KV memory and the threads are shared out evenly.
Result<LoadedEngines> open_engines(const Options& options) {
  TRY(const engine::KvDtype dtype, kv_dtype(options.kv_dtype));
  const Bytes memory = read_machine().memory_total;
  if (memory.value > 0 && options.kv_memory > memory) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--kv-memory is {} MiB, but this machine has {} MiB; give less",
                            options.kv_memory.value >> 20, memory.value >> 20),
                "kv_memory");
  }
  LoadedEngines loaded;
  for (const Assignment& model : options.models) {
    for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
      auto opened = open_engine(options, engine_options(options, model, dtype));
      if (!opened) {
        return std::unexpected(
            std::move(opened).error().within(fmt::format("loading the model '{}'", model.name)));
      }
      log_info("model {}, rank {}: {}", model.name, rank, (*opened)->summary());
      if (rank == 0) {
        loaded.facts.push_back({fmt::format("{} {}", options.worker_name, model.name),
                                fmt::format("{}, context {} tokens", (*opened)->summary(),
                                            (*opened)->description().context_length)});
      }
      constrain(**opened, model);
      auto served = std::make_unique<EmbeddedEngine>(std::move(*opened));
      if (options.kv_cache == "on") {
        const std::string name = fmt::format("{}/{}", model.name, rank);
        TRY_STATUS(served->connect(kv_options(options, name)));
      }
      loaded.embedded.push_back(served.get());
      loaded.engines.push_back(std::move(served));
    }
  }
  return loaded;
}

// Ends the process when an engine has work and has not finished a step for too long: a stuck engine
// can't be repaired from inside, but the supervisor starts a new one and the gateways place the
// requests again.
class StallWatch {
 public:
  explicit StallWatch(Duration most)
      : seconds_max_(static_cast<int>(std::chrono::ceil<std::chrono::seconds>(most).count())) {}

  void look(const std::vector<EngineLoad>& loads) {
    ranks_.resize(loads.size());
    for (std::size_t r = 0; r < loads.size(); ++r) {
      Rank& rank = ranks_[r];
      const bool idle = loads[r].running + loads[r].waiting == 0;
      rank.seconds = idle || loads[r].step != rank.step ? 0 : rank.seconds + 1;
      rank.step = loads[r].step;
      if (rank.seconds < seconds_max_) continue;
      log_error(
          "the engine of rank {} has not finished a step for {} s with {} requests running; "
          "ending this worker",
          r, rank.seconds, loads[r].running);
      std::_Exit(error_info(ErrorCode::kInternal).exit_code);
    }
  }

 private:
  struct Rank {
    std::uint64_t step = 0;
    int seconds = 0;
  };
  int seconds_max_;
  std::vector<Rank> ranks_;
};

// For decode workers to pull what was computed for them; they can compute it, too.
constexpr Duration kReadersGrace = std::chrono::seconds(2);

Result<int> serve_engines(const Options& options, const WrapTransport& wrap) {
  TRY(const WorkerRole role, parse_role(options.role));
  TRY(LoadedEngines loaded, open_engines(options));
  control::EngineServerOptions server_options;
  server_options.listen =
      options.worker_listen.empty() ? "unix:" + options.worker_socket : options.worker_listen;
  server_options.name = options.worker_name;
  server_options.engine = options.engine + " " PENSTOCK_VERSION;
  server_options.epoch = Epoch(draw_u64());
  server_options.role = role;
  server_options.zone = options.zone;
  server_options.step_group = options.step_group;
  std::unique_ptr<DataPlane> plane;
  if (role != WorkerRole::kMixed) {
    TRY(plane, DataPlane::open(options, server_options.epoch, loaded.embedded, wrap));
    server_options.transport = plane->address();
    server_options.handoffs = [p = plane.get()] { return p->use(); };
  }
  TRY(const auto server,
      control::EngineServer::start(std::move(server_options), std::move(loaded.engines)));
  log_info("serving engines at {}", server->address());
  report_ready(options.ready_fd, {0, std::move(loaded.facts)});

  StallWatch watch(options.stall_time);
  wait_for_stop_signal([&] { watch.look(server->loads()); });
  std::atomic<bool> empty{false};
  log_info("draining");
  server->drain([&empty] { empty = true; });
  const bool finished = wait_until([&empty] { return empty.load(); }, options.drain_timeout);
  if (plane) wait_until([&plane] { return plane->idle(); }, kReadersGrace);
  if (!finished) log_warning("stopping with requests still running");
  end_within(options.stall_time);
  server->stop();
  if (plane) plane->detach_engines();
  plane.reset();
  return 0;
}

}  // namespace

Result<int> run_worker(const Options& options, const WrapTransport& wrap) {
  block_stop_signals(options.ready_fd != 0);
  auto done = serve_engines(options, wrap);
  if (!done) report_failure(options.ready_fd, done.error());
  return done;
}

}  // namespace penstock
