// penstock bench index: the index of what engines hold, over the conversation trace.
//
// Prompts of the trace go to eight ranks, each to the one that holds most of it; what is new there
// becomes messages of KV events as vLLM sends them (blocks of 16 tokens), and old blocks are
// evicted. Then, on one core and in CPU time because machines are shared: the operations of the
// replay (blocks looked up, stored and removed), the way from a message's bytes to the index, the
// memory of a block, and how long the lookup of a 128K-token prompt takes while events storm in. A
// std::unordered_map of holders does the same stores and removals as a baseline. Concurrency: see
// bench.h.
#include <algorithm>
#include <ctime>
#include <deque>
#include <fstream>
#include <iterator>
#include <unordered_map>

#include <fmt/format.h>

#include "base/rng.h"
#include "bench.h"
#include "core/dialects/kv_events.h"
#include "core/dialects/msgpack_writer.h"
#include "core/kvcache/engine_index.h"
#include "evaluate/trace.h"

namespace penstock::bench {
namespace {

using namespace kvcache;

constexpr const char* kTrace = "../shared/traces/mooncake_conversation.jsonl";
constexpr std::size_t kRanks = 8;
constexpr std::uint32_t kBlockTokens = 16;  // vLLM's default
constexpr std::size_t kBlocksInMessage = 64;
constexpr std::size_t kBlocksHeldMax = 150'000;  // of a rank: 2.4 M tokens
constexpr std::size_t kLongTokens = 131'072;
constexpr std::size_t kBytesMax = std::size_t{4} << 30;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Sums the CPU time between start() and stop().
class Timer {
 public:
  void start() { from_ = cpu_seconds(); }
  double stop() {
    const double took = cpu_seconds() - from_;
    seconds_ += took;
    return took;
  }
  double seconds() const { return seconds_; }

