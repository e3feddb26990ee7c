// EngineSet: the servers behind one shard: which are there, what they serve, how loaded they are,
// which one gets the next request.
//
// Each engine is probed every second: /health says that it lives, /v1/models what it serves, and
// its own load report (by dialect, old forms too) how much waits there. Requests tell more, and
// sooner: their endings feed the engine's breaker. A request is counted by a Permit, which gives
// its place back whatever happens to the request.
//
// The pick (pick.cc): of the ranks of engines of the role that serve the model, speak the API, are
// not broken and were not tried, the one where the prompt costs least: what of it is not in that
// rank's cache (PrefixSource, as far as it can be trusted), behind what waits and runs there. Where
// nobody has any of it, the head of the prompt decides by hash among those that cost nearly as
// little, so that a conversation finds its cache again whoever places it (rendezvous: a new engine
// moves only its share). A rank is chosen where the engine has several and the route can name one.
//
// Engines come and go while requests run: one that is removed gets none any more and lives until
// its last one has ended.
//
// Invariants: running() is the number of Permits alive. Equal inputs give equal picks.
// Errors: pick() returns nothing when no engine can take it; why_none() says why.
// Concurrency: shard thread only. Source: facts/engines.md 2.5, 4.1, 4.7, 4.8, rules 1, 2, 9.
#pragma once

#include <array>
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
#include "core/dialects/pd_legs.h"
#include "core/routing/policies.h"
#include "port/clock.h"
#include "port/upstream.h"
#include "service/foreign/engine_switches.h"
#include "service/foreign/prefix_source.h"
#include "service/gateway/explanation.h"

namespace penstock::foreign {

// What an engine does of a request; a prefill engine computes prompts for decode engines, an encode
// engine the embeddings of media for those that compute prompts.
enum class EngineRole : std::uint8_t { kMixed, kPrefill, kDecode, kEncode };

struct EngineConfig {
  dialects::EngineKind kind = dialects::EngineKind::kVllm;
  std::string name;  // for logs and metrics
  std::string url;
  std::string key;  // its bearer token; empty: it wants none
  EngineRole role = EngineRole::kMixed;
  // Of SGLang's prefill engines and of vLLM's with Mooncake: where decode engines find it.
  std::string bootstrap_host = {};
  std::uint16_t bootstrap_port = 8998;
  WorkerId id = {};       // its own, in all shards alike
  bool mooncake = false;  // of vLLM: it shares the work by this connector, not by NIXL

  std::string bootstrap_url() const;
};

// What a rank has been given.
struct RankUse {
  std::uint32_t running = 0;
  std::uint32_t at_report = 0;   // of them, when the engine last told its load
  std::uint64_t to_compute = 0;  // tokens of prompts whose answers have not begun
};

struct Engine {
  Engine(EngineConfig config_in, std::unique_ptr<Upstream> upstream_in,
         std::unique_ptr<Upstream> bootstrap_in)
      : config(std::move(config_in)),
        upstream(std::move(upstream_in)),
        bootstrap(std::move(bootstrap_in)) {}

  const dialects::Dialect& dialect() const { return dialects::dialect(config.kind); }
  dialects::PdProtocol pd() const {
    return config.mooncake ? dialects::PdProtocol::kConcurrent : dialect().pd;
  }
  // It computes prompts for that one, which decodes: of the same kind, connector and version (one
  // that is not told is taken to be right).
  bool pairs_with(const Engine& decode) const;
  bool serves(std::string_view model) const;
  // Running here and, as it reports, from elsewhere; of all ranks, or of one.
  double load() const;
  double load(std::uint32_t rank) const;
  // A request by this route goes to the rank that we name.
  bool pins(dialects::WireApi api) const { return ranks > 1 && pins_rank(dialect(), api); }

