// Server and clients in one process, over real sockets and shared memory.
#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>

#include "io/kv/kv_codec.h"
#include "io/kv/kv_session.h"
#include "io/kv/test_daemon.h"
#include "io/sockets/unix_socket.h"

namespace penstock::kv {
namespace {

using testing::Signal;
using testing::TestDaemon;
using testing::TestPool;

constexpr Duration kLong = std::chrono::minutes(2);  // a hang fails the test
constexpr std::uint32_t kTokens = 16;

EngineLayout plain_layout() {
  return {kTokens, {4096, 8192, 1000, 4096}, {}, 0};
}

// Layers 1 and 3 slide over two blocks.
EngineLayout window_layout() {
  return {kTokens, {4096, 2048, 1000, 4096}, {false, true, false, true}, 2 * kTokens};
}

kvcache::KvRootFields fields(std::string scope = "tenant:a") {
  return {"weights", "engine 1", "bf16", "", std::move(scope), kTokens};
}

std::vector<TokenId> tokens(std::uint32_t blocks, std::uint32_t seed) {
  std::vector<TokenId> out(blocks * kTokens);
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<TokenId>(i * 7 + seed);
  return out;
}

// A client with a pool of `blocks` blocks.
struct Engine {
  TestPool pool;
  std::unique_ptr<KvClient> client;
  std::uint32_t pool_number = 0;
  std::uint32_t root = 0;

  Engine(const KvClientOptions& options, std::uint32_t blocks,
         const EngineLayout& layout = plain_layout(), const std::string& scope = "tenant:a")
      : pool(blocks, layout), client(*KvClient::open(options)) {
    pool_number = *client->register_pool(pool.fd(), pool.bytes(), layout);
    root = *client->register_root(pool_number, fields(scope), "model");
  }
  Engine(const TestDaemon& daemon, std::uint32_t blocks,
         const EngineLayout& layout = plain_layout(), const std::string& scope = "tenant:a")
      : Engine(daemon.client_options(), blocks, layout, scope) {
    REQUIRE(client->wait_connected(kLong));
  }

  std::vector<BlockKey> keys(std::uint32_t blocks, std::uint32_t seed) const {
    return *client->chain(root, tokens(blocks, seed));
  }
  // Offers blocks [0, count) of the pool as the chain `keys`; returns how many were kept.
  std::uint32_t store(const std::vector<BlockKey>& keys, std::uint32_t count,
                      std::vector<std::uint32_t> windows = {}) const {
    Signal done;
    REQUIRE(client->store({pool_number,
                           root,
                           keys,
                           0,
                           count,
                           pool.offsets(0, count),
                           windows,
                           {},
                           "a",
                           "agent",
                           [&](std::uint32_t kept) { done.set(kept); }}));
    return done.wait();
  }
  KvLease* acquire(const std::vector<BlockKey>& keys, Signal* news = nullptr,
                   Duration budget = std::chrono::seconds(30)) const {
    KvRequest request;
    request.root = root;
    request.keys = keys;
    request.budget = budget;
    if (news != nullptr) request.wake = [news] { news->set(); };
    return *client->acquire(std::move(request));
  }
  // Acquires and waits for the end of the fetch.
  KvLease* fetch(const std::vector<BlockKey>& keys, Signal& news) const {
    KvLease* lease = acquire(keys, &news);
    news.wait_until([&] { return client->progress(*lease).final; });
    return lease;
  }
  // Blocks usable once they are other than `before`: the daemon looks at a reported copy between
  // messages.
  std::uint32_t usable_after(std::uint32_t before, const std::vector<BlockKey>& keys) const {
    std::uint32_t now = before;
    while (now == before) {
      Signal news;
      KvLease* lease = fetch(keys, news);
      now = client->progress(*lease).usable_blocks;
      client->release(lease);
    }
    return now;
  }
  // Loads `count` blocks to [to, ...) and waits for the last layer.
  std::uint32_t load(KvLease* lease, std::uint32_t count, std::uint32_t to) const {
    REQUIRE(client->load(*lease, count, pool.places(to, count)));
    const auto last = static_cast<std::uint32_t>(pool.layout().layers() - 1);
    const auto result = client->wait_layer(*lease, last, kLong);
    REQUIRE(result);
    REQUIRE(result->ready);
    return result->valid;
  }
};

// A session without a client: bytes as they are.
class Raw {
 public:
  explicit Raw(const TestDaemon& daemon)
      : socket_(std::move(*sockets::connect_to(daemon.socket()))) {}

