#include "evaluate/generate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/rng.h"

namespace penstock::evaluate {
namespace {

constexpr std::array<std::string_view, 6> kNames{"poisson", "bursts", "diurnal",
                                                 "agents",  "chat",   "long"};
constexpr std::int64_t kBlockTokens = 512;

// One request before sorting: its prompt is the first tokens of a stream of blocks that it shares
// with others of its session, after those of its system prompt.
struct Draft {
  double at = 0;
  std::int64_t prompt = 0;
  std::int64_t output = 0;
  std::uint64_t system = 0;  // 0: none
  std::int64_t system_tokens = 0;
  std::uint64_t session = 0;
};

double normal(Rng& rng) {
  const double u = 1 - rng.uniform();
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * rng.uniform());
}
double exponential(Rng& rng, double mean) {
  return -mean * std::log(1 - rng.uniform());
}
std::int64_t length(Rng& rng, double median, double spread, std::int64_t most) {
  const double value = median * std::exp(spread * normal(rng));
  return std::clamp<std::int64_t>(std::llround(value), 1, most);
}

class Generator {
 public:
  Generator(std::string_view kind, const Workload& w) : kind_(kind), w_(w), rng_(w.seed) {}

  std::vector<Draft> drafts() {
    const bool sessions = kind_ == "agents" || kind_ == "chat";
    const double turns = kind_ == "agents" ? 20 : 4;
    const double rate = w_.requests_per_second / (sessions ? turns : 1);
    const double peak = rate * (kind_ == "bursts" ? 5 : kind_ == "diurnal" ? 1.8 : 1);
    double burst_until = -1;
    double next_burst = exponential(rng_, 60);
    for (double at = 0;;) {
      // Arrivals at the peak rate, thinned to the present one.
      at += exponential(rng_, 1 / peak);
      if (at >= w_.seconds) break;
      double now = rate;
      if (kind_ == "diurnal")
        now = rate * (1 + 0.8 * std::sin(2 * std::numbers::pi * at / w_.seconds));
      while (kind_ == "bursts" && at > next_burst) {
        burst_until = next_burst + 5;
        next_burst += 5 + exponential(rng_, 60);
      }
      if (kind_ == "bursts") now = at < burst_until ? 5 * rate : rate * 0.6923;
      if (rng_.uniform() * peak >= now) continue;
      if (sessions)
        session(at, turns);
      else
        single(at);
      if (out_.size() > kTraceRequestsMax) break;
    }
    std::ranges::sort(out_, {}, [](const Draft& d) { return std::pair(d.at, d.session); });
    return std::move(out_);
  }

 private:
  void single(double at) {
    Draft d{.at = at, .session = ++last_session_};
    d.prompt = length(rng_, 1500, 1.2, 131'072);
    d.output = length(rng_, 200, 0.9, 8192);
    if (rng_.below(4) == 0) {
      d.system = 1 + rng_.below(8);
      d.system_tokens = static_cast<std::int64_t>(1024 * d.system);
      d.prompt += d.system_tokens;
    }
    if (kind_ == "long" && rng_.below(500) == 0)
      d.prompt = static_cast<std::int64_t>(262'144 + rng_.below(524'288));
    out_.push_back(d);
  }

  void session(double at, double turns) {
    const bool agents = kind_ == "agents";
    const std::uint64_t id = ++last_session_;
    const std::uint64_t system = 1 + rng_.below(agents ? 4 : 16);
    const auto system_tokens = static_cast<std::int64_t>(agents ? 6144 : 1024);
    std::int64_t context = system_tokens;
    do {
      context += agents ? length(rng_, 2500, 0.8, 60'000) : length(rng_, 1200, 1.1, 60'000);
      context = std::min<std::int64_t>(context, 900'000);
      const std::int64_t output =
          agents ? length(rng_, 180, 0.8, 4096) : length(rng_, 300, 0.7, 4096);
      out_.push_back({at, context, output, system, system_tokens, id});
      context += output;
      // Tools answer fast, people think.
      at += static_cast<double>(output) * 0.02 + exponential(rng_, agents ? 4 : 40);
    } while (rng_.uniform() > 1 / turns && at < w_.seconds);
  }

  std::string_view kind_;
  Workload w_;
  Rng rng_;
  std::uint64_t last_session_ = 0;
  std::vector<Draft> out_;
};

// Blocks lie under one name for all who share them: (system prompt, index) or (session, index).
std::uint64_t block_name(const Draft& d, std::int64_t index) {
  const bool shared = d.system != 0 && (index + 1) * kBlockTokens <= d.system_tokens;
  return (shared ? d.system : 1000 + d.session) << 20 | static_cast<std::uint64_t>(index);
}

}  // namespace

std::span<const std::string_view> workload_names() {
  return kNames;
}

Result<Trace> generate(std::string_view kind, const Workload& workload) {
  if (std::ranges::find(kNames, kind) == kNames.end())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("unknown workload {}; there are {}", kind, fmt::join(kNames, ", ")),
                "workload");
  if (!(workload.requests_per_second > 0) || !(workload.seconds > 0) ||
      !(workload.requests_per_second * workload.seconds < kTraceRequestsMax / 4))
    return fail(ErrorCode::kInvalidArgument,
                "a workload needs a rate and a duration above 0, and not too many requests",
                "workload");
  Trace trace{.requests = {}, .blocks = {}, .block_tokens = kBlockTokens};
  for (const Draft& d : Generator(kind, workload).drafts()) {
    const auto blocks = static_cast<std::uint32_t>((d.prompt + kBlockTokens - 1) / kBlockTokens);
    trace.requests.push_back({.arrival_us = std::llround(d.at * 1e6),
                              .prompt_tokens = d.prompt,
                              .output_tokens = d.output,
                              .first_block = static_cast<std::uint32_t>(trace.blocks.size()),
                              .block_count = blocks});
    for (std::uint32_t b = 0; b < blocks; ++b)
      trace.blocks.push_back(block_name(d, b));
  }
  trace.duration_us = std::llround(workload.seconds * 1e6);
  return trace;
}

}  // namespace penstock::evaluate