  const EngineConfig config;
  const std::unique_ptr<Upstream> upstream;
  const std::unique_ptr<Upstream> bootstrap;  // of a Mooncake prefill engine
  dialects::Breaker breaker;
  bool healthy = false;
  bool probed = false;
  std::uint32_t failed_probes = 0;
  std::string why;      // the last probe found it wanting
  std::string version;  // of one that has a role; empty: not told
  // Of a Mooncake prefill engine, by rank, as of the last probe; empty: to be asked for.
  std::vector<dialects::MooncakeEngine> mooncake_engines;
  std::vector<dialects::EngineModel> models;
  std::vector<dialects::RankLoad> loads;
  std::uint32_t running = 0;
  std::uint32_t running_at_report = 0;  // of them, when `loads` came
  std::uint64_t requests = 0;
  std::uint32_t ranks = 1;                             // as last reported
  std::vector<RankUse> use = std::vector<RankUse>(1);  // never shrinks
  bool removed = false;
  bool told_no_render = false;
  // It computes other prompts than its /tokenize says; of requests without tools, and with them.
  std::array<bool, 2> miscounts{};
  bool told_no_blocks = false;
  std::uint32_t context_length = 0;  // of a request, as it was started (llama.cpp); 0: not told
};

// Where a request goes.
struct Place {
  std::shared_ptr<Engine> engine;     // none: nobody can take it
  std::optional<std::uint32_t> rank;  // none: the engine has several and chooses
  bool pinned = false;                // the request names the rank
  std::uint32_t predicted = 0;        // tokens of the prompt in its cache, as RankMatch counts
  std::uint64_t to_compute = 0;       // tokens

  explicit operator bool() const { return engine != nullptr; }
  kvcache::RankOfWorker id() const { return {engine->config.id, rank.value_or(0)}; }
};

// One request on one engine.
class Permit {
 public:
  Permit(Clock& clock, const Place& place) : clock_(clock), place_(place) {
    ++engine().running;
    ++engine().requests;
    if (RankUse* const use = rank_use()) {
      ++use->running;
      use->to_compute += place_.to_compute;
    }
    engine().breaker.begin(clock_.now());
  }
  ~Permit() {
    answer_begins();
    if (RankUse* const use = rank_use()) --use->running;
    --engine().running;
    engine().breaker.end(ending_, clock_.now(), retry_after_);
  }
  Permit(const Permit&) = delete;
  Permit& operator=(const Permit&) = delete;

  // Its prompt is computed.
  void answer_begins() {
    if (RankUse* const use = rank_use()) use->to_compute -= place_.to_compute;
    place_.to_compute = 0;
  }
  // How it ended; neutral when nobody says.
  void ended(dialects::Ending ending, Duration retry_after = Duration::zero()) {
    ending_ = ending;
    retry_after_ = retry_after;
  }
  Engine& engine() const { return *place_.engine; }

 private:
  RankUse* rank_use() const { return place_.rank ? &engine().use.at(*place_.rank) : nullptr; }

  Clock& clock_;
  Place place_;
  dialects::Ending ending_ = dialects::Ending::kNeutral;
  Duration retry_after_{};
};

struct Wanted {
  std::string_view model;
  dialects::WireApi api = dialects::WireApi::kChat;
  std::string_view prompt_head;          // what the pick is bound to
  std::span<const WorkerId> tried = {};  // not these
  // A prefill engine for this one; null: one that answers.
  const Engine* prefill_for = nullptr;
  const PromptName* prompt = nullptr;
  // An encode engine for this one; null: none.
  const Engine* encode_for = nullptr;
};

// What of a request decides whether an engine's account of its tokens holds.
struct PromptTraits {
  bool tools = false;
  bool apart = false;  // media or a salt, which KV depends on and token ids don't say
};
struct RenderedBy {
  dialects::RenderedPrompt prompt;
  std::shared_ptr<Engine> engine;
};

// The body of an answer, up to its end.
Task<Result<std::string>> read_whole(UpstreamCall& call, std::size_t bytes_max, Instant deadline);

class EngineSet {
 public:
  // `prefixes`: null: caches are not looked at. `switches`: null: none is drained.
  EngineSet(Clock& clock, std::function<void(std::string)> log, PrefixSource* prefixes = nullptr,
            EngineSwitches* switches = nullptr);

  // Before start() or later. `bootstrap`: to config.bootstrap_url(), of a Mooncake prefill engine.
  void add(EngineConfig config, std::unique_ptr<Upstream> upstream,
           std::unique_ptr<Upstream> bootstrap = nullptr);
  void remove(WorkerId engine);
  // Begins to probe; stop() ends it, drained() resumes when all has ended.
  void start();
  void stop() { stopping_ = true; }
  auto drained() { return gate_.drained(); }
  void close_connections();