 private:
  double from_ = 0;
  double seconds_ = 0;
};

struct Message {
  std::size_t rank = 0;
  std::string bytes;
  std::size_t blocks = 0;
};

std::vector<TokenId> tokens_of(const evaluate::Trace& trace,
                               const evaluate::TraceRequest& request) {
  std::vector<TokenId> tokens;
  for (const std::uint64_t block : trace.blocks_of(request)) {
    Rng rng(block);
    for (std::int64_t i = 0; i < trace.block_tokens; ++i)
      tokens.push_back(static_cast<TokenId>(rng.below(129'280)));
  }
  return tokens;
}

enum class Encoding : std::uint8_t { kArrays, kMaps };

Message stored(std::size_t rank, Encoding encoding, std::span<const std::uint64_t> hashes,
               const std::uint64_t* parent, std::span<const TokenId> tokens,
               std::uint32_t block_tokens) {
  dialects::MsgpackWriter out;
  const auto name = [&](std::string_view field) {
    if (encoding == Encoding::kMaps) out.text(field);
  };
  out.array(3).real(1.5).array(1);
  encoding == Encoding::kMaps ? out.map(7) : out.array(7);
  name("type");
  out.text("BlockStored");
  name("block_hashes");
  out.array(hashes.size());
  for (const std::uint64_t hash : hashes)
    out.number(hash);
  name("parent_block_hash");
  parent == nullptr ? out.nil() : out.number(*parent);
  name("token_ids");
  out.array(tokens.size());
  for (const TokenId token : tokens)
    out.number(token);
  name("block_size");
  out.number(block_tokens);
  name("lora_id");
  out.nil();
  name("medium");
  out.text("GPU").number(0);
  return {rank, out.bytes(), hashes.size()};
}

Message removed(std::size_t rank, std::span<const std::uint64_t> hashes) {
  dialects::MsgpackWriter out;
  out.array(3).real(1.5).array(1).array(3).text("BlockRemoved").array(hashes.size());
  for (const std::uint64_t hash : hashes)
    out.number(hash);
  out.text("GPU").number(0);
  return {rank, out.bytes(), hashes.size()};
}

// The gateway's side: index and holdings of the ranks.
struct Side {
  RoutingChain chain{0x70656e73746f636b};
  EngineIndex index{kBytesMax};
  std::vector<EngineHoldings> holdings;
  std::vector<EngineIndex::SourceId> sources;
  EngineIndex::Scratch scratch;
  EngineKvBatch batch;
  EngineHoldings::Outcome outcome;
  std::vector<RoutingKey> keys;

  Side() {
    for (std::size_t i = 0; i < kRanks; ++i) {
      holdings.emplace_back(chain);
      sources.push_back(index.add({WorkerId(i), 0}));
    }
  }
  Status take(const Message& message) {
    TRY_STATUS(dialects::decode_kv_events(std::as_bytes(std::span(message.bytes)), batch));
    holdings[message.rank].apply(batch, kBytesMax, outcome);
    index.apply(sources[message.rank], outcome.changes);
    index.set_stride(sources[message.rank], holdings[message.rank].stride());
    return {};
  }
  std::span<const RankMatch> match(std::span<const TokenId> prompt) {
    chain.extend(chain.root(0), prompt, {}, keys);
    return index.match(keys, scratch);
  }
  std::size_t held() const {
    std::size_t blocks = 0;
    for (const EngineHoldings& one : holdings)
      blocks += one.blocks();
    return blocks;
  }
  double bytes_per_block() const {
    std::size_t bytes = index.memory_bytes();
    for (const EngineHoldings& one : holdings)
      bytes += one.memory_bytes();
    return static_cast<double>(bytes) / static_cast<double>(held());
  }
};

// An engine that holds the latest blocks of a few million tokens.
struct Engine {
  std::deque<std::vector<std::uint64_t>> chains;  // new blocks of its requests
  std::size_t blocks = 0;
  std::uint64_t next = 0;
};

struct Replay {
  std::vector<Message> messages;
  // What the index was asked and told, message by message.
  struct Step {
    std::size_t rank = 0;
    std::vector<RoutingKey> lookup;
    std::vector<HoldingChange> changes;
  };
  std::vector<Step> steps;
};

// The names of engines' blocks in a prompt, as far as known: hash by key of the prefix, per rank.
using Names = std::vector<std::unordered_map<RoutingKey, std::uint64_t>>;

Result<Replay> replay(const evaluate::Trace& trace, std::size_t requests, Side& side) {
  Replay out;
  std::vector<Engine> engines(kRanks);
  Names names(kRanks);
  const auto send = [&](Message message) -> Status {
    TRY_STATUS(side.take(message));
    out.steps.push_back({message.rank, {}, side.outcome.changes});
    out.messages.push_back(std::move(message));
    return {};
  };
  for (std::size_t i = 0; i < std::min(requests, trace.requests.size()); ++i) {
    const auto tokens = tokens_of(trace, trace.requests[i]);
    const auto found = side.match(tokens);
    const auto keys = side.keys;
    out.steps.push_back({0, keys, {}});
    const auto best = std::ranges::max_element(found, {}, &RankMatch::device);
    const std::size_t rank = best == found.end() ? i % kRanks : best->rank.worker.value;
    const std::size_t hit = best == found.end() ? 0 : best->device / kBlockTokens;
    Engine& engine = engines[rank];
    std::vector<std::uint64_t> fresh;
    for (std::size_t block = hit; block < keys.size(); ++block) {
      fresh.push_back(Rng(rank + kRanks * ++engine.next).next_u64());
      names[rank][keys[block]] = fresh.back();
    }
    for (std::size_t at = 0; at < fresh.size(); at += kBlocksInMessage) {
      const std::size_t count = std::min(kBlocksInMessage, fresh.size() - at);
      const std::uint64_t* parent = at > 0    ? &fresh[at - 1]
                                    : hit > 0 ? &names[rank].at(keys[hit - 1])
                                              : nullptr;
      TRY_STATUS(
          send(stored(rank, out.messages.size() % 2 == 0 ? Encoding::kArrays : Encoding::kMaps,
                      std::span(fresh).subspan(at, count), parent,
                      std::span(tokens).subspan((hit + at) * kBlockTokens, count * kBlockTokens),
                      kBlockTokens)));
    }
    engine.blocks += fresh.size();
    if (!fresh.empty()) engine.chains.push_back(std::move(fresh));
    while (engine.blocks > kBlocksHeldMax) {
      auto old = std::move(engine.chains.front());
      engine.chains.pop_front();
      engine.blocks -= old.size();
      std::ranges::reverse(old);
      TRY_STATUS(send(removed(rank, old)));
    }
  }
  return out;
}

// Operations of the replay without decoding: blocks of prompts looked up, stored and removed.
struct Operations {
  double all = 0;      // a second
  double changes = 0;  // stores and removals alone, a second
  double plain = 0;    // the same by std::unordered_map
};

Operations operations(const Replay& replay) {
  Side side;
  for (const auto source : side.sources)
    side.index.set_stride(source, kBlockTokens);
  std::size_t looked = 0;
  std::size_t changed = 0;
  Timer all;
  all.start();
  for (const Replay::Step& step : replay.steps) {
    if (!step.lookup.empty()) side.index.match(step.lookup, side.scratch);
    side.index.apply(side.sources[step.rank], step.changes);
    looked += step.lookup.size();
    changed += step.changes.size();
  }
  all.stop();
  Side again;
  Timer changing;
  changing.start();
  for (const Replay::Step& step : replay.steps)
    again.index.apply(again.sources[step.rank], step.changes);
  changing.stop();
  Timer plain;
  std::unordered_map<RoutingKey, std::vector<HolderTable::Holder>> map;
  plain.start();
  for (const Replay::Step& step : replay.steps) {
    const auto feed = static_cast<HolderTable::Feed>(step.rank);
    for (const HoldingChange& change : step.changes) {
      auto& holders = map[change.key];
      if (change.stored) {
        holders.push_back({feed, change.tiers});
      } else {
        std::erase_if(holders, [&](const auto& holder) { return holder.feed == feed; });
        if (holders.empty()) map.erase(change.key);
      }
    }
  }
  plain.stop();
  const auto per_second = [](std::size_t count, double seconds) {
    return static_cast<double>(count) / seconds;
  };
  return {per_second(looked + changed, all.seconds()), per_second(changed, changing.seconds()),
          per_second(changed, plain.seconds())};
}

Result<double> events_per_second(std::span<const Message> messages) {
  Side side;
  Timer timer;
  std::size_t blocks = 0;
  timer.start();
  for (const Message& message : messages) {
    TRY_STATUS(side.take(message));
    blocks += message.blocks;
  }
  timer.stop();
  return static_cast<double>(blocks) / timer.seconds();
}

// The same prompts in blocks of 64 tokens.
std::vector<Message> larger_blocks(const evaluate::Trace& trace, std::size_t requests) {
  constexpr std::uint32_t kLarger = 64;
  std::vector<Message> out;
  std::uint64_t next = 0;
  for (std::size_t i = 0; i < std::min(requests, trace.requests.size()); ++i) {
    const auto tokens = tokens_of(trace, trace.requests[i]);
    std::vector<std::uint64_t> hashes(tokens.size() / kLarger);
    for (std::uint64_t& hash : hashes)
      hash = Rng(++next).next_u64();
    for (std::size_t at = 0; at < hashes.size(); at += kBlocksInMessage) {
      const std::size_t count = std::min(kBlocksInMessage, hashes.size() - at);
      out.push_back(stored(i % kRanks, Encoding::kMaps, std::span(hashes).subspan(at, count),
                           at > 0 ? &hashes[at - 1] : nullptr,
                           std::span(tokens).subspan(at * kLarger, count * kLarger), kLarger));
    }
  }
  return out;
}

// Microseconds of lookups of long prompts, held by two ranks each, between messages that change the
// index.
Result<std::vector<double>> lookups_in_storm(Side& side, std::span<const Message> storm,
                                             std::size_t lookups) {
  constexpr std::size_t kPrompts = 24;
  std::vector<std::vector<TokenId>> prompts(kPrompts);
  Rng rng(3);
  for (std::size_t i = 0; i < kPrompts; ++i) {
    prompts[i].resize(kLongTokens);
    for (TokenId& token : prompts[i])
      token = static_cast<TokenId>(rng.below(129'280));
    for (std::size_t rank = i; rank < i + 2; ++rank) {
      std::vector<std::uint64_t> hashes(kLongTokens / kBlockTokens / (rank - i + 1));
      for (std::uint64_t& hash : hashes)
        hash = rng.next_u64();
      TRY_STATUS(side.take(stored(rank % kRanks, Encoding::kArrays, hashes, nullptr,
                                  std::span(prompts[i]).first(hashes.size() * kBlockTokens),
                                  kBlockTokens)));
    }
  }
  std::vector<double> us;
  Timer timer;
  for (std::size_t i = 0; i < lookups; ++i) {
    for (std::size_t j = 0; j < 2; ++j)
      TRY_STATUS(side.take(storm[(2 * i + j) % storm.size()]));
    timer.start();
    const auto found = side.match(prompts[i % kPrompts]);
    us.push_back(timer.stop() * 1e6);
    const bool whole = std::ranges::any_of(
        found, [](const RankMatch& match) { return match.device == kLongTokens; });
    if (!whole || found.size() != 2)
      return fail(ErrorCode::kInternal, "a prompt that two ranks hold was not found whole on one");
  }
  return us;
}

double at(std::vector<double> values, double share) {
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::vector<Figure> all_skipped(const std::string& why) {
  std::vector<Figure> figures;
  for (const auto& [name, unit] :
       {std::pair("index operations", "1/s"), std::pair("events decoded and keyed", "blocks/s"),
        std::pair("memory of a block", "B"), std::pair("lookup of 128K tokens, p99", "us")})
    figures.push_back(skipped(name, unit, "limit", 1, why));
  return figures;
}

}  // namespace

Result<std::vector<Figure>> run_index(const Options& options) {
  std::ifstream file(kTrace, std::ios::binary);
  if (!file) return all_skipped(fmt::format("{} is not there", kTrace));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  TRY(const evaluate::Trace trace, evaluate::read_mooncake(text));
  const std::size_t requests = options.quick ? 500 : 2500;

  Side side;
  TRY(const Replay played, replay(trace, requests, side));
  const double bytes = side.bytes_per_block();
  const std::size_t held = side.held();
  TRY(const auto us, lookups_in_storm(side, played.messages, options.quick ? 500 : 4000));
  const Operations ops = operations(played);
  TRY(const double events, events_per_second(played.messages));
  TRY(const double larger, events_per_second(larger_blocks(trace, requests / 4)));

  std::vector<Figure> figures;
  figures.push_back(
      at_least("index operations: blocks looked up, stored, removed", ops.all, "1/s", 10e6));
  figures.push_back(more_is_better("stores and removals alone", ops.changes, "1/s",
                                   "std::unordered_map of holders", ops.plain, 1.5));
  figures.push_back(
      at_least("events decoded and keyed, blocks of 16 tokens", events, "blocks/s", 1.5e6));
  figures.push_back(
      at_least("events decoded and keyed, blocks of 64 tokens", larger, "blocks/s", 1.5e6));
  figures.push_back(at_most(fmt::format("memory of a block, of {} held", held), bytes, "B", 64));
  figures.push_back(
      at_most("lookup of 128K tokens in a storm of events, p50", at(us, 0.5), "us", 100));
  figures.push_back(at_most("the same, p99", at(us, 0.99), "us", 100));
  return figures;
}

}  // namespace penstock::bench
