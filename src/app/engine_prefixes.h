// EnginePrefixes: what engines of others hold of prompts, for all gateway threads of a process.
//
// Engines that publish KV events are followed (io/zmq); of the others it is known what was sent
// there (EngineIndex::placed), for ten minutes and until an answer's cached tokens say otherwise.
// Every answer that reports cached tokens is compared with what had been predicted (HitTrust).
//
// Invariants: each of the two indexes stays below kBytesMax. Errors: endpoints that can't be
// followed are told in the log. Concurrency: any thread. Source: docs/kv-events.md.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/kvcache/hit_trust.h"
#include "io/telemetry/metrics.h"
#include "io/zmq/kv_event_feed.h"
#include "service/foreign/prefix_source.h"

namespace penstock {

// Where an engine publishes; rank r does so at the port + r.
struct KvEventEndpoints {
  std::string events;  // empty: it does not
  std::string replay;
  std::string topic;
};
// The endpoint of a rank: tcp://HOST:PORT+rank. Nothing when there is no such port.
std::optional<std::string> endpoint_of_rank(const std::string& endpoint, std::uint32_t rank);

class EnginePrefixes final : public foreign::PrefixSource {
 public:
  static constexpr std::size_t kBytesMax = std::size_t{512} << 20;

  EnginePrefixes(std::uint64_t seed, std::function<void(std::string_view)> log);

  void add(WorkerId engine, std::string name, KvEventEndpoints endpoints);
  void publish(Metrics& metrics) const;

  const kvcache::RoutingChain& chain() const override { return chain_; }
  void has_ranks(WorkerId engine, std::uint32_t ranks) override;
  void forget(WorkerId engine) override;
  bool has_events(WorkerId engine) const override;
  std::vector<kvcache::RankMatch> match(const foreign::PromptName& prompt) const override;
  double trust(kvcache::RankOfWorker rank) const override;
  void sent(kvcache::RankOfWorker rank, const foreign::PromptName& prompt) override;
  void observed(kvcache::RankOfWorker rank, const foreign::PromptName& prompt,
                const Observed& what) override;

 private:
  struct Engine {
    std::string name;
    KvEventEndpoints endpoints;
    std::uint32_t ranks = 0;
  };
  void age();
  void change_ranks(WorkerId engine, Engine& known, std::uint32_t ranks);

  const std::uint64_t seed_;
  const kvcache::RoutingChain chain_;
  const std::function<void(std::string_view)> log_;
  mutable std::shared_mutex mutex_;  // of what follows, down to trust_
  std::map<WorkerId, Engine> engines_;
  kvcache::EngineIndex placements_;
  std::map<kvcache::RankOfWorker, kvcache::EngineIndex::SourceId> sources_;
  std::chrono::steady_clock::time_point aged_;
  kvcache::HitTrust trust_;
  std::optional<zmq::KvEventFeed> feed_;  // once an engine publishes; its calls lock themselves
  std::atomic<bool> has_feed_{false};
};

}  // namespace penstock
