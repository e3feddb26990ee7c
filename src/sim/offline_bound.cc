#include "sim/offline_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace penstock::sim {
namespace {

using routing::Profile;

// How far the mean of many samples of moe_lb may lie below its expectation, in standard
// deviations of that mean: once in 3.5 million windows.
constexpr double kSigmas = 5;
// Sums of a million roundings, and of steps rounded to nanoseconds.
constexpr double kSlack = 1e-6;

double spread_of(const routing::MoeImbalance& moe) {
  return moe.mean <= 1 ? 0 : (moe.mean - 1) * std::sqrt(std::expm1(moe.spread * moe.spread));
}

// The least mean of moe_lb over steps whose lengths add up to `total`, none longer than `longest`.
double least_moe(const routing::MoeImbalance& moe, double total, double longest) {
  if (moe.mean <= 1 || total <= 0) return 1;
  if (moe.spread <= 0) return moe.mean;
  return std::max(1.0, moe.mean - kSigmas * spread_of(moe) * std::sqrt(longest / total));
}

// What prefill ranks need for work: base costs and moe_lb. Increasing in `work`.
struct PrefillNeed {
  double base_factor = 1;
  double longest_step = 0;  // nominal
  double group = 1;
  double ranks = 1;
  routing::MoeImbalance moe;

  explicit PrefillNeed(const Profile& p, bool all_ranks)
      : group(static_cast<double>(p.prefill_pool.group_ranks)),
        ranks(static_cast<double>(p.prefill_pool.ranks + (all_ranks ? p.decode_pool.ranks : 0))),
        moe(p.costs.prefill_moe) {
    const PrefillCoefficients& c = p.costs.prefill;
    // A step takes its budget at most, and one token at least.
    const double one = routing::prefill_seconds(c, 1, static_cast<double>(p.context_tokens_max));
    longest_step = std::max(p.chunk_budget_seconds, one);
    const double useful = longest_step - c.base;
    base_factor = useful > 0 ? longest_step / useful : 1;
    if (all_ranks) {  // decode steps have no base cost of prefill, and groups of another size
      base_factor = 1;
      group = std::max(group, static_cast<double>(p.decode_pool.group_ranks));
      moe.mean = std::min(moe.mean, p.costs.decode_moe.mean);
      longest_step = std::numeric_limits<double>::infinity();
    }
  }
  double seconds(double work) const {
    const double steps = work * base_factor;
    return steps * least_moe(moe, steps / group, longest_step) / ranks;
  }
};

// What decode ranks need for work, when tokens of `slow` of it may be in steps longer than tau.
struct DecodeNeed {
  double base = 0;
  double tau = 0;
  double ranks = 1;
  routing::MoeImbalance moe;

