// DeviceWatch: how long the device has owed an answer, and whether it is slow.
//
// Every operation's Done goes through watched(). Time is counted by advance(), which is called
// before completions are taken, and at most a second of it a call: while the process itself stood
// still (a stopped container, a suspended host) the device was not late.
//
// Slow: in three windows of ten seconds in a row more than one operation in a hundred took above a
// second. That is told once, and again only after five minutes without such a window.
//
// Invariants: outlives the operations that were begun through it. Concurrency: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/units.h"
#include "io/disk/segment_io.h"

namespace penstock::disk {

class DeviceWatch {
 public:
  SegmentIo::Done watched(SegmentIo::Done done);
  void advance(Instant now);
  // Of the operation that has waited longest; 0: none is under way.
  Duration oldest() const;
  std::size_t under_way() const { return started_.size(); }
  // True once for each time the device has become slow.
  bool take_slow();

 private:
  std::optional<Instant> last_;
  Duration clock_{};
  std::map<std::uint64_t, Duration> started_;  // by number, which is the order of starting
  std::uint64_t next_ = 0;
  Duration window_end_{};
  std::uint64_t ended_ = 0;  // in this window
  std::uint64_t late_ = 0;
  int slow_windows_ = 0;  // in a row
  int calm_windows_ = 0;
  bool told_ = false;
};

}  // namespace penstock::disk
