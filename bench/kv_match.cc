// `penstock bench kv`, matching: what a gateway does for each request before it can place it.
//
// An index is filled with 10 M blocks that three hosts hold, among them the chains of prompts of
// 131,072 tokens (2,048 blocks). Prompts take turns, so that neither keys nor index lines are in
// the CPU's caches. A middle time and the 99th percentile are told, in CPU time of the one thread:
// nothing here waits, so that is what it takes on a quiet machine.
#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <vector>

#include <fmt/format.h>

#include "base/rng.h"
#include "core/kvcache/chain_cache.h"
#include "core/kvcache/key_chain.h"
#include "core/kvcache/prefix_index.h"
#include "kv.h"

namespace penstock::bench {
namespace {

using namespace penstock::kvcache;

constexpr std::uint32_t kBlockTokens = 64;
constexpr std::size_t kPromptTokens = 131'072;
constexpr std::size_t kPrompts = 64;
constexpr std::size_t kIndexBlocks = 10'000'000;
constexpr std::size_t kHosts = 3;
constexpr std::size_t kEventsInMessage = 4096;
// 1 ms for 2,048 blocks, of which 0.2 ms for the scan of the index.
constexpr double kHashNanosecondsMax = 400;
constexpr double kMatchMillisecondsMax = 1;
constexpr double kBytesMax = 40;
constexpr double kNextTurnAim = 3;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Times {
  std::vector<double> all;
  double at(double share) {
    const auto index = static_cast<std::size_t>(share * static_cast<double>(all.size() - 1));
    std::ranges::nth_element(all, all.begin() + static_cast<std::ptrdiff_t>(index));
    return all[index];
  }
};

std::vector<std::vector<TokenId>> make_prompts(Rng& rng) {
  std::vector<std::vector<TokenId>> prompts(kPrompts);
  for (auto& prompt : prompts) {
    prompt.resize(kPromptTokens);
    for (TokenId& token : prompt)
      token = static_cast<TokenId>(rng.below(129'280));
  }
  return prompts;
}

// Events of one host, sent when a message is full.
class Feed {
 public:
  Feed(PrefixIndex& index, std::uint64_t host) : index_(index), host_(host) { send(true); }
  void add(const BlockKey& key, KvTier tier) {
    message_.events.push_back({{key, KvGroup::kHistory}, tier, true, MissReason::kNone});
    if (message_.events.size() == kEventsInMessage) send(false);
  }
  void send(bool snapshot) {
    const std::uint64_t count = message_.events.size();
    message_.snapshot = snapshot;
    message_.snapshot_end = snapshot;
    index_.apply(host_, message_);
    message_.first += count;
    message_.events.clear();
  }

 private:
  PrefixIndex& index_;
  KvHostId host_;
  kv::Events message_{1, 1, true, true, {}};
};

void fill(PrefixIndex& index, const std::vector<std::vector<BlockKey>>& chains, Rng& rng) {
  std::vector<Feed> feeds;
  for (std::uint64_t host = 0; host < kHosts; ++host)
    feeds.emplace_back(index, host);
  for (std::size_t i = 0; i < chains.size(); ++i) {
    for (std::size_t block = 0; block < chains[i].size(); ++block) {
      feeds[i % kHosts].add(chains[i][block], KvTier::kDisk);
      if (block < chains[i].size() / 2)
        feeds[(i + 1) % kHosts].add(chains[i][block], KvTier::kHost);
    }
  }
  for (std::size_t i = chains.size() * chains[0].size(); i < kIndexBlocks; ++i) {
    BlockKey key;
    const std::uint64_t word = rng.next_u64();
    std::memcpy(key.bytes.data(), &word, sizeof word);
    feeds[i % kHosts].add(key, KvTier::kHost);
    if (i % 2 == 0) feeds[i % kHosts].add(key, KvTier::kDisk);
    if (i % 8 == 0) feeds[(i + 1) % kHosts].add(key, KvTier::kDisk);
  }
  for (Feed& feed : feeds)
    feed.send(false);
}

Error no_hit() {
  return {ErrorCode::kInternal, "a chain that is in the index was not matched whole", {}, {}};
}

}  // namespace

Result<std::vector<Figure>> kv_match_figures(const Options& options) {
  const std::size_t rounds = options.quick ? 4 : 20;
  const std::array<std::uint8_t, 32> secret = {1, 2, 3};
  KeyChain hasher(secret);
  TRY(const BlockKey root,
      hasher.root({"weights", "engine", "bf16", "", "tenant:a", kBlockTokens}));
  Rng rng(1);
  const auto prompts = make_prompts(rng);

  Times hashing;  // a whole prompt
  std::vector<std::vector<BlockKey>> chains;
  for (const auto& prompt : prompts) {
    const double start = cpu_seconds();
    chains.push_back(hasher.chain(root, kBlockTokens, prompt));
    hashing.all.push_back(cpu_seconds() - start);
  }
  PrefixIndex index;
  fill(index, chains, rng);

  Times all_in;
  Times matching;
  Times next_turn;
  ChainCache cache(std::size_t{1} << 30);
  for (const auto& prompt : prompts)
    cache.chain(hasher, root, kBlockTokens, std::span(prompt).first(kPromptTokens - 2000));
  // As the gateway does: what is hashed is looked up later, its lines come meanwhile.
  const KeysTold prefetch = [&](std::span<const BlockKey> keys) { index.prefetch(keys); };
  for (std::size_t round = 0; round < rounds; ++round) {
    for (const auto& prompt : prompts) {
      const double start = cpu_seconds();
      const auto keys = hasher.chain(root, kBlockTokens, prompt, {}, prefetch);
      const auto match = index.match(keys);
      all_in.all.push_back(cpu_seconds() - start);
      // Alone: the chain of another prompt, whose lines have left the caches.
      const auto& other = chains[(&prompt - prompts.data() + kPrompts / 2) % kPrompts];
      const double middle = cpu_seconds();
      const bool is_whole = index.match(other).anywhere == other.size();
      matching.all.push_back(cpu_seconds() - middle);
      if (!is_whole || match.anywhere != keys.size() || match.hosts.size() != 2)
        return std::unexpected(no_hit());
    }
  }
  for (const auto& prompt : prompts) {
    const double start = cpu_seconds();
    if (cache.chain(hasher, root, kBlockTokens, prompt).size() != chains[0].size())
      return std::unexpected(no_hit());
    next_turn.all.push_back(cpu_seconds() - start);
  }

  const auto blocks = static_cast<double>(index.blocks());
  const auto per_block = 1e9 / static_cast<double>(chains[0].size());
  std::vector<Figure> figures;
  figures.push_back(
      at_most("key of a 64-token block", hashing.at(0.5) * per_block, "ns", kHashNanosecondsMax));
  figures.push_back(
      at_most(fmt::format("hash and match 128K tokens against {:.0f} M blocks, p50", blocks / 1e6),
              all_in.at(0.5) * 1e3, "ms", kMatchMillisecondsMax));
  figures.push_back(at_most("the same, p99", all_in.at(0.99) * 1e3, "ms", kMatchMillisecondsMax));
  figures.push_back(
      at_most("match alone, p99", matching.at(0.99) * 1e3, "ms", kMatchMillisecondsMax));
  figures.push_back(more_is_better("keys of a next turn, 128K tokens of which 2,000 are new",
                                   1 / next_turn.at(0.5), "prompts/s", "hashing it all",
                                   1 / hashing.at(0.5), kNextTurnAim));
  figures.push_back(at_most("index of all hosts' tiers, memory of a block",
                            static_cast<double>(index.memory_bytes()) / blocks, "B", kBytesMax));
  return figures;
}

}  // namespace penstock::bench
