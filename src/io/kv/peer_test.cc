// Daemons of several hosts in one process, over loopback TCP.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <set>

#include "base/rng.h"
#include "io/kv/kv_session.h"
#include "io/kv/peer_server.h"
#include "io/kv/peer_tier.h"
#include "io/kv/test_daemon.h"
#include "tests/support/fake_block_tier.h"

namespace penstock::kv {
namespace {

using testing::Signal;
using testing::TestDaemon;
using testing::TestPool;

constexpr Duration kLong = std::chrono::minutes(2);  // a hang fails the test
constexpr std::uint32_t kTokens = 16;

TierNow tier_now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return {Instant(std::chrono::duration_cast<Duration>(now)), UnixSeconds(1'000'000)};
}

EngineLayout layout() {
  return {kTokens, {4096, 8192, 1000, 4096}, {}, 0};
}

std::string at_port(std::uint16_t port) {
  return "127.0.0.1:" + std::to_string(port);
}

KvServerOptions serving(std::uint64_t arena_bytes = std::uint64_t{64} << 20) {
  KvServerOptions options;
  options.arena_bytes = arena_bytes;
  options.peer_server.emplace();
  options.peer_server->listen = "127.0.0.1:0";
  options.peer_server->secret = testing::test_secret();
  return options;
}

PeerTierOptions asking(std::vector<std::string> peers) {
  PeerTierOptions options;
  options.peers = std::move(peers);
  options.secret = testing::test_secret();
  options.name = "asker";
  options.pause_min = std::chrono::milliseconds(5);
  return options;
}

// A daemon that asks others, too.
struct Host {
  std::unique_ptr<PeerTier> peers;
  TestDaemon daemon;

  explicit Host(std::vector<std::string> others, KvServerOptions options = serving(),
                BlockTier* disk = nullptr)
      : peers(*PeerTier::open(asking(std::move(others)), tier_now())),
        daemon(std::move(options), disk, peers.get()) {}
  std::string address() { return at_port(daemon.server().peer_port()); }
};

// An engine with a client and a pool.
struct Engine {
  TestPool pool;
  std::unique_ptr<KvClient> client;
  std::uint32_t pool_number = 0;
  std::uint32_t root = 0;

  Engine(const TestDaemon& daemon, std::uint32_t blocks)
      : pool(blocks, layout()), client(*KvClient::open(daemon.client_options())) {
    pool_number = *client->register_pool(pool.fd(), pool.bytes(), layout());
    root = *client->register_root(
        pool_number, {"weights", "engine 1", "bf16", "", "tenant:a", kTokens}, "model");
    REQUIRE(client->wait_connected(kLong));
  }
  std::vector<BlockKey> keys(std::uint32_t blocks, std::uint32_t seed) const {
    std::vector<TokenId> tokens(blocks * kTokens);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<TokenId>(i * 7 + seed);
    return *client->chain(root, tokens);
  }
  std::uint32_t store(const std::vector<BlockKey>& keys, std::uint32_t count) const {
    Signal done;
    REQUIRE(client->store({pool_number,
                           root,
                           keys,
                           0,
                           count,
                           pool.offsets(0, count),
                           {},
                           {},
                           "a",
                           "agent",
                           [&](std::uint32_t kept) { done.set(kept); }}));
    return done.wait();
  }
  // Loads what is there of the chain to blocks [to, ...) of the pool; returns how many there were.
  std::uint32_t get(const std::vector<BlockKey>& keys, std::uint32_t to,
                    MissReason* missing = nullptr) const {
    Signal news;
    KvRequest request;
    request.root = root;
    request.keys = keys;
    request.budget = std::chrono::seconds(30);
    request.wake = [&] { news.set(); };
    KvLease* lease = *client->acquire(std::move(request));
    news.wait_until([&] { return client->progress(*lease).final; });
    const auto progress = client->progress(*lease);
    if (missing != nullptr) *missing = progress.missing;
    const std::uint32_t count = progress.usable_blocks;
    if (count > 0) {
      REQUIRE(client->load(*lease, count, pool.places(to, count)));
      for (std::uint32_t layer = 0; layer < pool.layout().layers(); ++layer) {
        const auto result = client->wait_layer(*lease, layer, kLong);
        REQUIRE(result);
        REQUIRE(result->valid == count);
      }
    }
    client->release(lease);
    return count;
  }
  // Until a chain is found: what peers hold is told in their own time.
  std::uint32_t get_all(const std::vector<BlockKey>& keys, std::uint32_t to) const {
    for (;;) {
      if (get(keys, to) == keys.size()) return static_cast<std::uint32_t>(keys.size());
    }
  }
};

// Sockets to a daemon by way of this: what passes may be changed, held up or cut.
class Proxy {
 public:
  // May change bytes of `data`, which are those from `at` on that the daemon sends; false: cut.
  using Tamper = std::function<bool(std::span<char> data, std::size_t at)>;

