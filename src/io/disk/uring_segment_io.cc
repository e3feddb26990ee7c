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
#include <cerrno>
#include <charconv>
#include <cstring>
#include <deque>
#include <filesystem>
#include <string_view>
#include <unordered_map>
#include <utility>

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
      wait();
    if (ring_ready_) io_uring_queue_exit(&ring_);
    for (const auto& [segment, fd] : files_)
      ::close(fd);
    for (const int fd : {event_, lock_, folder_}) {
      if (fd >= 0) ::close(fd);
    }
  }
  UringSegmentIo(const UringSegmentIo&) = delete;
  UringSegmentIo& operator=(const UringSegmentIo&) = delete;

  Status open() {
    TRY_STATUS(open_folder());
    TRY_STATUS(take_lock());
    raise_file_limit();
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
    int error = 0;
    const int fd = descriptor(segment, O_CREAT, error);
    if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(options_.segment_bytes)) != 0) error = errno;
    start({Kind::kAllocate, fd, error, 0, {}, std::move(done)});
  }
  void read(std::uint32_t segment, std::uint64_t offset, IoVector to, Done done) override {
    int error = 0;
    const int fd = descriptor(segment, 0, error);
    start({Kind::kRead, fd, error, offset, to, std::move(done)});
  }
  void write(std::uint32_t segment, std::uint64_t offset, IoVector from, Done done) override {
    int error = 0;
    const int fd = descriptor(segment, 0, error);
    start({Kind::kWrite, fd, error, offset, from, std::move(done)});
  }
  void sync(std::uint32_t segment, Done done) override {
    int error = 0;
    const int fd = descriptor(segment, 0, error);
    start({Kind::kSync, fd, error, 0, {}, std::move(done)});
  }
  std::size_t in_flight() const override { return running_ + queue_.size() + failed_.size(); }
  void poll() override;
  void wait() override;
  int event_fd() const override { return event_; }
  void wake() override { ::eventfd_write(event_, 1); }

 private:
  enum class Kind : std::uint8_t { kAllocate, kRead, kWrite, kSync };
  struct Operation {
    Kind kind;
    int fd;
    int error;  // known before it began
    std::uint64_t offset;
    IoVector vector;
    Done done;
  };

  Status open_folder();
  Status take_lock();
  void raise_file_limit();
  int descriptor(std::uint32_t segment, int flags, int& error);
  void start(Operation operation);
  void submit();

  UringOptions options_;
  io_uring ring_{};
  bool ring_ready_ = false;
  bool direct_ = true;
  int event_ = -1;
  int lock_ = -1;
  int folder_ = -1;
  Hash128 store_;
  std::unordered_map<std::uint32_t, int> files_;
  std::deque<std::unique_ptr<Operation>> queue_;   // beyond the ring's depth
  std::deque<std::unique_ptr<Operation>> failed_;  // before they began
  std::size_t running_ = 0;
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

void UringSegmentIo::raise_file_limit() {
  rlimit limit{};
  const rlim_t needed = rlim_t{options_.segments} + 256;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(limit.rlim_max, needed);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < needed && options_.log) {
    options_.log(
        fmt::format("{} KV segments need {} open files and the limit is {}; raise it, or "
                    "segments beyond it fail",
                    options_.segments, needed, limit.rlim_cur));
  }
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

int UringSegmentIo::descriptor(std::uint32_t segment, int flags, int& error) {
  if (const auto known = files_.find(segment); known != files_.end()) {
    // A file that was unlinked would take writes nobody finds again.
    struct stat status{};
    if ((flags & O_CREAT) == 0 || (::fstat(known->second, &status) == 0 && status.st_nlink > 0)) {
      return known->second;
    }
    ::close(known->second);
    files_.erase(known);
  }
  const std::string name = file_name(segment);
  flags |= O_RDWR | O_CLOEXEC | O_NOFOLLOW;
  int fd = ::openat(folder_, name.c_str(), flags | (direct_ ? O_DIRECT : 0), 0600);
  if (fd < 0 && errno == EINVAL && direct_) {
    direct_ = false;
    fd = ::openat(folder_, name.c_str(), flags, 0600);
    if (options_.log) {
      options_.log(fmt::format("{} does not take O_DIRECT; KV segments go through the page cache",
                               options_.folder));
    }
  }
  if (fd < 0) {
    error = errno;
    return -1;
  }
  files_[segment] = fd;
  return fd;
}

void UringSegmentIo::start(Operation operation) {
  auto owned = std::make_unique<Operation>(std::move(operation));
  if (owned->error != 0) {
    failed_.push_back(std::move(owned));
    wake();
    return;
  }
  queue_.push_back(std::move(owned));
  submit();
}

void UringSegmentIo::submit() {
  bool added = false;
  while (!queue_.empty() && running_ < options_.depth) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) break;
    Operation* operation = queue_.front().release();
    queue_.pop_front();
    ++running_;
    added = true;
    const IoVector& vector = operation->vector;
    switch (operation->kind) {
      case Kind::kAllocate:
        io_uring_prep_fallocate(sqe, operation->fd, 0, 0,
                                static_cast<off_t>(options_.segment_bytes));
        break;
      case Kind::kRead:
        io_uring_prep_readv(sqe, operation->fd, vector.parts.data(), vector.count,
                            operation->offset);
        break;
      case Kind::kWrite:
        io_uring_prep_writev(sqe, operation->fd, vector.parts.data(), vector.count,
                             operation->offset);
        break;
      case Kind::kSync:
        io_uring_prep_fsync(sqe, operation->fd, IORING_FSYNC_DATASYNC);
        break;
    }
    io_uring_sqe_set_data(sqe, operation);
  }
  if (added) io_uring_submit(&ring_);
}

void UringSegmentIo::poll() {
  eventfd_t ignored = 0;
  ::eventfd_read(event_, &ignored);
  while (!failed_.empty()) {
    const auto operation = std::move(failed_.front());
    failed_.pop_front();
    operation->done(operation->error, 0);
  }
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
    std::unique_ptr<Operation> operation(static_cast<Operation*>(io_uring_cqe_get_data(cqe)));
    const int result = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    --running_;
    if (result == -EAGAIN || result == -EINTR) {
      queue_.push_back(std::move(operation));
    } else if (operation->kind == Kind::kAllocate && result == -EOPNOTSUPP) {
      operation->done(0, 0);  // the file has its size; space comes with the writes
    } else {
      operation->done(result < 0 ? -result : 0, result < 0 ? 0 : static_cast<std::size_t>(result));
    }
  }
  submit();
}

void UringSegmentIo::wait() {
  ENSURE(in_flight() > 0);
  submit();
  io_uring_cqe* cqe = nullptr;
  if (failed_.empty()) io_uring_wait_cqe(&ring_, &cqe);
  poll();
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
