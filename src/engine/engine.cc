#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "engine/checks.h"
#include "engine/kernels/float_environment.h"
#include "engine/model.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/weights.h"

namespace penstock::engine {

struct Engine::State {
  EngineOptions options;
  ModelConfig config;
  Weights weights;
  std::unique_ptr<KvPool> kv;
  std::unique_ptr<ThreadPool> threads;
  std::unique_ptr<Model> model;
  std::unique_ptr<Scheduler> scheduler;
  std::vector<Sampler> samplers;  // one per thread
  ModelDescription description;
  ExpertMap expert_map;  // version 0: none
  LogitsObserver observer;
  std::unique_ptr<Constraints> constraints;
  LogitsEditor editor;

  Batch batch;
  std::vector<RequestId> cancelled;
  std::vector<EngineOutput> early;  // finished without a forward pass
  // One draw: the logits of row `row` for a sequence.
  struct Draw {
    Sequence* sequence;
    std::size_t row;
    std::optional<OutputToken> token;
    std::optional<Error> refused;
  };
  std::vector<Draw> draws;
  std::vector<Sequence*> masked;      // with a constraint, of the step that runs
  std::vector<Sequence*> handed_off;  // prefill legs that are done without a draw

  std::atomic<std::uint64_t> steps{0};
  std::atomic<std::uint32_t> running{0};
  std::atomic<std::uint32_t> waiting{0};
  std::atomic<std::int64_t> used_blocks{0};
  std::atomic<std::uint64_t> prompt_tokens_waiting{0};

