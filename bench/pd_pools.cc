// `penstock bench pd`, pools: one prefill and one decode worker against workers that do both.
//
// All workers are processes of this program as `penstock serve` starts them (KV over shared memory,
// no KV cache, one compute thread each); this process is the gateway's shard. Only the workers of
// one side have work at a time; rounds of the sides alternate, figures are medians over rounds.
//
// Gaps: four streams decode, and prompts of 3,000 tokens come one after the other on a schedule
// that all sides keep, so that they prefill alike. "Mixed on the same two cores" are two workers,
// streams and prompts spread over both evenly: half of the streams have a quiet rank at any time.
// The gap is the time between two arrivals of tokens of one stream at the shard.
//
// Tokens per second: answers of 200 tokens to prompts of 32. What is asked is what a decode worker
// loses by taking its prompts' KV from elsewhere, so the baseline has what the decode worker has:
// one rank with one thread. Two mixed ranks have two decoding cores, prefill=1,decode=1 one: at
// this load the operator gives P/D more decode ranks. Those sides are shown, too.
//
// First tokens: pairs of the same length, one handed off by the prefill worker, one that the same
// worker computes whole (two processes with the same work differ by more than the handoff costs).
#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "base/rng.h"
#include "pd.h"
#include "pd_rig.h"

namespace penstock::bench {
namespace {

using namespace std::chrono_literals;

constexpr double kGapAim = 3;
constexpr double kThroughputAim = 0.85;
constexpr double kPrefillAgreement = 0.05;
constexpr double kAddedMaxMs = 3;

constexpr std::size_t kLongPrompt = 3000;
constexpr std::size_t kHandoffPrompt = 2000;
constexpr std::uint32_t kStreams = 4;
constexpr std::uint32_t kVocabulary = 2000;  // ordinary tokens of the nano model

double seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}

// The workers that serve one side, and how a request number i is placed.
struct Side {
  std::unique_ptr<Shard> shard;
  std::uint32_t mixed = 0;  // workers, asked in turn; 0: the gateway places two legs

  std::optional<WorkerId> worker(std::size_t i) const {
    if (mixed == 0) return std::nullopt;
    return WorkerId(1 + i % mixed);
  }
};

struct Interference {
  double gap_p99 = 0;        // seconds
  double prompt_tokens = 0;  // a second
  double answer_tokens = 0;  // a second, of the streams
};

class PoolBench {
 public:
  static Result<std::unique_ptr<PoolBench>> open(const Options& options) {
    auto bench = std::unique_ptr<PoolBench>(new PoolBench);
    bench->quick_ = options.quick;
    TRY(bench->folder_, ScratchFolder::make());
    for (const char* const name : {"prefill-0", "decode-0", "mixed-0", "mixed-1"})
      TRY_STATUS(bench->add_worker(options, name, 1));
    TRY_STATUS(bench->add_worker(options, "mixed-both", 2));
    const auto side = [&](std::vector<std::string> names, std::uint32_t mixed) -> Result<Side> {
      for (std::string& name : names)
        name = bench->address(name);
      TRY(auto shard, Shard::open(bench->clock_, std::move(names)));
      // Every prompt goes by the prefill worker, short ones too.
      shard->context().limits.placement.local_prefill_max = Duration::zero();
      return Side{std::move(shard), mixed};
    };
    TRY(bench->split_, side({"prefill-0", "decode-0"}, 0));
    TRY(bench->two_, side({"mixed-0", "mixed-1"}, 2));
    TRY(bench->one_, side({"mixed-0"}, 1));
    TRY(bench->both_cores_, side({"mixed-both"}, 1));
    return bench;
  }

  Result<std::vector<Figure>> run() {
    std::vector<Figure> figures;
    TRY_STATUS(warm_up());
    TRY_STATUS(gaps(figures));
    TRY_STATUS(throughput(figures));
    TRY_STATUS(first_tokens(figures));
    return figures;
  }

 private:
  PoolBench() = default;

