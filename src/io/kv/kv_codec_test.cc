#include "io/kv/kv_codec.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/rng.h"
#include "kv.pb.h"

namespace penstock::kv {
namespace {

// Random values within the documented limits.
class Random {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}
  std::uint64_t word() { return checksum64(std::to_string(seed_) + ":" + std::to_string(++n_)); }
  std::uint64_t below(std::uint64_t limit) { return word() % limit; }
  bool flag() { return word() % 2 == 0; }
  BlockKey key() {
    BlockKey key;
    for (std::uint8_t& byte : key.bytes)
      byte = static_cast<std::uint8_t>(word());
    return key;
  }
  BlockName name() { return {key(), static_cast<KvGroup>(below(2))}; }
  std::string text() {
    std::string out(below(20), ' ');
    for (char& c : out)
      c = static_cast<char>(word());
    return out;
  }
  template <typename Make>
  auto list(std::size_t max, Make make) {
    std::vector<decltype(make())> out(below(max + 1));
    for (auto& entry : out)
      entry = make();
    return out;
  }
  KvLayoutSpec layout() {
    KvLayoutSpec out;
    out.block_tokens = static_cast<std::uint32_t>(1 + below(256));
    const auto slice = [&] { return static_cast<std::uint32_t>(1 + below(kSliceBytesMax)); };
    out.history_slices = list(5, slice);
    out.history_slices.push_back(slice());
    out.window_slices = list(3, slice);
    if (!out.window_slices.empty()) out.window_tokens = 2 * out.block_tokens;
    return out;
  }
  PinnedBlock pinned() {
    return {word(), word(), static_cast<KvTier>(below(5)), list(4, [&] { return word(); })};
  }
  MissReason reason() { return static_cast<MissReason>(below(kMissReasons)); }
  std::uint32_t small() { return static_cast<std::uint32_t>(below(1000)); }

  ClientMessage client(std::size_t kind) {
    switch (kind) {
      case 0:
        return Hello{small(), text(), text(), static_cast<std::int64_t>(word()), key()};
      case 1:
        return RegisterPool{small(), word(), layout()};
      case 2:
        return RegisterRoot{key(), text(), text(), layout()};
      case 3: {
        Acquire out{word(),
                    key(),
                    list(9, [&] { return key(); }),
                    {},
                    word(),
                    text(),
                    static_cast<TtlClass>(below(256)),
                    word(),
                    Duration(static_cast<std::int64_t>(word() >> 1)),
                    {0.5, 0.25, static_cast<double>(below(100))}};
        for (std::uint32_t i = 0; i < out.keys.size(); ++i)
          if (flag()) out.windows.push_back(i);
        return out;
      }
      case 4:
        return Release{word()};
      case 5:
        return Store{
            word(), small(), key(), static_cast<TtlClass>(below(256)), word(), word(), list(9, [&] {
              return StoreBlock{name(), key(), small(), list(4, [&] { return word(); })};
            })};
      case 6:
        return Lookup{word(), list(40, [&] { return name(); })};
      case 7:
        return Subscribe{word(), word()};
      case 8:
        return Admin{word(), text(), text()};
      case 9:
        return Alive{};
      case 10:
        return Report{word(), name()};
      default:
        return Missed{list(4, [&] {
          MissedRequest out{text(), key(), word(), small(), {}, UnixSeconds(below(1U << 31))};
          for (std::uint64_t served = below(out.blocks + 1); served > 0; --served)
            out.served.push_back(static_cast<KvTier>(below(5)));
          return out;
        })};
    }
  }

  DaemonMessage daemon(std::size_t kind) {
    switch (kind) {
      case 0:
        return Welcome{small(), word(), word(), list(3, [&] {
                         return TtlClassSpec{text(), std::chrono::seconds(below(1U << 31))};
                       })};
      case 1:
        return Granted{word(), list(9, [&] { return pinned(); }),
                       list(4, [&] { return std::pair(small(), pinned()); }), flag(), reason()};
      case 2:
        return Stored{word(), list(9, [&] { return reason(); })};
      case 3:
        return LookupAnswer{word(),
                            list(40, [&] { return static_cast<std::uint8_t>(below(256)); })};
      case 4:
        return Events{word(),
                      word(),
                      flag(),
                      flag(),
                      list(9,
                           [&] {
                             const bool stored = flag();
                             return Event{name(), static_cast<KvTier>(below(5)), stored,
                                          stored ? MissReason::kNone : reason()};
                           }),
                      static_cast<std::uint8_t>(below(32))};
      case 5: {
        AdminAnswer out{word(), {}, text(), flag()};
        if (flag()) out.error = Error{static_cast<ErrorCode>(below(21)), text(), text(), {}};
        return out;
      }
      default:
        return Goodbye{text()};
    }
  }

