#include "io/files/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

namespace penstock {
namespace {

std::string reason(int error) {
  return std::generic_category().message(error);
}

std::unexpected<Error> io_failure(std::string_view action, const std::string& path, int error) {
  const auto code = error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
  return fail(code, fmt::format("cannot {} {}: {}", action, path, reason(error)));
}

// Closes at the end of the scope.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

Result<std::string> read_descriptor(int fd, const std::string& path, Bytes limit) {
  std::string content;
  const auto limit_bytes = static_cast<std::size_t>(limit.value);
  while (true) {
    const std::size_t done = content.size();
    if (done > limit_bytes)
      return fail(ErrorCode::kPayloadTooLarge,
                  fmt::format("{} is larger than the limit of {} bytes", path, limit.value));
    const std::size_t want = std::min<std::size_t>(limit_bytes + 1 - done, 1 << 16);
    content.resize(done + want);
    const ssize_t n = ::read(fd, content.data() + done, want);
    if (n < 0 && errno == EINTR) {
      content.resize(done);
      continue;
    }
    if (n < 0) return io_failure("read", path, errno);
    content.resize(done + static_cast<std::size_t>(n));
    if (n == 0) return content;
  }
}

Status write_all(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t n = ::write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_failure("write", path, errno);
    content.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

}  // namespace

Result<std::string> read_file(const std::string& path, Bytes limit) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return io_failure("open", path, errno);
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return io_failure("read", path, errno);
  if (S_ISDIR(info.st_mode)) return io_failure("read", path, EISDIR);
  return read_descriptor(fd.get(), path, limit);
}

Result<std::string> read_secret_file(const std::string& path, Bytes limit) {
  // Permissions are checked on the open file, so it cannot be swapped between the check and the
  // read.
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return io_failure("open", path, errno);
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return io_failure("read", path, errno);
  if (!S_ISREG(info.st_mode))
    return fail(ErrorCode::kIo, fmt::format("{} holds secrets and must be a regular file", path));
  if ((info.st_mode & 077U) != 0)
    return fail(
        ErrorCode::kPermissionDenied,
        fmt::format("{} holds secrets but others can read it (mode {:03o}); run: chmod 600 {}",
                    path, info.st_mode & 0777U, path));
  return read_descriptor(fd.get(), path, limit);
}

Status write_file_atomically(const std::string& path, std::string_view content, unsigned mode) {
  std::string temporary = path + ".tmp-XXXXXX";
  const Descriptor fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (fd.get() < 0) return io_failure("create", temporary, errno);
  Status status = write_all(fd.get(), content, temporary);
  if (status && ::fchmod(fd.get(), mode) != 0) status = io_failure("chmod", temporary, errno);
  if (status && ::fsync(fd.get()) != 0) status = io_failure("sync", temporary, errno);
  if (status && ::rename(temporary.c_str(), path.c_str()) != 0)
    status = io_failure("write", path, errno);
  if (!status) ::unlink(temporary.c_str());
  return status;
}

Status make_directories(const std::string& path, unsigned mode) {
  std::string prefix;
  std::size_t at = 0;
  while (at <= path.size()) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    prefix = path.substr(0, slash);
    at = slash + 1;
    if (prefix.empty()) continue;
    if (::mkdir(prefix.c_str(), mode) != 0 && errno != EEXIST)
      return io_failure("create the folder", prefix, errno);
  }
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return io_failure("open the folder", path, errno);
  if (!S_ISDIR(info.st_mode)) return io_failure("open the folder", path, ENOTDIR);
  return {};
}

Result<TemporaryDirectory> TemporaryDirectory::make(std::string_view prefix) {
  std::error_code error;
  const auto base = std::filesystem::temp_directory_path(error);
  std::string path = ((error ? "/tmp" : base) / fmt::format("{}-XXXXXX", prefix)).string();
  if (::mkdtemp(path.data()) == nullptr) return io_failure("create the folder", path, errno);
  return TemporaryDirectory(std::move(path));
}

TemporaryDirectory::TemporaryDirectory(TemporaryDirectory&& other) noexcept
    : path_(std::exchange(other.path_, {})) {}

TemporaryDirectory& TemporaryDirectory::operator=(TemporaryDirectory&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;  // what cannot be deleted is left to the system's own cleaning
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

Result<FileLock> FileLock::acquire(const std::string& path) {
  Descriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (fd.get() < 0) return io_failure("open", path, errno);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return io_failure("lock", path, errno);
    const auto holder = read_descriptor(fd.get(), path, Bytes(64));
    return fail(ErrorCode::kConflict,
                fmt::format("{} is locked by another process{}", path,
                            holder && !holder->empty() ? " with id " + *holder : ""));
  }
  const std::string id = fmt::format("{}", ::getpid());
  if (::ftruncate(fd.get(), 0) != 0) return io_failure("write", path, errno);
  TRY_STATUS(write_all(fd.get(), id, path));
  return FileLock(fd.release());
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace penstock
