// penstock bench routing: one placement decision over 1,024 ranks, for every policy.
//
// Views are random and change between decisions; memory is warm. Times are CPU time of this thread,
// because the machine is shared; the clock's own cost (about 0.2 us) is in them.
// Concurrency: see bench.h.
#include <algorithm>
#include <ctime>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "base/rng.h"
#include "bench.h"
#include "core/routing/decode_balancer.h"
#include "core/routing/policies.h"
#include "core/routing/prefill_balancer.h"

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
  return figures;
}

}  // namespace penstock::bench
