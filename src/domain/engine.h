// What a gateway and an engine say to each other, as values: submit, output, load, description.
//
// The wire form is proto/engine.proto; io/control converts. The engine, the worker loop, the
// request's life cycle and the simulator all share these.
//
// Units and shapes: logprobs are natural logarithms. Positions count from the first prompt token.
// Concurrency: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "domain/constraint.h"
#include "domain/handoff.h"
#include "domain/kv.h"
#include "domain/sampling.h"
#include "domain/tokens.h"

namespace penstock {

// What the KV cache is told about a request. With an empty scope nothing is looked up or kept.
struct CacheHints {
  std::string scope;      // who may share its KV: "tenant:acme", "user:acme/u1", "deployment"
  std::string tenant;     // whose share of the cache it counts against
  std::string ttl_class;  // "chat", "agent"; empty: the default class
  std::string request;    // the request's id, for `penstock kv explain`

  bool operator==(const CacheHints&) const = default;
};

struct EngineRequest {
  RequestId id;
  std::string model;  // canonical name, never an alias
  TokenIds prompt;
  SamplingParams sampling;
  // Tokens of choice 0 already emitted elsewhere (a continued stream); they are prefilled like a
  // prompt, count for penalties, and sampling goes on at position prompt + emitted.
  std::vector<TokenId> emitted;
  CacheHints cache = {};
  HandoffRef handoff = {};
  std::uint32_t rank = 0;  // of the worker; it serves the model
  Constraint constraint = {};
};

enum class FinishReason : std::uint8_t {
  kStop,       // end-of-sequence or stop token
  kLength,     // max_tokens or the model's context reached
  kHandedOff,  // a prefill leg is done; the decode leg goes on
  kCancelled,  // the gateway asked for it
  kError,      // see EngineOutput::error
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0F;

  bool operator==(const TokenLogprob&) const = default;
};

// One token of one choice. `top` holds the most likely alternatives, most likely first.
struct OutputToken {
  TokenId token = 0;
  float logprob = 0.0F;  // of the chosen token, before temperature and filters; 0 if not asked for
  std::vector<TokenLogprob> top;

  bool operator==(const OutputToken&) const = default;
};

// What one step (or a merged run of steps) produced for one choice of one request.
struct EngineOutput {
  RequestId request;
  std::uint32_t choice = 0;
  // Tokens of this choice before these, wherever they were drawn: two legs of a request may both
  // report one. Filled in by the worker; engines leave it.
  std::uint32_t index = 0;
  std::vector<OutputToken> tokens;     // stop tokens are included; the gateway does not show them
  std::optional<FinishReason> finish;  // set once, on the last output of the choice
  std::uint32_t cached_tokens = 0;     // prompt tokens that were not computed; first output only
  std::optional<Error> error;          // with FinishReason::kError
};

// What a rank's use of the KV cache has come to, since it started.
struct CacheUse {
  std::uint64_t loads = 0;             // prefixes copied in
  std::uint64_t loads_overlapped = 0;  // of them, computed on before layer 1 had arrived
  std::uint64_t hit_tokens = 0;
  std::uint64_t offers = 0;          // of finished blocks to the cache
  std::uint64_t offers_dropped = 0;  // too much was under way, or no daemon
  std::uint64_t scopes_refused = 0;  // requests of scopes beyond the limit

  bool operator==(const CacheUse&) const = default;
};

// What a worker's part in handoffs has come to, since it started; `open`, `blocks_held` and
// `pulls_running` are as of now.
struct HandoffUse {
  std::uint64_t open = 0;         // prefill side, those in quarantine included
  std::uint64_t blocks_held = 0;  // of its pools, for readers
  std::uint64_t pulls_running = 0;
  std::uint64_t released = 0;
  std::uint64_t expired = 0;
  std::uint64_t withdrawn = 0;
  std::uint64_t pulls_done = 0;
  std::uint64_t pulls_failed = 0;
  std::uint64_t bytes_pulled = 0;
  std::uint64_t slices_corrupt = 0;
  std::vector<std::uint64_t> edges;  // taken, in the order of core/handoff's edges()

  bool operator==(const HandoffUse&) const = default;
};

// The load of one rank, sent at least every 200 ms.
struct EngineLoad {
  std::uint64_t step = 0;  // steps done since the engine started; standing still means hung
  std::uint32_t running = 0;
  std::uint32_t waiting = 0;
  Tokens kv_tokens_used;
  Tokens kv_tokens_total;
  std::uint32_t model = 0;  // index into WorkerDescription::models
  CacheUse cache = {};
  std::uint64_t prompt_tokens_waiting = 0;  // of accepted requests: still to be computed
  PrefillCoefficients prefill;              // as this rank has measured it; zeros: not yet
};

// Everything that names the KV bytes of a model on its worker, besides the tokens and the scope:
// equal identities mean equal bytes. block_tokens 0: its KV can't be cached.
struct KvIdentity {
  std::string weights_digest;
  std::string engine_build;
  std::string kv_format;
  std::uint32_t block_tokens = 0;
  std::uint32_t window_tokens = 0;  // whole blocks that sliding windows reach back; 0 without any

  bool operator==(const KvIdentity&) const = default;
};

// A model as its worker serves it.
struct ModelDescription {
  std::string name;
  std::string checkpoint_dir;  // where tokenizer and config lie, for a gateway on the same host
  std::uint32_t context_length = 0;
  std::uint32_t vocab_size = 0;
  bool bit_exact = false;  // law 3: the engine promises identical bits on every path
  KvIdentity kv = {};
  std::uint32_t kv_token_bytes = 0;  // of one token's KV in all layers
};

enum class WorkerRole : std::uint8_t { kMixed, kPrefill, kDecode };

struct WorkerDescription {
  WorkerId id;
  Epoch epoch;
  std::string name;
  std::string engine;  // "embedded 0.1.0"
  std::vector<ModelDescription> models;
  WorkerRole role = WorkerRole::kMixed;
  std::string zone;       // transfers within a zone are cheap; empty is a zone too
  std::string transport;  // address of its KV data plane; empty: it can't hand off
  // Ranks of all workers that name the same group step together, as those of one expert-parallel
  // engine do; empty: each rank steps by itself.
  std::string step_group = {};
};

}  // namespace penstock
