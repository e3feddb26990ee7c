// EngineSet: the servers behind one shard: which are there, what they serve, how loaded they are,
// which one gets the next request.
//
// Each engine is probed every second: /health says that it lives, /v1/models what it serves, and
// its own load report (by dialect, old forms too) how much waits there. Requests tell more, and
// sooner: their endings feed the engine's breaker. A request is counted by a Permit, which gives
// its place back whatever happens to the request.
//
// The pick: of the engines of the role that serve the model, speak the API, are not broken and were
// not tried, the least loaded; among those nearly as little loaded, the one that the head of the
// prompt is bound to by hash, so that a conversation finds its cache again (rendezvous: a new
// engine moves only its share). Busy ones come last.
//
// Invariants: running() is the number of Permits alive. Equal inputs give equal picks.
// Errors: pick() returns nothing when no engine can take it; why_none() says why.
// Concurrency: shard thread only. Source: facts/engines.md 2.5, 4.1, 4.7, 4.8, rules 1, 2, 9.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/task.h"
#include "core/dialects/breaker.h"
#include "core/dialects/dialect.h"
#include "core/dialects/engine_reports.h"
#include "port/clock.h"
#include "port/upstream.h"

namespace penstock::foreign {

// What an engine does of a request; a prefill engine computes prompts for decode engines.
enum class EngineRole : std::uint8_t { kMixed, kPrefill, kDecode };

struct EngineConfig {
  dialects::EngineKind kind = dialects::EngineKind::kVllm;
  std::string name;  // for logs and metrics
  std::string url;
  std::string key;  // its bearer token; empty: it wants none
  EngineRole role = EngineRole::kMixed;
  // Of SGLang's prefill engines: where decode engines find it.
  std::string bootstrap_host = {};
  std::uint16_t bootstrap_port = 8998;
};

struct Engine {
  Engine(EngineConfig config_in, std::unique_ptr<Upstream> upstream_in)
      : config(std::move(config_in)), upstream(std::move(upstream_in)) {}

  const dialects::Dialect& dialect() const { return dialects::dialect(config.kind); }
  bool serves(std::string_view model) const;
  // Running here and, as it reports, from elsewhere.
  double load() const;

  const EngineConfig config;
  const std::unique_ptr<Upstream> upstream;
  dialects::Breaker breaker;
  bool healthy = false;
  bool probed = false;
  std::uint32_t failed_probes = 0;
  std::vector<dialects::EngineModel> models;
  std::vector<dialects::RankLoad> loads;
  std::uint32_t running = 0;
  std::uint32_t running_at_report = 0;  // of them, when `loads` came
  std::uint64_t requests = 0;
};

// One request on one engine.
class Permit {
 public:
  Permit(Clock& clock, Engine& engine) : clock_(clock), engine_(engine) {
    ++engine_.running;
    ++engine_.requests;
    engine_.breaker.begin(clock_.now());
  }
  ~Permit() {
    --engine_.running;
    engine_.breaker.end(ending_, clock_.now(), retry_after_);
  }
  Permit(const Permit&) = delete;
  Permit& operator=(const Permit&) = delete;

  // How it ended; neutral when nobody says.
  void ended(dialects::Ending ending, Duration retry_after = Duration::zero()) {
    ending_ = ending;
    retry_after_ = retry_after;
  }
  Engine& engine() const { return engine_; }

 private:
  Clock& clock_;
  Engine& engine_;
  dialects::Ending ending_ = dialects::Ending::kNeutral;
  Duration retry_after_{};
};

struct Wanted {
  std::string_view model;
  dialects::WireApi api = dialects::WireApi::kChat;
  std::string_view prompt_head;               // what the pick is bound to
  std::span<const Engine* const> tried = {};  // not these
  // A prefill engine of this kind; nothing: one that answers.
  std::optional<dialects::EngineKind> prefill_for = {};
};

// The body of an answer, up to its end.
Task<Result<std::string>> read_whole(UpstreamCall& call, std::size_t bytes_max, Instant deadline);

class EngineSet {
 public:
  EngineSet(Clock& clock, std::function<void(std::string)> log)
      : clock_(clock), log_(std::move(log)) {}

  void add(EngineConfig config, std::unique_ptr<Upstream> upstream);
  // Begins to probe; stop() ends it, drained() resumes when all has ended.
  void start();
  void stop() { stopping_ = true; }
  auto drained() { return gate_.drained(); }
  void close_connections();

  Engine* pick(const Wanted& wanted) const;
  Error why_none(const Wanted& wanted) const;
  // When the busy ones among the wanted are free again, as a wait; zero when none is busy.
  Duration busy_for(const Wanted& wanted) const;

  bool all_probed() const;
  bool ready() const;
  // What a lost engine served is still known, so that its requests are 503 and not 404.
  bool knows(std::string_view model) const;
  // All that are known, sorted, each once.
  std::vector<dialects::EngineModel> models() const;
  std::span<const std::unique_ptr<Engine>> engines() const { return engines_; }
  // Tells the engine to stop a request that nobody waits for any more, by its rid.
  void abort(Engine& engine, const std::string& rid);
  // The headers that say who we are to the engine.
  static std::vector<HttpHeader> credentials(const Engine& engine);

 private:
  Task<void> watch(Engine& engine);
  Task<void> probe(Engine& engine);
  Task<void> read_loads(Engine& engine);
  Task<Result<std::string>> get(Engine& engine, std::string target);
  Task<void> send_abort(Engine& engine, std::string body);

  Clock& clock_;
  std::function<void(std::string)> log_;
  std::vector<std::unique_ptr<Engine>> engines_;
  Gate gate_;
  bool stopping_ = false;
};

}  // namespace penstock::foreign