  Proxy(const std::string& target, Tamper tamper)
      : target_(*sockets::resolve(target)),
        listener_(*sockets::listen_on(*sockets::resolve("127.0.0.1:0"))),
        tamper_(std::move(tamper)),
        thread_([this] { run(); }) {}
  ~Proxy() {
    stop_.wake();
    thread_.join();
  }
  std::string address() const { return at_port(sockets::port_of(listener_)); }
  std::atomic<bool> held = false;  // nothing passes
  std::atomic<std::size_t> passed = 0;

 private:
  struct Pair {
    Descriptor client, server;
    std::size_t from_server = 0;
    bool ended = false;
  };
  static bool send_all(int to, const char* data, std::size_t bytes) {
    while (bytes > 0) {
      pollfd ready{to, POLLOUT, 0};
      ::poll(&ready, 1, 1000);
      const ssize_t n = ::send(to, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EAGAIN) continue;
      if (n <= 0) return false;
      data += n;
      bytes -= static_cast<std::size_t>(n);
    }
    return true;
  }
  bool pass(Pair& pair, bool from_server) {
    std::vector<char> data(65536);
    const ssize_t n = ::recv((from_server ? pair.server : pair.client).get(), data.data(),
                             data.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;
    const auto bytes = static_cast<std::size_t>(n);
    if (from_server && !tamper_({data.data(), bytes}, pair.from_server)) return false;
    if (from_server) pair.from_server += bytes;
    passed += bytes;
    return send_all((from_server ? pair.client : pair.server).get(), data.data(), bytes);
  }
  void run() {
    for (;;) {
      std::vector<pollfd> fds{{stop_.fd(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs_) {
        const short events = held ? short{0} : short{POLLIN};
        fds.push_back({pair.client.get(), events, 0});
        fds.push_back({pair.server.get(), events, 0});
      }
      ::poll(fds.data(), fds.size(), 5);
      if ((fds[0].revents & POLLIN) != 0) return;
      for (std::size_t i = 0; i < pairs_.size(); ++i) {
        Pair& pair = pairs_[i];
        if (fds[2 + 2 * i].revents != 0 && !held) pair.ended |= !pass(pair, false);
        if (fds[3 + 2 * i].revents != 0 && !held) pair.ended |= !pass(pair, true);
      }
      std::erase_if(pairs_, [](const Pair& pair) { return pair.ended; });
      if ((fds[1].revents & POLLIN) != 0) {
        Descriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        auto server = sockets::start_connecting(target_);
        if (client.get() >= 0 && server) {
          pollfd ready{server->get(), POLLOUT, 0};
          ::poll(&ready, 1, 1000);
          pairs_.push_back({std::move(client), std::move(*server)});
        }
      }
    }
  }

  sockets::TcpAddress target_;
  Descriptor listener_;
  Tamper tamper_;
  sockets::WakeEvent stop_;
  std::vector<Pair> pairs_;
  std::thread thread_;
};

// A tier driven by the test, and what its reads came to.
struct Asker {
  std::unique_ptr<PeerTier> tier;
  std::vector<std::byte> memory;
  std::vector<MissReason> ends;
  std::vector<BlockInfo> infos;

  explicit Asker(PeerTierOptions options) : tier(*PeerTier::open(std::move(options), tier_now())) {}

  void turn(TierNow now) const {
    pollfd ready{tier->event_fd(), POLLIN, 0};
    ::poll(&ready, 1, 20);
    std::vector<TierRemoval> removals;
    tier->poll(now, removals);
  }
  template <typename Condition>
  void until(Condition condition) {
    while (!condition())
      turn(tier_now());
  }
  void read(const BlockInfo& asked, std::span<std::byte> to) {
    const std::size_t index = ends.size();
    ends.push_back(MissReason::kNotAdmitted);  // stands for "not yet"
    infos.emplace_back();
    tier->read({asked.name, to,
                [this, index](MissReason reason, const BlockInfo& info) {
                  REQUIRE(ends[index] == MissReason::kNotAdmitted);
                  ends[index] = reason;
                  infos[index] = info;
                },
                asked});
  }
  bool done() const { return std::ranges::count(ends, MissReason::kNotAdmitted) == 0; }
};

BlockInfo wanted(BlockKey key, BlockKey parent, BlockKey root, std::uint32_t depth) {
  BlockInfo info;
  info.name = {key, KvGroup::kHistory};
  info.parent = parent;
  info.root = root;
  info.depth = depth;
  return info;
}

}  // namespace

TEST_CASE("what one host stored is served by another, byte for byte") {
  Host first({});
  Host second({first.address()});
  constexpr std::uint32_t kBlocks = 100;
  const Engine writer(first.daemon, kBlocks);
  const Engine reader(second.daemon, 2 * kBlocks);
  writer.pool.fill(0, kBlocks, 1);
  reader.pool.fill(0, kBlocks, 1);
  const auto keys = writer.keys(kBlocks, 1);
  REQUIRE(writer.store(keys, kBlocks) == kBlocks);
  reader.get_all(keys, kBlocks);
  CHECK(reader.pool.same(0, kBlocks, kBlocks));
  // It is here now: the other may go.
  first.daemon.stop();
  std::memset(reader.pool.block(kBlocks).data(), 0, kBlocks * reader.pool.block_bytes());
  CHECK(reader.get(keys, kBlocks) == kBlocks);
  CHECK(reader.pool.same(0, kBlocks, kBlocks));
}

TEST_CASE("hosts that list each other answer from their own tiers only") {
  Host first({});
  Host second({first.address()});
  Host third({second.address()});
  const Engine writer(first.daemon, 4);
  const Engine reader(second.daemon, 8);
  const Engine far(third.daemon, 8);
  writer.pool.fill(0, 4, 2);
  const auto keys = writer.keys(4, 2);
  REQUIRE(writer.store(keys, 4) == 4);
  // The third asks the second, which does not ask the first.
  MissReason missing = MissReason::kNone;
  far.pool.fill(0, 4, 2);
  CHECK(far.get(keys, 4, &missing) == 0);
  CHECK(missing == MissReason::kNeverStored);
  reader.get_all(keys, 4);
  far.get_all(keys, 4);  // now it holds them itself
  CHECK(far.pool.same(0, 4, 4));
}

TEST_CASE("a block that is on the other host's disk only is loaded there") {
  penstock::testing::FakeBlockTier disk;
  BlockInfo info = wanted({{1}}, {{9}}, {{9}}, 0);
  std::vector<std::byte> payload(5000);
  for (std::size_t i = 0; i < payload.size(); ++i)
    payload[i] = static_cast<std::byte>(i * 31);
  const std::span<const std::byte> bytes(payload);
  info.slices = {{4000, checksum64(bytes.first(4000))}, {1000, checksum64(bytes.subspan(4000))}};
  disk.put(info, payload);
  Host host({}, serving(), &disk);
  Asker asker(asking({host.address()}));
  asker.until([&] { return asker.tier->contains(info.name); });
  CHECK(asker.tier->size_of(info.name) == 5000U);
  std::vector<std::byte> to(8192);
  asker.read(wanted({{1}}, {{9}}, {{9}}, 0), to);
  asker.read(wanted({{2}}, {{9}}, {{9}}, 0), to);  // nobody has it
  asker.until([&] { return asker.done(); });
  CHECK(asker.ends[0] == MissReason::kNone);
  CHECK(asker.infos[0].slices == info.slices);
  CHECK(std::equal(payload.begin(), payload.end(), to.begin()));
  CHECK(asker.ends[1] == MissReason::kTierOff);
}

TEST_CASE("a bit that flips on the wire is a miss, and the copy is not asked for again") {
  Host first({});
  std::atomic<bool> flip = false;
  Proxy proxy(first.address(), [&](std::span<char> data, std::size_t) {
    if (flip && data.size() > 4096) data[data.size() / 2] ^= 1;
    return true;
  });
  Host second({proxy.address()});
  const Engine writer(first.daemon, 8);
  const Engine reader(second.daemon, 16);
  writer.pool.fill(0, 8, 3);
  reader.pool.fill(0, 8, 3);
  const auto keys = writer.keys(8, 3);
  REQUIRE(writer.store(keys, 8) == 8);
  const auto warm = writer.keys(1, 4);
  REQUIRE(writer.store(warm, 1) == 1);
  reader.get_all(warm, 8);  // by now the second knows what the first holds
  flip = true;
  MissReason missing = MissReason::kNone;
  const std::uint32_t got = reader.get(keys, 8, &missing);
  CHECK(got < 8);
  // The payload was hit, or a header, which ends the connection.
  CHECK((missing == MissReason::kCorrupt || missing == MissReason::kIoError));
  CHECK(reader.pool.same(0, 8, got));
}

TEST_CASE("a peer whose copy is damaged is told, looks at it and drops it") {
  Host first({});
  Host second({first.address()});
  const Engine writer(first.daemon, 8);
  const Engine reader(second.daemon, 16);
  writer.pool.fill(0, 8, 3);
  reader.pool.fill(0, 8, 3);
  const auto keys = writer.keys(8, 3);
  REQUIRE(writer.store(keys, 8) == 8);
  const auto warm = writer.keys(1, 4);
  writer.pool.fill(0, 1, 9);
  REQUIRE(writer.store(warm, 1) == 1);
  reader.get_all(warm, 8);  // by now the second knows what the first holds
  // Block 5 in the first's memory.
  const std::span<std::byte> arena = first.daemon.server().arena();
  const std::span<std::byte> wanted = writer.pool.block(5);
  const auto at = std::search(arena.begin(), arena.end(), wanted.begin(), wanted.begin() + 64);
  REQUIRE(at != arena.end());
  *(at + 5000) ^= std::byte{16};
  MissReason missing = MissReason::kNone;
  CHECK(reader.get(keys, 8, &missing) == 5);
  CHECK(missing == MissReason::kCorrupt);
  CHECK(reader.pool.same(0, 8, 5));
  const auto session = KvSession::connect(first.daemon.socket(), "tool", "test", {}, kLong);
  REQUIRE(session);
  const auto reports = [&] { return *(*session)->admin("stat", "{}", kLong); };
  while (reports().find(R"("reports":{"count":1,"by_peers":1,"confirmed":1})") == std::string::npos)
    std::this_thread::yield();
  // Its own engine computes from there on, as everybody.
  CHECK(writer.get(keys, 0) == 5);
}

TEST_CASE("the name of a peer is looked up again each time it is connected to") {
  Host first({});
  std::atomic<int> asked = 0;
  std::atomic<std::uint16_t> port = 0;
  PeerTierOptions options = asking({"b.example:7400"});
  options.resolve = [&](const std::string& name) -> Result<sockets::TcpAddress> {
    CHECK(name == "b.example:7400");
    if (++asked <= 2) return fail(ErrorCode::kInvalidArgument, "nobody knows that name yet");
    return sockets::resolve(at_port(port));
  };
  port = first.daemon.server().peer_port();
  Asker asker(options);
  asker.until([&] { return asker.tier->ready() == 1; });
  CHECK(asked == 3);
  // It moves: another port, as it could be another address.
  first.daemon.stop();
  asker.until([&] { return asker.tier->ready() == 0; });
  first.daemon.start();
  const std::uint16_t before = port.exchange(first.daemon.server().peer_port());
  CHECK(before != port);
  asker.until([&] { return asker.tier->ready() == 1; });
  CHECK(asked > 3);
  for (const char* bad : {"", "host", ":7400", "host:"}) {
    const auto refused = PeerTier::open(asking({bad}), tier_now());
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("another secret is refused on either side, and nothing is told") {
  std::vector<std::string> lines;
  std::mutex mutex;
  const auto note = [&](std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  };
  KvServerOptions options = serving();
  options.peer_server->log = note;
  Host host({}, options);
  PeerTierOptions other = asking({host.address()});
  other.secret[0] ^= 1;
  other.log = note;
  Asker asker(other);
  const auto said = [&](std::string_view text) {
    const std::lock_guard lock(mutex);
    return std::ranges::any_of(
        lines, [&](const std::string& line) { return line.find(text) != std::string::npos; });
  };
  asker.until([&] { return said("another deployment secret"); });
  CHECK(asker.tier->ready() == 0);

  // A client that does not look at the server's proof and makes its own up.
  Descriptor socket = *sockets::start_connecting(*sockets::resolve(host.address()));
  pollfd ready{socket.get(), POLLOUT, 0};
  ::poll(&ready, 1, 10'000);
  const auto say = [&](peer::Header header, std::string_view body) {
    const std::string bytes = peer::frame(header, body);
    REQUIRE(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  };
  std::string input;
  const auto hear = [&]() -> std::pair<peer::Header, std::string> {
    for (;;) {
      if (input.size() >= peer::kHeaderBytes) {
        const auto header = *peer::decode_header(std::string_view(input).substr(0, 32));
        if (input.size() >= 32 + header.length) {
          std::string body = input.substr(32, header.length);
          input.erase(0, 32 + header.length);
          return {header, body};
        }
      }
      char bytes[4096];
      pollfd readable{socket.get(), POLLIN, 0};
      ::poll(&readable, 1, 10'000);
      const ssize_t n = ::recv(socket.get(), bytes, sizeof bytes, 0);
      REQUIRE(n > 0);
      input.append(bytes, static_cast<std::size_t>(n));
    }
  };
  say({peer::Op::kHello, 0, 0, 0}, peer::hello_body({peer::random_nonce(), "liar"}));
  const auto [header, body] = hear();
  CHECK(header.op == peer::Op::kChallenge);
  // The server's own proof is no proof of the client.
  say({peer::Op::kProof, 0, header.epoch, 0},
      peer::proof_body(peer::decode_challenge(body)->proof));
  const auto [last, why] = hear();
  CHECK(last.op == peer::Op::kGoodbye);
  CHECK(why.find("secret differs") != std::string::npos);
}

TEST_CASE("a peer that dies or stands still in mid transfer costs misses, and is used again") {
  Host first({});
  std::atomic<std::size_t> cut_after = SIZE_MAX;
  Proxy proxy(first.address(), [&](std::span<char>, std::size_t at) { return at < cut_after; });
  const Engine writer(first.daemon, 64);
  writer.pool.fill(0, 64, 5);
  const auto keys = writer.keys(64, 5);
  REQUIRE(writer.store(keys, 64) == 64);
  const BlockKey root = kvcache::KeyChain(testing::test_secret())
                            .root({"weights", "engine 1", "bf16", "", "tenant:a", kTokens})
                            .value();
  PeerTierOptions options = asking({proxy.address()});
  options.connections = 1;
  Asker asker(options);
  const BlockName last{keys.back(), KvGroup::kHistory};
  const std::uint64_t stride = 20480;
  std::vector<std::byte> memory(64 * stride);
  const auto read_all = [&] {
    asker.ends.clear();
    asker.infos.clear();
    for (std::uint32_t i = 0; i < 64; ++i)
      asker.read(wanted(keys[i], i == 0 ? root : keys[i - 1], root, i),
                 std::span(memory).subspan(i * stride, stride));
  };
  const auto good = [&] { return std::ranges::count(asker.ends, MissReason::kNone); };

  asker.until([&] { return asker.tier->contains(last); });
  cut_after = 400'000;  // in the midst of the payloads
  read_all();
  asker.until([&] { return asker.done(); });
  CHECK(good() < 64);
  CHECK(std::ranges::count(asker.ends, MissReason::kIoError) > 0);
  CHECK(!asker.tier->contains(last));

  cut_after = SIZE_MAX;
  asker.until([&] { return asker.tier->contains(last); });
  proxy.held = true;
  const std::size_t before = proxy.passed;
  read_all();
  asker.turn(tier_now());
  TierNow later = tier_now();
  later.now += std::chrono::seconds(2);  // as if it had been silent that long
  asker.turn(later);
  CHECK(asker.done());
  CHECK(std::ranges::count(asker.ends, MissReason::kTooSlow) == 64);
  CHECK(proxy.passed == before);
  CHECK(!asker.tier->contains(last));

  proxy.held = false;
  asker.until([&] { return asker.tier->contains(last); });
  read_all();
  asker.until([&] { return asker.done(); });
  CHECK(good() == 64);
  for (std::uint32_t i = 0; i < 64; ++i)
    REQUIRE(std::memcmp(memory.data() + i * stride, writer.pool.block(i).data(),
                        writer.pool.block_bytes()) == 0);
}

TEST_CASE("100 blocks of mixed sizes arrive whole, over bytes under way and more connections") {
  penstock::testing::FakeBlockTier disk;
  Rng rng(7);
  struct Sample {
    BlockInfo info;
    std::vector<std::byte> payload;
  };
  std::vector<Sample> samples;
  for (std::uint32_t i = 0; i < 100; ++i) {
    Sample sample;
    sample.info = wanted({{static_cast<std::uint8_t>(i + 1)}}, {{200}}, {{200}}, 0);
    const std::size_t slices = 1 + rng.below(9);
    for (std::size_t slice = 0; slice < slices; ++slice) {
      std::vector<std::byte> bytes(1 + rng.below(i % 5 == 0 ? 200'000 : 3000));
      for (std::byte& b : bytes)
        b = static_cast<std::byte>(rng.next_u64());
      sample.info.slices.push_back({static_cast<std::uint32_t>(bytes.size()), checksum64(bytes)});
      sample.payload.insert(sample.payload.end(), bytes.begin(), bytes.end());
    }
    disk.put(sample.info, sample.payload);
    samples.push_back(std::move(sample));
  }
  KvServerOptions options = serving(std::uint64_t{512} << 20);
  Host host({}, options, &disk);
  PeerTierOptions small = asking({host.address()});
  small.under_way_max = 100'000;
  Asker asker(small);
  asker.until([&] {
    return std::ranges::all_of(samples,
                               [&](const Sample& s) { return asker.tier->contains(s.info.name); });
  });
  std::vector<std::vector<std::byte>> to;
  for (const Sample& sample : samples)
    to.emplace_back((sample.payload.size() + 4095) / 4096 * 4096);
  for (std::size_t i = 0; i < samples.size(); ++i)
    asker.read(wanted(samples[i].info.name.key, {{200}}, {{200}}, 0), to[i]);
  asker.until([&] { return asker.done(); });
  for (std::size_t i = 0; i < samples.size(); ++i) {
    CAPTURE(i);
    REQUIRE(asker.ends[i] == MissReason::kNone);
    CHECK(asker.infos[i].slices == samples[i].info.slices);
    CHECK(std::equal(samples[i].payload.begin(), samples[i].payload.end(), to[i].begin()));
  }
}

}  // namespace penstock::kv