  DecodeNeed(const Profile& p, const Slo& slo)
      : base(p.costs.step.base),
        tau(slo.tau),
        ranks(static_cast<double>(p.decode_pool.ranks)),
        moe(p.costs.decode_moe) {}
  // A group that takes `span` for its steps has `span`/m of nominal time, and at least span/tau
  // base costs in it.
  double seconds(double work, double slow, double span) const {
    const double fast = std::max(0.0, work - slow);
    const double m = least_moe(moe, span / std::max(1.0, moe.mean), tau);
    const double share = 1 / m - base / tau;
    const double slow_seconds = std::min(work, slow) * m / ranks;
    if (fast <= 0) return slow_seconds;
    if (share <= 0) return std::numeric_limits<double>::infinity();
    return fast / (share * ranks) + slow_seconds;
  }
};

// A window that can't hold all its requests, and how many must go.
struct Excess {
  double from = 0;
  double to = 0;
  double missed = 0;
};

// The most that must be missed over disjoint windows.
double most_missed(std::vector<Excess>& windows) {
  std::ranges::sort(windows, {}, &Excess::to);
  std::vector<double> ends;
  std::vector<double> best;  // with windows that end by then
  for (const Excess& w : windows) {
    const auto before = std::ranges::upper_bound(ends, w.from) - ends.begin();
    double value = w.missed + (before > 0 ? best[static_cast<std::size_t>(before) - 1] : 0);
    if (!best.empty()) value = std::max(value, best.back());
    ends.push_back(w.to);
    best.push_back(value);
  }
  return best.empty() ? 0 : best.back();
}

// Looks at one window: `due(request)` must be at most `to`, `work(request)` is summed up,
// `fits(sum)` says whether that much can be done in it.
template <typename Due, typename Work, typename Fits>
double missed_in(const std::vector<BoundRequest>& requests, double from, double to, Due due,
                 Work work, Fits fits, std::vector<double>& scratch) {
  scratch.clear();
  const auto first = std::ranges::lower_bound(requests, from, {}, &BoundRequest::arrival);
  double sum = 0;
  for (auto it = first; it != requests.end() && it->arrival < to; ++it) {
    if (due(*it) > to) continue;
    scratch.push_back(work(*it));
    sum += scratch.back();
  }
  double missed = 0;
  if (fits(sum)) return 0;
  std::ranges::make_heap(scratch);
  while (!scratch.empty() && !fits(sum)) {
    std::ranges::pop_heap(scratch);
    sum -= scratch.back();
    scratch.pop_back();
    ++missed;
  }
  return missed;
}

template <typename Visit>
void each_window(const std::vector<BoundRequest>& requests, std::size_t exact_max, double end_max,
                 bool to_finish, Visit visit) {
  if (requests.empty()) return;
  const double start = requests.front().arrival;
  double end = start;
  const auto due = [to_finish](const BoundRequest& r) { return to_finish ? r.finish : r.deadline; };
  for (const BoundRequest& r : requests)
    end = std::max(end, due(r));
  end = std::min(end, end_max);
  if (requests.size() <= exact_max) {
    for (const BoundRequest& from : requests)
      for (const BoundRequest& to : requests)
        if (due(to) > from.arrival && due(to) <= end) visit(from.arrival, due(to));
    return;
  }
  visit(start, end);
  for (double length = 4; length < end - start; length *= 2)
    for (double from = start; from < end; from += length / 4)
      visit(from, std::min(end, from + length));
}

}  // namespace

BoundLoad bound_load(const Profile& profile, const evaluate::Trace& trace,
                     const std::vector<evaluate::Arrival>& arrivals, Duration warmup,
                     const Slo& slo) {
  BoundLoad load;
  if (arrivals.empty()) return load;
  // Copies share nothing, so each is looked at by itself: `seen` holds the last copy that had a
  // block, and copies need not be taken back.
  std::unordered_map<std::uint64_t, std::uint32_t> dense;
  std::vector<std::uint32_t> block_index(trace.blocks.size());
  for (std::size_t i = 0; i < trace.blocks.size(); ++i)
    block_index[i] =
        dense.try_emplace(trace.blocks[i], static_cast<std::uint32_t>(dense.size())).first->second;
  constexpr std::uint32_t kNever = 0xFFFF'FFFF;
  std::vector<std::uint32_t> seen(dense.size(), kNever);
  std::vector<std::uint32_t> by_copy(arrivals.size());
  std::iota(by_copy.begin(), by_copy.end(), 0U);
  std::ranges::sort(by_copy, {}, [&](std::uint32_t i) {
    return std::pair(arrivals[i].copy, i);  // by time within a copy
  });
  std::vector<std::int64_t> hits(arrivals.size());
  for (const std::uint32_t i : by_copy) {
    const evaluate::Arrival& arrival = arrivals[i];
    const evaluate::TraceRequest& t = trace.requests[arrival.request];
    std::int64_t matched = 0;
    bool matching = true;
    for (std::uint32_t b = t.first_block; b < t.first_block + t.block_count; ++b) {
      std::uint32_t& last = seen[block_index[b]];
      matching = matching && last == arrival.copy;
      matched += matching ? 1 : 0;
      last = arrival.copy;
    }
    hits[i] = std::min(matched * trace.block_tokens, t.prompt_tokens - 1);
  }
  PrefillCoefficients marginal = profile.costs.prefill;
  marginal.base = 0;
  const routing::StepCoefficients& step = profile.costs.step;
  const auto warm = std::chrono::duration_cast<std::chrono::microseconds>(warmup).count();
  load.last_arrival = static_cast<double>(arrivals.back().at_us) * 1e-6;
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    const evaluate::TraceRequest& t = trace.requests[arrivals[i].request];
    const auto prompt = static_cast<double>(t.prompt_tokens);
    const auto after = static_cast<double>(t.output_tokens - 1);
    load.tokens_all += after;
    if (arrivals[i].at_us < warm) continue;
    BoundRequest r;
    r.arrival = static_cast<double>(arrivals[i].at_us) * 1e-6;
    r.deadline = r.arrival + slo.first_token_limit(profile.costs.prefill, prompt);
    r.finish = r.deadline + slo.tau * after;
    const auto hit = static_cast<double>(hits[i]);
    r.prefill_work = routing::prefill_seconds(marginal, prompt - hit, hit);
    r.decode_tokens = after;
    if (after > 0) {
      r.decode_work = after * (step.per_request + step.per_kv_token * (prompt + (after - 1) / 2));
      r.last_token_work = step.per_request + step.per_kv_token * (prompt + after - 1);
    }
    load.prompt_tokens += prompt;
    load.hit_tokens += hit;
    load.requests.push_back(r);
  }
  return load;
}

