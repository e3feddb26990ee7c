// DiskTier: KV blocks on a local disk: DiskLog's decisions carried out over SegmentIo.
//
// A write goes through admission, gets a place in its class's open segment, and is written there
// with its header. It is acknowledged and found only when it and all records before it in the
// segment are on disk, so that what was acknowledged lies before any hole a crash leaves. A read
// fetches header and payload in one operation straight into the caller's memory and is verified
// there. A segment that is full gets its footer, then fdatasync. A segment that goes has its kept
// blocks read, verified and written again through the same path.
//
// Recovery reads header and trailer of each segment, then the directories, 64 at a time; segments
// without a valid footer are read as far as there are records, each record verified, and go on
// being written where they stopped.
//
// What survives: kill -9, every acknowledged block. Power loss: every sealed segment; of open ones
// what the device had written; anything torn fails its checksum and is a miss. Marks and heat are
// in the footer, which is written again a minute after blocks of a sealed segment were used: four
// segments a second, and up to 256 at an orderly stop. Of segments without one they are lost.
//
// A device that does not answer: when an operation has been under way for io_time_max the tier is
// suspended, with one alarm: contains() says false, reads and writes are refused, and those under
// way stay the device's until it answers. The index stays; nothing is reported as removed. Once no
// answer is overdue, after quiet_time, the tier is in service again. A device that is slow for long
// is one warning.
//
// Faults: a failed read is a miss; three in one segment drop the segment; sixteen within an hour,
// or a directory that vanished or became read-only, take the tier out of service, with one alarm.
// A full file system means fewer segments: the tier reclaims, then drops writes, and tries again
// after a minute.
//
// Invariants: BlockTier's. poll() is to be called when event_fd() is readable and at least once a
// second. Destroying the tier waits for the device, at most drain_time_max, and delivers nothing
// more. What the device still owes then is told; its memory here is never freed, and the callers'
// memory it may still write into must not be used again.
// Errors: open() fails when the directory is unusable or a limit is out of range; later faults are
// reasons. Concurrency: one thread. Source: docs/protocol/kv-segments.md.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "core/kvcache/disk_log.h"
#include "io/disk/aligned_buffer.h"
#include "io/disk/device_watch.h"
#include "io/disk/record_cipher.h"
#include "io/disk/segment_io.h"
#include "port/block_tier.h"

namespace penstock::disk {

enum class DiskNotice : std::uint8_t { kInfo, kWarning, kAlarm };

struct DiskTierOptions {
  kvcache::DiskLogOptions log;  // sizes, classes, shares; epoch_seed is drawn by open_disk_tier
  std::optional<RecordCipher::Key> key;  // encrypts what is written; what is plain is not read then
  std::size_t writes_max = 256;          // accepted and not yet on disk; more are not admitted
  std::uint32_t segment_errors_max = 3;
  std::uint32_t errors_max = 16;  // within an hour
  // A file system may hold back everything for seconds while it commits; no healthy one for this.
  Duration io_time_max = std::chrono::seconds(5);
  Duration quiet_time = std::chrono::seconds(30);
  Duration drain_time_max = std::chrono::seconds(5);
  std::function<void(DiskNotice, const std::string&)> notice;
};

class DiskTier final : public BlockTier {
 public:
  static Result<std::unique_ptr<DiskTier>> open(DiskTierOptions options,
                                                std::unique_ptr<SegmentIo> io, TierNow now);
  ~DiskTier() override;
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  bool contains(const BlockName& name) const override;
  void prefetch(const BlockName& name) const override { log_.prefetch(name); }
  std::optional<std::uint32_t> size_of(const BlockName& name) const override;
  void read(TierRead read) override;
  void write(TierWrite write) override;
  void touch(std::span<const BlockName> path, TtlClass ttl_class, TierNow now) override;
  void remove(const BlockName& name, MissReason reason) override;
  void poll(TierNow now, std::vector<TierRemoval>& removals) override;
  int event_fd() const override;
  void for_each(const std::function<bool(const BlockName&, std::uint32_t)>& visit) const override;
  std::size_t parts() const override { return kvcache::DiskIndex::kShards; }
  void for_each_in(
      std::size_t part,
      const std::function<bool(const BlockName&, std::uint32_t)>& visit) const override;
  TierStats stats() const override;

 private:
  // A record on its way to the disk.
  struct Append {
    BlockInfo info;
    std::span<const std::byte> payload;         // the caller's, or in `own`
    AlignedBuffer own;                          // of a re-inserted record
    std::function<void(MissReason)> done;       // of a write
    std::optional<kvcache::DiskReinsert> from;  // of a re-insertion
    kvcache::RecordHeader header;
    kvcache::DiskPlace place;
    AlignedBuffer head;  // header and padded tail, or the whole record when encrypted
    int attempts = 0;
    enum class State : std::uint8_t { kWaiting, kWriting, kWritten, kFailed } state{};
  };
  // A segment being filled, or waiting for its footer.
  struct Filling {
    bool ready = false;    // its header is on disk
    bool failed = false;   // a write failed: nothing more goes in, and no footer
    bool broken = false;   // the failed write was reached: nothing behind it is acknowledged
    bool closing = false;  // the footer comes when `order` is empty
    std::deque<std::unique_ptr<Append>> order;  // by place
  };
  struct Reclaiming {
    kvcache::DiskReclaim plan;
    std::size_t next = 0;
    std::size_t active = 0;
  };

