#include "tests/faults/fault_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>

#include "core/kvcache/key_chain.h"
#include "io/disk/disk_tier.h"
#include "io/disk/uring_segment_io.h"
#include "io/files/kv_secret.h"
#include "io/kv/kv_server.h"
#include "tests/faults/content.h"
#include "tests/faults/driver.h"

// Messages and copies are effects too. The daemon's own calls end up here, as this executable's
// symbols go before the C library's.
extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  if (penstock::faults::effects != nullptr) penstock::faults::effects->happen();
  return ::syscall(SYS_sendmsg, socket, message, flags);
}
extern "C" int poll(pollfd* descriptors, nfds_t count, int timeout_ms) {
  // A look at one peer without waiting: before and after a copy out of its memory.
  if (penstock::faults::effects != nullptr && count == 1 && timeout_ms == 0)
    penstock::faults::effects->happen();
  timespec time{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
  return static_cast<int>(::syscall(SYS_ppoll, descriptors, count, timeout_ms < 0 ? nullptr : &time,
                                    nullptr, std::size_t{8}));
}

namespace penstock::faults {
namespace {

constexpr int kToldFd = 3;
constexpr std::int64_t kWallBase = 1'000'000'000;

// --- the daemon's process

std::int64_t wall_now() {
  using namespace std::chrono;
  return kWallBase + duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count() *
                         kWallSpeed / 1000;
}

TierNow tier_now() {
  return {Instant(std::chrono::duration_cast<Duration>(SteadyClock::now().time_since_epoch())),
          UnixSeconds(wall_now())};
}

void tell(const Told& told) {
  if (::write(kToldFd, &told, sizeof told) != sizeof told) std::_Exit(3);
}

Told about(Told::Kind kind, const BlockName& name, MissReason reason, std::int64_t wall = 0) {
  Told told;
  told.kind = kind;
  told.group = name.group;
  told.reason = reason;
  told.key = name.key;
  told.wall = wall;
  return told;
}

std::vector<TtlClassSpec> classes() {
  using std::chrono::seconds;
  return {{"default", seconds(3600)}, {"agent", seconds(3 * 3600)}, {"brief", seconds(120)}};
}

// The disk tier with its acknowledgements and removals told, in the fast wall time.
class ToldTier final : public BlockTier {
 public:
  explicit ToldTier(std::unique_ptr<disk::DiskTier> inner) : inner_(std::move(inner)) {}

  bool contains(const BlockName& name) const override { return inner_->contains(name); }
  std::optional<std::uint32_t> size_of(const BlockName& name) const override {
    return inner_->size_of(name);
  }
  void read(TierRead read) override {
    read.done = [name = read.name, to = read.destination, done = std::move(read.done)](
                    MissReason reason, const BlockInfo& info) {
      const bool is_wrong = reason == MissReason::kNone && !payload_is_right(info, to);
      if (is_wrong) tell(about(Told::Kind::kDamage, name, reason));
      done(reason, info);
    };
    inner_->read(std::move(read));
  }
  void write(TierWrite write) override {
    const std::int64_t until = wall_ + classes()[write.info.ttl_class].ttl.count();
    write.done = [name = write.info.name, until, done = std::move(write.done)](MissReason reason) {
      if (reason == MissReason::kNone) tell(about(Told::Kind::kStored, name, reason, until));
      done(reason);
    };
    inner_->write(std::move(write));
  }
  void touch(std::span<const BlockName> path, TtlClass ttl_class, TierNow now) override {
    inner_->touch(path, ttl_class, fast(now));
  }
  void remove(const BlockName& name, MissReason reason) override { inner_->remove(name, reason); }
  void poll(TierNow now, std::vector<TierRemoval>& removals) override {
    const std::size_t before = removals.size();
    inner_->poll(fast(now), removals);
    for (std::size_t i = before; i < removals.size(); ++i)
      tell(about(Told::Kind::kGone, removals[i].name, removals[i].reason));
  }
  int event_fd() const override { return inner_->event_fd(); }
  void for_each(const std::function<bool(const BlockName&, std::uint32_t)>& visit) const override {
    inner_->for_each(visit);
  }
  TierStats stats() const override { return inner_->stats(); }

 private:
  TierNow fast(TierNow now) {
    wall_ = wall_now();
    return {now.now, UnixSeconds(wall_)};
  }
  std::unique_ptr<disk::DiskTier> inner_;
  std::int64_t wall_ = wall_now();
};

// Tells of every block that was recovered; with `read_back`, whether its bytes can be had.
void tell_recovered(disk::DiskTier& tier, TierNow now, bool read_back) {
  std::vector<std::pair<BlockName, std::uint32_t>> names;
  tier.for_each([&](const BlockName& name, std::uint32_t bytes) {
    names.emplace_back(name, bytes);
    return true;
  });
  std::vector<TierRemoval> removals;
  for (const auto& [name, bytes] : names) {
    MissReason reason = MissReason::kNone;
    if (read_back) {
      disk::AlignedBuffer buffer(std::size_t{kvcache::units_of(bytes)} * kvcache::kUnitBytes);
      bool done = false;
      tier.read({name, buffer.span(), [&](MissReason got, const BlockInfo& info) {
                   done = true;
                   reason = got;
                   if (got == MissReason::kNone && !payload_is_right(info, buffer.span()))
                     tell(about(Told::Kind::kDamage, name, got));
                 }});
      while (!done) {
        pollfd ready{tier.event_fd(), POLLIN, 0};
        ::poll(&ready, 1, 100);
        tier.poll(now, removals);
        for (const TierRemoval& removal : std::exchange(removals, {}))
          tell(about(Told::Kind::kGone, removal.name, removal.reason));
      }
      // Room was made while we looked: its removal was told.
      if (reason == MissReason::kNeverStored && !tier.contains(name)) continue;
    }
    tell(about(Told::Kind::kHave, name, reason));
  }
}

Result<std::unique_ptr<BlockTier>> open_disk(const DaemonSetup& setup, TierNow now) {
  disk::DiskTierOptions options;
  for (const TtlClassSpec& spec : classes())
    options.log.classes.push_back({spec, spec.name != "default"});
  options.log.segments = setup.segments;
  options.log.segment_units = kSegmentUnits;
  options.log.epoch_seed = disk::RecordCipher::random_word();
  options.notice = [](disk::DiskNotice level, const std::string& text) {
    fmt::print(stderr, "  daemon: {}\n", text);
    if (level == disk::DiskNotice::kAlarm)
      tell(about(Told::Kind::kAlarm, BlockName{}, MissReason::kNone));
  };
  disk::UringOptions uring;
  uring.folder = setup.disk_folder;
  uring.segment_bytes = std::uint64_t{kSegmentUnits} * kvcache::kUnitBytes;
  uring.segments = setup.segments;
  TRY(auto io, disk::open_uring_segments(std::move(uring)));
  TRY(auto tier, disk::DiskTier::open(std::move(options),
                                      std::make_unique<FaultIo>(std::move(io), *effects), now));
  tell_recovered(*tier, now, setup.check_all);
  return std::make_unique<ToldTier>(std::move(tier));
}

}  // namespace

int run_daemon(const std::vector<std::string>& a) {
  DaemonSetup setup;
  setup.folder = a[0];
  setup.disk_folder = a[1];
  const auto number = [&](std::size_t i) { return std::strtoull(a[i].c_str(), nullptr, 10); };
  setup.arena_bytes = number(2);
  setup.segments = static_cast<std::uint32_t>(number(3));
  setup.with_disk = number(4) != 0;
  setup.check_all = number(5) != 0;
  setup.silence_ms = static_cast<std::int64_t>(number(6));
  setup.plan = {number(7), number(8) != 0, number(9) != 0, static_cast<int>(number(10)),
                number(11)};
  Effects counted;
  if (!setup.plan.from_ready) counted.arm(setup.plan);
  effects = &counted;
  sigset_t stops;
  ::sigemptyset(&stops);
  ::sigaddset(&stops, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &stops, nullptr);

  const TierNow now = tier_now();
  std::unique_ptr<BlockTier> disk;
  if (setup.with_disk) {
    auto opened = open_disk(setup, now);
    if (opened) disk = std::move(*opened);
    if (!opened) {
      fmt::print(stderr, "  daemon: {}; going on with host memory only\n", opened.error().message);
      tell(about(Told::Kind::kAlarm, BlockName{}, MissReason::kTierOff));
    }
  }
  kv::KvServerOptions options;
  options.socket = setup.socket();
  options.arena_bytes = setup.arena_bytes;
  options.daemon.epoch = static_cast<std::uint64_t>(SteadyClock::now().time_since_epoch().count());
  const auto secret = read_kv_secret(setup.secret());
  if (!secret) return 4;
  options.daemon.key_check = kvcache::KeyChain(*secret).key_check();
  options.daemon.classes = classes();
  options.daemon.silence_max = std::chrono::milliseconds(setup.silence_ms);
  options.log = [](std::string_view text) { fmt::print(stderr, "  daemon: {}\n", text); };
  auto server = kv::KvServer::start(std::move(options), disk.get());
  if (!server) {
    fmt::print(stderr, "  daemon: {}\n", server.error().message);
    return 5;
  }
  tell(about(Told::Kind::kReady, BlockName{}, MissReason::kNone, now.wall.value));
  if (setup.plan.from_ready) counted.arm(setup.plan);
  std::thread loop([&] { (*server)->run(); });
  int number_of_signal = 0;
  ::sigwait(&stops, &number_of_signal);
  (*server)->stop();
  loop.join();
  effects = nullptr;
  return 0;
}

// --- the driver's side

FaultDaemon::~FaultDaemon() {
  if (running()) kill();
}

void FaultDaemon::start(const DaemonSetup& setup) {
  require(!running(), "the daemon runs already");
  setup_ = setup;
  const FaultPlan& plan = setup.plan;
  const std::vector<std::string> words = {"kv_faults",
                                          "daemon",
                                          setup.folder,
                                          setup.disk_folder,
                                          std::to_string(setup.arena_bytes),
                                          std::to_string(setup.segments),
                                          setup.with_disk ? "1" : "0",
                                          setup.check_all ? "1" : "0",
                                          std::to_string(setup.silence_ms),
                                          std::to_string(plan.kill_at),
                                          plan.from_ready ? "1" : "0",
                                          plan.torn ? "1" : "0",
                                          std::to_string(plan.error),
                                          std::to_string(plan.error_from)};
  std::vector<char*> arguments;
  for (const std::string& word : words)
    arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  int ends[2];
  require(::pipe2(ends, O_CLOEXEC) == 0, "no pipe");
  {
    const std::lock_guard lock(mutex_);
    ready_ = closed_ = false;
    have_.clear();
  }
  alarms_ = damages_ = 0;
  expects_end_ = plan.kill_at != 0;
  pid_ = ::fork();
  require(pid_ >= 0, "cannot fork");
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ends[1] == kToldFd) {
      ::fcntl(kToldFd, F_SETFD, 0);
    } else {
      ::dup2(ends[1], kToldFd);
    }
    ::execv("/proc/self/exe", arguments.data());
    std::_Exit(127);
  }
  ::close(ends[1]);
  listener_ = std::thread([this, pipe = ends[0]] { listen(pipe); });
}

