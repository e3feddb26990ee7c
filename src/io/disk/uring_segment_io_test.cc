// The tier over real files, through io_uring.
#include "io/disk/uring_segment_io.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "io/disk/disk_tier_testing.h"

namespace penstock::disk {
namespace {

using std::chrono::seconds;

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

// Runs `body` in a process of its own, whose limits it may lower; true: it returned true.
template <typename Body>
bool in_child(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_CASE("without io_uring, or with too few open files, opening says so and leaves nothing") {
  const Folder folder;
  const auto message = [&] {
    FileTier h;
    const auto opened = h.open(folder.path + "/kv");
    return opened ? std::string() : opened.error().message;
  };
  CHECK(in_child([&] {
    // The system call does not exist, as in a sandbox.
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{4, program};
    ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) return true;  // not allowed
    const std::string told = message();
    return !uring_permitted() && told.find("io_uring is not available") != std::string::npos &&
           told.find("sandbox") != std::string::npos;
  }));
  CHECK(in_child([&] {
    const rlimit limit{100, 100};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    const std::string told = message();
    return told.find("8 KV segments need 264 open files and the hard limit is 100") !=
           std::string::npos;
  }));
  // The lock was given back: the next opens.
  if (permitted()) CHECK(message().empty());
}

std::unique_ptr<SegmentIo> open_io(const Folder& folder, std::function<int()> submit_fault = {}) {
  UringOptions options;
  options.folder = folder.path;
  options.segment_bytes = 1 << 20;
  options.segments = 4;
  options.submit_fault = std::move(submit_fault);
  auto io = open_uring_segments(std::move(options));
  REQUIRE(io.has_value());
  return std::move(*io);
}

TEST_CASE("a file that does not answer holds up neither poll nor other files") {
  if (!permitted()) return;
  const Folder folder;
  const auto io = open_io(folder);
  const std::string pipe = folder.path + "/0001.seg";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  AlignedBuffer memory(4096);
  std::optional<int> stuck;
  std::optional<int> prepared;
  io->read(1, 0, IoVector(memory.span()), [&](int error, std::size_t) { stuck = error; });
  io->prepare(2, [&](int error, std::size_t) { prepared = error; });
  while (!prepared)
    io->wait(seconds(10));
  CHECK(*prepared == 0);
  CHECK(std::filesystem::file_size(folder.path + "/0002.seg") == 1 << 20);
  while (io->wait(Duration())) {
  }
  io->poll();
  CHECK_FALSE(stuck.has_value());
  CHECK(io->in_flight() == 1);
  const int writer = ::open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(::write(writer, "x", 1) == 1);
  while (!stuck)
    io->wait(seconds(10));
  ::close(writer);
  CHECK(*stuck == 0);
}

TEST_CASE("what the kernel does not take at once is given again") {
  if (!permitted()) return;
  const Folder folder;
  int refused = 3;
  const auto io = open_io(folder, [&] { return refused-- > 0 ? -EAGAIN : 0; });
  std::optional<int> done;
  io->prepare(0, [&](int error, std::size_t) { done = error; });
  for (int i = 0; i < 3; ++i)
    io->poll();
  while (!done)
    REQUIRE(io->wait(seconds(10)));
  CHECK(*done == 0);
}

TEST_CASE("files are opened when needed, made only to be written, and made again when unlinked") {
  if (!permitted()) return;
  const Folder folder;
  const auto io = open_io(folder);
  AlignedBuffer memory(4096);
  std::ranges::fill(memory.span(), std::byte{7});
  int result = -1;
  std::size_t moved = 0;
  const auto record = [&](int error, std::size_t bytes) {
    result = error;
    moved = bytes;
  };
  const auto finish = [&] {
    while (io->in_flight() > 0)
      REQUIRE(io->wait(seconds(10)));
    return result;
  };
  io->read(0, 0, IoVector(memory.span()), record);
  CHECK(finish() == ENOENT);
  for (int round = 0; round < 2; ++round) {
    io->prepare(0, record);
    CHECK(finish() == 0);
    io->write(0, 4096, IoVector(memory.span()), record);
    CHECK(finish() == 0);
    CHECK(moved == 4096);
    io->sync(0, record);
    CHECK(finish() == 0);
    CHECK(std::filesystem::file_size(folder.path + "/0000.seg") == 1 << 20);
    std::filesystem::remove(folder.path + "/0000.seg");
  }
  std::filesystem::remove_all(folder.path);
  io->prepare(0, record);
  CHECK(finish() == ENOENT);
}

}  // namespace
}  // namespace penstock::disk