BoundVerdict check_bound(const Profile& profile, const BoundLoad& load,
                         const BoundOptions& options) {
  BoundVerdict verdict;
  const double count = static_cast<double>(load.requests.size());
  verdict.missed_allowed = std::floor(options.slo.missed_share * count * (1 + kSlack) + kSlack);
  std::vector<double> scratch;
  std::vector<Excess> excess;
  const auto judge = [&](BoundCondition condition, double& missed) {
    missed = most_missed(excess);
    excess.clear();
    if (missed <= verdict.missed_allowed || !verdict.feasible) return;
    verdict.feasible = false;
    verdict.broken = condition;
  };

  const PrefillNeed prefill(profile, options.prefill_on_decode_ranks);
  each_window(load.requests, options.exact_requests_max, std::numeric_limits<double>::infinity(),
              false, [&](double from, double to) {
                const double span = (to - from) * (1 + kSlack) + kSlack;
                const double missed = missed_in(
                    load.requests, from, to, [](const BoundRequest& r) { return r.deadline; },
                    [](const BoundRequest& r) { return r.prefill_work; },
                    [&](double work) { return prefill.seconds(work) <= span; }, scratch);
                if (missed > 0) excess.push_back({from, to, missed});
              });
  judge(BoundCondition::kPrefill, verdict.prefill_missed);

  // Gaps are counted up to the last arrival; so many of them may be long, and those cost at most
  // what the dearest tokens cost.
  const DecodeNeed decode(profile, options.slo);
  double slow_tokens = options.slo.gap_share * load.tokens_all;
  double slow_work = 0;
  std::vector<const BoundRequest*> dear;
  for (const BoundRequest& r : load.requests)
    dear.push_back(&r);
  std::ranges::sort(dear, std::greater<>{}, &BoundRequest::last_token_work);
  for (const BoundRequest* r : dear) {
    if (slow_tokens <= 0) break;
    const double tokens = std::min(slow_tokens, r->decode_tokens);
    slow_work += tokens * r->last_token_work;
    slow_tokens -= tokens;
  }
  each_window(load.requests, options.exact_requests_max, load.last_arrival, true,
              [&](double from, double to) {
                const double span = (to - from) * (1 + kSlack) + kSlack;
                const double missed = missed_in(
                    load.requests, from, to, [](const BoundRequest& r) { return r.finish; },
                    [](const BoundRequest& r) { return r.decode_work; },
                    [&](double work) { return decode.seconds(work, slow_work, span) <= span; },
                    scratch);
                if (missed > 0) excess.push_back({from, to, missed});
              });
  judge(BoundCondition::kDecode, verdict.decode_missed);
  return verdict;
}

}  // namespace penstock::sim