  std::string address(const std::string& name) const {
    return "unix:" + folder_->path() + "/run/" + name + ".sock";
  }
  Status add_worker(const Options& options, const std::string& name, int threads) {
    const std::string role = name.substr(0, name.find('-'));
    TRY(auto child,
        Child::start({"worker", "--name", name, "--role", role, "--data-dir", folder_->path(),
                      "--worker-socket", folder_->path() + "/run/" + name + ".sock",
                      "--engine-threads", fmt::to_string(threads), "--kv-memory", "64MiB",
                      "--kv-cache", "off", "--model", "nano=" + options.model_dir, "--log-level",
                      "error"}));
    workers_.push_back(std::move(child));
    return {};
  }
  TokenIds prompt(std::size_t tokens) { return random_prompt(rng_, tokens, kVocabulary); }

  Status warm_up() {
    for (Side* const side : {&split_, &two_, &one_, &both_cores_}) {
      for (std::size_t i = 0; i < 2; ++i)
        TRY_STATUS(times(*side, side->worker(i), kLongPrompt, 4));
    }
    return {};
  }

  // Seconds from submit to the arrival of each token of a lone request.
  Result<std::vector<double>> times(Side& side, std::optional<WorkerId> on, std::size_t length,
                                    std::uint32_t answer) {
    std::vector<double> arrivals;
    const Instant began = clock_.now();
    side.shard->start({prompt(length), answer, on, [&](std::size_t tokens) {
                         arrivals.insert(arrivals.end(), tokens, seconds(clock_.now() - began));
                         return true;
                       }});
    TRY_STATUS(side.shard->finish(60s));
    return arrivals;
  }

  // A stream that goes on, request after request, until `over`.
  struct Stream {
    Instant last{};
    std::size_t tokens = 0;  // of this request
  };
  void stream(Side& side, std::size_t i, std::vector<Stream>& streams, Interference& sums,
              std::vector<double>& gaps) {
    streams[i] = {};
    side.shard->start({prompt(16), kStreamTokens, side.worker(i), [&, i](std::size_t tokens) {
                         Stream& s = streams[i];
                         const Instant now = clock_.now();
                         if (measuring_) {
                           if (s.tokens > 0) gaps.push_back(seconds(now - s.last));
                           sums.answer_tokens += static_cast<double>(tokens);
                         }
                         s.last = now;
                         s.tokens += tokens;
                         if (over_) return false;
                         if (s.tokens >= kStreamTokens) {
                           clock_.post([&, i, round = round_] {
                             if (round == round_) stream(side, i, streams, sums, gaps);
                           });
                         }
                         return true;
                       }});
  }

  // `prompts` long prompts, one every `interval` and not before the one before has its first token.
  Result<Interference> interfere(Side& side, std::size_t prompts, Duration interval) {
    Interference result;
    std::vector<Stream> streams(kStreams);
    std::vector<double> gaps;
    over_ = measuring_ = false;
    for (std::size_t i = 0; i < kStreams; ++i)
      stream(side, i, streams, result, gaps);
    const auto warm = [&] {
      return std::ranges::all_of(streams, [](const Stream& s) { return s.tokens > 30; });
    };
    if (!clock_.run_until([&] { return warm() || side.shard->error(); }, 60s)) {
      return fail(ErrorCode::kDeadlineExceeded, "the streams of the bench do not start");
    }
    measuring_ = true;
    const Instant began = clock_.now();
    std::size_t done = 0;
    for (std::size_t i = 0; i < prompts; ++i) {
      const Instant due = began + interval * static_cast<std::int64_t>(i);
      clock_.run_until([&] { return side.shard->error().has_value(); }, due - clock_.now());
      bool first = true;
      side.shard->start({prompt(kLongPrompt), 8, side.worker(i), [&, first](std::size_t) mutable {
                           if (std::exchange(first, false)) ++done;
                           return true;
                         }});
      clock_.run_until([&] { return done > i || side.shard->error(); }, 60s);
    }
    // The time of the last prompt's slot counts whole, as that of the others.
    const Instant end = began + interval * static_cast<std::int64_t>(prompts);
    clock_.run_until([&] { return side.shard->error().has_value(); }, end - clock_.now());
    const double elapsed = seconds(clock_.now() - began);
    measuring_ = false;
    over_ = true;
    ++round_;
    TRY_STATUS(side.shard->finish(60s));
    result.prompt_tokens = static_cast<double>(prompts * kLongPrompt) / elapsed;
    result.answer_tokens /= elapsed;
    result.gap_p99 = quantile_of(std::move(gaps), 0.99);
    return result;
  }