void FaultDaemon::listen(int pipe) {
  Told told[64];
  std::size_t have = 0;
  for (;;) {
    char* to = reinterpret_cast<char*>(told);
    const ssize_t got = ::read(pipe, to + have, sizeof told - have);
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < have / sizeof(Told); ++i)
      take(told[i]);
    const std::size_t rest = have % sizeof(Told);
    std::memmove(to, to + have - rest, rest);
    have = rest;
    changed_.notify_all();
  }
  ::close(pipe);
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void FaultDaemon::take(const Told& told) {
  switch (told.kind) {
    case Told::Kind::kHave:
      have_[told.name()] = told.reason;
      break;
    case Told::Kind::kReady:
      started_wall_ = told.wall;
      check_recovered();  // before anything is stored anew
      ready_ = true;
      break;
    case Told::Kind::kStored:
      ++stored_;
      kept_[told.name()] = told.wall;
      break;
    case Told::Kind::kGone:
      ++gone_[static_cast<std::size_t>(told.reason)];
      kept_.erase(told.name());
      break;
    case Told::Kind::kAlarm:
      ++alarms_;
      break;
    case Told::Kind::kDamage:
      ++damages_;
      fail_suite("the disk tier gave wrong bytes");
  }
}

bool FaultDaemon::wait_ready() {
  {
    std::unique_lock lock(mutex_);
    const bool in_time =
        changed_.wait_for(lock, std::chrono::seconds(60), [&] { return ready_ || closed_; });
    require(in_time, "the daemon was not ready within a minute");
    if (ready_) return true;
  }
  require(expects_end_, "the daemon ended at its start");
  int status = 0;
  ::waitpid(pid_, &status, 0);
  ended(status);
  return false;
}

