// HandoffLegs: the embedded engine's part in handing prompts' KV from prefill to decode workers.
//
// Of a prefill leg it publishes the blocks as the engine fills them, and closes the handoff with
// the leg's first token. For a decode leg it makes the RemotePrefix that pulls into the engine's
// pool; when the pull fails, what the KV cache has is loaded, and the rest computed.
//
// Invariants: a block that the handoff service holds has one reference of ours, given back in
// tend(). A handoff is closed or withdrawn once its leg has ended, however. Errors: none; a failed
// handoff is computed here and counted.
// Concurrency: the engine's thread; on_news() from any. Source: docs/protocol/handoff.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "io/embedded/kv_connector.h"
#include "port/handoff.h"

namespace penstock {

class HandoffLegs final : public engine::LegSink {
 public:
  // What the KV cache has of a request, for when a pull fails; null: nothing.
  using Fallback = std::function<std::shared_ptr<KvFetch>(const EngineRequest&)>;
  using MakePrefix = std::function<std::shared_ptr<engine::PrefixLoad>(std::shared_ptr<KvFetch>)>;

  // Told why a pull failed.
  using Log = std::function<void(std::string_view)>;

  // Outlives what `engine` holds of it.
  HandoffLegs(engine::Engine& engine, HandoffPort& port, Fallback fetch, MakePrefix prefix,
              Log log);

  // The service is about to go: it is not called any more.
  void detach() { port_ = nullptr; }

  // A prefill leg has been accepted.
  void announce(const EngineRequest& request);
  // For a decode leg.
  std::shared_ptr<engine::RemotePrefix> remote(const EngineRequest& request);
  void grown(const EngineRequest& request, std::span<const engine::BlockId> blocks,
             std::uint32_t tokens) override;
  // Blocks that it has published would be held until the leg ends, which may need them to go on:
  // the handoff ends, the leg does not.
  void thrown_out(const EngineRequest& request) override;

  // The request ended before the engine saw it.
  void ended_early(RequestId request) { withdraw(request, "the prefill leg was cancelled"); }

  // Before a step: gives blocks back that the service holds no more.
  void tend();
  // After a step: ends handoffs of legs that ended in `outputs`, and puts the first tokens of
  // decode legs that got theirs from afar before them. Returns requests that ended with that token.
  std::vector<RequestId> review(std::vector<EngineOutput>& outputs, std::size_t first);

  void on_news() { news_.store(true, std::memory_order_release); }
  bool has_news() const { return news_.load(std::memory_order_acquire); }

 private:
  class RemoteLeg;
  // Ends the handoff of a prefill leg, if the request is one that has not ended yet.
  void withdraw(RequestId request, const std::string& why);

  struct PrefillLeg {
    HandoffId id;
    std::uint32_t published = 0;  // leading blocks
  };

  engine::Engine& engine_;
  HandoffPort* port_;
  Fallback fetch_;
  MakePrefix prefix_;
  Log log_;
  std::map<RequestId, PrefillLeg> prefills_;
  std::vector<EngineOutput> arrived_;  // first tokens from afar
  std::atomic<bool> news_{false};
};

}  // namespace penstock