  // A pace that both sides can keep while they decode, too.
  Result<Duration> pace(Side& one, Side& other) {
    Duration slowest{};
    for (Side* const side : {&one, &other}) {
      const std::size_t prompts = 6;
      TRY(const Interference free, interfere(*side, prompts, Duration::zero()));
      const auto each = std::chrono::duration<double>(kLongPrompt / free.prompt_tokens);
      slowest = std::max(slowest, std::chrono::duration_cast<Duration>(each));
    }
    return slowest * 11 / 10;
  }

  // Medians of the rounds in which both prefilled alike.
  struct Gaps {
    Interference split;
    Interference mixed;
  };
  Result<Gaps> compare_gaps(Side& mixed, std::size_t rounds) {
    const std::size_t prompts = quick_ ? 8 : 24;
    std::vector<Interference> a;
    std::vector<Interference> b;
    std::size_t uneven = 0;
    TRY(Duration interval, pace(split_, mixed));
    while (a.size() < rounds) {
      TRY(const Interference split, interfere(split_, prompts, interval));
      TRY(const Interference other, interfere(mixed, prompts, interval));
      fmt::print(
          stderr,
          "  gap p99 {:.2f} and {:.2f} ms, prompt tokens {:.0f} and {:.0f} /s, answers {:.0f} "
          "and {:.0f} /s\n",
          split.gap_p99 * 1e3, other.gap_p99 * 1e3, split.prompt_tokens, other.prompt_tokens,
          split.answer_tokens, other.answer_tokens);
      // A round in which one side fell behind says nothing; the machine may be shared.
      const auto [low, high] = std::minmax(split.prompt_tokens, other.prompt_tokens);
      if (low >= (1 - kPrefillAgreement) * high) {
        a.push_back(split);
        b.push_back(other);
        continue;
      }
      if (++uneven > 3 * rounds) {
        return fail(ErrorCode::kUnavailable,
                    "both sides prefilled alike in too few rounds: the machine is too busy");
      }
      TRY(interval, pace(split_, mixed));
    }
    return Gaps{middle(a), middle(b)};
  }
  static Interference middle(const std::vector<Interference>& rounds) {
    const auto of = [&](double Interference::* field) {
      std::vector<double> values;
      for (const Interference& each : rounds)
        values.push_back(each.*field);
      return median_of(std::move(values));
    };
    return {of(&Interference::gap_p99), of(&Interference::prompt_tokens),
            of(&Interference::answer_tokens)};
  }

  Status gaps(std::vector<Figure>& figures) {
    const auto show = [&](const Gaps& gaps, const std::string& than) {
      figures.push_back({"gap between tokens beside prefill, p99",
                         gaps.split.gap_p99 * 1e3,
                         "ms",
                         than,
                         gaps.mixed.gap_p99 * 1e3,
                         gaps.mixed.gap_p99 / gaps.split.gap_p99,
                         kGapAim,
                         {}});
      figures.push_back(more_is_better("prompt tokens prefilled meanwhile",
                                       gaps.split.prompt_tokens, "1/s", than,
                                       gaps.mixed.prompt_tokens, 1 - kPrefillAgreement));
    };
    TRY(const Gaps two, compare_gaps(two_, quick_ ? 3 : 9));
    show(two, "two mixed workers");
    TRY(const Gaps one, compare_gaps(one_, 3));
    show(one, "one mixed worker");
    return {};
  }

  // Tokens of answers per second with `kDecodeBatch` requests in flight.
  Result<double> answer_rate(Side& side, std::size_t requests) {
    std::size_t tokens = 0;
    const Instant began = clock_.now();
    for (std::size_t i = 0; i < requests; ++i) {
      side.shard->start({prompt(32), kAnswerTokens, side.worker(i), [&](std::size_t n) {
                           tokens += n;
                           return true;
                         }});
      const auto room = [&] { return side.shard->running() < kDecodeBatch || side.shard->error(); };
      clock_.run_until(room, 60s);
    }
    TRY_STATUS(side.shard->finish(120s));
    return static_cast<double>(tokens) / seconds(clock_.now() - began);
  }

