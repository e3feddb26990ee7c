// Export out of one KV daemon and import into another, over real sockets, memory and files.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>

#include "app/kv_transfer.h"
#include "io/disk/disk_tier.h"
#include "io/kv/test_daemon.h"

namespace penstock {
namespace {

using kv::testing::Signal;
using kv::testing::TestDaemon;
using kv::testing::TestPool;

constexpr std::uint32_t kTokens = 16;
constexpr Duration kLong = std::chrono::minutes(2);

kv::EngineLayout plain_layout() {
  return {kTokens, {4096, 8192, 1000}, {}, 0};
}
kv::EngineLayout window_layout() {
  return {kTokens, {4096, 2048, 1000}, {false, true, false}, 2 * kTokens};
}

BlockKey key_check() {
  return kvcache::KeyChain(kv::testing::test_secret()).key_check();
}

TierNow at(std::int64_t seconds) {
  return {Instant(std::chrono::seconds(seconds)), UnixSeconds(1'700'000'000 + seconds)};
}

// A daemon with memory, and a disk when told.
class Host {
 public:
  explicit Host(bool has_disk, std::string key_file = {}) : key_file_(std::move(key_file)) {
    if (has_disk) open_disk();
    start();
  }
  ~Host() { stop(); }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  // Memory is lost; the disk stays.
  void restart() {
    stop();
    if (disk_ != nullptr) open_disk();
    start();
  }
  const TestDaemon& daemon() const { return *daemon_; }
  const std::string& folder() const { return folder_.path(); }
  std::unique_ptr<kv::KvSession> session() const {
    return *kv::KvSession::connect(daemon_->socket(), "worker", "test", key_check(), kLong);
  }
  Result<KvTransferResult> write(const std::string& file, const std::string& filter = "",
                                 const std::string& key = "") const {
    const auto s = session();
    TRY_STATUS(s->admin("flush", "", kLong));
    std::unique_ptr<disk::SegmentReader> segments;
    if (disk_ != nullptr) segments = *disk::SegmentReader::open(folder(), key);
    return export_kv(*s, {file, filter, key_check(), segments.get(), {}});
  }
  Result<KvTransferResult> read(const std::string& file,
                                const BlockKey& secret = key_check()) const {
    const auto s = session();
    return import_kv(*s, {file, secret, 100'000, {}});
  }

 private:
  void open_disk() {
    disk_.reset();
    disk::DiskTierOptions options;
    options.log.classes = {{{"default", std::chrono::hours(24)}, false},
                           {{"agent", std::chrono::hours(72)}, true}};
    options.log.segment_units = 256;
    options.log.segments = 32;
    const auto wall = std::chrono::system_clock::now().time_since_epoch();
    TierNow now = at(0);
    now.wall = UnixSeconds(std::chrono::duration_cast<std::chrono::seconds>(wall).count());
    disk_ = *disk::open_disk_tier(folder(), key_file_, std::move(options), now);
  }
  void start() {
    kv::KvServerOptions options;
    options.arena_bytes = std::uint64_t{16} << 20;
    daemon_ = std::make_unique<TestDaemon>(options, disk_.get());
  }
  void stop() { daemon_.reset(); }

  TemporaryDirectory folder_ = std::move(*TemporaryDirectory::make("penstock-export"));
  std::string key_file_;
  std::unique_ptr<disk::DiskTier> disk_;
  std::unique_ptr<TestDaemon> daemon_;
};

struct Engine {
  TestPool pool;
  std::unique_ptr<kv::KvClient> client;
  std::uint32_t pool_number;
  std::uint32_t root;

  Engine(const Host& host, const kv::EngineLayout& layout, const std::string& scope)
      : pool(64, layout), client(*kv::KvClient::open(host.daemon().client_options())) {
    REQUIRE(client->wait_connected(kLong));
    pool_number = *client->register_pool(pool.fd(), pool.bytes(), layout);
    root = *client->register_root(pool_number, {"weights", "engine", "bf16", "", scope, kTokens},
                                  "model");
  }
  std::vector<BlockKey> keys(std::uint32_t blocks, std::uint32_t seed) const {
    std::vector<TokenId> tokens(blocks * kTokens);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<TokenId>(i * 7 + seed);
    return *client->chain(root, tokens);
  }
  // Stores a chain with bytes that follow from its seed.
  void store(std::uint32_t blocks, std::uint32_t seed, std::string_view ttl_class,
             std::vector<std::uint32_t> windows = {}) const {
    pool.fill(0, blocks, seed);
    Signal done;
    const auto chain = keys(blocks, seed);
    REQUIRE(client->store({pool_number,
                           root,
                           chain,
                           0,
                           blocks,
                           pool.offsets(0, blocks),
                           windows,
                           {},
                           "a",
                           ttl_class,
                           [&](std::uint32_t kept) { done.set(kept); }}));
    CHECK(done.wait() == blocks);
  }
  // Blocks of the chain that are hits with the very bytes.
  std::uint32_t right(std::uint32_t blocks, std::uint32_t seed) const {
    pool.fill(0, blocks, seed);
    const auto chain = keys(blocks, seed);
    Signal news;
    kv::KvRequest request;
    request.root = root;
    request.keys = chain;
    request.budget = std::chrono::seconds(30);
    request.wake = [&] { news.set(); };
    kv::KvLease* lease = *client->acquire(std::move(request));
    news.wait_until([&] { return client->progress(*lease).final; });
    const std::uint32_t usable = client->progress(*lease).usable_blocks;
    std::uint32_t valid = 0;
    if (usable > 0) {
      pool.fill(32, blocks, seed + 1000);
      REQUIRE(client->load(*lease, usable, pool.places(32, usable)));
      valid = client->wait_layer(*lease, 2, kLong)->valid;
      for (std::uint32_t b = 0; b < valid; ++b) {
        for (std::size_t layer = 0; layer < 3; ++layer) {
          if (pool.layout().slides(layer) && b + pool.layout().window_blocks() < valid) continue;
          CHECK(std::memcmp(pool.memory().data() + pool.offset(b, layer),
                            pool.memory().data() + pool.offset(32 + b, layer),
                            pool.layout().slice_bytes[layer]) == 0);
        }
      }
    }
    client->release(lease);
    return valid;
  }
};

struct Files {
  TemporaryDirectory folder = std::move(*TemporaryDirectory::make("penstock-export"));
  std::string file = folder.path() + "/kv.export";
  static std::string read(const std::string& path) { return *read_file(path, Bytes(1 << 30)); }
};

TEST_CASE("what one daemon has is a hit in another, byte for byte") {
  struct Case {
    const char* what;
    bool from_disk;
    bool restart;  // so that nothing is in memory, and no scope is known
    bool encrypted;
  };
  const Case cases[] = {{"memory", false, false, false},
                        {"memory and disk", true, false, false},
                        {"disk alone", true, true, false},
                        {"encrypted disk alone", true, true, true}};
  for (const Case& c : cases) {
    INFO(c.what);
    Files files;
    std::string key;
    if (c.encrypted) {
      key = files.folder.path() + "/key";
      REQUIRE(write_file_atomically(key, std::string(64, 'a') + "\n", 0600));
    }
    Host from(c.from_disk, key);
    {
      Engine plain(from, plain_layout(), "tenant:a");
      Engine sliding(from, window_layout(), "tenant:b");
      plain.store(10, 1, "agent");
      plain.store(12, 1, "agent");   // the same chain, longer
      plain.store(6, 2, "default");  // seen once: not on disk
      sliding.store(8, 3, "agent", {1, 4, 7});
    }
    if (c.restart) {
      const auto session = from.session();
      REQUIRE(session->admin("flush", "", kLong));
      from.restart();
    }
    if (c.encrypted) {
      const auto refused = from.write(files.file);
      REQUIRE_FALSE(refused);
      CHECK(refused.error().message.find("another key") != std::string::npos);
    }
    const auto written = from.write(files.file, "", key);
    REQUIRE(written);
    CHECK(written->blocks == (c.restart ? 23 : 29));
    for (const auto& [why, blocks] : written->skipped)
      FAIL_CHECK(blocks << " blocks skipped: " << why);
    struct stat status{};
    REQUIRE(::stat(files.file.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);

    Host to(false);
    const auto read = to.read(files.file);
    INFO((read ? "" : read.error().message));
    REQUIRE(read);
    CHECK(read->blocks == written->blocks);
    CHECK(read->bytes == written->bytes);
    CHECK(read->skipped.empty());
    Engine plain(to, plain_layout(), "tenant:a");
    Engine sliding(to, window_layout(), "tenant:b");
    CHECK(plain.right(12, 1) == 12);
    CHECK(plain.right(6, 2) == (c.restart ? 0 : 6));
    CHECK(sliding.right(8, 3) == 8);
  }
}

TEST_CASE("a filter takes scopes; files are neither overwritten nor left behind half") {
  Files files;
  Host from(false);
  Engine a(from, plain_layout(), "tenant:a");
  Engine b(from, plain_layout(), "tenant:b");
  a.store(4, 1, "agent");
  b.store(5, 1, "agent");
  const auto written = from.write(files.file, "tenant:b");
  REQUIRE(written);
  CHECK(written->roots == 1);
  CHECK(written->blocks == 5);
  const std::string before = Files::read(files.file);
  const auto again = from.write(files.file);
  REQUIRE_FALSE(again);
  CHECK(again.error().code == ErrorCode::kConflict);
  CHECK(Files::read(files.file) == before);
  CHECK_FALSE(from.write(files.folder.path() + "/none/file"));
  CHECK(std::distance(std::filesystem::directory_iterator(files.folder.path()), {}) == 1);
}

TEST_CASE("a file of another secret, cut off or damaged, is refused whole") {
  Files files;
  Host from(false);
  Engine engine(from, plain_layout(), "tenant:a");
  engine.store(4, 1, "agent");
  REQUIRE(from.write(files.file));
  const std::string whole = Files::read(files.file);

  Host to(false);
  Engine other(to, plain_layout(), "tenant:a");
  BlockKey secret = key_check();
  secret.bytes[0] ^= 1;
  const auto foreign = to.read(files.file, secret);
  REQUIRE_FALSE(foreign);
  CHECK(foreign.error().message.find("another secret") != std::string::npos);

  const auto refused = [&](const std::string& content, std::string_view why) {
    const std::string path = files.folder.path() + "/damaged";
    REQUIRE(write_file_atomically(path, content));
    const auto read = to.read(path);
    REQUIRE_FALSE(read);
    CAPTURE(read.error().message);
    CHECK(read.error().message.find(why) != std::string::npos);
  };
  refused(whole.substr(0, whole.size() - 1), "is cut off: it ends at byte");
  refused(whole.substr(0, whole.size() / 2), "is cut off: it ends at byte");
  refused(whole + "x", "goes on after its end at byte");
  refused("", "no export");
  refused("something else entirely", "no export");
  std::string flipped = whole;
  flipped[whole.size() / 2] ^= 4;
  refused(flipped, "damaged at byte");
  CHECK(other.right(4, 1) == 0);
  CHECK_FALSE(to.read(files.folder.path() + "/none"));

  // Blocks that are there already are hits as before.
  REQUIRE(to.read(files.file));
  const auto twice = to.read(files.file);
  REQUIRE(twice);
  CHECK(twice->blocks == 4);
  CHECK(other.right(4, 1) == 4);
}

}  // namespace
}  // namespace penstock
