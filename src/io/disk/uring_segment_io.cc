#include "io/disk/uring_segment_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <liburing.h>
#include <sodium.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"

namespace penstock::disk {
namespace {

constexpr std::string_view kLockTitle = "penstock kv store 1 ";

std::string file_name(std::uint32_t segment) {
  return fmt::format("{:04}.seg", segment);
}

class UringSegmentIo final : public SegmentIo {
 public:
  explicit UringSegmentIo(UringOptions options) : options_(std::move(options)) {}
  ~UringSegmentIo() override {
    while (in_flight() > 0)
      wait(std::chrono::seconds(1));
    if (ring_ready_) io_uring_queue_exit(&ring_);
    for (const auto& [segment, file] : files_) {
      if (file.fd >= 0) ::close(file.fd);
    }
    for (const int fd : {event_, lock_, folder_}) {
      if (fd >= 0) ::close(fd);
    }
  }
  UringSegmentIo(const UringSegmentIo&) = delete;
  UringSegmentIo& operator=(const UringSegmentIo&) = delete;

  Status open() {
    TRY_STATUS(open_folder());
    TRY_STATUS(take_lock());
    TRY_STATUS(raise_file_limit());
    if (const int error = io_uring_queue_init(options_.depth, &ring_, 0); error < 0) {
      return fail(ErrorCode::kIo,
                  fmt::format("io_uring is not available: {}; the disk tier needs Linux 5.11 and a "
                              "sandbox that permits io_uring",
                              std::strerror(-error)));
    }
    ring_ready_ = true;
    event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event_ < 0 || io_uring_register_eventfd(&ring_, event_) != 0) {
      return fail(ErrorCode::kIo, "cannot make an event descriptor for the disk tier");
    }
    return {};
  }

  Hash128 store() const override { return store_; }
  std::vector<SegmentFile> files() const override;

  void prepare(std::uint32_t segment, Done done) override {
    start({Kind::kAllocate, segment, 0, {}, std::move(done)});
  }
  void read(std::uint32_t segment, std::uint64_t offset, IoVector to, Done done) override {
    start({Kind::kRead, segment, offset, to, std::move(done)});
  }
  void write(std::uint32_t segment, std::uint64_t offset, IoVector from, Done done) override {
    start({Kind::kWrite, segment, offset, from, std::move(done)});
  }
  void sync(std::uint32_t segment, Done done) override {
    start({Kind::kSync, segment, 0, {}, std::move(done)});
  }
  std::size_t in_flight() const override { return running_ + queue_.size() + unopened_; }
  void poll() override;
  bool wait(Duration max) override;
  int event_fd() const override { return event_; }
  void wake() override { ::eventfd_write(event_, 1); }

 private:
  enum class Kind : std::uint8_t {
    kOpen,      // of a file that exists
    kCreate,    // or is made
    kClose,     // `offset` is the descriptor
    kAllocate,  // its space
    kExtend,    // its size, where space can't be had beforehand
    kRead,
    kWrite,
    kSync
  };
  struct Operation {
    Kind kind;
    std::uint32_t segment;
    std::uint64_t offset;
    IoVector vector;
    Done done;                  // none of kOpen, kCreate, kClose
    std::string name = {};      // of kOpen, kCreate
    bool tried_direct = false;  // the same
  };
  struct File {
    int fd = -1;
    bool opening = false;
    std::vector<std::unique_ptr<Operation>> waiting;  // for it to be open
  };

  Status open_folder();
  Status take_lock();
  Status raise_file_limit();
  void start(Operation operation);
  void submit();
  void fill(io_uring_sqe* sqe, Operation& operation);
  void complete(std::unique_ptr<Operation> operation, int result);
  void opened(std::unique_ptr<Operation> operation, int result);

