// The tier over real files, through io_uring.
#include "io/disk/uring_segment_io.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "io/disk/disk_tier_testing.h"

namespace penstock::disk {
namespace {

struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "penstockXXXXXX").string();
  Folder() { REQUIRE(::mkdtemp(path.data()) != nullptr); }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

bool permitted() {
  if (uring_permitted()) return true;
  MESSAGE("skipped: io_uring is not permitted here");
  return false;
}

// A tier over files, polled when its descriptor says so.
struct FileTier {
  DiskTierOptions options;
  TierNow now{Instant(Duration(1)), UnixSeconds(1'000'000)};
  std::unique_ptr<DiskTier> tier;
  std::vector<TierRemoval> removals;
  std::vector<std::string> notices;

  FileTier() {
    options.log.segments = 8;
    options.log.segment_units = 256;
    options.log.classes = {{{"default", std::chrono::hours(24)}, true}};
    options.log.seen_names = 64;
    options.notice = [this](DiskNotice, const std::string& text) { notices.push_back(text); };
  }
  Status open(const std::string& folder, const std::string& key_file = {}) {
    TRY(tier, open_disk_tier(folder, key_file, options, now));
    return {};
  }
  template <typename Done>
  void until(Done&& done) {
    while (!done()) {
      fd_set ready;
      FD_ZERO(&ready);
      FD_SET(tier->event_fd(), &ready);
      timeval limit{10, 0};
      REQUIRE(::select(tier->event_fd() + 1, &ready, nullptr, nullptr, &limit) == 1);
      tier->poll(now, removals);
    }
  }
  MissReason write(const TestBlock& block) {
    std::optional<MissReason> result;
    tier->write({block.info, block.payload.span(), [&](MissReason reason) { result = reason; }});
    until([&] { return result.has_value(); });
    return *result;
  }
  MissReason read(const TestBlock& block) {
    AlignedBuffer memory(block.payload.span().size());
    std::optional<MissReason> result;
    tier->read({block.info.name, memory.span(), [&](MissReason reason, const BlockInfo& info) {
                  result = reason;
                  if (reason == MissReason::kNone) TierHarness::check_equal(block, memory, info);
                }});
    until([&] { return result.has_value(); });
    return *result;
  }
};

TEST_CASE("blocks in real files survive a restart; eviction makes room") {
  if (!permitted()) return;
  const Folder folder;
  FileTier h;
  REQUIRE(h.open(folder.path).has_value());
  std::vector<TestBlock> blocks;
  for (std::uint32_t i = 0; i < 120; ++i) {
    blocks.push_back(test_block(7, i, 0, 1, 200'000));
    REQUIRE(h.write(blocks.back()) == MissReason::kNone);
  }
  const auto check_all = [&] {
    std::size_t served = 0;
    for (const TestBlock& block : blocks) {
      const bool there = h.tier->contains(block.info.name);
      REQUIRE(h.read(block) == (there ? MissReason::kNone : MissReason::kNeverStored));
      served += there ? 1 : 0;
    }
    return served;
  };
  const std::size_t served = check_all();
  CHECK(served > 20);
  CHECK(served < 120);
  CHECK(h.removals.size() == 120 - served);
  h.tier.reset();
  REQUIRE(h.open(folder.path).has_value());
  CHECK(check_all() >= served);
  CHECK(h.tier->stats().corrupt == 0);
}

TEST_CASE("two processes never share a directory; files of others are left alone") {
  if (!permitted()) return;
  const Folder folder;
  {
    std::ofstream foreign(folder.path + "/0001.seg");
    foreign << std::string(10'000, 'x');
    std::ofstream(folder.path + "/notes.txt") << "hello";
  }
  FileTier h;
  REQUIRE(h.open(folder.path).has_value());
  CHECK(h.notices.size() == 2);
  FileTier other;
  const auto second = other.open(folder.path);
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error().code == ErrorCode::kConflict);
  for (std::uint32_t i = 0; i < 40; ++i)
    REQUIRE(h.write(test_block(7, i, 0, 1, 200'000)) == MissReason::kNone);
  CHECK(std::filesystem::file_size(folder.path + "/0001.seg") == 10'000);
  CHECK(std::filesystem::exists(folder.path + "/notes.txt"));
}

TEST_CASE("a directory that can't be written is an error with a message") {
  const Folder folder;
  std::ofstream(folder.path + "/file") << "x";
  FileTier h;
  const auto opened = h.open(folder.path + "/file/kv");
  REQUIRE_FALSE(opened.has_value());
  CHECK(opened.error().message.find("cannot use") != std::string::npos);
  std::ofstream(folder.path + "/LOCK") << "something else";
  const auto locked = h.open(folder.path);
  REQUIRE_FALSE(locked.has_value());
  CHECK(locked.error().message.find("not the lock") != std::string::npos);
}

TEST_CASE("a directory that vanishes takes the tier out, with one alarm") {
  if (!permitted()) return;
  Folder folder;
  const std::string kv = folder.path + "/kv/segments";
  FileTier h;
  REQUIRE(h.open(kv).has_value());
  REQUIRE(h.write(test_block(1, 0)) == MissReason::kNone);
  std::filesystem::remove_all(folder.path + "/kv");
  MissReason reason = MissReason::kNone;
  for (std::uint32_t i = 1; i < 300 && reason == MissReason::kNone; ++i)
    reason = h.write(test_block(1, i, 0, 1, 200'000));
  CHECK(reason == MissReason::kTierOff);
  CHECK_FALSE(h.tier->stats().in_service);
  CHECK_FALSE(h.tier->contains(test_name(1, 0)));
  CHECK(std::ranges::count_if(h.notices, [](const std::string& text) {
          return text.find("out of service") != std::string::npos;
        }) == 1);
  for (int i = 0; i < 200; ++i)
    h.tier->poll(h.now, h.removals);
  CHECK(h.tier->stats().blocks == 0);
}

TEST_CASE("a key file encrypts; another key, or none, reads nothing") {
  if (!permitted()) return;
  const Folder folder;
  const auto key_file = [&](const std::string& name, char digit, mode_t mode) {
    const std::string path = folder.path + "/" + name;
    std::ofstream(path) << std::string(64, digit) << "\n";
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    return path;
  };
  const std::string good = key_file("good", 'a', 0600);
  const std::string kv = folder.path + "/kv";
  const TestBlock block = test_block(3, 0);
  FileTier h;
  CHECK(h.open(kv, key_file("open", 'a', 0644)).error().code == ErrorCode::kPermissionDenied);
  CHECK(h.open(kv, key_file("bad", 'z', 0600)).error().code == ErrorCode::kInvalidArgument);
  CHECK(h.open(kv, folder.path + "/none").error().code == ErrorCode::kIo);
  REQUIRE(h.open(kv, good).has_value());
  REQUIRE(h.write(block) == MissReason::kNone);
  REQUIRE(h.read(block) == MissReason::kNone);
  h.tier.reset();
  // No run of the payload lies in the files.
  std::ifstream file(kv + "/0000.seg", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const auto* payload = reinterpret_cast<const char*>(block.payload.span().data());
  CHECK(bytes.find(std::string(payload, 16)) == std::string::npos);
  for (const std::string& other : {key_file("other", 'b', 0600), std::string()}) {
    h.notices.clear();
    REQUIRE(h.open(kv, other).has_value());
    CHECK(h.read(block) == MissReason::kNeverStored);
    REQUIRE_FALSE(h.notices.empty());
    CHECK(h.notices[0].find("another key") != std::string::npos);
    h.tier.reset();
  }
  REQUIRE(h.open(kv, good).has_value());
  CHECK(h.read(block) == MissReason::kNone);
}

}  // namespace
}  // namespace penstock::disk