  bool stops(const SamplingParams& params, TokenId token) const;
  std::optional<FinishReason> finish_reason(const Sequence& sequence) const;
  std::optional<FinishReason> finish_reason_before(const EngineRequest& request) const;
  Status check(const EngineRequest& request);
  Status check_constraint(const EngineRequest& request);
  std::optional<Error> constrain(Sequence& sequence);
  void compute(StepStats& stats);
  void apply_cancellations(StepOutputs& out);
  void draw_tokens();
  void take(Draw& draw, StepOutputs& out);
  void hand_off(Sequence& sequence, StepOutputs& out);
  void publish_load();
};

namespace {

// The choices of such a leg are drawn where they go on.
bool draws_nothing(const EngineRequest& request) {
  return request.handoff.leg == Leg::kPrefill && request.sampling.choices > 1;
}

// The KV of a fixed text, as this build computes it from these weights: a hash of all layers'
// slices. Whatever changes the bytes of KV changes it, also when nobody thought of
// kArithmeticVersion.
std::uint64_t probe(Model& model, KvPool& kv, const ModelConfig& config, std::uint32_t rows_max) {
  const BlockId block = *kv.allocate();
  Batch batch;
  for (std::uint32_t at = 0; at < kBlockTokens; at += batch.rows()) {
    batch.clear();
    const std::uint32_t rows = std::min(rows_max, kBlockTokens - at);
    for (std::uint32_t i = 0; i < rows; ++i)
      batch.tokens.push_back((at + i) * 7919U % config.vocab_size);
    batch.chunks.push_back({0, rows, at, std::span(&block, 1)});
    model.forward(batch);
  }
  const std::uint64_t hash = checksum64(kv.payload(block));
  kv.release(block);
  for (ExpertLayer& layer : model.expert_layers())
    layer.reset();
  return hash;
}

KvIdentity kv_identity(const ModelConfig& config, const KvLayout& layout, std::string digest,
                       std::uint64_t probe) {
  KvIdentity identity;
  identity.weights_digest = std::move(digest);
  identity.engine_build =
      fmt::format("embedded arithmetic {} probe {:016x}", kArithmeticVersion, probe);
  identity.kv_format = fmt::format("mla {} layers {} latent {} rope {}",
                                   layout.dtype == KvDtype::kBf16 ? "bf16" : "f32", layout.layers,
                                   layout.latent_width, layout.rope_width);
  identity.block_tokens = kBlockTokens;
  // A query sees itself and window - 1 keys before it.
  const std::uint32_t window = std::ranges::max(config.window);
  if (window > 0)
    identity.window_tokens = (window + kBlockTokens - 2) / kBlockTokens * kBlockTokens;
  return identity;
}

}  // namespace

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::open(EngineOptions options) {
  auto state = std::make_unique<State>();
  TRY(state->config, load_config(options.checkpoint_dir));
  TRY_STATUS(complete_options(options, state->config));
  const FloatEnvironment environment;
  TRY(state->weights, load_weights(options.checkpoint_dir, state->config));
  const ModelConfig& config = state->config;
  TRY_STATUS(check_memory(options, config));
  const KvLayout layout{config.layers, config.kv_lora_rank, config.rope_width, options.kv_dtype};
  TRY(const std::uint32_t blocks, pool_blocks(options, layout));
  TRY(state->kv, KvPool::open(layout, blocks));
  const Kernels& table = kernels(*options.instruction_set);
  state->threads = std::make_unique<ThreadPool>(options.threads);
  // A pass has at most one logits row per sequence and per row.
  state->model = std::make_unique<Model>(config, state->weights, table, *state->threads, *state->kv,
                                         options.max_batch_tokens,
                                         std::min(options.max_batch_tokens, options.max_sequences));
  state->scheduler = std::make_unique<Scheduler>(
      *state->kv, SchedulerLimits{options.max_batch_tokens, options.max_sequences}, config.layers);
  for (std::uint32_t i = 0; i < options.threads; ++i) {
    state->samplers.emplace_back(table, config.vocab_size);
  }
  // What one request can use at most: a pool may be smaller than the model's context.
  const std::uint32_t usable = std::min(options.context_length, blocks * kBlockTokens);
  const std::uint64_t probed = probe(*state->model, *state->kv, config, options.max_batch_tokens);
  TRY(const std::string digest, weights_digest(options.checkpoint_dir));
  state->description = {options.model_name,
                        options.checkpoint_dir,
                        usable,
                        config.vocab_size,
                        true,
                        kv_identity(config, layout, digest, probed),
                        static_cast<std::uint32_t>(layout.block_bytes() / kBlockTokens)};
  state->options = std::move(options);
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

bool Engine::State::stops(const SamplingParams& params, TokenId token) const {
  if (std::ranges::find(params.stop_token_ids, token) != params.stop_token_ids.end()) return true;
  return !params.ignore_eos && std::ranges::find(config.eos, token) != config.eos.end();
}

std::optional<FinishReason> Engine::State::finish_reason(const Sequence& s) const {
  const SamplingParams& params = s.request->request.sampling;
  if (stops(params, s.tokens.back())) return FinishReason::kStop;
  if (s.generated() >= params.max_tokens || s.length() >= options.context_length) {
    return FinishReason::kLength;
  }
  return std::nullopt;
}

// A continued stream may have been interrupted after its last token.
std::optional<FinishReason> Engine::State::finish_reason_before(const EngineRequest& r) const {
  if (r.emitted.empty()) return std::nullopt;
  if (stops(r.sampling, r.emitted.back())) return FinishReason::kStop;
  if (r.emitted.size() >= r.sampling.max_tokens ||
      r.prompt->size() + r.emitted.size() >= options.context_length) {
    return FinishReason::kLength;
  }
  return std::nullopt;
}

Status Engine::State::check(const EngineRequest& request) {
  TRY_STATUS(check_request(
      request, {description.name, config.vocab_size, options.context_length, kv->blocks()}));
  if (scheduler->find(request.id) != nullptr) {
    return fail(ErrorCode::kConflict, fmt::format("request id {} is in use", request.id.value));
  }
  if (scheduler->waiting_count() >= options.max_waiting) {
    return fail(ErrorCode::kOverloaded,
                fmt::format("{} requests are waiting already", options.max_waiting));
  }
  return check_constraint(request);
}

Status Engine::State::check_constraint(const EngineRequest& request) {
  if (!request.constraint) return {};
  if (constraints == nullptr) {
    return fail(ErrorCode::kUnsupported,
                "this model can't be held to a response_format: its vocabulary doesn't allow it",
                "response_format");
  }
  if (request.sampling.ignore_eos) {
    return fail(ErrorCode::kInvalidArgument,
                "ignore_eos can't go with a constraint, whose answer ends when it is complete",
                "ignore_eos");
  }
  TRY(const auto constraint, constraints->start(request.constraint));
  for (const TokenId token : request.emitted) {
    if (stops(request.sampling, token)) break;
    if (!constraint->take(token)) {
      return fail(ErrorCode::kInvalidArgument,
                  "the tokens emitted so far don't satisfy the request's constraint", "emitted");
    }
  }
  return {};
}

Status Engine::check(const EngineRequest& request) const {
  return state_->check(request);
}

Status Engine::submit(EngineRequest request, std::shared_ptr<PrefixLoad> prefix) {
  return submit(std::move(request), std::move(prefix), nullptr);
}

Status Engine::submit(EngineRequest request, std::shared_ptr<RemotePrefix> remote) {
  return submit(std::move(request), nullptr, std::move(remote));
}

Status Engine::submit(EngineRequest request, std::shared_ptr<PrefixLoad> prefix,
                      std::shared_ptr<RemotePrefix> remote) {
  TRY_STATUS(state_->check(request));
  if (prefix) TRY_STATUS(check_prefix(request, *prefix));
  if (const auto finish = state_->finish_reason_before(request)) {
    EngineOutput out;
    out.request = request.id;
    out.finish = finish;
    state_->early.push_back(std::move(out));
    return {};
  }
  auto entry = std::make_unique<Request>();
  entry->finished.assign(request.sampling.choices, false);
  entry->request = std::move(request);
  state_->scheduler->add(std::move(entry), std::move(prefix), std::move(remote));
  state_->publish_load();
  return {};
}

void Engine::cancel(RequestId request) {
  if (state_->scheduler->find(request) != nullptr) state_->cancelled.push_back(request);
}

void Engine::abandon() {
  state_->scheduler->clear();
  state_->cancelled.clear();
  state_->early.clear();
}

bool Engine::has_work() const {
  return !state_->early.empty() || !state_->cancelled.empty() || state_->scheduler->can_move();
}

void Engine::State::apply_cancellations(StepOutputs& out) {
  for (const RequestId id : std::exchange(cancelled, {})) {
    const Request* request = scheduler->find(id);
    if (request == nullptr) continue;
    scheduler->drop(*request);
    for (std::uint32_t choice = 0; choice < request->finished.size(); ++choice) {
      if (request->finished[choice]) continue;
      EngineOutput output;
      output.request = id;
      output.choice = choice;
      output.finish = FinishReason::kCancelled;
      out.outputs.push_back(std::move(output));
    }
    scheduler->forget(id);
  }
}

// Brings the choice's constraint up to its last token, and asks it what may come, unless that is
// known; answers why it can't.
std::optional<Error> Engine::State::constrain(Sequence& s) {
  const EngineRequest& request = s.request->request;
  if (!request.constraint || s.allowed_at == s.length()) return std::nullopt;
  if (s.constraint == nullptr) {
    auto started = constraints->start(request.constraint);
    if (!started) return std::move(started).error();
    s.constraint = std::move(*started);
  }
  const std::span<const TokenId> generated =
      std::span<const TokenId>(s.tokens).subspan(s.prompt_length());
  for (; s.constrained < generated.size(); ++s.constrained) {
    if (s.constraint->take(generated[s.constrained])) continue;
    return Error{ErrorCode::kInternal,
                 "the tokens emitted so far don't satisfy the request's constraint",
                 {},
                 {}};
  }
  s.allowed.assign((config.vocab_size + 63) / 64, 0);
  if (s.constraint->allow(s.allowed)) {
    for (const TokenId eos : config.eos)
      s.allowed[eos / 64] |= std::uint64_t{1} << (eos % 64);
  }
  s.allowed_at = s.length();
  return std::nullopt;
}

// The forward pass, and beside it the masks: what may come depends on tokens, not on logits.
void Engine::State::compute(StepStats& stats) {
  masked.clear();
  for (Sequence* sequence : scheduler->logit_sequences()) {
    const EngineRequest& request = sequence->request->request;
    if (request.constraint && !draws_nothing(request)) masked.push_back(sequence);
  }
  auto masks = [&] {
    for (Sequence* sequence : masked)
      constrain(*sequence);  // what fails here fails again at the draw
  };
  if (!masked.empty()) threads->begin_beside(masks);
  model->forward(batch);
  stats.masks = static_cast<std::uint32_t>(masked.size());
  if (!masked.empty()) stats.masks_late = !threads->end_beside();
}

void Engine::State::draw_tokens() {
  draws.clear();
  handed_off.clear();
  const std::vector<Sequence*>& sequences = scheduler->logit_sequences();
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    if (sequences[row] == nullptr) continue;
    if (draws_nothing(sequences[row]->request->request)) {
      handed_off.push_back(sequences[row]);
      continue;
    }
    draws.push_back({sequences[row], row, std::nullopt, std::nullopt});
    for (Sequence* other : scheduler->fork(*sequences[row])) {
      draws.push_back({other, row, std::nullopt, std::nullopt});
    }
  }
  for (Draw& d : draws)
    d.refused = constrain(*d.sequence);
  if (editor) {
    for (const Draw& d : draws) {
      const std::span<const TokenId> tokens = d.sequence->tokens;
      editor(d.sequence->request->request, tokens.subspan(d.sequence->prompt_length()),
             model->logits(d.row));
    }
  }
  if (observer) {
    for (const Draw& d : draws) {
      observer(d.sequence->request->request.id, d.sequence->choice, d.sequence->length(),
               model->logits(d.row));
    }
  }
  const std::uint64_t work = draws.size() * config.vocab_size * 8;
  threads->for_each(static_cast<std::uint32_t>(draws.size()), work,
                    [&](std::uint32_t item, std::uint32_t thread) {
                      Draw& d = draws[item];
                      if (d.refused) return;
                      const std::span<const TokenId> tokens = d.sequence->tokens;
                      const std::uint32_t prompt = d.sequence->prompt_length();
                      d.token = samplers[thread].sample(
                          model->logits(d.row), {.params = &d.sequence->request->request.sampling,
                                                 .choice = d.sequence->choice,
                                                 .position = d.sequence->length(),
                                                 .prompt = tokens.first(prompt),
                                                 .generated = tokens.subspan(prompt),
                                                 .allowed = d.sequence->allowed});
                    });
}

// Ends a prefill leg of several choices.
void Engine::State::hand_off(Sequence& s, StepOutputs& out) {
  const Request& request = *s.request;
  const RequestId id = request.request.id;
  for (std::uint32_t choice = 0; choice < request.finished.size(); ++choice) {
    EngineOutput output;
    output.request = id;
    output.choice = choice;
    output.finish = FinishReason::kHandedOff;
    if (choice == 0) output.cached_tokens = request.cached_tokens;
    out.outputs.push_back(std::move(output));
  }
  scheduler->finish(s);
  scheduler->forget(id);
}

// Appends the drawn token, reports it, and ends the sequence when it is the last.
void Engine::State::take(Draw& draw, StepOutputs& out) {
  Sequence& s = *draw.sequence;
  Request& request = *s.request;
  EngineOutput output;
  output.request = request.request.id;
  output.choice = s.choice;
  const bool is_first = s.length() == s.prompt_length() + request.request.emitted.size();
  if (is_first && s.choice == 0) output.cached_tokens = request.cached_tokens;
  if (draw.token) {
    s.tokens.push_back(draw.token->token);
    output.tokens.push_back(std::move(*draw.token));
    output.finish = finish_reason(s);
    if (!output.finish && request.request.handoff.leg == Leg::kPrefill)
      output.finish = FinishReason::kHandedOff;
  } else {
    output.finish = FinishReason::kError;
    output.error = draw.refused.value_or(
        Error{ErrorCode::kInternal,
              "the model computed no finite logits; the checkpoint may be damaged",
              {},
              {}});
  }
  if (output.finish) {
    scheduler->finish(s);
    if (std::ranges::find(request.finished, false) == request.finished.end()) {
      scheduler->forget(output.request);
    }
  }
  out.outputs.push_back(std::move(output));
}

void Engine::State::publish_load() {
  const std::uint32_t remote = scheduler->remote_count();
  running.store(scheduler->running_count() - remote, std::memory_order_relaxed);
  waiting.store(scheduler->waiting_count() + remote, std::memory_order_relaxed);
  prompt_tokens_waiting.store(scheduler->prompt_tokens_waiting(), std::memory_order_relaxed);
  used_blocks.store(std::int64_t{kv->blocks()} - kv->free_blocks(), std::memory_order_relaxed);
}

StepOutputs Engine::step() {
  const FloatEnvironment environment;
  State& s = *state_;
  StepOutputs out;
  out.outputs = std::exchange(s.early, {});
  s.apply_cancellations(out);
  const PlanStats plan = s.scheduler->plan(s.batch);
  out.stats = {plan.prefill_tokens, plan.decode_tokens, plan.preempted, std::nullopt, 0, false};
  if (s.batch.chunks.size() == 1 && plan.prefill_tokens > 0 && s.batch.chunks[0].load == nullptr) {
    out.stats.lone_prefill = {s.batch.chunks[0].position, s.batch.chunks[0].rows};
  }
  if (s.batch.rows() > 0) {
    s.compute(out.stats);
    s.scheduler->advance();
    s.draw_tokens();
    for (State::Draw& draw : s.draws)
      s.take(draw, out);
    for (Sequence* sequence : s.handed_off)
      s.hand_off(*sequence, out);
  }
  s.steps.fetch_add(1, std::memory_order_relaxed);
  s.publish_load();
  return out;
}

EngineLoad Engine::load() const {
  const State& s = *state_;
  EngineLoad load;
  load.step = s.steps.load(std::memory_order_relaxed);
  load.running = s.running.load(std::memory_order_relaxed);
  load.waiting = s.waiting.load(std::memory_order_relaxed);
  load.kv_tokens_used = Tokens(s.used_blocks.load(std::memory_order_relaxed) * kBlockTokens);
  load.kv_tokens_total = Tokens(std::int64_t{s.kv->blocks()} * kBlockTokens);
  load.prompt_tokens_waiting = s.prompt_tokens_waiting.load(std::memory_order_relaxed);
  return load;
}

const ModelDescription& Engine::description() const {
  return state_->description;
}

std::string Engine::summary() const {
  const State& s = *state_;
  return fmt::format(
      "embedded {}, {} threads, {} MiB of weights per token, {} KV blocks of {} bytes",
      to_string(*s.options.instruction_set), s.options.threads, s.weights.common_bytes() >> 20,
      s.kv->blocks(), s.kv->layout().block_bytes());
}

void Engine::set_constraints(std::unique_ptr<Constraints> constraints) {
  state_->constraints = std::move(constraints);
}

Status Engine::set_expert_map(const ExpertMap& map) {
  const ModelConfig& c = state_->config;
  TRY_STATUS(check_expert_map(map, c.moe_layers(), c.experts));
  auto& layers = state_->model->expert_layers();
  for (std::size_t i = 0; i < layers.size(); ++i)
    layers[i].place(std::span(map.slots).subspan(i * map.layer_slots(), map.layer_slots()),
                    map.ranks);
  state_->expert_map = map;
  return {};
}

ExpertReport Engine::expert_report() const {
  const ModelConfig& c = state_->config;
  ExpertReport report{c.dense_layers, c.moe_layers(), c.experts, {}, state_->expert_map, {}};
  for (const ExpertLayer& layer : state_->model->expert_layers()) {
    report.picks.insert(report.picks.end(), layer.picks.begin(), layer.picks.end());
    if (report.map.version == 0) continue;
    report.rank_picks.insert(report.rank_picks.end(), layer.rank_picks.begin(),
                             layer.rank_picks.end());
  }
  return report;
}

ExpertUse Engine::expert_use() const {
  ExpertUse use{state_->expert_map.version, state_->config.dense_layers, {}, {}};
  for (const ExpertLayer& layer : state_->model->expert_layers()) {
    use.picks.push_back(layer.picks_all);
    use.paced.push_back(layer.paced);
  }
  return use;
}

KvPool& Engine::pool() {
  return *state_->kv;
}

const ModelConfig& Engine::config() const {
  return state_->config;
}

void Engine::set_block_sink(BlockSink* sink) {
  state_->scheduler->set_block_sink(sink);
}

void Engine::set_leg_sink(LegSink* sink) {
  state_->scheduler->set_leg_sink(sink);
}

void Engine::set_logits_editor(LogitsEditor editor) {
  state_->editor = std::move(editor);
}

void Engine::set_logits_observer(LogitsObserver observer) {
  state_->observer = std::move(observer);
}

}  // namespace penstock::engine
