// PdRun: the life of one disaggregated request as a state machine: two legs, one cancel, a lease.
//
// Serial (vLLM with NIXL): prefill, then decode with what it replied. Concurrent (SGLang,
// Mooncake): both at once, and the client gets the decode's answer. Events go in, what to do comes
// out.
//
// Invariants: a leg that ends badly cancels the other one at once: neither engine waits out its own
// five minutes. Decode is never sent with params whose lease is over, by our clock or the engine's,
// less a margin; then, and when a reply names no blocks, the prompt is computed again by the decode
// engine (plain). Params belong to one prefill: they go when it is tried again. In a final state no
// leg runs. Blocks that were computed and that surely no decode engine has heard of are released:
// one fetches them for a token that nobody reads, which frees them. One that may have heard of them
// is left alone: what is fetched twice is read after it was freed, and would stay in the decode
// engine's cache under the prompt's name.
// Units: Instant. Errors: failure() says which leg and why. Concurrency: one request each; pure.
// Source: facts/engines.md 4.2, 4.7, section 5 (vllm#52234, aws-do-eks#84, llm-d#1138, sglang#9726,
// aibrix#2289), rules 4 and 5.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "core/dialects/dialect.h"

namespace penstock::dialects {

struct PdLimits {
  Duration prefill_max = std::chrono::minutes(5);
  Duration first_token_max = std::chrono::minutes(1);  // of the decode leg, prefill done
  Duration lease = std::chrono::seconds(30);           // vLLM's kv_lease_duration
  Duration margin = std::chrono::seconds(5);           // before its end nothing is sent any more
  std::uint32_t prefill_tries = 2;
};

enum class PdAction : std::uint8_t {
  kSendPrefill,
  kSendDecode,       // serial: with the params; concurrent: with the room
  kSendDecodePlain,  // nothing to fetch: it computes the prompt itself
  kCancelPrefill,
  kCancelDecode,
  kRelease,  // let a decode engine fetch the prefill's blocks, so that they are freed
  kFinish,   // the answer is complete
  kFail,     // answer with an error
};

class PdRun {
 public:
  enum class State : std::uint8_t { kNew, kPrefill, kBoth, kDecode, kDone, kFailed };
  using Actions = std::vector<PdAction>;

  PdRun(PdProtocol protocol, PdLimits limits) : protocol_(protocol), limits_(limits) {}

  Actions begin(Instant now);
  // The prefill leg answered. `has_params`: with blocks that wait to be fetched; `expires_in`: what
  // is left of their lease by the engine's clock, when it said.
  Actions prefill_done(Instant now, bool has_params, std::optional<Duration> expires_in);
  Actions prefill_failed(Instant now, bool may_retry);
  bool params_usable(Instant now) const;
  // From then on the decode leg may not go out with the params; Instant::max(): there are none.
  Instant params_usable_until() const { return usable_until_.value_or(Instant::max()); }
  // The params ran out before decode was sent.
  Actions params_expired(Instant now);
  // The decode engine has the whole request and did not refuse it at once: the blocks are its
  // affair, whatever becomes of it.
  Actions decode_took(Instant now);
  Actions decode_first_token(Instant now);
  Actions decode_done(Instant now);
  Actions decode_failed(Instant now);
  Actions client_gone(Instant now);
  // At next_deadline().
  Actions deadline(Instant now);

  State state() const { return state_; }
  bool over() const { return state_ == State::kDone || state_ == State::kFailed; }
  Instant next_deadline() const { return deadline_; }
  const char* failure() const { return failure_; }
  bool prefill_runs() const { return prefill_runs_; }
  bool decode_runs() const { return decode_runs_; }

 private:
  Actions send_decode(Instant now);
  Actions end(State state, const char* why);

  PdProtocol protocol_;
  PdLimits limits_;
  State state_ = State::kNew;
  bool prefill_runs_ = false;
  bool decode_runs_ = false;
  bool took_ = false;  // the decode engine
  bool held_ = false;  // blocks of the prefill wait, and nobody has heard of them
  bool first_token_ = false;
  std::uint32_t prefills_ = 0;
  std::optional<Instant> usable_until_;  // of the params; nothing: there are none
  Instant deadline_ = Instant::max();
  const char* failure_ = "";
};

}  // namespace penstock::dialects
