#include "io/posix_store/posix_store.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "io/files/files.h"
#include "tests/support/block_store_contract.h"

#include <doctest/doctest.h>

namespace penstock::posix_store {
namespace {

using testing::random_payload;
using testing::store_now;
using testing::StoreUser;
namespace fs = std::filesystem;

struct Folder {
  TemporaryDirectory parent = TemporaryDirectory::make("posix-store").value();
  std::string path = parent.path() + "/store";
};

std::unique_ptr<PosixStore> open_at(const std::string& path,
                                    std::unique_ptr<FileData> data = nullptr,
                                    std::size_t threads = 4) {
  PosixStoreOptions options;
  options.folder = path;
  options.data = std::move(data);
  options.threads = threads;
  auto store = PosixStore::open(std::move(options));
  REQUIRE(store);
  return std::move(*store);
}

// A device that fails, or makes its callers wait.
struct Faults {
  std::atomic<int> error = 0;
  std::atomic<bool> hangs = false;
  std::atomic<int> waiting = 0;
};
class FaultyData final : public FileData {
 public:
  explicit FaultyData(std::shared_ptr<Faults> faults) : faults_(std::move(faults)) {}
  int write(int fd, std::span<const std::byte> bytes) override {
    wait();
    return faults_->error != 0 ? faults_->error.load() : plain_.write(fd, bytes);
  }
  std::ptrdiff_t read(int fd, std::span<std::byte> to, std::uint64_t offset) override {
    wait();
    return faults_->error != 0 ? -faults_->error.load() : plain_.read(fd, to, offset);
  }

