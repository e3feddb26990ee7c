// Single faults with a known course: stopped and dead processes, a disk that goes.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>

#include "tests/faults/ask.h"
#include "tests/faults/driver.h"
#include "tests/faults/engine.h"
#include "tests/faults/fault_daemon.h"
#include "tests/faults/suites.h"

namespace penstock::faults {
namespace {

constexpr std::uint32_t kHeldFamily = 50;  // no engine of the crowd asks for it

// One daemon, three engines at work, and questions to the daemon.
struct Scene {
  DaemonSetup setup;
  EngineOptions engine;
  EngineTotals totals;
  FaultDaemon daemon;
  std::unique_ptr<Crowd> crowd;

  Scene(const SuiteOptions& options, const std::string& name) {
    setup.folder = options.folder;
    setup.disk_folder = options.folder + "/kv-" + name;
    engine.socket = setup.socket();
    engine.secret_file = setup.secret();
    engine.seed = options.seed;
    engine.margin = options.margin;
  }
  ~Scene() {
    crowd.reset();
    require(totals.stores == totals.done, "{} stores were taken, `done` was called {} times",
            totals.stores.load(), totals.done.load());
  }

  void start() {
    daemon.start(setup);
    require(daemon.wait_ready(), "the daemon does not start");
    if (crowd == nullptr) crowd = std::make_unique<Crowd>(engine, 3, totals);
  }
  void wait_hits() {
    const std::uint64_t before = totals.hits;
    wait_until("hits", [&] { return totals.hits > before + 5; });
  }
  void wait_disk_hits() {
    const std::uint64_t before = totals.disk_blocks;
    wait_until("hits from disk", [&] { return totals.disk_blocks > before; });
  }
  boost::json::value stat() const { return ask(setup.socket(), "stat"); }
  std::uint64_t stat(const char* path) const { return ask_number(setup.socket(), path); }
};

// A process that holds a lease (run_holder()).
class Holder {
 public:
  Holder(const DaemonSetup& setup, std::uint32_t family, std::uint32_t blocks) {
    const std::vector<std::string> words = {
        "kv_faults",           "holder", setup.socket(), setup.secret(), std::to_string(family),
        std::to_string(blocks)};
    std::vector<char*> arguments;
    for (const std::string& word : words)
      arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    int in[2], out[2];
    require(::pipe2(in, O_CLOEXEC) == 0 && ::pipe2(out, O_CLOEXEC) == 0, "no pipe");
    pid_ = ::fork();
    require(pid_ >= 0, "cannot fork");
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::execv("/proc/self/exe", arguments.data());
      std::_Exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    in_ = Descriptor(in[1]);
    out_ = Descriptor(out[0]);
    held = read_number();
  }
  ~Holder() {
    if (pid_ > 0) end(SIGKILL);
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  void signal(int number) const { ::kill(pid_, number); }
  // Ends it, or waits for its end; returns the signal that ended it.
  int end(int number = 0) {
    if (number != 0) signal(number);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }
  std::uint32_t load() {
    require(::write(in_.get(), "g", 1) == 1, "the holder is gone");
    return read_number();
  }

  std::uint32_t held = 0;

 private:
  std::uint32_t read_number() const {
    std::uint32_t number = 0;
    require(::read(out_.get(), &number, sizeof number) == sizeof number, "the holder has ended");
    return number;
  }
  pid_t pid_ = -1;
  Descriptor in_, out_;
};

Prompt held_prompt(std::uint32_t family, std::uint32_t blocks) {
  return {0, family, 0, blocks};
}

// Puts the blocks there that a holder is to hold; the crowd rests meanwhile.
void prepare_held(Scene& scene, std::uint32_t family, std::uint32_t blocks) {
  EngineTotals totals;
  EngineOptions options = scene.engine;
  options.kind = Kind::kPlain;
  Engine engine(options, totals);
  require(engine.wait_connected(), "no connection");
  require(engine.store(held_prompt(family, blocks), 0, "agent"), "nothing was taken");
  engine.wait_stores();
  require(totals.stored_blocks == blocks, "{} of {} blocks were kept", totals.stored_blocks.load(),
          blocks);
}

// --- scenes

bool stopped_daemon(Scene& scene) {
  scene.start();
  scene.wait_hits();
  scene.daemon.signal(SIGSTOP);
  const std::uint64_t acquires = scene.totals.acquires;
  // The engines time their calls: one that waits for the daemon fails.
  std::this_thread::sleep_for(std::chrono::seconds(3));
  require(scene.totals.acquires > acquires + 6, "requests did not go on beside a stopped daemon");
  scene.daemon.signal(SIGCONT);
  scene.wait_hits();
  return true;
}

bool killed_holder(Scene& scene) {
  scene.start();
  scene.crowd->pause();
  prepare_held(scene, kHeldFamily, 24);
  Holder holder(scene.setup, kHeldFamily, 24);
  require(holder.held == 24, "it holds {} of 24", holder.held);
  require(scene.stat("/host/pinned_blocks") == 24, "24 blocks are held, {} are pinned",
          scene.stat("/host/pinned_blocks"));
  holder.end(SIGKILL);
  wait_until("its pins to be dropped", [&] { return scene.stat("/host/pinned_blocks") == 0; });
  require(scene.stat("/sessions/killed") == 0, "nobody was to be killed");
  scene.crowd->resume();
  scene.wait_hits();
  return true;
}

// Below a tenth of the arena: its blocks stay as they are, whatever the others do.
bool stopped_holder(Scene& scene) {
  scene.setup.silence_ms = 1000;
  scene.start();
  scene.crowd->pause();
  prepare_held(scene, kHeldFamily, 24);
  Holder holder(scene.setup, kHeldFamily, 24);
  require(holder.held == 24, "it holds {} of 24", holder.held);
  holder.signal(SIGSTOP);
  scene.crowd->resume();
  wait_until("the holder's quarantine", [&] { return scene.stat("/host/quarantined_bytes") > 0; });
  const std::uint64_t evicted = scene.daemon.gone(MissReason::kEvictedDisk);
  wait_until("evictions beside it",
             [&] { return scene.daemon.gone(MissReason::kEvictedDisk) > evicted; });
  holder.signal(SIGCONT);
  wait_until("the end of its quarantine",
             [&] { return scene.stat("/host/quarantined_bytes") == 0; });
  require(holder.load() == 24, "what it held was not what it is");
  require(scene.stat("/sessions/killed") == 0, "nobody was to be killed");
  return true;
}

bool greedy_holder(Scene& scene) {
  scene.setup.silence_ms = 1000;
  scene.start();
  scene.crowd->pause();
  constexpr std::uint32_t kBlocks = 80;  // 1.6 of 8 MiB
  prepare_held(scene, kHeldFamily, kBlocks);
  Holder holder(scene.setup, kHeldFamily, kBlocks);
  require(holder.held == kBlocks, "it holds {} of {}", holder.held, kBlocks);
  holder.signal(SIGSTOP);
  require(holder.end() == SIGKILL, "the holder was not killed");
  wait_until("its pins to be dropped", [&] { return scene.stat("/host/pinned_blocks") == 0; });
  require(scene.stat("/sessions/killed") == 1, "one was to be killed");
  scene.crowd->resume();
  scene.wait_hits();
  return true;
}

bool deleted_folder(Scene& scene) {
  scene.start();
  scene.wait_disk_hits();
  std::filesystem::remove_all(scene.setup.disk_folder);
  wait_until("the alarm", [&] { return scene.daemon.alarms() > 0; });
  scene.wait_hits();  // from memory
  require(scene.daemon.alarms() == 1, "{} alarms", scene.daemon.alarms());
  require(!scene.stat().at_pointer("/disk/in_service").as_bool(), "it is said to be in service");
  scene.daemon.kill();
  scene.daemon.forget();
  scene.start();
  scene.wait_disk_hits();
  return true;
}

// The disk answers every operation with this error from some moment on.
void failing_disk(Scene& scene, int error, bool stays_in_service) {
  scene.start();
  scene.wait_disk_hits();
  scene.daemon.kill();
  scene.setup.plan.error = error;
  scene.setup.plan.error_from = scene.setup.segments * 200;  // after recovery
  scene.start();
  const auto is_over = [&] {
    return stays_in_service ? scene.stat("/disk/io_errors") > 0 || scene.daemon.alarms() > 0
                            : scene.daemon.alarms() > 0;
  };
  wait_until("the faults to be seen", is_over);
  scene.wait_hits();
  require(scene.daemon.alarms() <= 1, "{} alarms", scene.daemon.alarms());
  scene.daemon.kill();
  // The device is well again: what was acknowledged before is there.
  scene.setup.plan = {};
  scene.start();
  scene.wait_disk_hits();
}

bool io_errors(Scene& scene) {
  failing_disk(scene, EIO, true);
  return true;
}

bool becomes_read_only(Scene& scene) {
  failing_disk(scene, EROFS, false);
  return true;
}

// --- scenes with a mount of their own

bool mount_small(const std::string& folder, std::uint64_t bytes) {
  std::filesystem::create_directories(folder);
  const std::string size = fmt::format("size={}", bytes);
  return ::mount("none", folder.c_str(), "tmpfs", 0, size.c_str()) == 0;
}

bool full_file_system(Scene& scene) {
  if (!mount_small(scene.setup.disk_folder, std::uint64_t{7} << 20)) return false;
  scene.start();
  scene.wait_disk_hits();
  wait_until("room to be made", [&] { return scene.daemon.gone(MissReason::kEvictedDisk) > 50; });
  require(scene.daemon.alarms() == 0, "a full file system is no alarm");
  require(scene.stat().at_pointer("/disk/in_service").as_bool(), "it is out of service");
  scene.daemon.kill();
  scene.start();
  scene.wait_disk_hits();
  scene.daemon.kill();
  ::umount2(scene.setup.disk_folder.c_str(), MNT_DETACH);
  return true;
}

bool read_only_file_system(Scene& scene) {
  const std::string& folder = scene.setup.disk_folder;
  if (!mount_small(folder, std::uint64_t{16} << 20)) return false;
  scene.start();
  scene.wait_disk_hits();
  scene.daemon.kill();
  // The ring of a process that was killed lets its files go a little later.
  wait_until("the file system to be read-only", [&] {
    return ::mount(nullptr, folder.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  });
  // It says so once and goes on with memory only; nothing can be recovered.
  scene.daemon.forget();
  scene.start();
  scene.wait_hits();
  require(scene.daemon.alarms() == 1, "{} alarms", scene.daemon.alarms());
  scene.daemon.kill();
  require(::mount(nullptr, folder.c_str(), nullptr, MS_REMOUNT, nullptr) == 0, "cannot remount");
  scene.start();
  scene.wait_disk_hits();
  scene.daemon.kill();
  ::umount2(folder.c_str(), MNT_DETACH);
  return true;
}

}  // namespace

SuiteResult run_scenes(const SuiteOptions& options) {
  struct Named {
    const char* name;
    bool (*run)(Scene&);  // false: not possible here
  };
  constexpr Named kScenes[] = {
      {"stopped-daemon", stopped_daemon},
      {"killed-holder", killed_holder},
      {"stopped-holder", stopped_holder},
      {"greedy-holder", greedy_holder},
      {"deleted-folder", deleted_folder},
      {"io-errors", io_errors},
      {"becomes-read-only", becomes_read_only},
      {"full-file-system", full_file_system},
      {"read-only-file-system", read_only_file_system},
  };
  // Mounts are seen by this process and its children only, and go with them.
  const bool own_mounts = ::unshare(CLONE_NEWNS) == 0 &&
                          ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  SuiteResult result;
  for (const Named& scene : kScenes) {
    fmt::print("scene {}\n", scene.name);
    std::fflush(stdout);
    const bool mounts = std::strstr(scene.name, "file-system") != nullptr;
    bool done = false;
    if (!mounts || own_mounts) {
      Scene stage(options, scene.name);
      done = scene.run(stage);
    }
    if (!done) fmt::print("scene {}: skipped, mounting is not permitted here\n", scene.name);
    ++(done ? result.passed : result.skipped);
  }
  return result;
}

int run_holder(const std::vector<std::string>& arguments) {
  EngineTotals totals;
  EngineOptions options;
  options.socket = arguments[0];
  options.secret_file = arguments[1];
  options.margin = std::chrono::minutes(1);  // it is stopped
  Engine engine(options, totals);
  require(engine.wait_connected(), "the holder finds no daemon");
  const auto number = [&](std::size_t i) {
    return static_cast<std::uint32_t>(std::strtoul(arguments[i].c_str(), nullptr, 10));
  };
  const std::uint32_t held = engine.hold(held_prompt(number(2), number(3)));
  require(::write(1, &held, sizeof held) == sizeof held, "nobody listens");
  char go = 0;
  if (::read(0, &go, 1) != 1) return 0;
  const std::uint32_t valid = engine.load_held();
  require(::write(1, &valid, sizeof valid) == sizeof valid, "nobody listens");
  return 0;
}

}  // namespace penstock::faults
