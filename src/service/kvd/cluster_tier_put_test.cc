// ClusterTier's writes: names before objects, many at a time.
#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "base/hash.h"
#include "service/kvd/cluster_tier.h"
#include "tests/support/memory_store.h"

#include <doctest/doctest.h>

namespace penstock::service {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Writer {
  explicit Writer(testing::MemoryStore& shared, std::size_t puts_max = 16)
      : store(shared), tier(shared, options(puts_max)) {
    poll();
  }
  static ClusterTierOptions options(std::size_t puts_max) {
    ClusterTierOptions options;
    options.classes = {{"default", std::chrono::hours(24)}};
    options.written = {true};
    options.puts_max = puts_max;
    return options;
  }
  static BlockInfo block(std::uint8_t number) {
    BlockInfo info;
    info.name.key.bytes[0] = number;
    info.slices = {{static_cast<std::uint32_t>(kPayload.size()), checksum64(kPayload)}};
    return info;
  }
  static StoreName object(std::uint8_t number) {
    return ClusterTier::single_object(block(number).name);
  }
  void write(std::uint8_t first, std::uint8_t count) {
    for (std::uint8_t i = first; i < first + count; ++i)
      tier.write({block(i), kPayload, [this, i](MissReason reason) { ended[i] = reason; }});
  }
  // Each object stands in a manifest, whenever the process might end.
  void poll() {
    now.now += milliseconds(1);
    std::vector<TierRemoval> removals;
    tier.poll(now, removals);
    for (const auto& [name, object] : store.objects) {
      bool is_noted = false;
      for (const auto& [id, names] : store.manifests)
        is_noted = is_noted || std::ranges::find(names, name) != names.end();
      CHECK(is_noted);
    }
  }

  static constexpr std::array<std::byte, 100> kPayload{};
  testing::MemoryStore& store;
  ClusterTier tier;
  TierNow now;
  std::map<int, MissReason> ended;
};

}  // namespace

TEST_CASE("names that come while a manifest is written go with its next write, objects meanwhile") {
  testing::MemoryStore store;
  Writer writer(store);
  store.hangs = true;
  writer.write(1, 2);
  writer.poll();
  writer.write(3, 5);
  writer.poll();
  CHECK(store.notings == std::vector<std::size_t>{2});
  CHECK(store.puts_under_way == 0);  // nothing is noted yet
  store.hangs = false;
  writer.poll();
  CHECK(store.notings == std::vector<std::size_t>{2, 5});
  CHECK(store.puts_under_way == 2);  // while the others are being noted
  CHECK(store.objects.empty());
  for (int turns = 0; turns < 3; ++turns)
    writer.poll();
  CHECK(store.objects.size() == 7);
  CHECK(writer.ended.size() == 7);
  CHECK(store.notings.size() == 2);
  CHECK(writer.tier.cluster_stats().write_bytes_under_way == 0);
}

TEST_CASE("so many objects are written at once, and no more") {
  testing::MemoryStore store;
  Writer writer(store, 3);
  writer.write(1, 10);
  for (int turns = 0; turns < 8; ++turns)
    writer.poll();
  CHECK(store.objects.size() == 10);
  CHECK(store.puts_under_way_max == 3);
  CHECK(store.notings == std::vector<std::size_t>{10});
}

TEST_CASE("what could not be noted is not written, and may be offered again") {
  testing::MemoryStore store;
  Writer writer(store);
  store.verdict = MissReason::kIoError;
  writer.write(1, 2);
  writer.poll();
  CHECK(writer.ended ==
        std::map<int, MissReason>{{1, MissReason::kIoError}, {2, MissReason::kIoError}});
  CHECK(!writer.tier.noted(Writer::object(1)));
  store.verdict = MissReason::kNone;
  writer.poll();
  CHECK(store.objects.empty());
  writer.write(1, 1);
  for (int turns = 0; turns < 3; ++turns)
    writer.poll();
  CHECK(writer.ended[1] == MissReason::kNone);
  CHECK(store.objects.contains(Writer::object(1)));
}

TEST_CASE("when the store fails, what waits for its turn is given up at once") {
  testing::MemoryStore store;
  Writer writer(store, 4);
  writer.write(1, 10);
  writer.poll();
  CHECK(store.puts_under_way == 4);
  store.hangs = true;
  writer.now.now += seconds(6);  // over the limit of a write: four failures
  writer.poll();
  CHECK(!writer.tier.in_service());
  for (const std::uint8_t waited : std::to_array<std::uint8_t>({8, 9, 10})) {
    CHECK(writer.ended[waited] == MissReason::kTooSlow);
    CHECK(!writer.tier.noted(Writer::object(waited)));
  }
  writer.now.now += seconds(6);
  writer.poll();
  CHECK(writer.ended.size() == 10);
  CHECK(store.puts_under_way == 0);
  CHECK(writer.tier.cluster_stats().write_bytes_under_way == 0);
}

}  // namespace penstock::service
