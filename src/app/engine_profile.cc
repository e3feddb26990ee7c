#include "app/engine_profile.h"

#include <fmt/format.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "base/hashed_copy.h"
#include "base/online_fit.h"
#include "base/rng.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kSettleSteps = 2;  // of decode, before the first that counts
// Tokens that a sequence may draw while others of its batch are still being prefilled.
constexpr std::int64_t kRoom = 512;
constexpr int kFitRounds = 30;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Runs requests of random tokens on the engine, one point after the other.
class Runner {
 public:
  explicit Runner(engine::Engine& engine) : engine_(engine) {}

  Status submit(std::int64_t prompt, std::int64_t max_tokens) {
    EngineRequest request;
    request.id = RequestId(++last_id_);
    request.model = engine_.description().name;
    std::vector<TokenId> tokens(static_cast<std::size_t>(prompt));
    for (TokenId& token : tokens)
      token = static_cast<TokenId>(rng_.below(engine_.description().vocab_size));
    request.prompt = std::make_shared<const std::vector<TokenId>>(std::move(tokens));
    request.sampling.max_tokens = static_cast<std::uint32_t>(max_tokens);
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    open_.push_back(request.id);
    return engine_.submit(std::move(request));
  }
  void end() {
    for (const RequestId id : open_)
      engine_.cancel(id);
    open_.clear();
    while (engine_.has_work())
      engine_.step();
  }
  engine::Engine& engine() { return engine_; }

 private:
  engine::Engine& engine_;
  Rng rng_{1};
  std::uint64_t last_id_ = 0;
  std::vector<RequestId> open_;
};

// Prompt lengths whose chunks cover new and context in steps of two.
std::vector<std::int64_t> prompt_lengths(std::int64_t chunk, std::int64_t context) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 1; n <= chunk; n *= 2)
    lengths.push_back(n);
  // A short rest after a long context costs something else than a whole chunk.
  for (std::int64_t whole = chunk; whole + chunk <= context; whole *= 2) {
    for (const std::int64_t rest : {chunk / 8, chunk / 2})
      if (rest > 0) lengths.push_back(whole + rest);
  }
  if (context > chunk) lengths.push_back(context - 1);
  return lengths;
}

struct Batch {
  std::int64_t sequences;
  std::int64_t length;
};

std::vector<Batch> batches(const engine::Engine& engine, const ProfileEffort& effort,
                           std::int64_t sequences_max) {
  const std::int64_t context = engine.description().context_length;
  const std::int64_t pool = engine.load().kv_tokens_total.value;
  std::vector<Batch> out;
  for (std::int64_t sequences = 1; sequences <= sequences_max; sequences *= 2) {
    for (std::int64_t length = 16; length + kRoom <= context; length *= 4) {
      if (sequences * length > effort.step_tokens_max) continue;
      if (sequences * (length + kRoom) > pool) continue;
      out.push_back({sequences, length});
    }
  }
  return out;
}

using Points = std::map<std::pair<std::int64_t, std::int64_t>, double>;

void keep_fastest(Points& points, std::int64_t work, std::int64_t context, double seconds) {
  double& best = points.try_emplace({work, context}, seconds).first->second;
  best = std::min(best, seconds);
}

Status measure_prefill(Runner& runner, std::int64_t length, std::uint32_t passes, Points& points) {
  for (std::uint32_t pass = 0; pass < passes; ++pass) {
    TRY_STATUS(runner.submit(length, 1));
    while (runner.engine().has_work()) {
      const auto start = Clock::now();
      const engine::StepOutputs step = runner.engine().step();
      const double took = seconds_since(start);
      if (const auto& chunk = step.stats.lone_prefill)
        keep_fastest(points, chunk->fresh, chunk->context, took);
    }
    runner.end();
  }
  return {};
}

// The steps of one batch count as one point, at their mean KV length.
Status measure_steps(Runner& runner, const Batch& batch, std::uint32_t passes, Points& points) {
  for (std::int64_t i = 0; i < batch.sequences; ++i)
    TRY_STATUS(runner.submit(batch.length, kRoom));
  std::int64_t kv = batch.sequences * batch.length;
  std::int64_t kv_sum = 0;
  std::uint32_t whole = 0;
  double fastest = std::numeric_limits<double>::infinity();
  while (runner.engine().has_work() && whole < kSettleSteps + passes) {
    const auto start = Clock::now();
    const engine::StepOutputs step = runner.engine().step();
    const double took = seconds_since(start);
    const bool counts =
        step.stats.prefill_tokens == 0 && step.stats.decode_tokens == batch.sequences;
    if (counts && ++whole > kSettleSteps) {
      fastest = std::min(fastest, took);
      kv_sum += kv;
    }
    for (const EngineOutput& output : step.outputs)
      kv += static_cast<std::int64_t>(output.tokens.size());
  }
  runner.end();
  if (whole > kSettleSteps)
    keep_fastest(points, batch.sequences, kv_sum / (whole - kSettleSteps), fastest);
  return {};
}

