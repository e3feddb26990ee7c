#include "core/kvcache/engine_index.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock::kvcache {
namespace {

constexpr std::size_t kNoLimit = std::size_t{1} << 40;

std::vector<TokenId> tokens_of(std::uint64_t seed, std::size_t count) {
  Rng rng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens)
    token = static_cast<TokenId>(rng.below(100'000));
  return tokens;
}

// An engine as its events show it: block hashes of its own, evicted from the tail.
class Engine {
 public:
  Engine(std::uint64_t seed, std::uint32_t block_tokens)
      : rng_(seed), block_tokens_(block_tokens) {}

  // Events of a prompt that is computed, or whose blocks go to a further tier.
  void store(std::span<const TokenId> prompt, EngineKvBatch& out, std::uint64_t context = 0,
             KvTier tier = KvTier::kDevice) {
    EngineKvEvent event;
    event.tier = tier;
    event.block_tokens = block_tokens_;
    event.context = context;
    event.hashes.first = static_cast<std::uint32_t>(out.hashes.size());
    event.tokens.first = static_cast<std::uint32_t>(out.tokens.size());
    std::optional<std::uint64_t> parent;
    std::vector<TokenId> prefix = {static_cast<TokenId>(context)};
    for (std::size_t at = 0; at + block_tokens_ <= prompt.size(); at += block_tokens_) {
      const auto block = prompt.subspan(at, block_tokens_);
      prefix.insert(prefix.end(), block.begin(), block.end());
      auto& hash = names_[prefix];
      if (hash == 0) hash = rng_.next_u64();
      if (held_[tier].contains(hash)) {
        parent = hash;
        continue;
      }
      if (event.hashes.count == 0) event.parent = parent;
      held_[tier].insert(hash);
      order_.push_back({hash, tier});
      out.hashes.push_back(hash);
      out.tokens.insert(out.tokens.end(), block.begin(), block.end());
      ++event.hashes.count;
      event.tokens.count += block_tokens_;
    }
    if (event.hashes.count > 0) out.events.push_back(event);
  }
  // Evicts blocks that were stored last, deepest first.
  void evict(std::size_t blocks, EngineKvBatch& out) {
    for (; blocks > 0 && !order_.empty(); --blocks) {
      EngineKvEvent event;
      event.kind = EngineKvEvent::Kind::kRemoved;
      event.tier = order_.back().second;
      event.hashes = {static_cast<std::uint32_t>(out.hashes.size()), 1};
      out.hashes.push_back(order_.back().first);
      out.events.push_back(event);
      held_[event.tier].erase(order_.back().first);
      order_.pop_back();
    }
  }
  void clear(EngineKvBatch& out) {
    EngineKvEvent event;
    event.kind = EngineKvEvent::Kind::kCleared;
    out.events.push_back(event);
    held_.clear();
    order_.clear();
  }
  void restart() {
    held_.clear();
    order_.clear();
    names_.clear();
  }

  // Leading tokens held in one of the tiers, by the plain way.
  std::uint32_t leading(std::span<const TokenId> prompt, std::uint64_t context,
                        std::initializer_list<KvTier> tiers) const {
    std::vector<TokenId> prefix = {static_cast<TokenId>(context)};
    std::uint32_t tokens = 0;
    for (std::size_t at = 0; at + block_tokens_ <= prompt.size(); at += block_tokens_) {
      const auto block = prompt.subspan(at, block_tokens_);
      prefix.insert(prefix.end(), block.begin(), block.end());
      const auto name = names_.find(prefix);
      const bool held = name != names_.end() && std::ranges::any_of(tiers, [&](KvTier tier) {
                          const auto in = held_.find(tier);
                          return in != held_.end() && in->second.contains(name->second);
                        });
      if (!held) break;
      tokens += block_tokens_;
    }
    return tokens;
  }

 private:
  Rng rng_;
  std::uint32_t block_tokens_;
  std::map<std::vector<TokenId>, std::uint64_t> names_;
  std::map<KvTier, std::set<std::uint64_t>> held_;
  std::vector<std::pair<std::uint64_t, KvTier>> order_;
};

// Index and holdings of some engines, as the gateway wires them.
struct Gateway {
  struct Source {
    EngineIndex::SourceId id;
    EngineHoldings holdings;
    RankOfWorker rank;
  };
  RoutingChain chain{7};
  EngineIndex index{kNoLimit};
  std::vector<Source> sources;
  EngineIndex::Scratch scratch;
  EngineHoldings::Outcome outcome;

  std::size_t add(std::uint64_t worker, std::uint32_t rank = 0) {
    const RankOfWorker name{WorkerId(worker), rank};
    sources.push_back({index.add(name), EngineHoldings(chain), name});
    return sources.size() - 1;
  }
  void take(std::size_t source, const EngineKvBatch& batch, std::size_t bytes_max = kNoLimit) {
    Source& to = sources[source];
    to.holdings.apply(batch, bytes_max, outcome);
    if (outcome.cleared) index.purge(to.id);
    index.apply(to.id, outcome.changes);
    index.set_stride(to.id, to.holdings.stride());
  }
  std::span<const RankMatch> match(std::span<const TokenId> prompt, std::uint64_t context = 0,
                                   std::span<const EngineKvMedia> media = {}) {
    std::vector<RoutingKey> keys;
    chain.extend(chain.root(context), prompt, media, keys);
    return index.match(keys, scratch);
  }
  RankMatch of(std::size_t source, std::span<const TokenId> prompt, std::uint64_t context = 0) {
    for (const RankMatch& found : match(prompt, context)) {
      if (found.rank == sources[source].rank) return found;
    }
    return {sources[source].rank, 0, 0, 0};
  }
};

EngineKvBatch stored(Engine& engine, std::span<const TokenId> prompt, std::uint64_t context = 0) {
  EngineKvBatch batch;
  engine.store(prompt, batch, context);
  return batch;
}

TEST_CASE("engines with blocks of other sizes and other hashes are found by one prompt") {
  Gateway gateway;
  const auto prompt = tokens_of(1, 1000);
  // What is held of 1,000 tokens: whole blocks, told where one ends with a unit of 16.
  const std::pair<std::uint32_t, std::uint32_t> engines[] = {
      {16, 992}, {64, 960}, {256, 768}, {1, 992}, {8, 992}, {24, 960}, {528, 528}};
  std::vector<Engine> publishers;
  for (const auto& [block_tokens, expected] : engines) {
    const std::size_t source = gateway.add(block_tokens);
    publishers.emplace_back(block_tokens + 100, block_tokens);
    gateway.take(source, stored(publishers.back(), prompt));
  }
  for (std::size_t i = 0; i < std::size(engines); ++i) {
    CAPTURE(engines[i].first);
    CHECK(gateway.of(i, prompt).device == engines[i].second);
  }
  // Another first token is another prompt; another late one shares what is before.
  auto other = prompt;
  other[700] ^= 1;
  CHECK(gateway.of(0, other).device == 688);
  other[0] ^= 1;
  CHECK(gateway.match(other).empty());
}

TEST_CASE("adapter, salt and media are part of the name") {
  Gateway gateway;
  const std::size_t source = gateway.add(1);
  const auto prompt = tokens_of(2, 256);
  Engine engine(1, 16);
  const std::uint64_t lora = kv_context("a", "");
  const std::uint64_t salt = kv_context("", "a");
  CHECK(lora != salt);
  gateway.take(source, stored(engine, prompt, lora));
  CHECK(gateway.of(source, prompt, lora).device == 256);
  CHECK(gateway.of(source, prompt, salt).device == 0);
  CHECK(gateway.of(source, prompt).device == 0);

  // An image that begins at token 40 counts from its unit on, wherever the blocks end.
  for (const std::uint32_t block_tokens : {16U, 64U, 8U}) {
    const std::size_t with = gateway.add(100 + block_tokens);
    Engine sees(2, block_tokens);
    EngineKvBatch batch = stored(sees, prompt);
    const EngineKvMedia image{40, kv_media("cat")};
    batch.media = {image};
    batch.events[0].media = {0, 1};
    gateway.take(with, batch);
    const auto found = gateway.match(prompt, 0, std::span(&image, 1));
    CHECK(std::ranges::any_of(found, [&](const RankMatch& m) {
      return m.rank == gateway.sources[with].rank && m.device == 256;
    }));
    const EngineKvMedia dog{40, kv_media("dog")};
    for (const RankMatch& m : gateway.match(prompt, 0, std::span(&dog, 1)))
      CHECK(m.device < 40);
    CHECK(gateway.of(with, prompt).device == (block_tokens == 64 ? 0 : 32));
  }
}

TEST_CASE("tiers are apart: removed from one, a block stays in the others") {
  Gateway gateway;
  const std::size_t source = gateway.add(1);
  const auto prompt = tokens_of(3, 160);
  Engine engine(1, 16);
  EngineKvBatch batch = stored(engine, prompt);
  gateway.take(source, batch);
  // Copied to the host's memory: told by hashes alone, as offloading does.
  EngineKvBatch copy;
  copy.hashes = batch.hashes;
  copy.events.push_back({.tier = KvTier::kHost, .hashes = {0, 6}});
  gateway.take(source, copy);
  EngineKvBatch removed;
  removed.hashes = batch.hashes;
  removed.events.push_back({.kind = EngineKvEvent::Kind::kRemoved, .hashes = {4, 6}});
  gateway.take(source, removed);
  CHECK(gateway.of(source, prompt) == RankMatch{gateway.sources[source].rank, 64, 96, 96});
  removed.events[0].tier = KvTier::kHost;
  gateway.take(source, removed);
  CHECK(gateway.of(source, prompt) == RankMatch{gateway.sources[source].rank, 64, 64, 64});
  CHECK(gateway.sources[source].holdings.blocks() == 4);
  CHECK(gateway.index.blocks() == 4);
  // Two of the six were in no host memory.
  CHECK(gateway.sources[source].holdings.counts().orphans == 4);
}

TEST_CASE("only the group of full attention proves a prefix") {
  Gateway gateway;
  const auto prompt = tokens_of(4, 64);
  const auto with_group = [&](std::uint32_t group, EngineKvEvent::Attention attention) {
    Engine engine(group + 1, 16);
    EngineKvBatch batch = stored(engine, prompt);
    batch.events[0].group = group;
    batch.events[0].attention = attention;
    return batch;
  };
  using Attention = EngineKvEvent::Attention;
  const std::size_t said = gateway.add(1);
  gateway.take(said, with_group(0, Attention::kOther));
  CHECK(gateway.of(said, prompt).any == 0);
  gateway.take(said, with_group(1, Attention::kFull));
  CHECK(gateway.of(said, prompt).any == 64);
  EngineKvBatch removed = with_group(0, Attention::kUnknown);
  removed.events[0].kind = EngineKvEvent::Kind::kRemoved;
  gateway.take(said, removed);
  CHECK(gateway.of(said, prompt).any == 64);
  CHECK(gateway.sources[said].holdings.counts().other_groups == 2);

  const std::size_t unsaid = gateway.add(2);
  gateway.take(unsaid, with_group(1, Attention::kUnknown));
  CHECK(gateway.of(unsaid, prompt).any == 0);
  gateway.take(unsaid, with_group(0, Attention::kUnknown));
  CHECK(gateway.of(unsaid, prompt).any == 64);
}

TEST_CASE("events that don't fit together are counted and change nothing") {
  Gateway gateway;
  const std::size_t source = gateway.add(1);
  const auto prompt = tokens_of(5, 64);
  Engine engine(1, 16);
  EngineKvBatch batch = stored(engine, prompt);
  batch.events[0].block_tokens = 15;
  gateway.take(source, batch);
  batch.events[0].block_tokens = 0;
  gateway.take(source, batch);
  CHECK(gateway.sources[source].holdings.counts().malformed == 2);
  batch.events[0].block_tokens = 16;
  batch.events[0].parent = 12345;  // never heard of
  gateway.take(source, batch);
  CHECK(gateway.sources[source].holdings.counts().orphans == 4);
  CHECK(gateway.index.blocks() == 0);
  CHECK(gateway.match(prompt).empty());

  // A name that is given to another block takes the first one's place.
  batch.events[0].parent.reset();
  gateway.take(source, batch);
  auto other = prompt;
  other[0] ^= 1;
  batch.tokens.assign(other.begin(), other.end());
  gateway.take(source, batch);
  CHECK(gateway.match(prompt).empty());
  CHECK(gateway.of(source, other).device == 64);
  CHECK(gateway.index.blocks() == 4);
}

TEST_CASE("purged, cleared and removed sources hold nothing, and their numbers come back") {
  Gateway gateway;
  const std::size_t source = gateway.add(1);
  const auto prompt = tokens_of(6, 64);
  Engine engine(1, 16);
  for (int i = 0; i < 70'000; ++i) {  // more often than there are numbers
    EngineKvBatch batch;
    engine.store(prompt, batch);
    gateway.take(source, batch);
    if (i % 10'000 == 0) REQUIRE(gateway.of(source, prompt).device == 64);
    EngineKvBatch clear;
    engine.clear(clear);
    gateway.take(source, clear);
    if (i % 10'000 == 0) REQUIRE(gateway.match(prompt).empty());
  }
  gateway.take(source, stored(engine, prompt));
  gateway.index.remove(gateway.sources[source].id);
  CHECK(gateway.match(prompt).empty());
  CHECK(gateway.index.sources() == 0);
}

TEST_CASE("what finds no room is not taken, nor what follows it") {
  Gateway gateway;
  const std::size_t source = gateway.add(1);
  Engine engine(1, 16);
  EngineHoldings& holdings = gateway.sources[source].holdings;
  const auto prompt = tokens_of(7, 16 * 1000);
  EngineKvBatch batch = stored(engine, std::span(prompt).first(16 * 500));
  gateway.take(source, batch, 4096);
  CHECK(holdings.memory_bytes() < 4096 * 5 / 4);
  CHECK(holdings.blocks() + holdings.counts().refused == 500);
  CHECK(holdings.counts().refused > 0);
  CHECK(gateway.of(source, prompt).device == holdings.blocks() * 16);
  gateway.take(source, stored(engine, prompt), kNoLimit);
  CHECK(holdings.counts().orphans == 500);

  EngineIndex small(64 * 100);
  const auto id = small.add({WorkerId(1), 0});
  small.set_stride(id, 16);
  std::vector<RoutingKey> keys;
  gateway.chain.extend(gateway.chain.root(0), prompt, {}, keys);
  small.placed(id, keys);
  CHECK(small.blocks() == 101);
  CHECK(small.dropped() == 1);
  // Placements make room for newer ones.
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const auto next = tokens_of(1000 + i, 16 * 4);
    gateway.chain.extend(gateway.chain.root(0), next, {}, keys);
    small.placed(id, keys);
  }
  const auto last = small.match(keys, gateway.scratch);
  REQUIRE(last.size() == 1);
  CHECK(last[0].device == 64);
  CHECK(small.blocks() <= 101);
}

struct Case {
  std::uint64_t seed;
  std::vector<std::uint32_t> block_tokens;  // of the engines
};

// Random prompts with shared beginnings, random eviction from the tail, clears and restarts,
// against the plain way of naming and counting blocks.
void run_model(const Case& c) {
  Rng rng(c.seed);
  Gateway gateway;
  std::vector<Engine> engines;
  for (std::size_t i = 0; i < c.block_tokens.size(); ++i) {
    gateway.add(i / 2, static_cast<std::uint32_t>(i % 2));
    engines.emplace_back(c.seed * 100 + i, c.block_tokens[i]);
  }
  std::vector<std::vector<TokenId>> prompts;
  for (int i = 0; i < 12; ++i) {
    auto prompt = tokens_of(rng.next_u64(), 100 + rng.below(700));
    if (i > 0) {
      const auto& from = prompts[rng.below(prompts.size())];
      std::copy_n(from.begin(), std::min(from.size(), prompt.size()) * rng.below(5) / 4,
                  prompt.begin());
    }
    prompts.push_back(std::move(prompt));
  }
  const std::uint64_t contexts[] = {0, kv_context("adapter", "")};
  for (int step = 0; step < 400; ++step) {
    const std::size_t at = rng.below(engines.size());
    EngineKvBatch batch;
    const auto dice = rng.below(100);
    if (dice < 60) {
      const std::uint64_t context = contexts[rng.below(2)];
      engines[at].store(prompts[rng.below(prompts.size())], batch, context);
    } else if (dice < 97) {
      engines[at].evict(rng.below(30), batch);
    } else if (dice < 98) {
      engines[at].clear(batch);
    } else if (dice < 99) {
      engines[at].restart();
      gateway.index.purge(gateway.sources[at].id);
      gateway.sources[at].holdings.purge();
    }
    gateway.take(at, batch);
    const auto& prompt = prompts[rng.below(prompts.size())];
    const std::uint64_t context = contexts[rng.below(2)];
    for (std::size_t i = 0; i < engines.size(); ++i) {
      const std::uint32_t stride = std::max(gateway.sources[i].holdings.stride(), 1U);
      const std::uint32_t held = engines[i].leading(prompt, context, {KvTier::kDevice});
      REQUIRE(gateway.of(i, prompt, context).device == held / stride * stride);
    }
  }
  for (std::size_t i = 0; i < engines.size(); ++i)
    CHECK(gateway.sources[i].holdings.counts().orphans == 0);
}

TEST_CASE("the index equals the plain way over random operations") {
  const Case cases[] = {{1, {16}},
                        {2, {16, 16, 16, 16, 16, 16, 16, 16, 16}},
                        {3, {64, 16}},
                        {4, {1, 8, 24}},
                        {5, {32, 48}}};
  for (const Case& c : cases) {
    CAPTURE(c.seed);
    run_model(c);
  }
}

TEST_CASE(
    "where what is held has holes, a match ends at a block that is held before one that isn't") {
  Rng rng(1);
  const auto prompt = tokens_of(8, 16 * 300);
  RoutingChain chain(1);
  std::vector<RoutingKey> keys;
  chain.extend(chain.root(0), prompt, {}, keys);
  for (int round = 0; round < 200; ++round) {
    EngineIndex index(kNoLimit);
    const auto source = index.add({WorkerId(1), 0});
    index.set_stride(source, 16);
    std::set<std::size_t> held;
    std::vector<HoldingChange> changes;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (rng.below(20) == 0) continue;
      held.insert(i);
      changes.push_back({keys[i], 1, true});
    }
    index.apply(source, changes);
    EngineIndex::Scratch scratch;
    const auto found = index.match(keys, scratch);
    const std::size_t depth = found.empty() ? 0 : found[0].device / 16;
    CHECK((depth == 0 || held.contains(depth - 1)));
    CHECK_FALSE(held.contains(depth));
  }
}

TEST_CASE("placements are held until they are old, used again they are young again") {
  EngineIndex index(kNoLimit);
  const RankOfWorker rank{WorkerId(1), 0};
  const auto source = index.add(rank);
  index.set_stride(source, 64);
  const RoutingChain chain(3);
  EngineIndex::Scratch scratch;
  const auto keys_of = [&](std::uint64_t seed) {
    std::vector<RoutingKey> keys;
    const auto prompt = tokens_of(seed, 1000);
    chain.extend(chain.root(0), prompt, {}, keys);
    return keys;
  };
  const auto held = [&](const std::vector<RoutingKey>& keys) {
    const auto found = index.match(keys, scratch);
    return found.empty() ? 0 : found[0].device;
  };
  const auto a = keys_of(1);
  const auto b = keys_of(2);
  const auto c = keys_of(3);
  index.placed(source, a);
  index.placed(source, b);
  CHECK(held(a) == 960);
  for (std::size_t i = 1; i < EngineIndex::kGenerations; ++i)
    index.age(source);
  CHECK(held(a) == 960);
  index.placed(source, a);
  index.age(source);
  CHECK(held(a) == 960);
  CHECK(held(b) == 0);

  SUBCASE("the engine has less than was predicted: what is as old or older goes") {
    index.placed(source, b);
    index.age(source);
    index.placed(source, c);  // generations, newest first: c; b; a
    index.placed(source, b);
    index.corrected(source, b, 128);
    CHECK(held(a) == 0);
    CHECK(held(b) == 960);  // it has just been computed
    CHECK(held(c) == 960);
  }
  SUBCASE("a correction of what was last used lately takes the older ones only") {
    index.placed(source, c);
    index.corrected(source, c, 0);
    CHECK(held(a) == 0);
    CHECK(held(c) == 960);
  }
  SUBCASE("no correction when all was there") {
    index.placed(source, a);
    index.corrected(source, a, 1000);
    CHECK(held(a) == 960);
  }
}

TEST_CASE("an entry takes 64 bytes at most, index and holdings together") {
  Gateway gateway;
  const std::size_t source = gateway.add(1);
  Engine engine(1, 16);
  for (std::uint64_t i = 0; i < 300; ++i)
    gateway.take(source, stored(engine, tokens_of(i, 16 * 64)));
  const std::size_t blocks = gateway.index.blocks();
  CHECK(blocks == 300 * 64);
  // The index's 4,096 small tables take 64 KiB of their own.
  CHECK(gateway.index.memory_bytes() + gateway.sources[source].holdings.memory_bytes() <=
        64 * blocks + (64 << 10) + 4096 * 8 * 24);
}

}  // namespace
}  // namespace penstock::kvcache
