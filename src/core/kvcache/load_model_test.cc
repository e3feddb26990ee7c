#include "core/kvcache/load_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock::kvcache {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kHost = std::to_underlying(KvTier::kHost);
constexpr std::size_t kDisk = std::to_underlying(KvTier::kDisk);

Duration of_seconds(double value) {
  return duration_cast<Duration>(std::chrono::duration<double>(value));
}

double in_seconds(Duration value) {
  return std::chrono::duration<double>(value).count();
}

double truth(const PrefillCoefficients& c, double context, double fresh) {
  return c.base + c.per_token * fresh + c.per_pair * fresh * (context + fresh / 2);
}

Instant at(double value) {
  return Instant{} + of_seconds(value);
}

ResumeCandidate candidate(std::int64_t hit, std::uint64_t host, std::uint64_t disk) {
  ResumeCandidate c{.hit = Tokens(hit)};
  c.bytes[kHost] = host;
  c.bytes[kDisk] = disk;
  return c;
}

}  // namespace

TEST_CASE("the prefill fit finds the coefficients through noise and stalls, from any seed") {
  const PrefillCoefficients truths[] = {
      {0.004, 30e-6, 2e-9}, {0, 100e-6, 0}, {0.02, 0, 5e-9}, {0.001, 2e-3, 1e-8}};
  const PrefillCoefficients seeds[] = {{}, {0.005, 50e-6, 0}, {1, 1e-2, 1e-6}};
  for (const auto& real : truths) {
    for (const auto& seed : seeds) {
      PrefillModel model(seed);
      Rng rng(3);
      for (int i = 0; i < 3000; ++i) {
        const auto context = static_cast<double>(rng.below(32'768));
        const auto fresh = static_cast<double>(1 + rng.below(4096));
        double took = truth(real, context, fresh) * (0.95 + 0.1 * rng.uniform());
        if (rng.below(50) == 0) took *= 100;  // a stall
        model.observe(Tokens(static_cast<std::int64_t>(context)),
                      Tokens(static_cast<std::int64_t>(fresh)), of_seconds(took));
        const auto& c = model.coefficients();
        CHECK(std::min({c.base, c.per_token, c.per_pair}) >= 0);
      }
      for (const auto& [context, fresh] : {std::pair{0, 512}, {0, 8192}, {30'000, 2048}}) {
        const double expected = truth(real, context, fresh);
        CHECK(in_seconds(model.predict(Tokens(context), Tokens(fresh))) ==
              doctest::Approx(expected).epsilon(0.2));
      }
    }
  }
}

TEST_CASE(
    "the fit follows a change, holds its seed without data, and survives equal observations") {
  PrefillModel model({0.01, 1e-4, 1e-9});
  CHECK(in_seconds(model.predict(Tokens(0), Tokens(1000))) ==
        doctest::Approx(truth({0.01, 1e-4, 1e-9}, 0, 1000)));
  CHECK(model.predict(Tokens(100), Tokens(0)) == Duration::zero());
  for (const Duration took : {milliseconds(80), milliseconds(400)}) {
    for (int i = 0; i < 2000; ++i)
      model.observe(Tokens(0), Tokens(1024), took);
    CHECK(in_seconds(model.predict(Tokens(0), Tokens(1024))) ==
          doctest::Approx(in_seconds(took)).epsilon(0.02));
  }
  const auto before = model.predict(Tokens(0), Tokens(1024));
  model.observe(Tokens(0), Tokens(0), milliseconds(5));
  model.observe(Tokens(0), Tokens(10), Duration::zero());
  CHECK(model.predict(Tokens(0), Tokens(1024)) == before);
}

TEST_CASE("measured bandwidth replaces the seed and forgets") {
  LoadModel model({});
  CHECK(model.bytes_per_second(KvTier::kDisk, at(0)) == doctest::Approx(1e9));
  for (int i = 0; i < 100; ++i)
    model.observe_load(KvTier::kDisk, 50'000'000, milliseconds(100), at(1 + i));
  CHECK(model.bytes_per_second(KvTier::kDisk, at(100)) == doctest::Approx(0.5e9).epsilon(0.02));
  CHECK(model.bytes_per_second(KvTier::kHost, at(100)) == doctest::Approx(8e9));
  // Ten half-lives later one observation outweighs all before.
  model.observe_load(KvTier::kDisk, 200'000'000, milliseconds(100), at(700));
  CHECK(model.bytes_per_second(KvTier::kDisk, at(701)) > 1.8e9);
  model.observe_load(KvTier::kDisk, 0, milliseconds(100), at(701));
  model.observe_load(KvTier::kDisk, 5, Duration::zero(), at(701));
  CHECK(model.bytes_per_second(KvTier::kDisk, at(701)) > 1.8e9);
}

TEST_CASE("what is predicted to be faster is chosen, with its numbers") {
  LoadModelOptions options;
  options.hit_tokens_min = Tokens(256);
  options.bandwidth[kHost] = 10e9;
  options.bandwidth[kDisk] = 0.1e9;
  const LoadModel model(options);
  const PrefillModel prefill({0.01, 1e-4, 0});  // 10,000 tokens a second
  constexpr std::uint64_t kToken = 48'000;      // bytes

  struct Case {
    const char* what;
    std::int64_t prompt;
    std::vector<ResumeCandidate> candidates;
    std::int64_t hit;
    MissReason rest;
  };
  const Case cases[] = {
      {"nothing known", 5000, {}, 0, MissReason::kNone},
      {"all in memory", 5000, {candidate(4096, 4096 * kToken, 0)}, 4096, MissReason::kNone},
      // 4,096 tokens take 2 s from this disk and 0.41 s to compute.
      {"disk too slow", 5000, {candidate(4096, 0, 4096 * kToken)}, 0, MissReason::kRecomputeFaster},
      {"the part in memory",
       5000,
       {candidate(2048, 2048 * kToken, 0), candidate(4096, 2048 * kToken, 2048 * kToken)},
       2048,
       MissReason::kRecomputeFaster},
      {"small blocks make the disk fast enough",
       5000,
       {candidate(4096, 0, 4096 * 890)},
       4096,
       MissReason::kNone},
      {"too short to be worth it",
       5000,
       {candidate(192, 192 * kToken, 0)},
       0,
       MissReason::kRecomputeFaster},
      {"the shortest that is", 5000, {candidate(256, 256 * kToken, 0)}, 256, MissReason::kNone},
      {"longer than the prompt",
       300,
       {candidate(320, 320 * kToken, 0)},
       0,
       MissReason::kRecomputeFaster},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    const auto decision = model.decide(Tokens(c.prompt), c.candidates, prefill, {}, at(0));
    CHECK(decision.hit == Tokens(c.hit));
    CHECK(decision.rest == c.rest);
    CHECK(decision.prefill_without == prefill.predict(Tokens(0), Tokens(c.prompt)));
    CHECK(decision.prefill_after == prefill.predict(decision.hit, Tokens(c.prompt) - decision.hit));
    CHECK((decision.hit.value == 0 || decision.saved() > Duration::zero()));
    if (c.hit > 0) {
      CHECK(decision.bytes > 0);
      CHECK(c.candidates[decision.candidate].hit == decision.hit);
    }
  }
}

TEST_CASE("a slow spell is forgotten: without loads the speed fades back to the seed") {
  LoadModel model({});
  const PrefillModel prefill({0.005, 50e-6, 0});
  const ResumeCandidate candidates[] = {candidate(8192, 0, 8192 * 10'000)};  // 82 MB, 0.4 s
  const auto hit = [&](double when) {
    return model.decide(Tokens(10'000), candidates, prefill, {}, at(when)).hit;
  };
  CHECK(hit(0) == Tokens(8192));
  for (int second = 1; second <= 600; ++second)
    model.observe_load(KvTier::kDisk, 1'000'000, seconds(1), at(second));
  CHECK(hit(601) == Tokens(0));
  CHECK(hit(660) == Tokens(0));
  CHECK(hit(1200) == Tokens(8192));  // ten half-lives of 60 s
  CHECK(model.bytes_per_second(KvTier::kDisk, at(1200)) == doctest::Approx(1e9).epsilon(0.02));
  // What is measured then counts, not the slow spell once more.
  model.observe_load(KvTier::kDisk, 10'000'000, milliseconds(10), at(1200));
  CHECK(model.bytes_per_second(KvTier::kDisk, at(1200)) == doctest::Approx(1e9).epsilon(0.02));
}

TEST_CASE("what is under way from the same tier comes first") {
  const LoadModel model({});
  const PrefillModel prefill({0.005, 50e-6, 0});
  const ResumeCandidate candidates[] = {candidate(8192, 0, 8192 * 10'000)};
  const auto decide = [&](std::uint64_t host, std::uint64_t disk) {
    TierBytes under_way{};
    under_way[kHost] = host;
    under_way[kDisk] = disk;
    return model.decide(Tokens(10'000), candidates, prefill, under_way, at(0));
  };
  CHECK(decide(1'000'000'000'000, 0).load == decide(0, 0).load);
  CHECK(decide(0, 100'000'000).load - decide(0, 0).load == milliseconds(100));
  CHECK(decide(0, 100'000'000).bytes == 8192 * 10'000);
  CHECK(decide(0, 1'000'000'000).rest == MissReason::kRecomputeFaster);
}

TEST_CASE("loads that were slower than computing are counted, by what they brought") {
  LoadModel model({});
  const PrefillModel prefill({0.005, 50e-6, 0});
  const auto decision =
      model.decide(Tokens(10'000), {{candidate(8192, 8192 * 1000, 0)}}, prefill, {}, at(0));
  REQUIRE(decision.hit == Tokens(8192));
  const auto record = [&](std::int64_t granted, Duration load) {
    model.record(decision, Tokens(10'000), Tokens(granted), prefill, load);
  };
  record(8192, decision.load);
  record(64, decision.load);
  CHECK(model.loads_slower_than_recompute() == 0);
  record(8192, decision.load + decision.saved() + milliseconds(1));
  CHECK(model.loads_slower_than_recompute() == 1);
  record(64, decision.load + decision.saved() / 2);  // most of it did not come in time
  CHECK(model.loads_slower_than_recompute() == 2);
  record(0, milliseconds(1));
  CHECK(model.loads_slower_than_recompute() == 3);
  model.record({}, Tokens(10'000), Tokens(0), prefill, seconds(5));  // nothing was to be loaded
  CHECK(model.loads() == 5);
  CHECK(model.loads_slower_than_recompute() == 3);
}

}  // namespace penstock::kvcache
