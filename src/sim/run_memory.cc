#include "sim/run_memory.h"

#include <charconv>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace penstock::sim {

RunFigures figures_of(const Report& r) {
  return {.met = r.meets_slo(),
          .arrivals = r.arrivals,
          .refused = r.refused,
          .measured_seconds = r.measured_seconds,
          .served_share = r.served_share(),
          .ttft_p50 = r.ttft.quantile(0.5),
          .ttft_p99 = r.ttft.quantile(0.99),
          .gap_p99 = r.gaps.quantile(0.99),
          .hit_rate = r.hit_rate(),
          .prefill_busy = r.prefill_busy,
          .prefill_balance = r.prefill_quota.mean(),
          .requests_balance = r.decode_requests.mean(),
          .kv_balance = r.decode_kv.mean(),
          .digest = r.digest};
}

// As text that gives back the very same number; JSON libraries are not that exact.
std::string print_numbers(const std::vector<double>& numbers) {
  return fmt::format("{}", fmt::join(numbers, " "));
}

std::vector<double> parse_numbers(std::string_view text) {
  std::vector<double> numbers;
  while (!text.empty()) {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{}) return {};
    numbers.push_back(number);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.empty()) break;
    if (text.front() != ' ') return {};
    text.remove_prefix(1);
  }
  return numbers;
}

std::string print_run_figures(const RunFigures& f) {
  return fmt::format(
      "{:016x} {}", f.digest,
      print_numbers({f.met ? 1.0 : 0.0, static_cast<double>(f.arrivals),
                     static_cast<double>(f.refused), f.measured_seconds, f.served_share, f.ttft_p50,
                     f.ttft_p99, f.gap_p99, f.hit_rate, f.prefill_busy, f.prefill_balance,
                     f.requests_balance, f.kv_balance}));
}

std::optional<RunFigures> parse_run_figures(std::string_view text) {
  RunFigures f;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), f.digest, 16);
  if (error != std::errc{} || end - text.data() != 16 || text.size() < 18) return std::nullopt;
  const std::vector<double> n = parse_numbers(text.substr(17));
  if (n.size() != 13 || !(n[1] >= 0) || !(n[2] >= 0) || n[1] > 1e15 || n[2] > 1e15)
    return std::nullopt;
  f.met = n[0] > 0;
  f.arrivals = static_cast<std::uint64_t>(n[1]);
  f.refused = static_cast<std::uint64_t>(n[2]);
  std::size_t at = 3;
  for (double* figure :
       {&f.measured_seconds, &f.served_share, &f.ttft_p50, &f.ttft_p99, &f.gap_p99, &f.hit_rate,
        &f.prefill_busy, &f.prefill_balance, &f.requests_balance, &f.kv_balance})
    *figure = n[at++];
  return f;
}

std::string run_key(const routing::Profile& p, const ClusterOptions& o, Duration duration,
                    double copies) {
  const std::string front =
      o.front.on ? fmt::format("queue {} {}", o.front.ahead_steps, o.front.margin_steps)
                 : "no queue";
  const std::string who = o.clairvoyant
                              ? fmt::format("clairvoyant refusing {}", o.refuse_work)
                              : fmt::format("{}/{}, {}", o.prefill_policy, o.decode_policy, front);
  return fmt::format(
      "{} of {} s, seed {}, {} + {} ranks, d {}, f {}, {}, cache {} {}, gateways {}, lag {} {} ns, "
      "loss {} {}, store {} B/s{}{}: {}{}",
      copies, routing::to_seconds(duration), o.seed, p.prefill_pool.ranks, p.decode_pool.ranks,
      p.costs.step.base, p.costs.step.per_kv_token,
      fmt::format("warm-up {} s", routing::to_seconds(o.warmup)),
      o.cache_scope == CacheScope::kEngine ? "engine" : "cluster", o.cache_blocks, o.gateways,
      o.report_lag.count(), o.event_lag.count(), o.report_loss, o.event_loss,
      p.costs.load[std::to_underlying(KvTier::kCluster)].bytes_per_second,
      o.loads_through_decode ? " also through decode hosts" : "",
      o.prefill_on_decode
          ? fmt::format(", prompts on decode ranks in steps of {} s", o.decode_step_seconds)
          : "",
      who, o.stop_early ? ", stops early" : "");
}

}  // namespace penstock::sim
