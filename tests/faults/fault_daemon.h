// The daemon of the fault suite, from both sides: the process, and what its driver knows of it.
//
// The process is the real KvServer over the real DiskTier, as `penstock kvd` composes them, with
// three additions: its disk counts effects (fault_plan.h), its wall clock runs kWallSpeed times as
// fast, so that lifetimes end while a round runs, and a pipe tells the driver what became true:
// what was recovered and read back, what was acknowledged and until when it must be kept, what was
// removed, alarms. The pipe holds what was told before a SIGKILL.
//
// Concurrency: FaultDaemon is the driver's main thread's; what was told is read by a thread of it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/units.h"
#include "port/block_tier.h"
#include "tests/faults/fault_plan.h"

namespace penstock::faults {

inline constexpr std::int64_t kWallSpeed = 60;
inline constexpr std::uint32_t kSegmentUnits = 256;  // 1 MiB

struct DaemonSetup {
  std::string folder;  // holds secret, kvd.sock and the segments in kv/
  std::string disk_folder;
  std::uint64_t arena_bytes = std::uint64_t{8} << 20;
  std::uint32_t segments = 12;
  bool with_disk = true;
  bool check_all = true;  // reads everything back before it serves
  std::int64_t silence_ms = 5000;
  FaultPlan plan;

  std::string socket() const { return folder + "/kvd.sock"; }
  std::string secret() const { return folder + "/secret"; }
};

// The main function of the daemon's process: setup as FaultDaemon::start gives it.
int run_daemon(const std::vector<std::string>& arguments);

// What was told over the pipe, one write each.
struct Told {
  enum class Kind : std::uint8_t { kHave, kReady, kStored, kGone, kAlarm, kDamage };
  Kind kind{};
  KvGroup group{};
  MissReason reason{};
  std::uint8_t unused = 0;
  std::uint32_t bytes = 0;
  BlockKey key;
  std::int64_t wall = 0;  // kStored: until when it must be kept; kReady: the time of its start

  BlockName name() const { return {key, group}; }
};

class FaultDaemon {
 public:
  ~FaultDaemon();

  void start(const DaemonSetup& setup);
  // False: it has ended before it was ready. Fails the suite when neither comes in time, when a
  // block that must be kept was not recovered, or a recovered one did not have its bytes.
  bool wait_ready();
  // Whether it ended by itself within this time.
  bool wait_end(Duration time);
  void kill();  // SIGKILL
  void stop();  // SIGTERM: in order, with an exit code of 0
  void signal(int number) const;
  bool running() const { return pid_ > 0; }

  // Forgets what must be kept (its disk was taken away).
  void forget();
  void forget(const std::set<BlockName>& names);
  std::size_t kept() const;  // blocks that must be kept
  std::vector<BlockName> kept_names() const;
  std::size_t recovered() const;  // at the last start
  std::vector<BlockName> recovered_names() const;
  std::uint64_t alarms() const { return alarms_; }  // since the start
  std::uint64_t damages() const { return damages_; }
  std::uint64_t stored() const { return stored_; }  // acknowledged by the disk, all runs
  std::uint64_t gone(MissReason reason) const { return gone_[static_cast<std::size_t>(reason)]; }

 private:
  void listen(int pipe);
  void take(const Told& told);
  void ended(int status);
  void check_recovered();

  pid_t pid_ = -1;
  bool expects_end_ = false;
  DaemonSetup setup_;
  std::thread listener_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false;
  bool closed_ = true;  // the pipe's end
  std::int64_t started_wall_ = 0;
  std::map<BlockName, std::int64_t> kept_;  // until when
  std::map<BlockName, MissReason> have_;    // at this start
  std::atomic<std::uint64_t> alarms_ = 0, damages_ = 0, stored_ = 0;
  std::atomic<std::uint64_t> gone_[kMissReasons] = {};
};

}  // namespace penstock::faults