  void send(const ClientMessage& message, int descriptor = -1) {
    std::string frame;
    REQUIRE(append_frame(message, frame));
    send_bytes(frame, descriptor);
  }
  void send_bytes(std::string_view bytes, int descriptor = -1) {
    sockets::SendQueue queue;
    queue.push(bytes, descriptor);
    for (auto sent = queue.flush(socket_.get()); sent && !*sent; sent = queue.flush(socket_.get()))
      wait(POLLOUT);
  }
  // The next message; nullopt at the end of the session.
  std::optional<DaemonMessage> next() {
    for (;;) {
      const auto frame = input_.next();
      REQUIRE(frame);
      if (*frame) return *decode_daemon(**frame);
      wait(POLLIN);
      const auto got = sockets::receive(socket_.get(), input_.reserve(65536), 65536, descriptors_);
      if (!got || (*got && **got == 0)) return std::nullopt;
      if (*got) input_.commit(**got);
    }
  }
  template <typename Message>
  Message expect() {
    for (;;) {
      auto message = next();
      REQUIRE(message);
      if (auto* wanted = std::get_if<Message>(&*message)) return std::move(*wanted);
    }
  }
  void hello() {
    send(Hello{kKvProtocolVersion, "worker", "raw", ::getpid(),
               kvcache::KeyChain(testing::test_secret()).key_check()});
    (void)expect<Welcome>();
  }
  // What the daemon says at the end; empty when it says nothing.
  std::string goodbye() {
    std::string reason;
    while (auto message = next())
      if (auto* last = std::get_if<Goodbye>(&*message)) reason = last->reason;
    return reason;
  }
  int socket() const { return socket_.get(); }
  void close() { socket_ = Descriptor(); }

