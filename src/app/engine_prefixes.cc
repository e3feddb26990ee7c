#include "app/engine_prefixes.h"

#include <fmt/format.h>
#include <charconv>
#include <limits>
#include <utility>

#include "domain/kv.h"

namespace penstock {
namespace {

using Steady = std::chrono::steady_clock;

// Placements are known for ten minutes; EngineIndex keeps a generation a third of them.
constexpr auto kGenerationTime = std::chrono::seconds(200);
// Templates put words of their own between the messages, and engines cache whole blocks: so much
// less than predicted says nothing.
constexpr std::uint64_t kSlackTokens = 128;
// A prompt below this may leave no whole block behind.
constexpr std::uint32_t kCachedTokensMin = 256;

}  // namespace

std::optional<std::string> endpoint_of_rank(const std::string& endpoint, std::uint32_t rank) {
  if (rank == 0 || endpoint.empty()) return endpoint;
  const auto colon = endpoint.rfind(':');
  std::uint32_t port = 0;
  const auto* const end = endpoint.data() + endpoint.size();
  if (!endpoint.starts_with("tcp://") ||
      std::from_chars(endpoint.data() + colon + 1, end, port).ec != std::errc() ||
      port + rank > std::numeric_limits<std::uint16_t>::max())
    return std::nullopt;
  return fmt::format("{}:{}", endpoint.substr(0, colon), port + rank);
}

EnginePrefixes::EnginePrefixes(std::uint64_t seed, std::function<void(std::string_view)> log)
    : seed_(seed),
      chain_(seed),
      log_(std::move(log)),
      placements_(kBytesMax),
      aged_(Steady::now()) {}

void EnginePrefixes::add(WorkerId engine, std::string name, KvEventEndpoints endpoints) {
  const std::unique_lock lock(mutex_);
  if (!endpoints.events.empty() && !feed_) {
    zmq::KvEventFeedOptions options;
    options.seed = seed_;
    options.bytes_max = kBytesMax;
    options.log = log_;
    feed_.emplace(std::move(options));
    has_feed_ = true;
  }
  engines_[engine] = {std::move(name), std::move(endpoints), 0};
}

void EnginePrefixes::has_ranks(WorkerId engine, std::uint32_t ranks) {
  {
    const std::shared_lock lock(mutex_);
    const auto found = engines_.find(engine);
    if (found == engines_.end() || found->second.ranks == ranks) return;
  }
  const std::unique_lock lock(mutex_);
  // Another thread may have been first, or have removed it.
  if (const auto found = engines_.find(engine); found != engines_.end())
    change_ranks(engine, found->second, ranks);
}

// Under the lock.
void EnginePrefixes::change_ranks(WorkerId engine, Engine& known, std::uint32_t ranks) {
  const std::uint32_t before = std::exchange(known.ranks, ranks);
  for (std::uint32_t rank = before; rank < ranks; ++rank) {
    const kvcache::RankOfWorker id{engine, rank};
    // Of one that publishes, too: for prompts whose token ids nobody tells.
    sources_[id] = placements_.add(id);
    placements_.set_stride(sources_[id], kvcache::kRoutingUnit);
    if (known.endpoints.events.empty()) continue;
    const auto events = endpoint_of_rank(known.endpoints.events, rank);
    const auto replay = endpoint_of_rank(known.endpoints.replay, rank);
    const std::string name = fmt::format("{} rank {}", known.name, rank);
    const Status added =
        events && replay ? feed_->add({id, name, *events, *replay, known.endpoints.topic})
                         : Status(fail(ErrorCode::kInvalidArgument,
                                       "the ranks of an engine publish at tcp://HOST:PORT + rank"));
    if (!added) log_(fmt::format("KV events of {}: {}", name, added.error().message));
  }
  for (std::uint32_t rank = ranks; rank < before; ++rank) {
    const kvcache::RankOfWorker id{engine, rank};
    if (feed_) feed_->remove(id);
    if (const auto source = sources_.find(id); source != sources_.end()) {
      placements_.remove(source->second);
      sources_.erase(source);
    }
    trust_.forget(id);
  }
}

void EnginePrefixes::forget(WorkerId engine) {
  const std::unique_lock lock(mutex_);
  const auto found = engines_.find(engine);
  if (found == engines_.end()) return;
  change_ranks(engine, found->second, 0);
  engines_.erase(found);
}

bool EnginePrefixes::has_events(WorkerId engine) const {
  if (!has_feed_) return false;
  const std::shared_lock lock(mutex_);
  const auto found = engines_.find(engine);
  return found != engines_.end() && !found->second.endpoints.events.empty();
}

std::vector<kvcache::RankMatch> EnginePrefixes::match(const foreign::PromptName& prompt) const {
  kvcache::EngineIndex::Scratch scratch;
  std::vector<kvcache::RankMatch> all;
  if (has_feed_ && !prompt.ids.empty()) {
    const auto found = feed_->match(prompt.ids, scratch);
    all.assign(found.begin(), found.end());
  }
  const std::shared_lock lock(mutex_);
  for (const auto& found : placements_.match(prompt.text, scratch)) {
    const auto engine = engines_.find(found.rank.worker);
    const bool tells = engine != engines_.end() && !engine->second.endpoints.events.empty();
    if (!tells || prompt.ids.empty()) all.push_back(found);
  }
  return all;
}

double EnginePrefixes::trust(kvcache::RankOfWorker rank) const {
  const std::shared_lock lock(mutex_);
  return trust_.trust(rank);
}

void EnginePrefixes::age() {
  const auto now = Steady::now();
  while (now - aged_ > kGenerationTime) {
    aged_ += kGenerationTime;
    for (const auto& [rank, source] : sources_)
      placements_.age(source);
  }
}

void EnginePrefixes::sent(kvcache::RankOfWorker rank, const foreign::PromptName& prompt) {
  if (has_events(rank.worker)) {
    if (prompt.tokens() >= kCachedTokensMin) feed_->sent_prompt(rank);
    if (!prompt.ids.empty()) return;
  }
  const std::unique_lock lock(mutex_);
  age();
  const auto source = sources_.find(rank);
  if (source != sources_.end()) placements_.placed(source->second, prompt.text);
}

void EnginePrefixes::observed(kvcache::RankOfWorker rank, const foreign::PromptName& prompt,
                              const Observed& what) {
  const bool by_ids = has_events(rank.worker) && !prompt.ids.empty();
  if (what.prompt == 0) return;
  const std::uint64_t text = std::max(prompt.text_tokens, 1U);
  const std::uint64_t predicted = by_ids ? what.predicted : what.predicted * what.prompt / text;
  const std::uint64_t missing = predicted - std::min(predicted, what.cached);
  const std::unique_lock lock(mutex_);
  // Counted by text, a prediction is not exact to the token.
  trust_.observed(rank,
                  missing <= kSlackTokens && !by_ids ? std::min(predicted, what.cached) : predicted,
                  what.cached);
  const auto source = sources_.find(rank);
  if (by_ids || source == sources_.end() || missing <= kSlackTokens) return;
  placements_.corrected(source->second, prompt.text,
                        static_cast<std::uint32_t>(what.cached * text / what.prompt));
}

void EnginePrefixes::publish(Metrics& metrics) const {
  const auto set = [&](Metric metric, Metrics::LabelValues labels, auto value) {
    metrics.gauge(metric, labels).set(static_cast<double>(value));
  };
  if (has_feed_) {
    set(Metric::kEngineIndexBlocks, {"events"}, feed_->blocks());
    set(Metric::kEngineIndexBytes, {"events"}, feed_->memory_bytes());
    for (const zmq::KvEventReport& report : feed_->report()) {
      const std::string rank = fmt::to_string(report.rank.rank);
      const std::string name = report.name.substr(0, report.name.rfind(" rank "));
      set(Metric::kEngineKvEventsSilent, {name, rank}, report.silent ? 1 : 0);
      set(Metric::kEngineKvEventMessages, {name, rank}, report.messages);
      set(Metric::kEngineKvEventGaps, {name, rank, "filled"}, report.stream.filled);
      set(Metric::kEngineKvEventGaps, {name, rank, "lost"},
          report.stream.gaps - std::min(report.stream.gaps, report.stream.filled));
      set(Metric::kEngineKvEventPurges, {name, rank}, report.stream.purges);
    }
  }
  const std::shared_lock lock(mutex_);
  set(Metric::kEngineIndexBlocks, {"placements"}, placements_.blocks());
  set(Metric::kEngineIndexBytes, {"placements"}, placements_.memory_bytes());
  for (const auto& [rank, seen] : trust_.ranks()) {
    const auto engine = engines_.find(rank.worker);
    if (engine == engines_.end()) continue;
    const std::string& name = engine->second.name;
    const std::string number = fmt::to_string(rank.rank);
    set(Metric::kEngineHitTokens, {name, number, "predicted"}, seen.predicted);
    set(Metric::kEngineHitTokens, {name, number, "came_true"}, seen.came_true);
    set(Metric::kEngineHitTokens, {name, number, "unforeseen"}, seen.unforeseen);
    set(Metric::kEngineHitTrust, {name, number}, seen.trust);
  }
}

}  // namespace penstock
