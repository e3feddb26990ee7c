// `penstock bench kv`, disk tier: real files in the folder for temporary files (set TMPDIR to the
// disk that is meant).
//
// Put and get move blocks of 1 MiB, eight at a time, in random order for reads, through the whole
// tier: admission, header, checksums verified on every read, footers and fdatasync. The baselines
// move the same sizes at the same depth over fresh files of the same kind: a raw io_uring loop with
// nothing around it, and fio where it is installed (io_uring, direct). Rounds alternate between
// tier and baselines, and medians are compared, because the device is shared. Recovery opens a
// store of 4 KiB blocks, one segment of it still open as after kill -9, and counts blocks per
// second. Index memory is counted at 10 M blocks, all in (slots, lists of segments, names seen).
#include <fcntl.h>
#include <fmt/format.h>
#include <liburing.h>
#include <poll.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "io/disk/disk_tier.h"
#include "io/disk/uring_segment_io.h"
#include "kv.h"

namespace penstock::bench {
namespace {

using Watch = std::chrono::steady_clock;

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
constexpr unsigned kDepth = 8;
constexpr double kGetAim = 0.95;
constexpr double kPutAim = 0.9;
constexpr double kRecoveryMin = 1e6;
constexpr double kIndexBytesMax = 40;
constexpr std::uint64_t kIndexBlocks = 10'000'000;
const TierNow kNow{Instant(Duration(1)), UnixSeconds(1'000'000)};

double seconds_since(Watch::time_point start) {
  return std::chrono::duration<double>(Watch::now() - start).count();
}

struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "penstockXXXXXX").string();
  bool made = ::mkdtemp(path.data()) != nullptr;
  ~Folder() {
    std::error_code ignored;
    if (made) std::filesystem::remove_all(path, ignored);
  }
};

BlockName name_of(std::uint64_t number) {
  BlockName name;
  // Uniform, as real keys are: multiples of one number would crowd in the index.
  const std::uint64_t words[2] = {checksum64(std::as_bytes(std::span(&number, 1))), number};
  std::memcpy(name.key.bytes.data(), words, sizeof words);
  return name;
}

kvcache::DiskLogOptions log_options(std::uint32_t segments) {
  kvcache::DiskLogOptions options;
  options.segments = segments;
  options.classes = {{{"default", std::chrono::hours(24)}, true}};
  options.tenant_share_max = 1;
  return options;
}

// A tier in its own folder and blocks of one size for it, all of the same random bytes.
class Store {
 public:
  Store(std::string folder, std::uint32_t segments, std::size_t bytes, std::size_t slices)
      : folder_(std::move(folder)), segments_(segments), payload_(bytes) {
    Rng rng(1);
    const auto memory = payload_.span();
    for (std::size_t at = 0; at < bytes; at += 8) {
      const std::uint64_t word = rng.next_u64();
      std::memcpy(memory.data() + at, &word, 8);
    }
    info_.ttl_class = 0;
    const std::size_t slice = bytes / slices;
    for (std::size_t i = 0; i < slices; ++i) {
      info_.slices.push_back({static_cast<std::uint32_t>(slice),
                              checksum64(std::as_bytes(memory.subspan(i * slice, slice)))});
    }
    for (unsigned i = 0; i < kDepth; ++i)
      destinations_.emplace_back(bytes);
  }

  void close() { tier_.reset(); }
  Status open() {
    disk::DiskTierOptions options;
    options.log = log_options(segments_);
    TRY(tier_, disk::open_disk_tier(folder_, "", std::move(options), kNow));
    return {};
  }
  disk::DiskTier& tier() { return *tier_; }

  // Runs `count` operations, `depth` at a time; false when one did not succeed.
  template <typename Start>
  bool run(std::uint64_t count, std::uint64_t depth, Start&& start) {
    std::uint64_t started = 0;
    std::uint64_t finished = 0;
    std::uint64_t failed = 0;
    std::vector<TierRemoval> removals;
    while (finished < count) {
      while (started < count && started - finished < depth) {
        start(started++, [&](MissReason reason) {
          ++finished;
          failed += reason == MissReason::kNone ? 0 : 1;
        });
      }
      pollfd ready{tier_->event_fd(), POLLIN, 0};
      ::poll(&ready, 1, -1);
      tier_->poll(kNow, removals);
    }
    return failed == 0;
  }
  bool put(std::uint64_t first, std::uint64_t count, std::uint64_t depth) {
    return run(count, depth, [&](std::uint64_t i, auto done) {
      BlockInfo info = info_;
      info.name = name_of(first + i);
      tier_->write({std::move(info), payload_.span(), std::move(done)});
    });
  }
  bool get(const std::vector<std::uint64_t>& order) {
    std::vector<std::size_t> free(kDepth);
    for (std::size_t i = 0; i < free.size(); ++i)
      free[i] = i;
    return run(order.size(), kDepth, [&](std::uint64_t i, auto done) {
      const std::size_t slot = free.back();
      free.pop_back();
      tier_->read({name_of(order[i]), destinations_[slot].span(),
                   [&free, slot, done](MissReason reason, const BlockInfo&) {
                     free.push_back(slot);
                     done(reason);
                   }});
    });
  }

