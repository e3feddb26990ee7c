#include "service/gateway/placement.h"

#include <fmt/format.h>
#include <algorithm>
#include <tuple>
#include <vector>

#include "domain/kv.h"

namespace penstock::gateway {
namespace {

// About what the embedded engine needs on a laptop: only ever compared with itself.
constexpr double kUnknownTokenSeconds = 50e-6;

// A rank that could run the request.
struct Candidate {
  const WorkerView* worker = nullptr;
  const ModelDescription* model = nullptr;
  EngineLoad load;
  RankId id;
  RankLedger::Entry own;

  WorkerRole role() const { return worker->description.role; }
  std::uint32_t requests() const { return std::max(load.running + load.waiting, own.requests); }
  double prefill_seconds(double context, double fresh) const {
    if (fresh <= 0) return 0;
    const PrefillCoefficients& c = load.prefill;
    if (c == PrefillCoefficients{}) return kUnknownTokenSeconds * fresh;
    return c.seconds(context, fresh);
  }
  // Until a prompt that comes now is begun.
  double queue_seconds() const {
    const std::uint64_t waiting = std::max(load.prompt_tokens_waiting, own.prompt_tokens);
    return prefill_seconds(0, static_cast<double>(waiting));
  }
  std::string name() const {
    return worker->loads.size() > 1 ? fmt::format("{}/{}", worker->description.name, id.rank)
                                    : worker->description.name;
  }
};

struct Candidates {
  std::vector<Candidate> prefill;
  std::vector<Candidate> others;  // decode and mixed
  std::size_t draining = 0;
};

Candidates candidates(std::span<const WorkerView> workers, const RankLedger& ledger,
                      std::string_view model) {
  Candidates out;
  for (const WorkerView& worker : workers) {
    if (!worker.connected) continue;
    const auto& models = worker.description.models;
    const auto served = std::ranges::find(models, model, &ModelDescription::name);
    if (served == models.end()) continue;
    if (worker.draining) {
      ++out.draining;
      continue;
    }
    auto& list = worker.description.role == WorkerRole::kPrefill ? out.prefill : out.others;
    const auto index = static_cast<std::uint32_t>(served - models.begin());
    for (std::uint32_t rank = 0; rank < worker.loads.size(); ++rank) {
      if (worker.loads[rank].model != index) continue;
      const RankId id{worker.description.id, rank};
      list.push_back({&worker, &*served, worker.loads[rank], id, ledger.of(id)});
    }
  }
  return out;
}

const Candidate& least_waiting(const std::vector<Candidate>& list) {
  return *std::ranges::min_element(list, {}, [](const Candidate& c) {
    return std::tuple(c.queue_seconds(), c.requests(), c.id);
  });
}

const Candidate& least_loaded(const std::vector<Candidate>& list) {
  return *std::ranges::min_element(list, {}, [](const Candidate& c) {
    return std::tuple(c.requests(), c.load.kv_tokens_used, c.id);
  });
}

bool fits(const Candidate& prefill, const Candidate& decode) {
  return prefill.model->kv == decode.model->kv && !prefill.worker->description.transport.empty() &&
         !decode.worker->description.transport.empty();
}

double transfer_seconds(const Candidate& from, const Candidate& to, double tokens,
                        const PlacementLimits& limits) {
  const bool near = from.worker->description.zone == to.worker->description.zone;
  const double bytes = tokens * from.model->kv_token_bytes;
  return bytes / (near ? limits.bandwidth_near : limits.bandwidth_far);
}

Placement whole(const Candidate& on, std::uint32_t fresh, std::string reason) {
  return {{}, on.id, {}, {}, *on.model, fresh, std::move(reason)};
}

}  // namespace

Result<Placement> place(std::span<const WorkerView> workers, const RankLedger& ledger,
                        const PlacementRequest& request, const PlacementLimits& limits) {
  const Candidates found = candidates(workers, ledger, request.model);
  const std::uint32_t fresh = request.tokens - std::min(request.cached, request.tokens);
  if (found.prefill.empty() && found.others.empty()) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("no worker can take a request for the model '{}' right now (known: {}, "
                            "draining: {}); try again shortly",
                            request.model, workers.size(), found.draining));
  }
  if (found.others.empty()) {
    const Candidate& on = least_waiting(found.prefill);
    return whole(on, fresh, fmt::format("{}: no decode worker is there", on.name()));
  }
  const Candidate& decode = least_loaded(found.others);
  const auto alone = [&](std::string_view why) {
    return whole(decode, fresh,
                 fmt::format("{}: {} requests, fewest of {}{}", decode.name(), decode.requests(),
                             found.others.size(), why));
  };
  if (decode.role() == WorkerRole::kMixed || !limits.disaggregate) return alone("");
  std::vector<Candidate> partners;
  std::ranges::copy_if(found.prefill, std::back_inserter(partners),
                       [&](const Candidate& c) { return fits(c, decode); });
  if (partners.empty()) {
    return alone(found.prefill.empty() ? "; no prefill worker is there"
                                       : "; no prefill worker has the same KV");
  }
  // The transfer goes on while the prompt is computed: the longer of the two counts.
  const auto total = [&](const Candidate& c) {
    const double compute = c.prefill_seconds(request.cached, fresh);
    const double transfer = transfer_seconds(c, decode, request.tokens, limits);
    return c.queue_seconds() + std::max(compute, transfer) +
           std::chrono::duration<double>(limits.handoff_base).count();
  };
  const Candidate& prefill = *std::ranges::min_element(
      partners, {}, [&](const Candidate& c) { return std::tuple(total(c), c.requests(), c.id); });
  const double pool = total(prefill);
  const double local = decode.queue_seconds() + decode.prefill_seconds(request.cached, fresh);
  const double delay = local * (1.0 + decode.load.running);  // to it and to those it holds up
  if (local <= std::chrono::duration<double>(limits.local_prefill_max).count() && delay < pool) {
    return whole(decode, fresh,
                 fmt::format("{}: its prompt too, {} tokens in {:.1f} ms; by {} it would be {:.1f} "
                             "ms",
                             decode.name(), fresh, local * 1e3, prefill.name(), pool * 1e3));
  }
  return Placement{prefill.id,
                   decode.id,
                   prefill.worker->description.transport,
                   prefill.worker->description.epoch,
                   *decode.model,
                   fresh,
                   fmt::format("{} for {}: {} tokens in {:.1f} ms, {:.1f} ms of them waiting; {} "
                               "requests decode there",
                               prefill.name(), decode.name(), fresh, pool * 1e3,
                               prefill.queue_seconds() * 1e3, decode.requests())};
}

bool is_served(std::span<const WorkerView> workers, std::string_view model) {
  const Candidates found = candidates(workers, {}, model);
  return !found.prefill.empty() || !found.others.empty();
}

std::optional<std::uint32_t> context_length(std::span<const WorkerView> workers,
                                            std::string_view model) {
  for (const WorkerView& worker : workers) {
    for (const ModelDescription& description : worker.description.models) {
      if (description.name == model) return description.context_length;
    }
  }
  return std::nullopt;
}

}  // namespace penstock::gateway
