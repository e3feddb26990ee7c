// DiskTier's faults: those counted, those that end the service, and a device that does not answer.
#include <fmt/format.h>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "io/disk/disk_tier.h"

namespace penstock::disk {

using kvcache::SegmentState;

namespace {

constexpr std::int64_t kErrorWindowSeconds = 3600;

}  // namespace

void DiskTier::error_in(std::uint32_t segment, const std::string& what) {
  if (off()) return;
  if (now_.wall.value - errors_since_ > kErrorWindowSeconds) {
    errors_since_ = now_.wall.value;
    errors_recent_ = 0;
  }
  if (++errors_recent_ >= options_.errors_max) {
    return go_off(
        fmt::format("{} faults within an hour (the last: {} of segment {:04}); check the "
                    "device, then restart",
                    errors_recent_, what, segment));
  }
  if (++errors_[segment] == options_.segment_errors_max &&
      log_.state_of(segment) != SegmentState::kBad) {
    log_.mark_bad(segment, MissReason::kIoError);
    notice(DiskNotice::kWarning,
           fmt::format("KV segment {:04} failed {} times; it is out of use until the restart",
                       segment, errors_[segment]));
    if (const auto filling = filling_.find(segment); filling != filling_.end()) {
      filling->second.failed = filling->second.closing = true;
      try_seal(segment);
    }
  }
}

void DiskTier::go_off(const std::string& why) {
  if (off()) return;
  stats_.in_service = suspended_ = false;
  stats_.state = "out of service: " + why;
  notice(DiskNotice::kAlarm, "the disk tier is out of service: " + why);
  refuse_waiting();
}

void DiskTier::refuse_waiting() {
  while (!waiting_.empty()) {
    const auto append = std::move(waiting_.front());
    waiting_.pop_front();
    finish(*append, MissReason::kTierOff);
  }
  io_->wake();
}

void DiskTier::watch_device() {
  if (watch_.take_slow()) {
    notice(DiskNotice::kWarning,
           "the disk is slow: more than one operation in a hundred takes above a second; check the "
           "device and what else uses it");
  }
  if (off()) return;
  if (watch_.oldest() > options_.io_time_max) {
    overdue_at_ = now_.now;
    if (!suspended_) suspend();
  } else if (suspended_ && now_.now - overdue_at_ >= options_.quiet_time) {
    suspended_ = false;
    stats_.in_service = true;
    stats_.state = "ok";
    notice(DiskNotice::kWarning, "the device answers again; the disk tier is in service");
  }
}

void DiskTier::suspend() {
  suspended_ = true;
  stats_.in_service = false;
  stats_.state = fmt::format(
      "out of service: the device has not answered for {} ms ({} operations under way); check it, "
      "the tier is back {} s after it has answered",
      std::chrono::duration_cast<std::chrono::milliseconds>(watch_.oldest()).count(),
      watch_.under_way(),
      std::chrono::duration_cast<std::chrono::seconds>(options_.quiet_time).count());
  notice(DiskNotice::kAlarm, "the disk tier is " + stats_.state);
  refuse_waiting();
}

// Faults that no other segment will escape.
bool DiskTier::fatal(int error, const std::string& doing) {
  switch (error) {
    case EROFS:
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case ENODEV:
      go_off(fmt::format("{} failed: {}", doing, std::strerror(error)));
      return true;
    default:
      return false;
  }
}

}  // namespace penstock::disk
