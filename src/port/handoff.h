// HandoffPort: what an engine needs of the handoff service of its worker process. One object per
// rank (engine); the service behind it is service/handoff, on the transport's thread.
//
// Prefill side: announce() when a prefill leg is accepted, publish() after each step with the
// blocks whose KV is now computed, close() with the first token, or withdraw(). Decode side: pull()
// into blocks of the own pool; the Pull tells when it is over. The service names blocks by their
// number in the rank's pool and reads and writes their payloads; it holds them from publish() or
// pull() until they come back from take_freed(), whatever happened in between.
//
// Invariants: every block given comes back exactly once per time it was given; the rank keeps one
// reference to it meanwhile (KvPool::retain). Blocks of a pull come back only after the last byte
// that will be written has been.
// Errors: none; a handoff that can't be is a Pull that failed with a reason. Concurrency: the
// engine's thread calls everything; `wake` is called from another thread when take_freed() or a
// Pull has news. Source: docs/protocol/handoff.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "domain/engine.h"
#include "domain/handoff.h"

namespace penstock {

// KV pulled, or being pulled, from a prefill worker.
class Pull {
 public:
  enum class State : std::uint8_t { kRunning, kDone, kFailed };

  virtual ~Pull() = default;
  virtual State state() const = 0;  // any thread; once not kRunning it stays as it is
  // With kDone: KV of that many leading tokens is in place: the whole of what the prefill leg
  // computed, prompt and emitted.
  virtual std::uint32_t tokens() const = 0;
  // With kDone, when the request has one choice: what the prefill leg drew, for the decode leg to
  // go on after and to report as its own.
  virtual const std::optional<EngineOutput>& first_output() const = 0;
  // With kFailed: why, for logs and the request's record.
  virtual std::string why() const = 0;
};

struct HandoffBlock {
  std::uint32_t block = 0;
  std::uint64_t generation = 0;
};

class HandoffPort {
 public:
  virtual ~HandoffPort() = default;

  // --- Prefill side
  virtual void announce(HandoffId id, const std::string& model) = 0;
  // Blocks [first, first + blocks.size()) of the sequence; whole, but for the very last one when
  // `tokens` ends inside it. `tokens` are computed in all. The blocks are held from now on.
  virtual void publish(HandoffId id, std::uint32_t first, std::span<const HandoffBlock> blocks,
                       std::uint32_t tokens) = 0;
  // Everything is published; the leg is over. `first_output` is what it drew (one choice only).
  virtual void close(HandoffId id, std::optional<EngineOutput> first_output) = 0;
  // The leg ended otherwise; the reader is told why.
  virtual void withdraw(HandoffId id, const std::string& why) = 0;

  // --- Decode side
  // Begins to pull the KV of `tokens` tokens: from now on the owner knows its reader and keeps the
  // KV. Nothing is read before there is room: `to` [ceil(tokens / block tokens)] may be empty, and
  // comes with fill() then.
  virtual std::shared_ptr<Pull> pull(const HandoffRef& from, const std::string& model,
                                     std::uint32_t tokens, std::vector<std::uint32_t> to) = 0;
  // Once, for a pull that was begun without.
  virtual void fill(const std::shared_ptr<Pull>& pull, std::vector<std::uint32_t> to) = 0;
  // The blocks are wanted back, finished or not; also to be called after the end.
  virtual void stop(const std::shared_ptr<Pull>& pull) = 0;

  // Blocks that the service holds no more.
  virtual std::vector<std::uint32_t> take_freed() = 0;
};

}  // namespace penstock