 private:
  void wait() const {
    ++faults_->waiting;
    faults_->hangs.wait(true);
    --faults_->waiting;
  }
  std::shared_ptr<Faults> faults_;
  PlainFileData plain_;
};

}  // namespace

TEST_CASE("the posix store keeps the contract") {
  const Folder folder;
  testing::check_block_store([&] { return open_at(folder.path); });
}

TEST_CASE("no folder, a relative one, no threads: refused; a missing one is an error when used") {
  CHECK(!PosixStore::open({.folder = ""}));
  CHECK(!PosixStore::open({.folder = "store"}));
  CHECK(!PosixStore::open({.folder = "/tmp", .threads = 0}));
  const Folder folder;
  StoreUser user(open_at(folder.path + "/deeper/down"));
  // Its parent is not there: the mount is missing, so that nothing is made in its place.
  CHECK(user.put({StorePool::kSmall, "x"}, random_payload(1, 10)) == MissReason::kIoError);
  CHECK(!fs::exists(folder.path));
  CHECK(user.store().stats().state != "ok");
  fs::create_directories(folder.path + "/deeper");
  CHECK(user.put({StorePool::kSmall, "x"}, random_payload(1, 10)) == MissReason::kNone);
  CHECK(user.store().stats().state == "ok");
}

TEST_CASE("names that would leave the folder are refused") {
  CHECK(!is_sound_name(""));
  CHECK(!is_sound_name("../x"));
  CHECK(!is_sound_name("a/b"));
  CHECK(!is_sound_name(std::string("a\0b", 3)));
  CHECK(!is_sound_name("a b"));
  CHECK(!is_sound_name(std::string(129, 'a')));
  CHECK(is_sound_name("e64-00ff"));
  const Folder folder;
  StoreUser user(open_at(folder.path));
  CHECK(user.put({StorePool::kSmall, "../../x"}, random_payload(1, 10)) == MissReason::kIoError);
}

TEST_CASE("errors of the device are reasons, and it serves again when they end") {
  const Folder folder;
  const auto faults = std::make_shared<Faults>();
  StoreUser user(open_at(folder.path, std::make_unique<FaultyData>(faults)));
  const StoreName name{StorePool::kExtents, "x"};
  CHECK(user.put(name, random_payload(1, 1000)) == MissReason::kNone);
  struct Case {
    int error;
    MissReason on_write;
    MissReason on_read;
  };
  for (const Case& c : {Case{EIO, MissReason::kIoError, MissReason::kIoError},
                        Case{ENOSPC, MissReason::kEvictedShare, MissReason::kEvictedShare},
                        Case{EDQUOT, MissReason::kEvictedShare, MissReason::kEvictedShare},
                        Case{ESTALE, MissReason::kIoError, MissReason::kIoError}}) {
    CAPTURE(c.error);
    faults->error = c.error;
    CHECK(user.put({StorePool::kExtents, "y"}, random_payload(1, 10)) == c.on_write);
    CHECK(user.get(name, 1000).first == c.on_read);
    CHECK(user.store().stats().state != "ok");
    faults->error = 0;
    CHECK(user.get(name, 1000).first == MissReason::kNone);
    CHECK(user.get({StorePool::kExtents, "y"}, 10).first == MissReason::kNeverStored);
    CHECK(user.store().stats().state == "ok");
  }
  CHECK(fs::is_empty(folder.path + "/tmp"));  // what could not be written is not left there
}

TEST_CASE("a mount that hangs: answers at the deadline, buffers counted, back when it is back") {
  const Folder folder;
  const auto faults = std::make_shared<Faults>();
  const std::size_t threads = 3;
  auto opened = open_at(folder.path, std::make_unique<FaultyData>(faults), threads);
  PosixStore& store = *opened;
  StoreUser user(std::move(opened));
  const StoreName name{StorePool::kExtents, "x"};
  CHECK(user.put(name, random_payload(1, 1000)) == MissReason::kNone);
  faults->hangs = true;
  std::vector<MissReason> ended;
  // Long enough for every thread to begin one, on a busy machine too.
  const Instant deadline = store_now() + std::chrono::milliseconds(500);
  for (int i = 0; i < 10; ++i)
    store.get({name, 0, testing::store_buffer(1000), deadline,
               [&](MissReason reason, std::size_t) { ended.push_back(reason); }});
  while (ended.size() < 10) {
    store.poll(store_now());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(store_now() >= deadline);
  CHECK(std::ranges::count(ended, MissReason::kTooSlow) == 10);
  CHECK(store.threads_stranded() == threads);  // the others never began
  CHECK(store.stats().stranded_bytes == threads * 1000);
  CHECK(store.stats().state != "ok");
  faults->hangs = false;
  faults->hangs.notify_all();
  CHECK(user.get(name, 1000).first == MissReason::kNone);
  // One thread has served that; the others come back when they get to run.
  const Instant patience = store_now() + std::chrono::seconds(30);
  while (store.threads_stranded() > 0 && store_now() < patience) {
    store.poll(store_now());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(store.threads_stranded() == 0);
  CHECK(store.stats().stranded_bytes == 0);
  CHECK(ended.size() == 10);
}

TEST_CASE("a store that is let go while a call hangs does not wait for it for long") {
  const Folder folder;
  const auto faults = std::make_shared<Faults>();
  {
    auto store = open_at(folder.path, std::make_unique<FaultyData>(faults), 1);
    faults->hangs = true;
    store->put({{StorePool::kSmall, "x"}, random_payload(1, 10), 1, store_now(), [](MissReason) {
                  FAIL("nobody asked any more");
                }});
  }
  faults->hangs = false;
  faults->hangs.notify_all();
}

TEST_CASE("a manifest torn by a crash or a full disk loses that line only") {
  const Folder folder;
  StoreUser user(open_at(folder.path));
  const StoreName one{StorePool::kExtents, "one"};
  const StoreName two{StorePool::kSmall, "two"};
  CHECK(user.add_to_manifest({1, 2}, {one}) == MissReason::kNone);
  for (const auto& file : fs::directory_iterator(folder.path + "/manifests/1/2"))
    std::ofstream(file.path(), std::ios::app) << "e torn-in-the-mid";
  std::ofstream(folder.path + "/manifests/1/2/zz-other-writer")
      << "\ne bad/name\nx y\ne one\ne cut";
  CHECK(user.add_to_manifest({1, 2}, {two}) == MissReason::kNone);
  for (const std::size_t page : {std::size_t{1}, std::size_t{100}}) {
    const auto names = user.read_manifest({1, 2}, page);
    CHECK(std::ranges::count(names, one) == 2);
    CHECK(std::ranges::count(names, two) == 1);
    CHECK(names.size() <= 4);  // the torn one may look like a name; it is of no object
  }
}

TEST_CASE("what dead writers left in tmp and trash is cleared in time, and nothing else") {
  const Folder folder;
  StoreUser early(open_at(folder.path));
  CHECK(early.put({StorePool::kSmall, "kept"}, random_payload(1, 10)) == MissReason::kNone);
  std::ofstream(folder.path + "/tmp/left") << "x";
  std::ofstream(folder.path + "/trash/left") << "x";
  CHECK(early.list_manifests().empty());
  CHECK(fs::exists(folder.path + "/tmp/left"));
  auto opened = PosixStore::open({.folder = folder.path, .leftovers_after = Duration(0)});
  REQUIRE(opened);
  StoreUser late(std::move(*opened));
  CHECK(late.list_manifests().empty());
  CHECK(fs::is_empty(folder.path + "/tmp"));
  CHECK(fs::is_empty(folder.path + "/trash"));
  CHECK(late.get({StorePool::kSmall, "kept"}, 10).first == MissReason::kNone);
}

}  // namespace penstock::posix_store