// What was acknowledged is there and right, but for what was removed or whose time is over.
void FaultDaemon::check_recovered() {
  if (!setup_.with_disk) return;
  for (const auto& [name, reason] : have_) {
    require(reason == MissReason::kNone, "a recovered block could not be read: {}",
            to_string(reason));
  }
  for (auto kept = kept_.begin(); kept != kept_.end();) {
    const bool is_there = have_.contains(kept->first);
    require(is_there || kept->second <= started_wall_,
            "a block whose write was acknowledged is gone ({} of {} recovered; its lifetime has {} "
            "s to go)",
            have_.size(), kept_.size(), kept->second - started_wall_);
    kept = is_there ? std::next(kept) : kept_.erase(kept);
  }
}

void FaultDaemon::ended(int status) {
  pid_ = -1;
  if (listener_.joinable()) listener_.join();
  const bool by_plan = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && expects_end_;
  const bool in_order = WIFEXITED(status) && WEXITSTATUS(status) == 0 && expects_end_;
  require(by_plan || in_order, "the daemon ended by itself, status {:#x}", status);
}

bool FaultDaemon::wait_end(Duration time) {
  const auto end = SteadyClock::now() + time;
  for (;;) {
    int status = 0;
    const pid_t got = ::waitpid(pid_, &status, WNOHANG);
    if (got == pid_) {
      ended(status);
      return true;
    }
    if (SteadyClock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void FaultDaemon::kill() {
  expects_end_ = true;
  ::kill(pid_, SIGKILL);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  ended(status);
}

void FaultDaemon::stop() {
  expects_end_ = true;
  ::kill(pid_, SIGTERM);
  require(wait_end(std::chrono::seconds(60)), "the daemon does not stop");
}

void FaultDaemon::signal(int number) const {
  ::kill(pid_, number);
}

void FaultDaemon::forget() {
  const std::lock_guard lock(mutex_);
  kept_.clear();
}

void FaultDaemon::forget(const std::set<BlockName>& names) {
  const std::lock_guard lock(mutex_);
  for (const BlockName& name : names)
    kept_.erase(name);
}

std::size_t FaultDaemon::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_.size();
}

std::vector<BlockName> FaultDaemon::kept_names() const {
  const std::lock_guard lock(mutex_);
  std::vector<BlockName> names;
  for (const auto& [name, until] : kept_)
    names.push_back(name);
  return names;
}

std::size_t FaultDaemon::recovered() const {
  const std::lock_guard lock(mutex_);
  return have_.size();
}

std::vector<BlockName> FaultDaemon::recovered_names() const {
  const std::lock_guard lock(mutex_);
  std::vector<BlockName> names;
  for (const auto& [name, reason] : have_)
    names.push_back(name);
  return names;
}

}  // namespace penstock::faults
