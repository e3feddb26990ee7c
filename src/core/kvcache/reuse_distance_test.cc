#include "core/kvcache/reuse_distance.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <list>
#include <sstream>
#include <string>

#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock::kvcache {
namespace {

BlockKey key_of(std::uint64_t number) {
  BlockKey key;
  Rng rng(number);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::uint64_t word = rng.next_u64();
    std::memcpy(key.bytes.data() + 8 * i, &word, sizeof word);
  }
  return key;
}

// The plain way: an LRU list.
class Lru {
 public:
  explicit Lru(std::size_t capacity) : capacity_(capacity) {}
  void reference(std::uint64_t block) {
    ++references_;
    if (const auto found = where_.find(block); found != where_.end()) {
      ++hits_;
      order_.splice(order_.begin(), order_, found->second);
      return;
    }
    order_.push_front(block);
    where_[block] = order_.begin();
    if (order_.size() <= capacity_) return;
    where_.erase(order_.back());
    order_.pop_back();
  }
  double hit_rate() const { return static_cast<double>(hits_) / static_cast<double>(references_); }

 private:
  std::size_t capacity_;
  std::list<std::uint64_t> order_;
  std::unordered_map<std::uint64_t, std::list<std::uint64_t>::iterator> where_;
  std::uint64_t references_ = 0;
  std::uint64_t hits_ = 0;
};

// About Zipf with exponent 1 over [0, blocks).
std::uint64_t zipf(Rng& rng, double blocks) {
  return static_cast<std::uint64_t>(std::pow(blocks, rng.uniform())) - 1;
}

}  // namespace

TEST_CASE("with all blocks in the sample the curve is that of exact LRU") {
  constexpr std::uint64_t kCapacities[] = {1, 2, 5, 8, 15, 16, 32, 64, 256};
  std::vector<Lru> exact(std::begin(kCapacities), std::end(kCapacities));
  ReuseDistance estimate(600);
  Rng rng(1);
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t block = zipf(rng, 500);
    estimate.reference(key_of(block));
    for (Lru& lru : exact)
      lru.reference(block);
  }
  CHECK(estimate.rate() == 1);
  for (std::size_t i = 0; i < exact.size(); ++i)
    CHECK(estimate.hit_rate(kCapacities[i]) == doctest::Approx(exact[i].hit_rate()).epsilon(0.001));
  CHECK(estimate.hit_rate(0) == 0);
  CHECK(ReuseDistance().hit_rate(100) == 0);
}

TEST_CASE("a small sample estimates exact LRU on a Zipf load, in fixed memory") {
  constexpr std::uint64_t kCapacities[] = {2500, 5000, 20'000, 50'000};
  std::vector<Lru> exact(std::begin(kCapacities), std::end(kCapacities));
  ReuseDistance estimate(4000);
  Rng rng(2);
  for (int i = 0; i < 300'000; ++i) {
    const std::uint64_t block = zipf(rng, 200'000);
    estimate.reference(key_of(block));
    for (Lru& lru : exact)
      lru.reference(block);
  }
  CHECK(estimate.sampled_blocks() <= 4000);
  CHECK(estimate.rate() < 0.1);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    CAPTURE(kCapacities[i]);
    CHECK(static_cast<double>(kCapacities[i]) * estimate.rate() > 50);
    CHECK(std::abs(estimate.hit_rate(kCapacities[i]) - exact[i].hit_rate()) < 0.03);
  }
}

TEST_CASE("the estimate follows a change of load") {
  ReuseDistance estimate(1000, 1000);
  for (std::uint64_t i = 0; i < 10'000; ++i)
    estimate.reference(key_of(i % 10));
  CHECK(estimate.hit_rate(10) > 0.99);
  for (std::uint64_t i = 0; i < 10'000; ++i)
    estimate.reference(key_of(100 + i % 500));
  CHECK(estimate.hit_rate(10) < 0.02);
  CHECK(estimate.hit_rate(1000) > 0.9);
}

TEST_CASE("the curve of a real trace is that of facts/kvcache.md 3b") {
  const std::string path = "../shared/traces/mooncake_conversation.jsonl";
  std::ifstream trace(path);
  if (!trace) {
    MESSAGE("skipped: no " << path);
    return;
  }
  ReuseDistance estimate(8192);
  std::uint64_t references = 0;
  std::string line;
  while (std::getline(trace, line)) {
    std::istringstream ids(line.substr(line.rfind('[') + 1));
    for (std::uint64_t id = 0; ids >> id; ids.ignore(1)) {
      estimate.reference(key_of(id));
      ++references;
    }
  }
  CHECK(references == 288'500);
  constexpr double kDistinct = 182'790;
  CHECK(estimate.distinct_blocks() == doctest::Approx(kDistinct).epsilon(0.03));
  CHECK(std::abs(estimate.hit_rate_max() - 0.366) < 0.015);
  for (const auto& [share, rate] :
       {std::pair{0.01, 0.052}, {0.05, 0.196}, {0.10, 0.279}, {0.25, 0.353}, {0.50, 0.363}}) {
    CAPTURE(share);
    CHECK(std::abs(estimate.hit_rate(static_cast<std::uint64_t>(share * kDistinct)) - rate) <
          0.015);
  }
}

}  // namespace penstock::kvcache
