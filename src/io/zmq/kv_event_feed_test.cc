// Against publishers over real ZeroMQ sockets that do as the engines do: PUB for events, ROUTER for
// replays out of a buffer of the last messages.
#include "io/zmq/kv_event_feed.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/rng.h"
#include "core/dialects/kv_events.h"
#include "core/dialects/msgpack_writer.h"
#include "io/zmq/kv_event_publisher.h"

#include <doctest/doctest.h>

namespace penstock::zmq {
namespace {

using kvcache::RankOfWorker;

constexpr std::uint32_t kBlockTokens = 16;
constexpr RankOfWorker kRank{WorkerId(1), 0};

std::vector<TokenId> tokens_of(std::uint64_t seed, std::size_t count) {
  Rng rng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens)
    token = static_cast<TokenId>(rng.below(100'000));
  return tokens;
}

// Names of blocks as a run of an engine makes them up.
std::uint64_t hash_of(std::uint64_t run, std::span<const TokenId> prefix) {
  std::uint64_t hash = run;
  for (const TokenId token : prefix)
    hash = Rng(hash ^ token).next_u64();
  return hash;
}

enum class Encoding : std::uint8_t { kArrays, kMaps };

// The blocks [first, last) of a prompt, stored.
std::string stored(std::uint64_t run, std::span<const TokenId> prompt, std::size_t first,
                   std::size_t last, Encoding encoding = Encoding::kArrays) {
  dialects::MsgpackWriter out;
  const auto name = [&](std::string_view field) {
    if (encoding == Encoding::kMaps) out.text(field);
  };
  out.array(3).real(static_cast<double>(run)).array(1);
  encoding == Encoding::kMaps ? out.map(5) : out.array(5);
  name("type");
  out.text("BlockStored");
  name("block_hashes");
  out.array(last - first);
  for (std::size_t i = first; i < last; ++i)
    out.number(hash_of(run, prompt.first((i + 1) * kBlockTokens)));
  name("parent_block_hash");
  first == 0 ? out.nil() : out.number(hash_of(run, prompt.first(first * kBlockTokens)));
  name("token_ids");
  out.array((last - first) * kBlockTokens);
  for (const TokenId token : prompt.subspan(first * kBlockTokens, (last - first) * kBlockTokens))
    out.number(token);
  name("block_size");
  out.number(kBlockTokens).number(0);
  return out.bytes();
}

std::string cleared() {
  dialects::MsgpackWriter out;
  out.array(3).real(1).array(1).array(1).text("AllBlocksCleared").nil();
  return out.bytes();
}

class Publisher {
 public:
  explicit Publisher(std::size_t buffer, std::string events = "tcp://127.0.0.1:*",
                     std::string replay = "tcp://127.0.0.1:*")
      : buffer_(buffer) {
    events_ = bind(ZMQ_XPUB, events);  // as PUB, and tells of subscribers
    replay_ = bind(ZMQ_ROUTER, replay);
    events_endpoint = std::move(events);
    replay_endpoint = std::move(replay);
  }
  ~Publisher() {
    zmq_close(events_);
    zmq_close(replay_);
  }
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  enum class Wire : std::uint8_t { kSent, kLost };
  void publish(std::string payload, Wire wire = Wire::kSent) {
    const auto sequence = dialects::sequence_frame(next_);
    if (wire == Wire::kSent) {
      send(events_, "kv@pod@model", true);
      send(events_, {sequence.data(), 8}, true);
      send(events_, payload, false);
    }
    kept_.emplace_back(next_++, std::move(payload));
    if (kept_.size() > buffer_) kept_.pop_front();
  }
  // A message of other frames.
  void publish_frame(std::string_view frame) { send(events_, frame, false); }

  // Hears of subscribers, and answers a replay if one is asked for.
  void serve() {
    std::vector<std::string> frames;
    if (receive(events_, frames)) has_subscriber = frames[0].starts_with('\x01');
    if (!receive(replay_, frames)) return;
    REQUIRE(frames.size() == 3);  // identity, empty, start
    const auto start = dialects::read_sequence(frames[2]);
    REQUIRE(start.has_value());
    ++replays;
    for (const auto& [number, payload] : kept_) {
      if (number >= *start) answer(frames[0], number, payload);
    }
    answer(frames[0], dialects::kReplayEnd, "");
  }

  std::string events_endpoint;
  std::string replay_endpoint;
  bool has_subscriber = false;
  int replays = 0;

 private:
  void* bind(int type, std::string& endpoint) {
    void* const socket = zmq_socket(context_.get(), type);
    const int linger = 0;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    // The address of one that has just gone may be taken for a moment.
    int bound = -1;
    for (int i = 0; i < 500 && bound != 0; ++i) {
      bound = zmq_bind(socket, endpoint.c_str());
      if (bound != 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    REQUIRE(bound == 0);
    char name[256];
    std::size_t size = sizeof name;
    REQUIRE(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, name, &size) == 0);
    endpoint = name;
    return socket;
  }
  static void send(void* socket, std::string_view frame, bool more) {
    REQUIRE(zmq_send(socket, frame.data(), frame.size(), more ? ZMQ_SNDMORE : 0) >= 0);
  }
  void answer(std::string_view to, std::uint64_t sequence, std::string_view payload) {
    const auto number = dialects::sequence_frame(sequence);
    send(replay_, to, true);
    send(replay_, "", true);
    send(replay_, {number.data(), 8}, true);
    send(replay_, payload, false);
  }
  static bool receive(void* socket, std::vector<std::string>& frames) {
    frames.clear();
    for (bool more = true; more;) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      const int size = zmq_msg_recv(&message, socket, ZMQ_DONTWAIT);
      if (size < 0) return false;
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)),
                          static_cast<std::size_t>(size));
      more = zmq_msg_more(&message) != 0;
      zmq_msg_close(&message);
    }
    return true;
  }