 private:
  void wait(short events) const {
    pollfd ready{socket_.get(), events, 0};
    REQUIRE(::poll(&ready, 1, 60'000) == 1);
  }
  Descriptor socket_;
  FrameBuffer input_;
  std::vector<Descriptor> descriptors_;
};

TEST_CASE("what was stored is loaded, byte for byte, layer by layer") {
  TestDaemon daemon;
  Engine engine(daemon, 32);
  const auto keys = engine.keys(10, 1);
  engine.pool.fill(0, 10, 1);
  CHECK(engine.store(keys, 10) == 10);

  Signal news;
  KvLease* lease = engine.fetch(keys, news);
  const KvProgress progress = engine.client->progress(*lease);
  CHECK(progress.history_blocks == 10);
  CHECK(progress.usable_blocks == 10);
  CHECK(progress.host_blocks == 10);
  CHECK(progress.missing == MissReason::kNone);
  CHECK(engine.load(lease, 10, 16) == 10);
  CHECK(engine.pool.same(0, 16, 10));
  for (std::uint32_t layer = 0; layer < 4; ++layer)
    CHECK(engine.client->wait_layer(*lease, layer, kLong)->ready);
  CHECK_FALSE(engine.client->wait_layer(*lease, 4, kLong));
  CHECK_FALSE(engine.client->load(*lease, 1, engine.pool.places(16, 1)));  // only once
  engine.client->release(lease);

  // A longer prompt: the part that is held, and why it ends.
  const auto longer = engine.keys(12, 1);
  lease = engine.fetch(longer, news);
  CHECK(engine.client->progress(*lease).usable_blocks == 10);
  CHECK(engine.client->progress(*lease).missing == MissReason::kNeverStored);
  CHECK_FALSE(engine.client->load(*lease, 11, engine.pool.places(16, 11)));
  engine.client->release(lease);

  const auto tiers = engine.client->match(longer, kLong);
  REQUIRE(tiers);
  for (std::size_t i = 0; i < tiers->size(); ++i)
    CHECK((*tiers)[i] == (i < 10 ? 2 : 0));
  CHECK(engine.client->counters().blocks_loaded == 10);
  CHECK(engine.client->counters().blocks_corrupt == 0);
}

TEST_CASE("two engines share blocks of one scope, and none of two") {
  TestDaemon daemon;
  Engine first(daemon, 8);
  Engine second(daemon, 16);
  Engine other(daemon, 8, plain_layout(), "tenant:b");
  const auto keys = first.keys(8, 3);
  CHECK(second.keys(8, 3) == keys);
  CHECK(other.keys(8, 3) != keys);
  first.pool.fill(0, 8, 3);
  CHECK(first.store(keys, 8) == 8);
  Signal news;
  KvLease* lease = second.fetch(keys, news);
  CHECK(second.load(lease, 8, 4) == 8);
  CHECK(std::memcmp(second.pool.block(4).data(), first.pool.block(0).data(),
                    8 * first.pool.block_bytes()) == 0);
  second.client->release(lease);
  lease = other.fetch(other.keys(8, 3), news);
  CHECK(other.client->progress(*lease).usable_blocks == 0);
  other.client->release(lease);
}

TEST_CASE("a flipped bit in the arena is a shorter load, and the copy is not served again") {
  const std::uint64_t bits[] = {0, 8 * 4096 + 5, 8 * (4096 + 8192 + 999) + 7, 8 * 17383 + 3};
  for (const std::uint64_t bit : bits) {
    CAPTURE(bit);
    TestDaemon daemon;
    Engine engine(daemon, 32);
    const auto keys = engine.keys(10, 1);
    engine.pool.fill(0, 10, 1);
    CHECK(engine.store(keys, 10) == 10);
    // Find block 6 in the arena by its bytes.
    const std::span<std::byte> arena = daemon.server().arena();
    const std::span<std::byte> wanted = engine.pool.block(6);
    const auto at = std::search(arena.begin(), arena.end(), wanted.begin(), wanted.begin() + 64);
    REQUIRE(at != arena.end());
    *(at + static_cast<std::ptrdiff_t>(bit / 8)) ^= std::byte(1 << bit % 8);

    Signal news;
    KvLease* lease = engine.fetch(keys, news);
    CHECK(engine.client->progress(*lease).usable_blocks == 10);
    CHECK(engine.load(lease, 10, 16) == 6);
    CHECK(engine.pool.same(0, 16, 6));
    CHECK(engine.client->progress(*lease).missing == MissReason::kCorrupt);
    CHECK(engine.client->counters().blocks_corrupt == 1);
    engine.client->release(lease);

    CHECK(engine.usable_after(10, keys) == 6);
    // Stored again it is served again.
    CHECK(engine.store(keys, 10) == 10);
    lease = engine.fetch(keys, news);
    CHECK(engine.load(lease, 10, 16) == 10);
    CHECK(engine.pool.same(0, 16, 10));
    engine.client->release(lease);
  }
}

TEST_CASE("windows: a load ends where the engine can go on, also when a sidecar is damaged") {
  TestDaemon daemon;
  Engine engine(daemon, 32, window_layout());
  const auto keys = engine.keys(10, 1);
  engine.pool.fill(0, 10, 1);
  CHECK(engine.store(keys, 10, {0, 4, 7}) == 10);
  Signal news;
  KvLease* lease = engine.fetch(keys, news);
  CHECK(engine.client->progress(*lease).history_blocks == 10);
  CHECK(engine.client->progress(*lease).usable_blocks == 8);

  // `valid` blocks have their history, and the last two of them their windows.
  const auto right = [&](std::uint32_t to, std::uint32_t valid) {
    const auto same = [&](std::uint32_t block, std::size_t layer) {
      return std::memcmp(engine.pool.memory().data() + engine.pool.offset(block, layer),
                         engine.pool.memory().data() + engine.pool.offset(to + block, layer),
                         engine.pool.layout().slice_bytes[layer]) == 0;
    };
    for (std::uint32_t block = 0; block < valid; ++block) {
      for (std::size_t layer = 0; layer < 4; ++layer) {
        if ((layer % 2 == 0 || block + 2 >= valid) && !same(block, layer)) return false;
      }
    }
    return true;
  };
  CHECK(engine.load(lease, 8, 16) == 8);
  CHECK(right(16, 8));
  // Blocks before the window are left alone.
  CHECK_FALSE(engine.pool.same(3, 19, 1));
  engine.client->release(lease);

  engine.pool.fill(16, 10, 99);
  lease = engine.fetch(keys, news);
  CHECK(engine.load(lease, 7, 16) == 5);  // 7 is no resume point
  CHECK(right(16, 5));
  engine.client->release(lease);

  engine.pool.fill(16, 10, 98);
  lease = engine.fetch(keys, news);
  CHECK(engine.load(lease, 3, 16) == 1);  // the window of the first block alone
  CHECK(right(16, 1));
  engine.client->release(lease);

  // The sidecar at 7 is the only place where the slices of layer 3 of blocks 6 and 7 follow each
  // other; damage it there.
  std::vector<std::byte> pair;
  for (const std::uint32_t block : {6U, 7U}) {
    const auto* slice = engine.pool.memory().data() + engine.pool.offset(block, 3);
    pair.insert(pair.end(), slice, slice + 4096);
  }
  const std::span<std::byte> arena = daemon.server().arena();
  const auto at = std::search(arena.begin(), arena.end(), pair.begin(), pair.end());
  REQUIRE(at != arena.end());
  *(at + 5000) ^= std::byte{4};
  engine.pool.fill(16, 10, 97);
  lease = engine.fetch(keys, news);
  CHECK(engine.load(lease, 8, 16) == 5);
  CHECK(right(16, 5));
  engine.client->release(lease);
  CHECK(engine.usable_after(8, keys) == 5);
}

TEST_CASE("the daemon goes and comes back: misses, then hits") {
  TestDaemon daemon;
  Engine engine(daemon, 32);
  const auto keys = engine.keys(10, 1);
  engine.pool.fill(0, 10, 1);
  Signal news;
  for (int round = 0; round < 3; ++round) {
    CHECK(engine.store(keys, 10) == 10);
    KvLease* held = engine.fetch(keys, news);
    daemon.stop();
    // What was granted is still there to be read, and verified.
    CHECK(engine.load(held, 10, 16) == 10);
    CHECK(engine.pool.same(0, 16, 10));
    engine.pool.fill(16, 10, 50);

    daemon.start();
    REQUIRE(engine.client->wait_connected(kLong));
    // The first session may still be the old one; a lease of it ends at once.
    for (;;) {
      KvLease* lease = engine.fetch(keys, news);
      const KvProgress progress = engine.client->progress(*lease);
      engine.client->release(lease);
      if (progress.missing == MissReason::kNeverStored) break;
      CHECK(progress.missing == MissReason::kNoDaemon);
      REQUIRE(engine.client->wait_connected(kLong));
    }
    engine.client->release(held);
  }
  daemon.stop();
  while (engine.client->match(keys, kLong)) {
  }
  KvLease* lease = engine.acquire(keys);
  CHECK(engine.client->progress(*lease).final);
  CHECK(engine.client->progress(*lease).missing == MissReason::kNoDaemon);
  engine.client->release(lease);
  CHECK_FALSE(engine.client->match(keys, kLong));
  CHECK_FALSE(engine.client->store({engine.pool_number,
                                    engine.root,
                                    keys,
                                    0,
                                    1,
                                    engine.pool.offsets(0, 1),
                                    {},
                                    {},
                                    "",
                                    "",
                                    {}}));
}

TEST_CASE("the next daemon can explain requests that went without one") {
  TestDaemon daemon;
  Engine engine(daemon, 32);
  const auto keys = engine.keys(10, 1);
  const auto ask = [&](const std::string& request) {
    KvRequest wanted;
    wanted.root = engine.root;
    wanted.keys = keys;
    wanted.request = request;
    wanted.tenant = "acme";
    KvLease* lease = *engine.client->acquire(wanted);
    const KvProgress progress = engine.client->progress(*lease);
    engine.client->release(lease);
    return progress;
  };
  daemon.stop();
  while (engine.client->connected()) {
  }
  // More than are kept: the oldest go.
  for (std::size_t i = 0; i <= kMissedMax; ++i)
    CHECK(ask("gone-" + std::to_string(i)).missing == MissReason::kNoDaemon);
  ask("");
  daemon.start();
  REQUIRE(engine.client->wait_connected(kLong));
  // It was told before anything that is asked now.
  CHECK_FALSE(engine.client->match(keys, kLong)->empty());
  const auto session = KvSession::connect(daemon.socket(), "tool", "test", {}, kLong);
  REQUIRE(session);
  const auto explain = [&](const std::string& request) {
    return (*session)->admin("explain", R"({"request":")" + request + R"("})", kLong);
  };
  const auto last = explain("gone-" + std::to_string(kMissedMax));
  REQUIRE(last);
  CHECK(last->find(R"("runs":[{"first_block":0,"blocks":10,"missed":"no_daemon"}])") !=
        std::string::npos);
  CHECK(last->find(R"("scope":"tenant:a")") != std::string::npos);
  CHECK(explain("gone-1"));
  const auto oldest = explain("gone-0");
  REQUIRE_FALSE(oldest);
  CHECK(oldest.error().code == ErrorCode::kNotFound);
}

TEST_CASE("a killed process's pins are dropped") {
  KvServerOptions options;
  options.arena_bytes = std::uint64_t{2} << 20;
  TestDaemon daemon(options);
  Engine engine(daemon, 200);
  const auto keys = engine.keys(100, 1);
  engine.pool.fill(0, 100, 1);
  CHECK(engine.store(keys, 100) == 100);

  Raw holder(daemon);
  holder.hello();
  const auto& layout = engine.pool.layout();
  const BlockKey root = *kvcache::KeyChain(testing::test_secret()).root(fields());
  holder.send(RegisterRoot{root, "tenant:a", "", layout.spec()});
  holder.send(Acquire{1, root, keys, {}, 0, "", 0, 0, std::chrono::seconds(30)});
  std::size_t granted = 0;
  for (bool final = false; !final;) {
    const auto part = holder.expect<Granted>();
    granted += part.history.size();
    final = part.final;
  }
  CHECK(granted == 100);
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;)
      ::pause();
  }
  holder.close();