  Status throughput(std::vector<Figure>& figures) {
    const std::size_t requests = quick_ ? 48 : 96;
    const int rounds = quick_ ? 3 : 7;
    Side* const sides[4] = {&split_, &one_, &two_, &both_cores_};
    std::vector<double> rate[4];
    for (int round = 0; round < rounds; ++round) {
      for (int s = 0; s < 4; ++s) {
        TRY(const double tokens, answer_rate(*sides[s], requests));
        rate[s].push_back(tokens);
      }
      fmt::print(stderr, "  answers/s {:.0f} {:.0f} {:.0f} {:.0f}\n", rate[0].back(),
                 rate[1].back(), rate[2].back(), rate[3].back());
    }
    const char* const names[4] = {"", "one mixed worker",
                                  "two mixed workers, twice the decoding cores",
                                  "one mixed worker, two threads"};
    // Two mixed workers decode on two cores where P/D has one: without prompts to compute, the
    // prefill core is idle, and the aim is out of reach. It is shown all the same.
    const double aims[4] = {0, kThroughputAim, kThroughputAim, kThroughputAim};
    for (int s = 1; s < 4; ++s)
      figures.push_back(more_is_better("answer tokens, nothing interferes", median_of(rate[0]),
                                       "1/s", names[s], median_of(rate[s]), aims[s]));
    return {};
  }

  Status first_tokens(std::vector<Figure>& figures) {
    // A pair differs by some ms either way on a shared machine; the median needs many.
    const int pairs = quick_ ? 50 : 150;
    const std::optional<WorkerId> prefill_worker = WorkerId(1);  // first of split_'s addresses
    std::vector<double> added[2];
    std::vector<double> whole_ms[2];
    for (int i = 0; i < pairs; ++i) {
      std::vector<double> split;
      std::vector<double> whole;
      for (const bool now_split : {i % 2 == 0, i % 2 == 1}) {
        TRY((now_split ? split : whole),
            times(split_, now_split ? std::nullopt : prefill_worker, kHandoffPrompt, 4));
      }
      for (std::size_t t = 0; t < 2; ++t) {
        added[t].push_back((split[t] - whole[t]) * 1e3);
        whole_ms[t].push_back(whole[t] * 1e3);
      }
      fmt::print(stderr, "  added {:.2f} {:.2f} of {:.2f} {:.2f}\n", added[0].back(),
                 added[1].back(), whole[0] * 1e3, whole[1] * 1e3);
    }
    const char* const names[2] = {"first token, added by the handoff of 2,000 tokens",
                                  "second token, added by the handoff of 2,000 tokens"};
    for (std::size_t t = 0; t < 2; ++t) {
      const double value = median_of(added[t]);
      // Nothing added is as good as it gets, and noise may say less.
      figures.push_back({names[t],
                         value,
                         "ms",
                         "limit",
                         kAddedMaxMs,
                         kAddedMaxMs / std::max(value, 0.01),
                         1,
                         {}});
    }
    return {};
  }

  static constexpr std::uint32_t kStreamTokens = 3500;
  static constexpr std::uint32_t kAnswerTokens = 200;
  static constexpr std::size_t kDecodeBatch = 16;

  bool quick_ = false;
  Rng rng_{17};
  ShardClock clock_;
  std::unique_ptr<ScratchFolder> folder_;
  std::vector<Child> workers_;
  Side split_;
  Side two_;
  Side one_;
  Side both_cores_;
  bool measuring_ = false;
  bool over_ = false;
  std::uint64_t round_ = 0;  // a stream's next request belongs to the round that asked for it
};

}  // namespace

Result<std::vector<Figure>> pd_pool_figures(const Options& options) {
  TRY(const auto bench, PoolBench::open(options));
  return bench->run();
}

}  // namespace penstock::bench
