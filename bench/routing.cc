// penstock bench routing: one placement decision over 1,024 ranks, for every policy, and the whole
// decision of the gateway: room, views of the workers' loads and the ledger, both policies, the
// rules of pairs; the same decision with all ranks read anew each time is its baseline.
//
// Views are random and change between decisions; memory is warm. Times are CPU time of this thread,
// because the machine is shared; the clock's own cost (about 0.2 us) is in them.
// Concurrency: see bench.h.
#include <algorithm>
#include <array>
#include <ctime>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "base/rng.h"
#include "bench.h"
#include "core/routing/decode_balancer.h"
#include "core/routing/policies.h"
#include "core/routing/prefill_balancer.h"
#include "service/gateway/placement.h"

namespace penstock::bench {
namespace {

using namespace routing;

constexpr std::size_t kRanks = 1024;
constexpr double kLimitUs = 20;

double thread_microseconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

std::vector<RankView> views(Rng& rng) {
  std::vector<RankView> ranks(kRanks);
  for (std::size_t i = 0; i < kRanks; ++i) {
    RankView& rank = ranks[i];
    rank.id = {WorkerId(i / 8), static_cast<std::uint32_t>(i % 8)};
    rank.engine = static_cast<std::uint32_t>(i / 8);
    rank.running = static_cast<std::int64_t>(rng.below(200));
    rank.waiting = static_cast<std::int64_t>(rng.below(10));
    rank.kv_capacity = 100'000'000;
    rank.kv_tokens = static_cast<std::int64_t>(rng.below(50'000'000));
    rank.outstanding_seconds = rng.uniform();
    rank.load_outstanding_seconds = rng.uniform() / 10;
    rank.hit_tokens = static_cast<std::int64_t>(rng.below(8000));
    rank.compute_seconds = 0.2 + rng.uniform() / 10;
    rank.load_seconds = 0.01;
  }
  return ranks;
}

Figure decision(PlacementPolicy& policy, int decisions) {
  Rng rng(1);
  std::vector<RankView> ranks = views(rng);
  Decision out;
  std::vector<double> us;
  for (int i = 0; i < decisions; ++i) {
    RankView& changed = ranks[rng.below(kRanks)];
    changed.running = static_cast<std::int64_t>(rng.below(200));
    changed.outstanding_seconds = rng.uniform();
    const PlaceRequest request{.prompt_tokens = static_cast<std::int64_t>(1 + rng.below(300'000)),
                               .output_tokens = 300,
                               .session = rng.next_u64()};
    const double start = thread_microseconds();
    policy.place(request, ranks, rng, out);
    us.push_back(thread_microseconds() - start);
  }
  std::ranges::sort(us);
  return at_most(fmt::format("place_1024_ranks_p99_{}", policy.name()), us[us.size() * 99 / 100],
                 "us", kLimitUs);
}

// 64 prefill and 64 decode workers of 8 ranks each, loaded at random.
std::vector<WorkerView> pools(Rng& rng) {
  std::vector<WorkerView> workers(kRanks / 8);
  for (std::size_t i = 0; i < workers.size(); ++i) {
    WorkerView& worker = workers[i];
    const bool prefill = i < workers.size() / 2;
    worker.description.id = WorkerId(i + 1);
    worker.description.name = fmt::format("{}-{}", prefill ? "prefill" : "decode", i);
    worker.description.engine = "embedded";
    worker.description.role = prefill ? WorkerRole::kPrefill : WorkerRole::kDecode;
    worker.description.transport = fmt::format("tcp:10.0.0.{}:7001", i);
    ModelDescription& model = worker.description.models.emplace_back();
    model.name = "m";
    model.context_length = 1'000'000;
    model.kv = {"0123456789abcdef", "build 1", "bf16", 64, 0};
    model.kv_token_bytes = 890;
    worker.loads.resize(8);
    for (EngineLoad& load : worker.loads) {
      load.prefill = {0.01, 10e-6, 1e-10};
      load.prompt_tokens_waiting = prefill ? rng.below(20'000) : 0;
      load.running = static_cast<std::uint32_t>(rng.below(prefill ? 4 : 200));
      load.kv_tokens_used = Tokens(static_cast<std::int64_t>(rng.below(5'000'000)));
      load.kv_tokens_total = Tokens(10'000'000);
    }
    worker.connected = true;
  }
  return workers;
}

enum class Reading : std::uint8_t { kChanges, kAll };

struct Times {
  double median = 0;
  double p99 = 0;
};

// Of a decision, in microseconds. Before each, some workers have reported; after it come the
// permits that a submitted request holds, 2,000 requests at a time.
Result<Times> gateway_decision(int decisions, Reading reading) {
  constexpr std::size_t kUnderWay = 2000;
  constexpr int kReports = 4;  // of 8 ranks each
  Rng rng(1);
  std::vector<WorkerView> workers = pools(rng);
  gateway::RankLedger ledger;
  gateway::EngineCosts costs;
  gateway::PlacementLimits limits;
  limits.prefill_backlog = std::chrono::hours(1);
  limits.local_prefill_max = Duration::zero();
  gateway::Placer placer;
  std::vector<std::array<gateway::RankPermit, 2>> permits(kUnderWay);
  std::vector<double> us;
  Instant now{};
  for (WorkerView& worker : workers)
    worker.revision = reading == Reading::kChanges ? 1 : 0;
  for (int i = 0; i < decisions; ++i) {
    now += std::chrono::milliseconds(1);
    for (int report = 0; report < kReports; ++report) {
      WorkerView& changed = workers[rng.below(workers.size())];
      for (EngineLoad& load : changed.loads)
        load.running = static_cast<std::uint32_t>(rng.below(200));
      if (reading == Reading::kChanges) ++changed.revision;
    }
    gateway::PlacementRequest request{"m"};
    request.tokens = static_cast<std::uint32_t>(1000 + rng.below(300'000));
    request.cached = static_cast<std::uint32_t>(rng.below(request.tokens));
    request.output = 300;
    const gateway::PlacementState state{workers, ledger, costs, limits, now, rng};
    const double start = thread_microseconds();
    const bool room = placer.has_room(state, request);
    auto placed = placer.place(state, request);
    us.push_back(thread_microseconds() - start);
    if (!placed) return std::unexpected(std::move(placed).error());
    if (!room || !placed->prefill)
      return fail(ErrorCode::kInternal, "the bench's pools have room, and take two legs");
    auto& held = permits[static_cast<std::size_t>(i) % kUnderWay];
    held[0] = gateway::RankPermit(ledger, *placed->prefill,
                                  {placed->fresh, 1, placed->prompt_kv_tokens, placed->compute});
    held[1] = gateway::RankPermit(ledger, placed->decode, {0, 1, placed->kv_tokens, {}});
  }
  std::ranges::sort(us);
  return Times{us[us.size() / 2], us[us.size() * 99 / 100]};
}

}  // namespace

Result<std::vector<Figure>> run_routing(const Options& options) {
  const int decisions = options.quick ? 2000 : 20'000;
  std::vector<Figure> figures;
  PrefillBalancer prefill({});
  prefill.advance(Instant{}, kRanks / 8);
  figures.push_back(decision(prefill, decisions));
  DecodeBalancer decode({});
  figures.push_back(decision(decode, decisions));
  for (const std::string_view name : policy_names()) {
    TRY(const std::unique_ptr<PlacementPolicy> policy, make_policy(name, {}));
    figures.push_back(decision(*policy, decisions));
  }
  TRY(const Times kept, gateway_decision(decisions, Reading::kChanges));
  TRY(const Times anew, gateway_decision(decisions / 4, Reading::kAll));
  figures.push_back(at_most("gateway_place_1024_ranks_p99", kept.p99, "us", kLimitUs));
  // The median, because neighbours' interrupts are in the rarest ones.
  figures.push_back({"gateway_place_1024_ranks",
                     kept.median,
                     "us",
                     "every rank read anew for each look",
                     anew.median,
                     anew.median / kept.median,
                     2,
                     {}});
  return figures;
}

}  // namespace penstock::bench