  UringOptions options_;
  io_uring ring_{};
  bool ring_ready_ = false;
  bool direct_ = true;
  int event_ = -1;
  int lock_ = -1;
  int folder_ = -1;
  Hash128 store_;
  std::unordered_map<std::uint32_t, File> files_;
  std::deque<std::unique_ptr<Operation>> queue_;  // beyond the ring's depth
  std::size_t running_ = 0;                       // in the ring
  std::size_t unopened_ = 0;                      // in `waiting` of files
  bool submit_failed_ = false;                    // and that was told
};

Status UringSegmentIo::open_folder() {
  std::error_code error;
  std::filesystem::create_directories(options_.folder, error);
  folder_ = ::open(options_.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_ < 0) {
    return fail(ErrorCode::kIo, fmt::format("cannot use {} for KV segments: {}", options_.folder,
                                            std::strerror(errno)));
  }
  return {};
}

Status UringSegmentIo::take_lock() {
  lock_ = ::openat(folder_, "LOCK", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) {
    return fail(ErrorCode::kIo, fmt::format("cannot write in {}: {}; the disk tier needs a "
                                            "directory that it may write",
                                            options_.folder, std::strerror(errno)));
  }
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    return fail(ErrorCode::kConflict,
                fmt::format("another process uses the KV segments in {}", options_.folder));
  }
  std::array<char, 64> text{};
  const ssize_t got = ::pread(lock_, text.data(), text.size(), 0);
  const std::string_view line(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  std::size_t length = 0;
  if (line.starts_with(kLockTitle) && line.size() >= kLockTitle.size() + 32 &&
      sodium_hex2bin(store_.bytes.data(), 16, line.data() + kLockTitle.size(), 32, nullptr, &length,
                     nullptr) == 0 &&
      length == 16) {
    return {};
  }
  if (got > 0) {
    return fail(ErrorCode::kIo, fmt::format("{}/LOCK is not the lock of a KV store; choose another "
                                            "directory or remove it",
                                            options_.folder));
  }
  randombytes_buf(store_.bytes.data(), store_.bytes.size());
  std::array<char, 33> hex{};
  sodium_bin2hex(hex.data(), hex.size(), store_.bytes.data(), store_.bytes.size());
  const std::string fresh = fmt::format("{}{}\n", kLockTitle, hex.data());
  if (::pwrite(lock_, fresh.data(), fresh.size(), 0) != static_cast<ssize_t>(fresh.size()) ||
      ::fdatasync(lock_) != 0) {
    return fail(ErrorCode::kIo,
                fmt::format("cannot write {}/LOCK: {}", options_.folder, std::strerror(errno)));
  }
  return {};
}

Status UringSegmentIo::raise_file_limit() {
  rlimit limit{};
  const rlim_t needed = rlim_t{options_.segments} + 256;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return {};
  limit.rlim_cur = std::min(limit.rlim_max, needed);
  if (limit.rlim_cur == needed && ::setrlimit(RLIMIT_NOFILE, &limit) == 0) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} KV segments need {} open files and the hard limit is {}; raise it "
                          "(ulimit -Hn, LimitNOFILE) or give a smaller kv-disk-size",
                          options_.segments, needed, limit.rlim_max));
}

std::vector<SegmentFile> UringSegmentIo::files() const {
  std::vector<SegmentFile> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options_.folder, error)) {
    const std::string name = entry.path().filename().string();
    SegmentFile file;
    const auto [end, problem] =
        std::from_chars(name.data(), name.data() + name.size(), file.number);
    std::error_code ignored;
    if (problem != std::errc() || name != file_name(file.number)) continue;
    file.bytes = entry.is_regular_file(ignored) ? entry.file_size(ignored) : 0;
    found.push_back(file);
  }
  return found;
}

void UringSegmentIo::start(Operation operation) {
  File& file = files_[operation.segment];
  const bool create = operation.kind == Kind::kAllocate;
  ENSURE(!create || !file.opening);
  if (!file.opening && (create || file.fd < 0)) {
    file.opening = true;
    queue_.push_back(std::make_unique<Operation>(
        Operation{create ? Kind::kCreate : Kind::kOpen, operation.segment, 0, {}, {}}));
  }
  auto owned = std::make_unique<Operation>(std::move(operation));
  if (file.opening) {
    file.waiting.push_back(std::move(owned));
    ++unopened_;
  } else {
    queue_.push_back(std::move(owned));
  }
  submit();
}

void UringSegmentIo::submit() {
  while (!queue_.empty() && running_ < options_.depth) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) break;
    Operation* operation = queue_.front().release();
    queue_.pop_front();
    ++running_;
    fill(sqe, *operation);
    io_uring_sqe_set_data(sqe, operation);
  }
  if (io_uring_sq_ready(&ring_) == 0) return;
  int sent = options_.submit_fault ? options_.submit_fault() : 0;
  if (sent == 0) sent = io_uring_submit(&ring_);
  // What the kernel did not take stays in the ring until the next operation or poll().
  const bool odd = sent < 0 && sent != -EAGAIN && sent != -EBUSY && sent != -EINTR;
  if (odd && !std::exchange(submit_failed_, true) && options_.log) {
    options_.log(fmt::format("io_uring takes no operations: {}", std::strerror(-sent)));
  }
}

