#include "core/kvcache/miss_history.h"

#include <set>

#include <doctest/doctest.h>

namespace penstock::kvcache {
namespace {

BlockKey key_of(std::uint8_t a, std::uint8_t b = 0) {
  BlockKey key;
  key.bytes[0] = a;
  key.bytes[1] = b;
  return key;
}

constexpr UnixSeconds kWhen{1'800'000'000};
constexpr std::uint64_t kTag = 77;

// Roots: 1 is ours, 2 another scope's, 3 our scope with another build, 4 other in both.
MissHistory described() {
  MissHistory history;
  history.describe(key_of(1), "tenant:a", "build 1");
  history.describe(key_of(2), "tenant:b", "build 1");
  history.describe(key_of(3), "tenant:a", "build 2");
  history.describe(key_of(4), "tenant:b", "build 2");
  return history;
}

struct Held {
  std::set<BlockName> names;
  bool operator()(const BlockName& name) const { return names.contains(name); }
};

}  // namespace

TEST_CASE("every noted reason is told, with its time, until the block is stored again") {
  MissHistory history = described();
  for (std::size_t i = 1; i < kMissReasons; ++i) {
    const auto reason = static_cast<MissReason>(i);
    CAPTURE(to_string(reason));
    const BlockName name{key_of(10, static_cast<std::uint8_t>(i)), KvGroup::kHistory};
    history.note(name, reason, kWhen);
    const auto explained = history.explain(key_of(1), {{name.key}}, kTag, Held{});
    CHECK(explained[0].reason == reason);
    CHECK(explained[0].when == kWhen);
    CHECK(!history.find({name.key, KvGroup::kWindow}));
    CHECK(history.explain(key_of(1), {{name.key}}, kTag, Held{{name}})[0].reason ==
          MissReason::kNone);
    history.stored(name);
    CHECK(!history.find(name));
    CHECK(history.explain(key_of(1), {{name.key}}, kTag, Held{})[0].reason ==
          MissReason::kNeverStored);
  }
  CHECK(history.names() == 0);
}

TEST_CASE("the same first tokens under another root are another scope's or another build's") {
  const std::vector chain = {key_of(20), key_of(21)};
  struct Case {
    const char* what;
    std::vector<std::uint8_t> roots;    // that stored the first block, in order
    std::vector<std::uint8_t> present;  // of them, those that hold it still
    MissReason expected;
    std::uint8_t other;
  };
  const Case cases[] = {
      {"nobody", {}, {}, MissReason::kNeverStored, 0},
      {"another scope", {2}, {2}, MissReason::kOtherScope, 2},
      {"another build", {3}, {3}, MissReason::kOtherBuild, 3},
      {"both differ", {4}, {4}, MissReason::kOtherScope, 4},
      {"own scope first", {2, 3, 4}, {2, 3, 4}, MissReason::kOtherBuild, 3},
      {"it is gone there too", {2, 3}, {2}, MissReason::kOtherScope, 2},
      {"gone everywhere", {2, 3}, {}, MissReason::kNeverStored, 0},
      {"a root that nobody described", {9}, {9}, MissReason::kNeverStored, 0},
      {"itself", {1}, {1}, MissReason::kNeverStored, 0},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    MissHistory history = described();
    Held held;
    for (const std::uint8_t root : c.roots)
      history.first_block(kTag, key_of(root), key_of(30, root));
    for (const std::uint8_t root : c.present)
      held.names.insert({key_of(30, root), KvGroup::kHistory});
    const auto explained = history.explain(key_of(1), chain, kTag, held);
    REQUIRE(explained.size() == 2);
    for (const auto& block : explained) {
      CHECK(block.reason == c.expected);
      CHECK(block.other_root.has_value() == (c.other != 0));
      if (c.other != 0) CHECK(*block.other_root == key_of(c.other));
    }
    // Other tokens are nobody's.
    CHECK(history.explain(key_of(1), chain, kTag + 1, held)[0].reason == MissReason::kNeverStored);
  }
}

TEST_CASE("a chain that was begun here is explained block by block") {
  MissHistory history = described();
  history.first_block(kTag, key_of(2), key_of(30, 2));
  const Held held{{{key_of(30, 2), KvGroup::kHistory}, {key_of(20), KvGroup::kHistory}}};
  history.note({key_of(21), KvGroup::kHistory}, MissReason::kExpired, kWhen);
  const std::vector chain = {key_of(20), key_of(21), key_of(22)};
  const auto explained = history.explain(key_of(1), chain, kTag, held);
  CHECK(explained[0].reason == MissReason::kNone);
  CHECK(explained[1].reason == MissReason::kExpired);
  CHECK(explained[2].reason == MissReason::kNeverStored);
  CHECK(history.explain(key_of(1), {}, kTag, held).empty());
}

TEST_CASE("all memories are bounded and forget the oldest first") {
  MissHistory history({.names_max = 3, .tags_max = 2, .roots_of_tag_max = 2, .roots_max = 3});
  for (std::uint8_t i = 0; i < 5; ++i) {
    history.note({key_of(i), KvGroup::kHistory}, MissReason::kExpired, kWhen);
    history.describe(key_of(i), "scope", "build");
  }
  history.note({key_of(2), KvGroup::kHistory}, MissReason::kCorrupt, kWhen);  // newest again
  history.note({key_of(9), KvGroup::kHistory}, MissReason::kExpired, kWhen);
  CHECK(history.names() == 3);
  CHECK(history.find({key_of(2), KvGroup::kHistory})->reason == MissReason::kCorrupt);
  CHECK(!history.find({key_of(3), KvGroup::kHistory}));
  CHECK(history.root(key_of(1)) == nullptr);
  REQUIRE(history.root(key_of(2)) != nullptr);
  CHECK(history.root(key_of(2))->scope == "scope");

  // Of three roots of one tag two are known; the third tag pushes the first out.
  const Held all{{{key_of(40, 2), KvGroup::kHistory},
                  {key_of(40, 3), KvGroup::kHistory},
                  {key_of(40, 4), KvGroup::kHistory}}};
  for (const std::uint8_t root : std::initializer_list<std::uint8_t>{2, 3, 4})
    history.first_block(1, key_of(root), key_of(40, root));
  const std::vector chain = {key_of(50)};
  CHECK(history.explain(key_of(2), chain, 1, all)[0].other_root == key_of(3));
  history.first_block(2, key_of(3), key_of(40, 3));
  history.first_block(3, key_of(3), key_of(40, 3));
  CHECK(history.explain(key_of(2), chain, 1, all)[0].reason == MissReason::kNeverStored);
  CHECK(history.explain(key_of(2), chain, 3, all)[0].reason == MissReason::kOtherBuild);
}

}  // namespace penstock::kvcache