  struct ScanPosition {
    std::uint32_t unit = 1;       // looked at next
    std::uint32_t used = 1;       // end of the last record
    bool record_goes_on = false;  // beyond what was read
  };

  DiskTier(DiskTierOptions options, std::unique_ptr<SegmentIo> io, TierNow now);
  static std::uint64_t offset_of(std::uint64_t units) { return units * kvcache::kUnitBytes; }

  // disk_tier.cc
  bool off() const { return !stats_.in_service && !suspended_; }  // until the restart
  void device_read(std::uint32_t segment, std::uint64_t offset, IoVector to, SegmentIo::Done done);
  void device_write(std::uint32_t segment, std::uint64_t offset, IoVector from,
                    SegmentIo::Done done);
  void append(std::unique_ptr<Append> append);
  void prepare(std::uint32_t segment);
  void header_written(std::uint32_t segment, int error);
  void submit(std::uint32_t segment, Append& append);
  void advance(std::uint32_t segment);
  void try_seal(std::uint32_t segment);
  void footer_written(std::uint32_t segment, int error);
  AlignedBuffer footer_of(std::uint32_t segment);
  void write_old_footers(UnixSeconds until, std::size_t count);
  void finish(Append& append, MissReason reason);
  void retry_waiting();
  IoVector build_record(Append& append);
  std::expected<BlockInfo, MissReason> check(const BlockName& name, std::uint32_t bytes,
                                             std::uint64_t epoch, std::span<std::byte> header,
                                             std::span<const std::byte> payload,
                                             std::span<std::byte> whole) const;
  void read_failed(const BlockName& name, kvcache::DiskPlace place, MissReason reason);
  void notice(DiskNotice level, const std::string& text) const;

  // disk_tier_faults.cc
  void error_in(std::uint32_t segment, const std::string& what);
  void go_off(const std::string& why);
  bool fatal(int error, const std::string& doing);
  void watch_device();
  void suspend();
  void refuse_waiting();

  // disk_tier_reclaim.cc
  void run_reclaim();
  void reinsert(const kvcache::DiskReinsert& item);
  void file_system_full(std::uint32_t segment);
  void revive_segments();

  // disk_tier_recovery.cc
  Status recover();
  Status wait_for_device();
  void read_whole(std::uint32_t segment, std::uint64_t offset, std::span<std::byte> to,
                  std::move_only_function<void(bool read)> done);
  void header_read(const SegmentFile& file, std::span<const std::byte> unit);
  void trailer_read(const SegmentFile& file, std::span<const std::byte> unit);
  Status read_directories();
  Status drain();
  Status scan(const SegmentFile& file);
  void scan_records(std::uint32_t segment, std::span<std::byte> bytes, bool last,
                    ScanPosition& position);

  DiskTierOptions options_;
  std::unique_ptr<SegmentIo> io_;
  DeviceWatch watch_;
  TierNow now_;
  kvcache::DiskLog log_;
  std::optional<RecordCipher> cipher_;
  std::unordered_map<std::uint32_t, Filling> filling_;
  std::unordered_set<BlockName> pending_;                      // names being written
  std::deque<std::unique_ptr<Append>> waiting_;                // for a clean segment
  std::vector<std::uint32_t> readers_;                         // by segment
  std::vector<std::uint32_t> errors_;                          // by segment
  std::vector<bool> created_;                                  // by segment: its file exists
  std::deque<std::pair<std::int64_t, std::uint32_t>> revive_;  // when, which segment
  std::optional<Reclaiming> reclaiming_;
  std::vector<std::move_only_function<void()>> finished_;  // callbacks for the end of poll()
  bool polling_ = false;                                   // reads are delivered as they come
  // Recovery: segments with a valid trailer, and those without a footer.
  std::vector<std::pair<SegmentFile, kvcache::Trailer>> directories_;
  std::vector<SegmentFile> scans_;
  std::int64_t expiry_checked_ = -1;
  std::int64_t footers_written_at_ = 0;
  std::int64_t errors_since_ = 0;
  std::uint32_t errors_recent_ = 0;
  std::int64_t corrupt_told_ = -1;
  bool suspended_ = false;
  Instant overdue_at_{};  // when an answer was last overdue
  TierStats stats_;
};

// A tier over the files in `folder` (DATA/kv/segments), with the key of `key_file` unless empty.
// options.log.segments is the capacity; at most it is used.
Result<std::unique_ptr<DiskTier>> open_disk_tier(const std::string& folder,
                                                 const std::string& key_file,
                                                 DiskTierOptions options, TierNow now);

}  // namespace penstock::disk