 private:
  std::string folder_;
  std::uint32_t segments_;
  disk::AlignedBuffer payload_;
  BlockInfo info_;
  std::vector<disk::AlignedBuffer> destinations_;
  std::unique_ptr<disk::DiskTier> tier_;
};

std::vector<std::uint64_t> shuffled(std::uint64_t count, std::uint64_t seed) {
  std::vector<std::uint64_t> order(count);
  for (std::uint64_t i = 0; i < count; ++i)
    order[i] = i;
  Rng rng(seed);
  for (std::uint64_t i = count; i > 1; --i)
    std::swap(order[i - 1], order[rng.below(i)]);
  return order;
}

// Seconds for moving the blocks of `order` in one preallocated file; nothing but the ring.
std::optional<double> raw_seconds(int fd, const std::vector<std::uint64_t>& order, bool write) {
  io_uring ring{};
  if (io_uring_queue_init(kDepth, &ring, 0) != 0) return std::nullopt;
  std::vector<disk::AlignedBuffer> buffers;
  std::vector<std::size_t> free;
  for (unsigned i = 0; i < kDepth; ++i) {
    buffers.emplace_back(kBlockBytes);
    std::ranges::fill(buffers.back().span(), std::byte{7});
    free.push_back(i);
  }
  std::size_t started = 0;
  std::size_t finished = 0;
  bool whole = true;
  const auto begin = Watch::now();
  while (finished < order.size()) {
    while (started < order.size() && !free.empty()) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring);
      void* memory = buffers[free.back()].span().data();
      const std::uint64_t at = order[started++] * kBlockBytes;
      if (write) {
        io_uring_prep_write(sqe, fd, memory, kBlockBytes, at);
      } else {
        io_uring_prep_read(sqe, fd, memory, kBlockBytes, at);
      }
      io_uring_sqe_set_data64(sqe, free.back());
      free.pop_back();
    }
    io_uring_submit_and_wait(&ring, 1);
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring, &cqe) == 0) {
      whole = whole && cqe->res == static_cast<int>(kBlockBytes);
      free.push_back(cqe->user_data);
      io_uring_cqe_seen(&ring, cqe);
      ++finished;
    }
  }
  const double seconds = seconds_since(begin);
  io_uring_queue_exit(&ring);
  if (!whole) return std::nullopt;
  return seconds;
}

// GB/s that fio measures for the file; nullopt when it is not installed or fails.
std::optional<double> fio_rate(const std::string& file, std::uint64_t blocks, bool write) {
  const std::string command = fmt::format(
      "fio --name=b --filename={} --size={}m --bs=1m --iodepth={} --ioengine=io_uring --direct=1 "
      "--rw={} --fallocate=native --output-format=terse --terse-version=3 2>/dev/null",
      file, blocks, kDepth, write ? "write" : "randread");
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string text(65536, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), pipe));
  if (::pclose(pipe) != 0) return std::nullopt;
  // Terse version 3: field 7 is the read bandwidth in KiB/s, field 48 the one of writes.
  std::size_t at = 0;
  for (int field = 1; field < (write ? 48 : 7) && at != std::string::npos; ++field)
    at = text.find(';', at) == std::string::npos ? at : text.find(';', at) + 1;
  const double kib = std::strtod(text.c_str() + at, nullptr);
  if (kib <= 0) return std::nullopt;
  return kib * 1024 / 1e9;
}

struct Rates {
  std::vector<double> tier, raw, fio;
};

void add_figures(std::vector<Figure>& figures, const std::string& name, const Rates& rates,
                 double aim) {
  figures.push_back(more_is_better(name, median(rates.tier), "GB/s", "raw io_uring loop",
                                   median(rates.raw), aim));
  if (rates.fio.empty()) {
    figures.push_back(skipped(name + ", against fio", "GB/s", "fio", aim, "fio is not installed"));
  } else {
    figures.push_back(more_is_better(name + ", against fio", median(rates.tier), "GB/s", "fio",
                                     median(rates.fio), aim));
  }
}