 private:
  std::uint64_t seed_;
  std::uint64_t n_ = 0;
};

constexpr std::size_t kClientKinds = std::variant_size_v<ClientMessage>;
constexpr std::size_t kDaemonKinds = std::variant_size_v<DaemonMessage>;

// Equal frames are equal values: encoding reads every field, and the golden fields below pin that
// it writes them where they belong.
template <typename Message>
void check_round_trip(const Message& message, Result<Message> (*decode)(std::string_view)) {
  std::string frame;
  REQUIRE(append_frame(message, frame));
  const Result<Message> back = decode(std::string_view(frame).substr(4));
  REQUIRE(back);
  CHECK(back->index() == message.index());
  std::string again;
  REQUIRE(append_frame(*back, again));
  CHECK(again == frame);
  // No prefix and no single wrong byte does more than being refused or read as another value.
  for (std::size_t cut = 4; cut < frame.size(); cut += 1 + frame.size() / 16) {
    (void)decode(std::string_view(frame).substr(4, cut - 4));
    std::string bent = frame.substr(4);
    bent[cut - 4] = static_cast<char>(bent[cut - 4] ^ 0x11);
    (void)decode(bent);
  }
}

TEST_CASE("messages survive the wire") {
  Random random(7);
  for (std::size_t round = 0; round < 200; ++round) {
    for (std::size_t kind = 0; kind < kClientKinds; ++kind)
      check_round_trip(random.client(kind), decode_client);
    for (std::size_t kind = 0; kind < kDaemonKinds; ++kind)
      check_round_trip(random.daemon(kind), decode_daemon);
  }
}

TEST_CASE("fields arrive as they were") {
  Random random(8);
  const Acquire acquire{5, random.key(),  {random.key(), random.key()}, {1}, 77, "r", 2,
                        9, Duration(1000)};
  std::string frame;
  REQUIRE(append_frame(acquire, frame));
  const auto back = std::get<Acquire>(*decode_client(std::string_view(frame).substr(4)));
  CHECK(back.lease == 5);
  CHECK(back.root == acquire.root);
  CHECK(back.keys == acquire.keys);
  CHECK(back.windows == acquire.windows);
  CHECK(back.content_tag == 77);
  CHECK(back.request == "r");
  CHECK(back.ttl_class == 2);
  CHECK(back.tenant == 9);
  CHECK(back.budget == Duration(1000));

  const Store store{1,
                    2,
                    acquire.root,
                    3,
                    4,
                    5,
                    {{{acquire.keys[0], KvGroup::kWindow}, acquire.root, 7, {8, 9}}}};
  frame.clear();
  REQUIRE(append_frame(store, frame));
  const auto stored = std::get<Store>(*decode_client(std::string_view(frame).substr(4)));
  REQUIRE(stored.blocks.size() == 1);
  CHECK(stored.blocks[0].name == store.blocks[0].name);
  CHECK(stored.blocks[0].parent == acquire.root);
  CHECK(stored.blocks[0].depth == 7);
  CHECK(stored.blocks[0].slices == std::vector<std::uint64_t>{8, 9});
}

TEST_CASE("columns that differ are refused") {
  Random random(9);
  const auto refused = [](v1::ClientFrame& frame) {
    return !decode_client(frame.SerializeAsString());
  };
  const std::string key(16, 'k');
  struct Case {
    const char* what;
    void (*bend)(v1::ClientFrame&);
  };
  const Case cases[] = {
      {"no message", [](v1::ClientFrame& f) { f.clear_message(); }},
      {"short root", [](v1::ClientFrame& f) { f.mutable_acquire()->set_root("short"); }},
      {"half a key", [](v1::ClientFrame& f) { f.mutable_acquire()->mutable_keys()->pop_back(); }},
      {"window without key", [](v1::ClientFrame& f) { f.mutable_acquire()->add_windows(1); }},
      {"class", [](v1::ClientFrame& f) { f.mutable_acquire()->set_ttl_class(256); }},
      {"budget", [](v1::ClientFrame& f) { f.mutable_acquire()->set_budget_ns(~0ULL); }},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    v1::ClientFrame frame;
    frame.mutable_acquire()->set_root(key);
    frame.mutable_acquire()->set_keys(key);
    CHECK_FALSE(refused(frame));
    c.bend(frame);
    CHECK(refused(frame));
  }
  v1::ClientFrame store;
  store.mutable_store()->set_root(key);
  store.mutable_store()->set_keys(key);
  store.mutable_store()->set_parents(key);
  store.mutable_store()->add_depths(0);
  store.mutable_store()->add_slice_counts(2);
  store.mutable_store()->add_slices(1);
  CHECK(refused(store));
  store.mutable_store()->add_slices(2);
  CHECK_FALSE(refused(store));
  store.mutable_store()->set_groups(std::string(1, '\2'));
  CHECK(refused(store));

  v1::DaemonFrame granted;
  granted.mutable_granted()->mutable_history()->add_offsets(1);
  CHECK_FALSE(decode_daemon(granted.SerializeAsString()));
  v1::DaemonFrame stored;
  stored.mutable_stored()->set_results(std::string(1, static_cast<char>(kMissReasons)));
  CHECK_FALSE(decode_daemon(stored.SerializeAsString()));
  v1::DaemonFrame events;
  events.mutable_events()->set_tiers_off(31);
  CHECK(decode_daemon(events.SerializeAsString()));
  events.mutable_events()->set_tiers_off(32);
  CHECK_FALSE(decode_daemon(events.SerializeAsString()));
}

TEST_CASE("a grant of any size travels in parts") {
  Granted granted{3, std::vector<PinnedBlock>(3000), {}, true, MissReason::kExpired};
  for (std::size_t i = 0; i < granted.history.size(); ++i) {
    granted.history[i].offset = i;
    granted.history[i].checksums.assign(1000, i);
  }
  granted.windows.emplace_back(2, PinnedBlock{1, 2, KvTier::kDisk, {3}});
  std::string stream;
  REQUIRE(append_frame(granted, stream));
  FrameBuffer buffer;
  std::memcpy(buffer.reserve(stream.size()), stream.data(), stream.size());
  buffer.commit(stream.size());
  Granted whole;
  std::size_t parts = 0;
  for (auto frame = buffer.next(); frame && *frame; frame = buffer.next()) {
    CHECK_FALSE(whole.final);
    ++parts;
    auto part = std::get<Granted>(*decode_daemon(**frame));
    std::ranges::move(part.history, std::back_inserter(whole.history));
    std::ranges::move(part.windows, std::back_inserter(whole.windows));
    whole.final = part.final;
    whole.missing = part.missing;
  }
  CHECK(parts == 3);
  REQUIRE(whole.history.size() == granted.history.size());
  for (std::size_t i = 0; i < whole.history.size(); ++i) {
    CHECK(whole.history[i].offset == i);
    CHECK(whole.history[i].checksums == granted.history[i].checksums);
  }
  CHECK(whole.windows.size() == 1);
  CHECK(whole.final);
  CHECK(whole.missing == MissReason::kExpired);
}

TEST_CASE("frames come out of a stream cut anywhere") {
  Random random(11);
  std::string stream;
  for (std::size_t i = 0; i < 50; ++i)
    REQUIRE(append_frame(random.client(i % kClientKinds), stream));
  for (std::size_t step : {1UL, 3UL, 57UL, 4096UL}) {
    FrameBuffer buffer;
    std::size_t frames = 0;
    for (std::size_t at = 0; at < stream.size(); at += step) {
      const std::size_t part = std::min(step, stream.size() - at);
      std::memcpy(buffer.reserve(part), stream.data() + at, part);
      buffer.commit(part);
      for (auto frame = buffer.next(); frame && *frame; frame = buffer.next()) {
        CHECK(decode_client(**frame));
        ++frames;
      }
    }
    CHECK(frames == 50);
  }
  FrameBuffer buffer;
  std::memcpy(buffer.reserve(4), "\xff\xff\xff\xff", 4);
  buffer.commit(4);
  CHECK_FALSE(buffer.next());
}

// UPDATE=1 writes the fuzzer's seeds: one stream of each side.
TEST_CASE("corpus") {
  if (std::getenv("UPDATE") == nullptr) return;
  const std::filesystem::path folder = "tests/corpus/kv_wire";
  std::filesystem::create_directories(folder);
  Random random(1);
  for (std::size_t kind = 0; kind < kClientKinds; ++kind) {
    std::string stream(1, '\0');
    REQUIRE(append_frame(random.client(kind), stream));
    std::ofstream(folder / ("client_" + std::to_string(kind)), std::ios::binary) << stream;
  }
  for (std::size_t kind = 0; kind < kDaemonKinds; ++kind) {
    std::string stream(1, '\1');
    REQUIRE(append_frame(random.daemon(kind), stream));
    std::ofstream(folder / ("daemon_" + std::to_string(kind)), std::ios::binary) << stream;
  }
}

}  // namespace
}  // namespace penstock::kv