void UringSegmentIo::fill(io_uring_sqe* sqe, Operation& operation) {
  const int fd = files_.at(operation.segment).fd;
  const IoVector& vector = operation.vector;
  switch (operation.kind) {
    case Kind::kOpen:
    case Kind::kCreate:
      operation.name = file_name(operation.segment);
      operation.tried_direct = direct_;
      io_uring_prep_openat(sqe, folder_, operation.name.c_str(),
                           O_RDWR | O_CLOEXEC | O_NOFOLLOW | (direct_ ? O_DIRECT : 0) |
                               (operation.kind == Kind::kCreate ? O_CREAT : 0),
                           0600);
      break;
    case Kind::kClose:
      io_uring_prep_close(sqe, static_cast<int>(operation.offset));
      break;
    case Kind::kAllocate:
      io_uring_prep_fallocate(sqe, fd, 0, 0, static_cast<off_t>(options_.segment_bytes));
      break;
    case Kind::kRead:
      io_uring_prep_readv(sqe, fd, vector.parts.data(), vector.count, operation.offset);
      break;
    case Kind::kExtend:
    case Kind::kWrite:
      io_uring_prep_writev(sqe, fd, vector.parts.data(), vector.count, operation.offset);
      break;
    case Kind::kSync:
      io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
      break;
  }
}

void UringSegmentIo::complete(std::unique_ptr<Operation> operation, int result) {
  if (operation->kind == Kind::kClose) return;
  if (result == -EAGAIN || result == -EINTR) {
    queue_.push_back(std::move(operation));
  } else if (operation->kind == Kind::kOpen || operation->kind == Kind::kCreate) {
    opened(std::move(operation), result);
  } else if (operation->kind == Kind::kAllocate && result == -EOPNOTSUPP) {
    // The last unit gives the file its size; space comes with the writes.
    alignas(4096) static constexpr std::array<std::byte, 4096> kZeros{};
    operation->kind = Kind::kExtend;
    operation->offset = options_.segment_bytes - kZeros.size();
    operation->vector = IoVector(kZeros);
    queue_.push_back(std::move(operation));
  } else {
    operation->done(result < 0 ? -result : 0, result < 0 ? 0 : static_cast<std::size_t>(result));
  }
}

void UringSegmentIo::opened(std::unique_ptr<Operation> operation, int result) {
  if (result == -EINVAL && operation->tried_direct) {
    if (std::exchange(direct_, false) && options_.log) {
      options_.log(fmt::format("{} does not take O_DIRECT; KV segments go through the page cache",
                               options_.folder));
    }
    return queue_.push_back(std::move(operation));
  }
  File& file = files_.at(operation->segment);
  file.opening = false;
  auto waiting = std::exchange(file.waiting, {});
  unopened_ -= waiting.size();
  if (result >= 0) {
    const int former = std::exchange(file.fd, result);
    if (former >= 0) {
      queue_.push_back(std::make_unique<Operation>(
          Operation{Kind::kClose, operation->segment, static_cast<std::uint64_t>(former), {}, {}}));
    }
  }
  for (auto& next : waiting) {
    if (result < 0) {
      next->done(-result, 0);
    } else {
      queue_.push_back(std::move(next));
    }
  }
}

void UringSegmentIo::poll() {
  eventfd_t ignored = 0;
  ::eventfd_read(event_, &ignored);
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
    std::unique_ptr<Operation> operation(static_cast<Operation*>(io_uring_cqe_get_data(cqe)));
    const int result = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    --running_;
    complete(std::move(operation), result);
  }
  submit();
}

bool UringSegmentIo::wait(Duration max) {
  ENSURE(in_flight() > 0);
  submit();
  __kernel_timespec time{};
  time.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(max).count();
  time.tv_nsec = (max % std::chrono::seconds(1)).count();
  io_uring_cqe* cqe = nullptr;
  if (io_uring_wait_cqe_timeout(&ring_, &cqe, &time) == -ETIME) return false;
  poll();
  return true;
}

}  // namespace

bool uring_permitted() {
  io_uring ring{};
  if (io_uring_queue_init(2, &ring, 0) < 0) return false;
  io_uring_queue_exit(&ring);
  return true;
}

Result<std::unique_ptr<SegmentIo>> open_uring_segments(UringOptions options) {
  auto io = std::make_unique<UringSegmentIo>(std::move(options));
  TRY_STATUS(io->open());
  return io;
}

}  // namespace penstock::disk