  // The arena is full of pinned blocks, so little else is taken in.
  const auto others = engine.keys(100, 2);
  CHECK(engine.store(others, 100) < 100);
  REQUIRE(::kill(child, SIGKILL) == 0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  // The daemon has seen the end of the session before it reads what is sent after it... at the
  // latest when it is asked again.
  while (engine.store(others, 100) < 100) {
  }
  CHECK(daemon.server().counters().sessions_open == 1);
}

TEST_CASE("a process that holds too much in silence is ended") {
  KvServerOptions options;
  options.arena_bytes = std::uint64_t{2} << 20;
  options.daemon.silence_max = std::chrono::milliseconds(10);
  options.daemon.quarantine_share_max = 0.1;
  TestDaemon daemon(options);
  Engine engine(daemon, 100);
  const auto keys = engine.keys(100, 1);
  engine.pool.fill(0, 100, 1);
  CHECK(engine.store(keys, 100) == 100);

  kvcache::KeyChain chain(testing::test_secret());
  const BlockKey root = *chain.root(fields());
  std::string frames;
  for (const ClientMessage& message : std::initializer_list<ClientMessage>{
           Hello{kKvProtocolVersion, "worker", "mad", 1, chain.key_check()},
           RegisterRoot{root, "tenant:a", "", plain_layout().spec()},
           Acquire{1, root, keys, {}, 0, "", 0, 0, std::chrono::seconds(30)}}) {
    REQUIRE(append_frame(message, frames));
  }
  const pid_t child = ::fork();
  if (child == 0) {
    // The process that connects is the one that is ended.
    const auto socket = sockets::connect_to(daemon.socket());
    if (!socket || ::send(socket->get(), frames.data(), frames.size(), 0) < 0) ::_exit(1);
    for (;;)
      ::pause();
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
  CHECK(daemon.server().counters().kills == 1);
  CHECK(engine.client->match(keys, kLong));  // nobody else was harmed
}

TEST_CASE("sessions that break the rules end, and nobody else notices") {
  TestDaemon daemon;
  Engine engine(daemon, 16);
  const auto keys = engine.keys(8, 1);
  engine.pool.fill(0, 8, 1);
  CHECK(engine.store(keys, 8) == 8);
  const KvLayoutSpec layout = plain_layout().spec();

  SUBCASE("garbage") {
    Raw raw(daemon);
    raw.send_bytes("GET / HTTP/1.1\r\n\r\n and some more bytes");
    CHECK(raw.goodbye().find("a frame of") != std::string::npos);
  }
  SUBCASE("a frame that is no message") {
    Raw raw(daemon);
    raw.hello();
    raw.send_bytes(std::string("\4\0\0\0\xff\xff\xff\xff", 8));
    CHECK(raw.goodbye().find("no message") != std::string::npos);
  }
  SUBCASE("a pool smaller than said") {
    Raw raw(daemon);
    raw.hello();
    raw.send(RegisterPool{0, engine.pool.bytes() + 1, layout}, engine.pool.fd());
    CHECK(raw.goodbye().find("has") != std::string::npos);
  }
  SUBCASE("a pool that can shrink") {
    TestPool shrinks(4, plain_layout(), F_SEAL_GROW);
    Raw raw(daemon);
    raw.hello();
    raw.send(RegisterPool{0, shrinks.bytes(), layout}, shrinks.fd());
    CHECK(raw.goodbye().find("F_SEAL_SHRINK") != std::string::npos);
    CHECK_FALSE(engine.client->register_pool(shrinks.fd(), shrinks.bytes(), plain_layout()));
  }
  SUBCASE("a pool without memory") {
    Raw raw(daemon);
    raw.hello();
    raw.send(RegisterPool{0, 4096, layout});
    CHECK(raw.goodbye().find("without") != std::string::npos);
  }
  SUBCASE("descriptors that nobody wants") {
    Raw raw(daemon);
    raw.hello();
    for (std::uint64_t i = 0; i < 8; ++i)
      raw.send(Lookup{i, {}}, engine.pool.fd());
    CHECK(raw.goodbye().find("descriptors") != std::string::npos);
  }
  Signal news;
  KvLease* lease = engine.fetch(keys, news);
  CHECK(engine.load(lease, 8, 8) == 8);
  CHECK(engine.pool.same(0, 8, 8));
  engine.client->release(lease);
  CHECK(daemon.server().counters().protocol_errors == 1);
}

TEST_CASE("who does not read is cut off") {
  KvServerOptions options;
  options.output_bytes_max = std::size_t{64} << 10;
  TestDaemon daemon(options);
  Raw raw(daemon);
  raw.hello();
  std::string frame;
  REQUIRE(append_frame(ClientMessage(Lookup{1, std::vector<BlockName>(60000)}), frame));
  sockets::SendQueue queue;
  Result<bool> sent = true;
  while (sent) {
    if (queue.empty()) queue.push(frame);
    sent = queue.flush(raw.socket());
    pollfd ready{raw.socket(), POLLOUT, 0};
    if (sent && !*sent) REQUIRE(::poll(&ready, 1, 60'000) == 1);
  }
  CHECK(daemon.server().counters().slow_readers == 1);
}

// A disk that holds nothing but names.
class ManyNames final : public BlockTier {
 public:
  explicit ManyNames(std::uint64_t count) : count_(count) {}
  bool contains(const BlockName&) const override { return false; }
  std::optional<std::uint32_t> size_of(const BlockName&) const override { return std::nullopt; }
  void read(TierRead read) override { read.done(MissReason::kTierOff, {}); }
  void write(TierWrite write) override { write.done(MissReason::kNotAdmitted); }
  void touch(std::span<const BlockName>, TtlClass, TierNow) override {}
  void remove(const BlockName&, MissReason) override {}
  void poll(TierNow, std::vector<TierRemoval>&) override {}
  int event_fd() const override { return -1; }
  void for_each(const std::function<bool(const BlockName&, std::uint32_t)>& visit) const override {
    BlockName name;
    for (std::uint64_t i = 0; i < count_; ++i) {
      std::memcpy(name.key.bytes.data(), &i, sizeof i);
      if (!visit(name, 4096)) return;
    }
  }
  TierStats stats() const override { return {}; }

 private:
  std::uint64_t count_;
};

TEST_CASE("a snapshot waits for its reader, also one that was slow before it subscribed") {
  constexpr std::uint64_t kNames = 200'000;
  int answers_unread = 0;
  SUBCASE("it reads late") {}
  SUBCASE("its socket was full before it subscribed") {
    answers_unread = 8;
  }
  ManyNames disk(kNames);
  KvServerOptions options;
  options.output_bytes_max = std::size_t{1} << 20;  // the snapshot has 4 MB
  TestDaemon daemon(options, &disk);
  Raw reader(daemon);
  reader.hello();
  for (int i = 0; i < answers_unread; ++i)
    reader.send(Lookup{1, std::vector<BlockName>(60'000)});
  reader.send(Subscribe{});
  // The daemon goes on a step with each answer; unread it must not send the whole snapshot.
  Raw other(daemon);
  other.hello();
  for (std::uint64_t i = 0; i < 2 * kNames / 4096; ++i) {
    other.send(Lookup{i, {}});
    CHECK(other.expect<LookupAnswer>().number == i);
  }
  std::uint64_t events = 0;
  for (bool over = false; !over;) {
    const auto part = reader.expect<Events>();
    CHECK(part.snapshot);
    events += part.events.size();
    over = part.snapshot_end;
  }
  CHECK(events == kNames);
  CHECK(daemon.server().counters().slow_readers == 0);
}

TEST_CASE("nothing is written after a release") {
  TestDaemon daemon;
  const EngineLayout layout{kTokens, std::vector<std::uint32_t>(16, 65536), {}, 0};
  Engine engine(daemon, 64, layout);
  const auto keys = engine.keys(32, 1);
  engine.pool.fill(0, 32, 1);
  CHECK(engine.store(keys, 32) == 32);
  for (const std::uint32_t layers : {0U, 1U, 5U}) {
    Signal news;
    KvLease* lease = engine.fetch(keys, news);
    REQUIRE(engine.client->load(*lease, 32, engine.pool.places(32, 32)));
    if (layers > 0) CHECK(engine.client->wait_layer(*lease, layers - 1, kLong)->valid == 32);
    engine.client->release(lease);
    std::ranges::fill(engine.pool.memory().subspan(32 * engine.pool.block_bytes()),
                      std::byte{0x55});
    // Another load goes through the same thread: whatever the first had to do is over.
    KvLease* next = engine.fetch(keys, news);
    REQUIRE(engine.client->load(*next, 1, engine.pool.places(32, 1)));
    CHECK(engine.client->wait_layer(*next, 15, kLong)->valid == 1);
    engine.client->release(next);
    CHECK(std::ranges::all_of(engine.pool.memory().subspan(33 * engine.pool.block_bytes()),
                              [](std::byte b) { return b == std::byte{0x55}; }));
  }
}

// A listener that is no daemon: it says what the test tells it to.
class Impostor {
 public:
  Impostor() : listener_(std::move(*sockets::listen_at(folder_.path() + "/kvd.sock"))) {}
  KvClientOptions client_options() const {
    KvClientOptions out;
    out.socket = folder_.path() + "/kvd.sock";
    out.secret = testing::test_secret();
    return out;
  }
  // Accepts a session, reads its hello and welcomes it.
  void welcome(std::uint32_t version = kKvProtocolVersion) {
    pollfd ready{listener_.get(), POLLIN, 0};
    REQUIRE(::poll(&ready, 1, 60'000) == 1);
    session_ = Descriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    (void)expect<Hello>();
    say(Welcome{version, 1, arena_.memory().size(), {}}, arena_.fd());
  }
  void say(const DaemonMessage& message, int descriptor = -1) {
    std::string frame;
    REQUIRE(append_frame(message, frame));
    sockets::SendQueue queue;
    queue.push(frame, descriptor);
    REQUIRE(queue.flush(session_.get()));
  }
  template <typename Message>
  Message expect() {
    for (;;) {
      for (auto frame = input_.next(); *frame; frame = input_.next()) {
        auto message = *decode_client(**frame);
        if (auto* wanted = std::get_if<Message>(&message)) return std::move(*wanted);
      }
      pollfd ready{session_.get(), POLLIN, 0};
      REQUIRE(::poll(&ready, 1, 60'000) == 1);
      const auto got = sockets::receive(session_.get(), input_.reserve(65536), 65536, descriptors_);
      REQUIRE((got && *got && **got > 0));
      input_.commit(**got);
    }
  }
  // Whether the client has shut its side, as of now.
  bool hung_up() const {
    pollfd state{session_.get(), POLLRDHUP, 0};
    return ::poll(&state, 1, 0) == 1 && (state.revents & (POLLRDHUP | POLLHUP)) != 0;
  }
  bool ended() {
    for (;;) {
      pollfd ready{session_.get(), POLLIN, 0};
      REQUIRE(::poll(&ready, 1, 60'000) == 1);
      char bytes[4096];
      const auto got = sockets::receive(session_.get(), bytes, sizeof bytes, descriptors_);
      if (!got || (*got && **got == 0)) return true;
    }
  }
  void hang_up() {
    session_ = Descriptor();
    input_ = FrameBuffer();
  }

 private:
  TemporaryDirectory folder_ = std::move(*TemporaryDirectory::make("penstock-kv"));
  Descriptor listener_;
  Descriptor session_;
  FrameBuffer input_;
  std::vector<Descriptor> descriptors_;
  Arena arena_ = std::move(*Arena::create(1 << 20));
};

TEST_CASE("a daemon that hangs or lies is survived") {
  Impostor impostor;
  KvClientOptions options = impostor.client_options();
  options.store_bytes_max = 100'000;
  Engine engine(options, 16);
  impostor.welcome();
  REQUIRE(engine.client->wait_connected(kLong));
  const auto keys = engine.keys(8, 1);
  Signal news;

  SUBCASE("a lease ends soon after its budget") {
    KvLease* lease = engine.acquire(keys, &news, Duration(0));
    news.wait_until([&] { return engine.client->progress(*lease).final; });
    CHECK(engine.client->progress(*lease).missing == MissReason::kTooSlow);
    // What comes too late is not taken.
    impostor.say(
        Granted{1, {PinnedBlock{0, 1, KvTier::kHost, {1, 2, 3, 4}}}, {}, true, MissReason::kNone});
    engine.client->release(lease);
    CHECK(impostor.expect<Release>().lease == 1);
  }
  SUBCASE("questions time out") {
    const auto answer = engine.client->match(keys, std::chrono::milliseconds(1));
    REQUIRE_FALSE(answer);
    CHECK(answer.error().code == ErrorCode::kDeadlineExceeded);
  }
  SUBCASE("stores are bounded, and given back when it goes") {
    Signal done;
    const std::vector<std::uint64_t> offsets = engine.pool.offsets(0, 4);
    const KvStore store{engine.pool_number,
                        engine.root,
                        keys,
                        0,
                        4,
                        offsets,
                        {},
                        {},
                        "",
                        "",
                        [&](std::uint32_t kept) { done.set(kept); }};
    REQUIRE(engine.client->store(store));
    const Status second = engine.client->store(store);
    REQUIRE_FALSE(second);
    CHECK(second.error().code == ErrorCode::kOverloaded);
    CHECK(done.count() == 0);
    impostor.hang_up();
    CHECK(done.wait() == 0);
    CHECK(done.count() == 1);
    impostor.welcome();
    REQUIRE(engine.client->wait_connected(kLong));
    REQUIRE(engine.client->store(store));
    engine.client.reset();  // also when the client goes
    CHECK(done.count() == 2);
  }
  SUBCASE("grants outside of the arena end the session") {
    const PinnedBlock inside{0, 1, KvTier::kHost, {1, 2, 3, 4}};
    PinnedBlock beyond = inside;
    beyond.offset = (2U << 20) - 100;
    PinnedBlock wrapped = inside;
    wrapped.offset = ~std::uint64_t{0};
    PinnedBlock sums = inside;
    sums.checksums.pop_back();
    const std::vector<PinnedBlock> cases[] = {
        {beyond}, {wrapped}, {sums}, std::vector<PinnedBlock>(9, inside)};
    for (const auto& blocks : cases) {
      KvLease* lease = engine.acquire(keys, &news);
      const LeaseId id = impostor.expect<Acquire>().lease;
      impostor.say(Granted{id, blocks, {}, false, MissReason::kNone});
      CHECK(impostor.ended());
      news.wait_until([&] { return engine.client->progress(*lease).final; });
      CHECK(engine.client->progress(*lease).missing == MissReason::kNoDaemon);
      CHECK(engine.client->progress(*lease).usable_blocks == 0);
      engine.client->release(lease);
      impostor.hang_up();
      impostor.welcome();
      REQUIRE(engine.client->wait_connected(kLong));
    }
  }
  SUBCASE("another version is refused") {
    impostor.hang_up();
    impostor.welcome(kKvProtocolVersion + 1);
    CHECK(impostor.ended());
    CHECK_FALSE(engine.client->connected());
  }
}

TEST_CASE("a daemon that stops answering or reading loses the connection") {
  Impostor impostor;
  KvClientOptions options = impostor.client_options();
  options.store_time_max = std::chrono::milliseconds(20);
  Engine engine(options, 16);
  impostor.welcome();
  REQUIRE(engine.client->wait_connected(kLong));
  const auto keys = engine.keys(8, 1);
  for (int round = 0; round < 3; ++round) {
    CAPTURE(round);
    Signal news;
    if (round < 2) {
      // The memory is given back only after the socket was shut.
      REQUIRE(engine.client->store({engine.pool_number,
                                    engine.root,
                                    keys,
                                    0,
                                    4,
                                    engine.pool.offsets(0, 4),
                                    {},
                                    {},
                                    "",
                                    "",
                                    [&](std::uint32_t kept) {
                                      CHECK(impostor.hung_up());
                                      news.set(kept);
                                    }}));
      CHECK(news.wait() == 0);
    } else {
      const std::vector<BlockKey> many(60'000, keys[0]);  // more than a socket takes
      KvLease* lease = engine.acquire(many, &news);
      news.wait_until([&] { return engine.client->progress(*lease).final; });
      CHECK(engine.client->progress(*lease).missing == MissReason::kNoDaemon);
      engine.client->release(lease);
    }
    CHECK(impostor.ended());
    impostor.hang_up();
    impostor.welcome();
    REQUIRE(engine.client->wait_connected(kLong));
  }
}

TEST_CASE("one daemon a socket; a stale socket is replaced") {
  TestDaemon daemon;
  KvServerOptions options;
  options.socket = daemon.socket();
  options.arena_bytes = 1 << 20;
  const auto second = KvServer::start(options, nullptr);
  REQUIRE_FALSE(second);
  CHECK(second.error().code == ErrorCode::kConflict);
  struct stat status{};
  REQUIRE(::stat(daemon.socket().c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);

  const auto folder = TemporaryDirectory::make("penstock-kv");
  options.socket = folder->path() + "/s";
  {
    const auto stale = sockets::listen_at(options.socket);  // leaves the file behind
    REQUIRE(stale);
  }
  CHECK(KvServer::start(options, nullptr));
}

TEST_CASE("the arena can't be written, resized or mapped for writing by others") {
  const auto arena = Arena::create(1 << 20);
  REQUIRE(arena);
  CHECK(arena->memory().size() == 2U << 20);
  CHECK(reinterpret_cast<std::uintptr_t>(arena->memory().data()) % 4096 == 0);
  arena->memory()[5] = std::byte{7};
  CHECK(::ftruncate(arena->fd(), 4096) != 0);
  CHECK(::ftruncate(arena->fd(), 4 << 20) != 0);
  CHECK(::pwrite(arena->fd(), "x", 1, 0) != 1);
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, arena->fd(), 0) == MAP_FAILED);
  const auto reader = map_to_read(arena->fd(), arena->memory().size());
  REQUIRE(reader);
  CHECK(reader->memory()[5] == std::byte{7});
  CHECK_FALSE(map_to_read(arena->fd(), arena->memory().size() + 1));
  CHECK_FALSE(Arena::create(0));
}

}  // namespace
}  // namespace penstock::kv
