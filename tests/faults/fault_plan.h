// What goes wrong in the daemon of the fault suite, and when; counted in its own process.
//
// An effect is a step that others could see: an operation of the disk begins, an operation's end is
// about to be told, a message is about to be sent, a copy out of an engine's memory begins or has
// ended (the look at the peer before and after it is what is counted). The nth one ends the process
// by SIGKILL before it happens; a torn one writes part of its bytes first.
//
// Concurrency: one thread, the daemon's.
#pragma once

#include <csignal>
#include <cstdint>
#include <memory>
#include <utility>

#include <unistd.h>

#include "io/disk/segment_io.h"

namespace penstock::faults {

struct FaultPlan {
  std::uint64_t kill_at = 0;  // number of the effect; 0: none
  bool from_ready = false;    // counted from when it serves, else from its start
  bool torn = false;          // when it is a write
  int error = 0;              // errno of the disk's operations from `error_from` on
  std::uint64_t error_from = 0;
};

class Effects {
 public:
  void arm(const FaultPlan& plan) {
    plan_ = plan;
    count_ = 0;
  }
  // One effect is about to happen.
  void happen() {
    if (++count_ == plan_.kill_at) ::kill(::getpid(), SIGKILL);
  }
  bool next_is_torn() const { return plan_.torn && count_ + 1 == plan_.kill_at; }
  int error_of(std::uint64_t operation) const {
    return plan_.error != 0 && operation >= plan_.error_from ? plan_.error : 0;
  }
  std::uint64_t count() const { return count_; }

 private:
  FaultPlan plan_;
  std::uint64_t count_ = 0;
};

// The daemon's; null in every other process.
inline Effects* effects = nullptr;

// The disk's operations as effects.
class FaultIo final : public disk::SegmentIo {
 public:
  FaultIo(std::unique_ptr<SegmentIo> inner, Effects& counted)
      : inner_(std::move(inner)), effects_(counted) {}

  Hash128 store() const override { return inner_->store(); }
  std::vector<disk::SegmentFile> files() const override { return inner_->files(); }
  void prepare(std::uint32_t segment, Done done) override {
    if (begin(done)) inner_->prepare(segment, ending(std::move(done)));
  }
  void read(std::uint32_t segment, std::uint64_t offset, disk::IoVector to, Done done) override {
    if (begin(done)) inner_->read(segment, offset, to, ending(std::move(done)));
  }
  void write(std::uint32_t segment, std::uint64_t offset, disk::IoVector from, Done done) override {
    if (effects_.next_is_torn() && from.bytes() > kUnit) return tear(segment, offset, from);
    if (begin(done)) inner_->write(segment, offset, from, ending(std::move(done)));
  }
  void sync(std::uint32_t segment, Done done) override {
    if (begin(done)) inner_->sync(segment, ending(std::move(done)));
  }
  std::size_t in_flight() const override { return inner_->in_flight() + failed_.size(); }
  void poll() override {
    for (auto& failed : std::exchange(failed_, {}))
      failed.second(failed.first, 0);
    inner_->poll();
  }
  bool wait(Duration max) override {
    if (failed_.empty()) return inner_->wait(max);
    poll();
    return true;
  }
  int event_fd() const override { return inner_->event_fd(); }
  void wake() override { inner_->wake(); }

 private:
  static constexpr std::size_t kUnit = 4096;

  // False: the operation fails instead.
  bool begin(Done& done) {
    effects_.happen();
    const int error = effects_.error_of(++operations_);
    if (error == 0) return true;
    failed_.emplace_back(error, std::move(done));
    inner_->wake();
    return false;
  }
  Done ending(Done done) {
    return [this, done = std::move(done)](int error, std::size_t bytes) mutable {
      effects_.happen();
      done(error, bytes);
    };
  }
  // Writes all but the last unit of the record, then the process ends.
  void tear(std::uint32_t segment, std::uint64_t offset, const disk::IoVector& from) {
    disk::IoVector part = from;
    iovec& last = part.parts[part.count - 1];
    last.iov_len -= kUnit;
    if (last.iov_len == 0) --part.count;
    inner_->write(segment, offset, part, [this](int, std::size_t) { effects_.happen(); });
    for (;;)
      inner_->wait(std::chrono::seconds(1));
  }

  std::unique_ptr<SegmentIo> inner_;
  Effects& effects_;
  std::uint64_t operations_ = 0;
  std::vector<std::pair<int, Done>> failed_;
};

}  // namespace penstock::faults