  ZmqContext context_;
  std::size_t buffer_;
  void* events_ = nullptr;
  void* replay_ = nullptr;
  std::uint64_t next_ = 0;
  std::deque<std::pair<std::uint64_t, std::string>> kept_;
};

struct Rig {
  std::mutex log_mutex;
  std::string logged;
  KvEventFeed feed;
  kvcache::EngineIndex::Scratch scratch;

  explicit Rig(Duration silent_after = std::chrono::minutes(10),
               Duration replay_time_max = std::chrono::minutes(1))
      : feed({.seed = 5,
              .replay_time_max = replay_time_max,
              .replay_pause = std::chrono::milliseconds(10),
              .silent_after = silent_after,
              .log = [this](std::string_view text) {
                const std::lock_guard lock(log_mutex);
                logged += std::string(text) + '\n';
              }}) {}

  void follow(const Publisher& publisher, bool with_replay = true) {
    REQUIRE(feed.add({kRank, "vllm-0", publisher.events_endpoint,
                      with_replay ? publisher.replay_endpoint : "", "kv@"}));
  }
  std::uint32_t held(std::span<const TokenId> prompt) {
    std::vector<kvcache::RoutingKey> keys;
    feed.chain().extend(feed.chain().root(0), prompt, {}, keys);
    const auto found = feed.match(keys, scratch);
    return found.empty() ? 0 : found[0].device;
  }
  KvEventReport report() { return feed.report().at(0); }
  bool has_logged(std::string_view text) {
    const std::lock_guard lock(log_mutex);
    return logged.find(text) != std::string::npos;
  }
  // Serves the publisher until it is so. A hang fails.
  template <typename Condition>
  void wait(Publisher* publisher, const Condition& condition) {
    for (int i = 0; i < 12'000; ++i) {
      if (publisher != nullptr) publisher->serve();
      if (condition()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    FAIL("waited for a minute");
  }
  void wait_connected(Publisher& publisher) {
    wait(&publisher,
         [&] { return publisher.has_subscriber && publisher.replays > 0 && report().replays > 0; });
  }
};

TEST_CASE("events of both encodings are followed, from what was stored before on") {
  const auto prompt = tokens_of(1, 320);
  Publisher engine(100);
  engine.publish(stored(1, prompt, 0, 5));
  Rig rig;
  rig.follow(engine);
  rig.wait(&engine, [&] { return rig.held(prompt) == 80; });
  rig.wait_connected(engine);
  engine.publish(stored(1, prompt, 5, 12, Encoding::kMaps));
  rig.wait(&engine, [&] { return rig.held(prompt) == 192; });
  CHECK(rig.feed.blocks() == 12);
  CHECK(rig.report().blocks == 12);
  CHECK(rig.report().connections == 1);
  CHECK(rig.report().stream.purges == 0);
  engine.publish(cleared());
  rig.wait(&engine, [&] { return rig.held(prompt) == 0; });
  rig.feed.remove(kRank);
  CHECK(rig.feed.report().empty());
}

TEST_CASE("lost messages are asked for again; what is gone for good purges") {
  const auto prompt = tokens_of(2, 640);
  Publisher engine(4);
  Rig rig;
  rig.follow(engine);
  rig.wait_connected(engine);
  engine.publish(stored(1, prompt, 0, 5));
  rig.wait(&engine, [&] { return rig.held(prompt) == 80; });
  engine.publish(stored(1, prompt, 5, 10), Publisher::Wire::kLost);
  engine.publish(stored(1, prompt, 10, 15));
  rig.wait(&engine, [&] { return rig.held(prompt) == 240; });
  CHECK(rig.report().stream.gaps >= 1);
  CHECK(rig.report().stream.purges == 0);
  // More is lost than the publisher keeps: what is held is not known any more.
  for (std::size_t i = 15; i < 25; ++i)
    engine.publish(stored(1, prompt, i, i + 1), Publisher::Wire::kLost);
  engine.publish(cleared());
  const auto other = tokens_of(3, 64);
  engine.publish(stored(1, other, 0, 4));
  rig.wait(&engine, [&] { return rig.held(other) == 64; });
  CHECK(rig.held(prompt) == 0);
  CHECK(rig.report().stream.purges == 1);
}

TEST_CASE("without a replay endpoint a gap purges, and so does one that does not answer") {
  for (const bool with_replay : {false, true}) {
    const auto prompt = tokens_of(4, 320);
    Publisher engine(100);
    Rig rig(std::chrono::minutes(10), std::chrono::milliseconds(100));
    rig.follow(engine, with_replay);
    rig.wait(&engine, [&] { return engine.has_subscriber && rig.report().connections == 1; });
    // The first messages may come before the subscription has.
    const auto other = tokens_of(5, 64);
    rig.wait(&engine, [&] {
      engine.publish(stored(1, prompt, 0, 5));
      return rig.held(prompt) == 80;
    });
    engine.publish(stored(1, prompt, 5, 10), Publisher::Wire::kLost);
    engine.publish(stored(1, prompt, 10, 15));
    rig.wait(nullptr, [&] { return rig.held(prompt) == 0; });
    engine.publish(stored(1, other, 0, 4));
    rig.wait(nullptr, [&] {
      if (rig.held(other) == 64) return true;
      engine.publish(stored(1, other, 0, 4));
      return false;
    });
    CHECK(rig.has_logged("no answer") == with_replay);
  }
}

TEST_CASE("an engine that restarts at the same address holds nothing of before") {
  const auto before = tokens_of(6, 64);
  const auto after = tokens_of(7, 64);
  Rig rig;
  auto engine = std::make_unique<Publisher>(100);
  const std::string events = engine->events_endpoint;
  const std::string replay = engine->replay_endpoint;
  engine->publish(stored(1, before, 0, 4));
  rig.follow(*engine);
  rig.wait(engine.get(), [&] { return rig.held(before) == 64; });
  engine.reset();
  engine = std::make_unique<Publisher>(100, events, replay);
  // As far as the old one, so that numbers don't tell.
  engine->publish(stored(2, after, 0, 4));
  rig.wait(engine.get(), [&] { return rig.held(after) == 64; });
  CHECK(rig.held(before) == 0);
  CHECK(rig.report().connections == 2);
  CHECK(rig.report().stream.restarts == 1);
}

TEST_CASE("an engine that gets prompts and says nothing is told of") {
  Publisher engine(100);
  Rig rig(std::chrono::milliseconds(50));
  rig.follow(engine);
  rig.wait_connected(engine);
  CHECK_FALSE(rig.report().silent);
  rig.feed.sent_prompt(kRank);
  rig.wait(&engine, [&] { return rig.report().silent; });
  rig.wait(&engine, [&] { return rig.has_logged("--kv-events-config"); });
  engine.publish(stored(1, tokens_of(8, 64), 0, 4));
  rig.wait(&engine, [&] { return !rig.report().silent; });
}

TEST_CASE("a publisher of ours is followed as the engines' are: replays, losses, another run") {
  const auto prompt = tokens_of(10, 320);
  KvEventPublisherOptions options{
      .events = "tcp://127.0.0.1:*", .replay = "tcp://127.0.0.1:*", .topic = "kv@m", .kept_max = 3};
  auto started = KvEventPublisher::start(options);
  REQUIRE(started.has_value());
  auto engine = std::move(*started);
  Rig rig;
  const auto wait = [&](const auto& condition) { rig.wait(nullptr, condition); };
  engine->publish(stored(1, prompt, 0, 5));
  REQUIRE(
      rig.feed.add({kRank, "ours", engine->events_endpoint(), engine->replay_endpoint(), "kv@"}));
  wait([&] { return rig.held(prompt) == 80; });
  // Until the subscription is there, what is published is lost, too; the next message shows it.
  wait([&] {
    engine->publish(stored(1, prompt, 0, 5));
    engine->publish(stored(1, prompt, 5, 10), KvEventPublisher::Wire::kLost);
    engine->publish(stored(1, prompt, 10, 15));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return rig.held(prompt) == 240;
  });
  // More is lost than is kept.
  const auto other = tokens_of(11, 96);
  for (std::size_t i = 0; i < 5; ++i)
    engine->publish(stored(1, other, i, i + 1), KvEventPublisher::Wire::kLost);
  engine->publish(stored(1, prompt, 0, 1));
  wait([&] { return rig.held(prompt) == 16; });
  CHECK(rig.report().stream.purges >= 1);
  // The address is taken while the first one has it.
  options.events = engine->events_endpoint();
  options.replay = engine->replay_endpoint();
  CHECK_FALSE(KvEventPublisher::start(options).has_value());
  engine.reset();
  for (int i = 0; i < 500 && !engine; ++i) {
    if (auto again = KvEventPublisher::start(options)) engine = std::move(*again);
    if (!engine) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  REQUIRE(engine != nullptr);
  engine->publish(stored(2, other, 0, 4));
  wait([&] { return rig.held(other) == 64; });
  CHECK(rig.held(prompt) == 0);
}

TEST_CASE("messages that can't be read are counted, and following goes on") {
  const auto prompt = tokens_of(9, 64);
  Publisher engine(100);
  Rig rig;
  rig.follow(engine, false);
  rig.wait(&engine, [&] { return engine.has_subscriber && rig.report().connections == 1; });
  rig.wait(&engine, [&] {
    engine.publish("no msgpack");
    engine.publish_frame("kv@alone");
    return rig.report().unreadable >= 2;
  });
  CHECK(rig.has_logged("KV events of vllm-0"));
  rig.wait(&engine, [&] {
    engine.publish(stored(1, prompt, 0, 4));
    return rig.held(prompt) == 64;
  });
}

TEST_CASE("endpoints that can't be connected to are refused with a reason") {
  KvEventFeed feed({});
  for (const std::string bad : {"", "http://host:1", "tcp://host", "tcp://*:5557", "tcp://:5557",
                                "tcp://host:0", "tcp://host:65536", "tcp://host:x", "ipc://"}) {
    CAPTURE(bad);
    const Status status = feed.add({kRank, "x", bad, "", ""});
    REQUIRE_FALSE(status.has_value());
    CHECK(status.error().message.find("tcp://HOST:PORT") != std::string::npos);
  }
  CHECK_FALSE(feed.add({kRank, "x", "tcp://127.0.0.1:1", "bad", ""}).has_value());
  CHECK(check_endpoint("tcp://[::1]:5557").has_value());
}

}  // namespace
}  // namespace penstock::zmq