  // `told`: how it came about.
  Place pick(const Wanted& wanted, gateway::LegExplanation* told = nullptr) const;
  Error why_none(const Wanted& wanted) const;
  // When the busy ones among the wanted are free again, as a wait; zero when none is busy.
  Duration busy_for(const Wanted& wanted) const;

  bool all_probed() const;
  bool ready() const;
  // What a lost engine served is still known, so that its requests are 503 and not 404.
  bool knows(std::string_view model) const;
  // All that are known, sorted, each once.
  std::vector<dialects::EngineModel> models() const;
  std::span<const std::shared_ptr<Engine>> engines() const { return engines_; }
  // Where a request of this model could go: several places, so that knowing caches helps.
  bool has_choice(std::string_view model) const;
  // Media go to encode engines, be they usable now or not.
  bool has_encoders(const Engine& computes, std::string_view model) const;
  PrefixSource* prefixes() const { return prefixes_; }
  // What the engines would compute for the request, by their own account; nothing when nobody
  // says. For engines that publish KV events.
  Task<std::optional<RenderedBy>> render(std::string_view model, dialects::WireApi api,
                                         std::string body, PromptTraits traits);
  // The answer says how many tokens the prompt had. An account that was another one is not asked
  // for again.
  void rendered_as(Engine& engine, PromptTraits traits, std::uint64_t told, std::uint64_t computed);
  // What a Mooncake prefill engine calls itself on this rank, now or as of the last probe. After a
  // leg has failed it may be another: forget_mooncake().
  Task<Result<std::string>> mooncake_engine(std::shared_ptr<Engine> engine, std::uint32_t rank);
  static void forget_mooncake(Engine& engine) { engine.mooncake_engines.clear(); }
  // Says, once, that a prefill engine's replies name no blocks, so that all prompts are computed
  // twice.
  void tell_no_blocks(Engine& prefill);
  // Tells the engine to stop a request that nobody waits for any more, by its rid.
  void abort(std::shared_ptr<Engine> engine, const std::string& rid);
  // Sends a request whose answer nobody reads, and counts it while it runs.
  void send_aside(const Place& place, UpstreamRequest request);
  // For operators (operate.cc): all engines as this shard sees them, and one action on one of them,
  // answered in JSON. Errors: kNotFound, kUnsupported, as the engine's answer.
  std::string as_json() const;
  Task<Result<std::string>> operate(std::string_view name, std::string action);
  // The headers that say who we are to the engine.
  static std::vector<HttpHeader> credentials(const Engine& engine);

 private:
  struct Row;
  std::vector<Row> rows(const Wanted& wanted) const;
  gateway::LegExplanation explanation(const std::vector<Row>& all,
                                      const routing::Decision& decision) const;
  Task<void> watch(std::shared_ptr<Engine> engine);
  void learn_ranks(Engine& engine);
  // A prefill engine for it could take a request now.
  bool has_prefill(const Engine& decode, std::string_view model) const;
  bool usable(const Engine& engine, std::string_view model, dialects::WireApi api) const;
  bool drains(const Engine& engine) const {
    return switches_ != nullptr && switches_->drains(engine.config.id);
  }
  Task<std::string> unfit(Engine& engine);
  Task<std::string> unfit_sglang(Engine& engine);
  Task<Status> ask_mooncake(Engine& engine);
  Task<void> probe(Engine& engine);
  Task<void> read_loads(Engine& engine);
  static Task<Result<std::string>> read_answer(UpstreamCall& call, Instant deadline);
  Task<Result<std::string>> get(Engine& engine, std::string target);
  Task<Result<std::string>> get(Engine& engine, Upstream& from, std::string target);
  Task<void> send_abort(std::shared_ptr<Engine> engine, std::string body);
  Task<void> run_aside(Place place, UpstreamRequest request);

  Clock& clock_;
  std::function<void(std::string)> log_;
  PrefixSource* prefixes_;
  EngineSwitches* switches_;
  std::unique_ptr<routing::PlacementPolicy> policy_;
  std::vector<std::shared_ptr<Engine>> engines_;
  Gate gate_;
  bool started_ = false;
  bool stopping_ = false;
};

}  // namespace penstock::foreign
