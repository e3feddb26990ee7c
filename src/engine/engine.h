// The embedded engine: a DeepSeek-V3-style model from a checkpoint folder, served by batched steps.
//
// submit() queues a request; every step() schedules decodes and prompt chunks of many requests,
// runs one forward pass, samples, and returns what each choice got. The caller loops `while
// (has_work()) step()`. A prompt is prefilled once and its blocks are shared by all `n` choices
// (copy on write). When the KV pool is full the youngest sequence gives its blocks back and is
// recomputed later: same bits.
//
// Invariants: the tokens, logprobs and logits of a request are a function of the request, the
// checkpoint and the KV dtype only: not of batch, chunking, threads, instruction set, preemption
// or of how much of the answer came as `emitted` (docs/design/0003-one-arithmetic.md). Every
// accepted request gets exactly one output with `finish` per choice. max_tokens counts `emitted`
// too, so a continued stream is submitted with its first parameters and ends where it would have
// ended. Errors: open() names the file, key or tensor at fault; submit() refuses with the code
// given there; a model that computes NaN finishes the choice with FinishReason::kError.
// Concurrency: one thread calls everything; load() may be called from any. Compute threads are
// inside. Source: design.md section 8.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "domain/engine.h"
#include "domain/experts.h"
#include "engine/constraint.h"
#include "engine/kernels/instruction_set.h"
#include "engine/kv_hooks.h"

namespace penstock::engine {

struct ModelConfig;

// Names what the engine computes, to the bit: raised whenever an answer could differ from that of
// an earlier build (docs/design/0003-one-arithmetic.md), so that KV of one is never used by the
// other.
inline constexpr std::uint32_t kArithmeticVersion = 1;

struct EngineOptions {
  std::string checkpoint_dir;  // config.json and model.safetensors lie here
  std::string model_name;      // empty = the folder's name
  std::uint32_t threads = 0;   // compute threads, the caller's included; 0 = one per CPU
  // Size of the KV pool: blocks, else bytes; both 0 = room for four full contexts.
  std::uint32_t kv_blocks = 0;
  Bytes kv_bytes;
  KvDtype kv_dtype = KvDtype::kBf16;
  std::uint32_t context_length = 0;      // 0 = the model's; larger than the model's is an error
  std::uint32_t max_batch_tokens = 512;  // rows of one forward pass
  std::uint32_t max_sequences = 128;     // choices running at a time
  std::uint32_t max_waiting = 4096;      // requests queued; more are refused with kOverloaded
  std::optional<InstructionSet> instruction_set;  // unset = the best this CPU has
};

// A pass that computed one chunk of one prompt and nothing else: what prefill costs can be learnt
// from its time.
struct LonePrefill {
  std::uint32_t context = 0;  // tokens before the chunk
  std::uint32_t fresh = 0;    // tokens of the chunk
};

struct StepStats {
  std::uint32_t prefill_tokens = 0;  // rows that were prompt (or recomputed) tokens
  std::uint32_t decode_tokens = 0;   // rows that continued an answer
  std::uint32_t preempted = 0;       // sequences that gave their blocks back
  std::optional<LonePrefill> lone_prefill;
  std::uint32_t masks = 0;  // made beside the pass, of sequences with a constraint
  bool masks_late = false;  // they were not ready when it was over
};

struct StepOutputs {
  std::vector<EngineOutput> outputs;  // at most one per choice, in order of submission and choice
  StepStats stats;
};

// Sees the raw logits of each sampled row, before penalties: request, choice, position of the token
// that they choose, logits [vocab]. For tests and evaluation; called on the engine's thread.
using LogitsObserver =
    std::function<void(RequestId, std::uint32_t, std::uint32_t, std::span<const float>)>;

// Changes the raw logits of each sampled row, before anybody else sees them: the request, the
// tokens of the choice so far (those emitted elsewhere included), logits [vocab]. Called on the
// engine's thread.
using LogitsEditor =
    std::function<void(const EngineRequest&, std::span<const TokenId>, std::span<float>)>;

class Engine {
 public:
  // Loads the checkpoint and allocates everything the engine will need.
  static Result<std::unique_ptr<Engine>> open(EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request; `prefix` brings the KV of its first tokens and must leave at least one to
  // compute. Fails with kInvalidArgument (empty prompt, token id outside the vocabulary, sampling
  // range; `field` says which), kContextLengthExceeded (prompt and emitted leave no room, or the
  // pool can never hold them), kConflict (id in use), kOverloaded (queue full), kModelNotFound
  // (request.model is neither empty nor this model's name), or as its constraint is refused.
  Status submit(EngineRequest request, std::shared_ptr<PrefixLoad> prefix = nullptr);
  // A decode leg: `remote` brings the KV of all its tokens, and the next one. The prefill leg of a
  // request (handoff.leg) is an ordinary submit; it ends with kHandedOff after its first token, and
  // before it when there are several choices: each is drawn where it goes on.
  Status submit(EngineRequest request, std::shared_ptr<RemotePrefix> remote);
  // What submit() would refuse now, without queueing.
  Status check(const EngineRequest& request) const;
  // Ends the request: its unfinished choices report FinishReason::kCancelled in the next step.
  // Unknown ids are ignored.
  void cancel(RequestId request);
  // Drops all requests without an output: what their loads and pulls use is about to go.
  void abandon();
  // True while a step() would do something.
  bool has_work() const;
  // Runs one forward pass at most.
  StepOutputs step();

  // Its `waiting` counts those that wait for KV from another worker, too.
  EngineLoad load() const;  // any thread
  const ModelDescription& description() const;
  // "embedded avx512, 2 threads, ...": for logs.
  std::string summary() const;

  // Runs the experts in the map's slots from the next step on; its ranks are logical, and no answer
  // changes. Which map may follow which is the caller's business. Fails with kInvalidArgument for a
  // map that is not this model's, leaves an expert out, or has two copies on one rank, and
  // kUnsupported for a model without routed experts; then nothing has changed.
  Status set_expert_map(const ExpertMap& map);
  ExpertReport expert_report() const;
  ExpertUse expert_use() const;

  // The shared-memory pool, for a KV cache that copies blocks out and puts blocks in.
  KvPool& pool();
  const ModelConfig& config() const;
  // Serves requests with a constraint from now on; without it they are refused with kUnsupported.
  void set_constraints(std::unique_ptr<Constraints> constraints);
  // Shown every block that is computed, from now on; null: nobody.
  void set_block_sink(BlockSink* sink);
  // Shown every prefill leg as it grows, from now on; null: nobody.
  void set_leg_sink(LegSink* sink);
  void set_logits_observer(LogitsObserver observer);
  // From now on; the answers are then no longer the model's alone.
  void set_logits_editor(LogitsEditor editor);

 private:
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  Status submit(EngineRequest request, std::shared_ptr<PrefixLoad> prefix,
                std::shared_ptr<RemotePrefix> remote);
  std::unique_ptr<State> state_;
};

}  // namespace penstock::engine
