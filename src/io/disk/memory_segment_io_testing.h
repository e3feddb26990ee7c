// A disk in memory for tests of the disk tier, with faults.
//
// MemoryDisk is the medium and outlives "crashes"; MemorySegmentIo is one process's access to it.
// Operations take effect when they complete, in random order. crash() ends the process: each
// operation under way is lost, torn (some of its sectors) or done, and nobody hears of it.
// Concurrency: one thread.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "io/disk/segment_io.h"

namespace penstock::disk {

enum class DiskFault : std::uint8_t { kNone, kEio, kNoSpace, kShort, kTorn };

struct MemoryDisk {
  explicit MemoryDisk(std::uint64_t seed) : rng(seed) {}

  Rng rng;
  Hash128 store{{1, 2, 3}};
  std::uint64_t segment_bytes = 0;
  std::map<std::uint32_t, std::vector<std::byte>> files;
  std::size_t files_max = SIZE_MAX;  // of the file system; more are ENOSPC
  int write_error = 0;               // every write, prepare and sync fails with it
  int read_error = 0;
  std::uint64_t fault_at = 0;  // the operation of this number fails (1 is the first)
  DiskFault fault = DiskFault::kNone;
  std::uint64_t operations = 0;
  bool random_order = true;
  bool hung = false;  // no operation completes
};

class MemorySegmentIo final : public SegmentIo {
 public:
  explicit MemorySegmentIo(std::shared_ptr<MemoryDisk> disk) : disk_(std::move(disk)) {}

  Hash128 store() const override { return disk_->store; }
  std::vector<SegmentFile> files() const override {
    std::vector<SegmentFile> list;
    for (const auto& [number, bytes] : disk_->files)
      list.push_back({number, bytes.size()});
    return list;
  }
  void prepare(std::uint32_t segment, Done done) override {
    pending_.push_back({Kind::kPrepare, segment, 0, {}, std::move(done)});
  }
  void read(std::uint32_t segment, std::uint64_t offset, IoVector to, Done done) override {
    pending_.push_back({Kind::kRead, segment, offset, to, std::move(done)});
  }
  void write(std::uint32_t segment, std::uint64_t offset, IoVector from, Done done) override {
    pending_.push_back({Kind::kWrite, segment, offset, from, std::move(done)});
  }
  void sync(std::uint32_t segment, Done done) override {
    pending_.push_back({Kind::kSync, segment, 0, {}, std::move(done)});
  }
  std::size_t in_flight() const override { return pending_.size(); }
  void poll() override {
    // Some of what is pending now completes.
    if (disk_->hung) return;
    std::size_t some = disk_->rng.below(pending_.size() + 1);
    while (some-- > 0 && !pending_.empty())
      complete_one();
  }
  bool wait(Duration) override {
    if (!disk_->hung) complete_one();
    return !disk_->hung;
  }
  int event_fd() const override { return -1; }
  void wake() override {}

  // Precondition: nothing of the process goes on but its destruction.
  void crash() {
    for (Operation& operation : pending_) {
      if (operation.kind != Kind::kWrite) continue;
      const std::uint64_t fate = disk_->rng.below(3);
      if (fate == 1) transfer(operation, true);
      if (fate == 2) transfer(operation, false);
    }
    dead_ = true;
  }

 private:
  enum class Kind : std::uint8_t { kPrepare, kRead, kWrite, kSync };
  struct Operation {
    Kind kind;
    std::uint32_t segment;
    std::uint64_t offset;
    IoVector vector;
    Done done;
  };

  void complete_one() {
    const std::size_t index = disk_->random_order ? disk_->rng.below(pending_.size()) : 0;
    Operation operation = std::move(pending_[index]);
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
    if (dead_) return operation.done(EIO, 0);
    const bool faulty = ++disk_->operations == disk_->fault_at;
    const DiskFault fault = faulty ? disk_->fault : DiskFault::kNone;
    if (fault == DiskFault::kEio) return operation.done(EIO, 0);
    if (fault == DiskFault::kNoSpace && operation.kind != Kind::kRead) {
      return operation.done(ENOSPC, 0);
    }
    if (operation.kind == Kind::kRead) {
      if (disk_->read_error != 0) return operation.done(disk_->read_error, 0);
    } else if (disk_->write_error != 0) {
      return operation.done(disk_->write_error, 0);
    }
    if (operation.kind == Kind::kPrepare) return prepare_now(operation);
    if (operation.kind == Kind::kSync) return operation.done(0, 0);
    if (!disk_->files.contains(operation.segment)) return operation.done(ENOENT, 0);
    std::size_t bytes = transfer(operation, fault == DiskFault::kTorn);
    if (fault == DiskFault::kTorn) return operation.done(EIO, 0);
    if (fault == DiskFault::kShort) bytes /= 2;
    operation.done(0, bytes);
  }

  void prepare_now(Operation& operation) {
    if (!disk_->files.contains(operation.segment) && disk_->files.size() >= disk_->files_max) {
      return operation.done(ENOSPC, 0);
    }
    disk_->files[operation.segment].resize(disk_->segment_bytes);
    operation.done(0, 0);
  }

  // Moves the bytes; `torn` leaves out random sectors. Returns how many there were.
  std::size_t transfer(const Operation& operation, bool torn) {
    std::vector<std::byte>& file = disk_->files[operation.segment];
    std::size_t at = operation.offset;
    std::size_t moved = 0;
    for (unsigned i = 0; i < operation.vector.count; ++i) {
      const iovec& part = operation.vector.parts[i];
      auto* memory = static_cast<std::byte*>(part.iov_base);
      for (std::size_t sector = 0; sector < part.iov_len; sector += 512, at += 512) {
        if (operation.kind == Kind::kRead && at + 512 > file.size()) return moved;
        if (file.size() < at + 512) file.resize(at + 512);
        moved += 512;
        if (torn && disk_->rng.below(2) == 0) continue;
        if (operation.kind == Kind::kRead) {
          std::memcpy(memory + sector, file.data() + at, 512);
        } else {
          std::memcpy(file.data() + at, memory + sector, 512);
        }
      }
    }
    return moved;
  }

  std::shared_ptr<MemoryDisk> disk_;
  std::vector<Operation> pending_;
  bool dead_ = false;
};

}  // namespace penstock::disk