Status measure_transfers(const std::string& folder, bool quick, std::vector<Figure>& figures) {
  const std::uint64_t blocks = quick ? 240 : 480;
  const double gigabytes = static_cast<double>(blocks * kBlockBytes) / 1e9;
  Rates put;
  Rates get;
  for (int round = 0; round < (quick ? 3 : 7); ++round) {
    const std::string here = fmt::format("{}/{}", folder, round);
    Store store(here + "/kv", 16, kBlockBytes, 16);
    TRY_STATUS(store.open());
    const int fd = ::open((here + "/raw").c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0 || ::posix_fallocate(fd, 0, static_cast<off_t>(blocks * kBlockBytes)) != 0) {
      return fail(ErrorCode::kIo, "cannot make a file for O_DIRECT in the temporary folder");
    }
    std::vector<std::uint64_t> in_order(blocks);
    for (std::uint64_t i = 0; i < blocks; ++i)
      in_order[i] = i;
    auto begin = Watch::now();
    if (!store.put(0, blocks, kDepth)) return fail(ErrorCode::kIo, "a put failed");
    put.tier.push_back(gigabytes / seconds_since(begin));
    const auto raw_put = raw_seconds(fd, in_order, true);
    if (const auto rate = fio_rate(here + "/fio", blocks, true)) put.fio.push_back(*rate);
    const auto order = shuffled(blocks, static_cast<std::uint64_t>(round));
    begin = Watch::now();
    if (!store.get(order)) return fail(ErrorCode::kIo, "a get failed");
    get.tier.push_back(gigabytes / seconds_since(begin));
    const auto raw_get = raw_seconds(fd, order, false);
    if (const auto rate = fio_rate(here + "/fio", blocks, false)) get.fio.push_back(*rate);
    ::close(fd);
    if (!raw_put || !raw_get) return fail(ErrorCode::kIo, "the raw loop failed");
    put.raw.push_back(gigabytes / *raw_put);
    get.raw.push_back(gigabytes / *raw_get);
    std::error_code ignored;
    std::filesystem::remove_all(here, ignored);
  }
  add_figures(figures, "cold disk get 1 MiB", get, kGetAim);
  add_figures(figures, "disk put 1 MiB", put, kPutAim);
  return {};
}

Status measure_recovery(const std::string& folder, bool quick, std::vector<Figure>& figures) {
  const std::uint64_t blocks = quick ? 127'000 : 404'000;
  Store store(folder + "/recovery", quick ? 32 : 64, 4096, 1);
  TRY_STATUS(store.open());
  if (!store.put(0, blocks, 128)) return fail(ErrorCode::kIo, "a put failed");
  std::vector<double> rates;
  for (int round = 0; round < 3; ++round) {
    store.close();  // the open segment, half full, has no footer
    const auto begin = Watch::now();
    TRY_STATUS(store.open());
    rates.push_back(static_cast<double>(store.tier().stats().blocks) / seconds_since(begin));
    if (store.tier().stats().blocks != blocks) return fail(ErrorCode::kDataLoss, "blocks are lost");
  }
  figures.push_back(at_least("recovery of 4 KiB blocks", median(rates), "blocks/s", kRecoveryMin));
  return {};
}

void measure_index(std::vector<Figure>& figures) {
  kvcache::DiskLog log(log_options(kIndexBlocks / 1000));
  BlockInfo info;
  info.slices = {{48 * 1024, 0}};  // 13 units with the header: 1,260 a segment
  for (std::uint64_t i = 0; i < kIndexBlocks; ++i) {
    info.name = name_of(i);
    const auto placed = log.place(0, 13, kNow.wall, kvcache::DiskLog::Purpose::kWrite);
    if (!placed) break;
    log.publish(info, 1, placed->place);
    if (!placed->opened) continue;
    for (const std::uint32_t segment : log.take_seals(kNow.wall))
      log.sealed(segment);
  }
  const double bytes = static_cast<double>(log.memory_bytes()) / static_cast<double>(log.blocks());
  figures.push_back(at_most("disk index memory at 10 M blocks", bytes, "B/block", kIndexBytesMax));
}

}  // namespace

Result<std::vector<Figure>> kv_disk_figures(const Options& options) {
  std::vector<Figure> figures;
  measure_index(figures);
  if (!disk::uring_permitted()) {
    figures.push_back(skipped("cold disk get 1 MiB", "GB/s", "raw io_uring loop", kGetAim,
                              "io_uring is not permitted here"));
    return figures;
  }
  const Folder folder;
  if (!folder.made) return fail(ErrorCode::kIo, "cannot make a temporary folder");
  TRY_STATUS(measure_transfers(folder.path, options.quick, figures));
  TRY_STATUS(measure_recovery(folder.path, options.quick, figures));
  return figures;
}

}  // namespace penstock::bench