// Fits y = c * x to the points, and says how far off it is.
template <typename FeaturesOf>
double fit(std::vector<CostPoint>& points, FeaturesOf features, OnlineFit::Features& coefficients) {
  OnlineFit fit(3, {.memory = 1e9, .seed_weight = 0});
  Rng rng(1);
  for (int round = 0; round < kFitRounds; ++round) {
    for (std::size_t i = points.size(); i > 1; --i)
      std::swap(points[i - 1], points[rng.below(i)]);
    for (const CostPoint& point : points)
      fit.observe(features(point), point.seconds);
  }
  coefficients = fit.coefficients();
  double error = 0;
  for (CostPoint& point : points) {
    point.predicted = fit.predict(features(point));
    if (point.predicted > 0) error += std::abs(std::log(point.seconds / point.predicted));
  }
  std::ranges::sort(points, {}, [](const CostPoint& p) { return std::pair(p.work, p.context); });
  return error / static_cast<double>(points.size());
}

std::vector<CostPoint> listed(const Points& points) {
  std::vector<CostPoint> out;
  for (const auto& [at, seconds] : points)
    out.push_back({at.first, at.second, seconds, 0});
  return out;
}

}  // namespace

Result<EngineCosts> measure_costs(engine::Engine& engine, const ProfileEffort& effort,
                                  const std::function<void(std::size_t, std::size_t)>& progress) {
  Runner runner(engine);
  // What one pass computes at most shows in the first chunk of a long prompt.
  const std::int64_t context = engine.description().context_length;
  TRY_STATUS(runner.submit(context - 1, 1));
  const auto first = engine.step().stats.lone_prefill;
  runner.end();
  const auto lengths = prompt_lengths(first ? first->fresh : 1, context);
  const auto steps = batches(engine, effort, 64);
  std::size_t done = 0;
  const std::size_t total = lengths.size() + steps.size();
  Points prefill;
  for (const std::int64_t length : lengths) {
    TRY_STATUS(measure_prefill(runner, length, effort.passes, prefill));
    progress(++done, total);
  }
  Points step;
  for (const Batch& batch : steps) {
    TRY_STATUS(measure_steps(runner, batch, effort.passes, step));
    progress(++done, total);
  }
  if (prefill.size() < 2 || step.size() < 2)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a context of {} tokens and a KV pool of {} are too small to measure",
                            context, engine.load().kv_tokens_total.value));
  EngineCosts costs;
  costs.prefill_points = listed(prefill);
  costs.step_points = listed(step);
  OnlineFit::Features c{};
  costs.prefill_error = fit(
      costs.prefill_points,
      [](const CostPoint& p) {
        const auto fresh = static_cast<double>(p.work);
        return OnlineFit::Features{1, fresh, fresh * (static_cast<double>(p.context) + fresh / 2)};
      },
      c);
  costs.prefill = {c[0], c[1], c[2]};
  costs.step_error = fit(
      costs.step_points,
      [](const CostPoint& p) {
        return OnlineFit::Features{1, static_cast<double>(p.work), static_cast<double>(p.context)};
      },
      c);
  costs.step = {c[0], c[1], c[2]};
  return costs;
}

double measure_copy_rate(std::size_t slice_bytes) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  constexpr int kRounds = 5;
  const std::size_t slices =
      std::max<std::size_t>(kBytes / std::max<std::size_t>(slice_bytes, 1), 1);
  const std::vector<std::byte> from(slices * slice_bytes, std::byte{1});
  std::vector<std::byte> to(from.size());
  double best = 0;
  HashedCopy copy;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = Clock::now();
    for (std::size_t i = 0; i < slices; ++i)
      copy.copy(to.data() + i * slice_bytes, std::span(from).subspan(i * slice_bytes, slice_bytes));
    best = std::max(best, static_cast<double>(from.size()) / seconds_since(start));
  }
  return best;
}

}  // namespace penstock
