#include "core/kvcache/hit_trust.h"

#include <doctest/doctest.h>

namespace penstock::kvcache {
namespace {

constexpr RankOfWorker kDrifted{WorkerId(1), 0};
constexpr RankOfWorker kGood{WorkerId(1), 1};

TEST_CASE("a rank whose hits don't come true is trusted less, and again when they do") {
  HitTrust trust;
  CHECK(trust.trusted(kDrifted, 1000) == 1000);
  for (int i = 0; i < 20; ++i) {
    trust.observed(kDrifted, 2000, 0);
    trust.observed(kGood, 2000, 2048);
  }
  CHECK(trust.trust(kDrifted) < 0.02);
  CHECK(trust.trusted(kDrifted, 1000) < 20);
  CHECK(trust.trust(kGood) == 1);
  CHECK(trust.ranks().at(kDrifted).predicted == 40'000);
  CHECK(trust.ranks().at(kDrifted).came_true == 0);
  CHECK(trust.ranks().at(kGood).came_true == 40'000);
  CHECK(trust.ranks().at(kGood).unforeseen == 20 * 48);
  for (int i = 0; i < 20; ++i)
    trust.observed(kDrifted, 2000, 2000);
  CHECK(trust.trust(kDrifted) > 0.98);
  trust.observed(kDrifted, 2000, 0);
  trust.forget(kDrifted);
  CHECK(trust.trust(kDrifted) == 1);
}

TEST_CASE("short prompts weigh little; a prompt of which nothing was predicted says nothing") {
  HitTrust trust;
  trust.observed(kDrifted, 0, 500);
  CHECK(trust.trust(kDrifted) == 1);
  CHECK(trust.ranks().at(kDrifted).unforeseen == 500);
  trust.observed(kDrifted, 16, 0);
  CHECK(trust.trust(kDrifted) > 0.99);
  trust.observed(kDrifted, 4096, 2048);
  CHECK(trust.trust(kDrifted) < 0.91);
  CHECK(trust.trust(kDrifted) > 0.89);
}

}  // namespace
}  // namespace penstock::kvcache
