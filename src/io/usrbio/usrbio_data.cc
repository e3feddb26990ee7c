#include "io/usrbio/usrbio_data.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "io/usrbio/usrbio_abi.h"

namespace penstock::usrbio {
namespace {

constexpr int kEntries = 16;      // of a ring; a call has one operation under way
constexpr int kWaitSeconds = 10;  // then it waits again
constexpr int kErrnoMax = 4095;   // 3FS has codes of its own beyond

int error_of(std::int64_t result) {
  return -result <= kErrnoMax ? static_cast<int>(-result) : EIO;
}

Result<Functions> load(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return fail(ErrorCode::kUnavailable,
                fmt::format("cannot load {}: {}. Install 3FS's client library, or use the mount "
                            "as a plain folder (posix)",
                            path, ::dlerror()));
  Functions functions;
  const char* missing = nullptr;
  const auto find = [&]<typename F>(F& function, const char* name) {
    function = reinterpret_cast<F>(::dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  find(functions.extract_mount_point, "hf3fs_extract_mount_point");
  find(functions.iovcreate, "hf3fs_iovcreate");
  find(functions.iorcreate4, "hf3fs_iorcreate4");
  find(functions.iovdestroy, "hf3fs_iovdestroy");
  find(functions.iordestroy, "hf3fs_iordestroy");
  find(functions.reg_fd, "hf3fs_reg_fd");
  find(functions.dereg_fd, "hf3fs_dereg_fd");
  find(functions.prep_io, "hf3fs_prep_io");
  find(functions.submit_ios, "hf3fs_submit_ios");
  find(functions.wait_for_ios, "hf3fs_wait_for_ios");
  if (missing != nullptr)
    return fail(ErrorCode::kUnavailable,
                fmt::format("{} has no {}: it is older than this needs", path, missing));
  return functions;
}

// A ring and the memory that its operations move.
struct Lane {
  explicit Lane(const Functions& of) : functions(of) {}
  ~Lane() {
    if (ring_made) functions.iordestroy(&ring);
    if (memory_made) functions.iovdestroy(&memory);
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // 0 or an errno.
  int make(const char* mount_point, std::size_t bytes, bool for_read) {
    if (const int code = functions.iovcreate(&memory, mount_point, bytes, 0, -1); code != 0)
      return error_of(code);
    memory_made = true;
    if (const int code = functions.iorcreate4(&ring, mount_point, kEntries, for_read, 0, 0, -1, 0);
        code != 0)
      return error_of(code);
    ring_made = true;
    return 0;
  }

  // Moves `bytes` between the file and the lane's memory; bytes moved, or -errno.
  std::ptrdiff_t move(bool read, int fd, std::uint64_t offset, std::size_t bytes) {
    const int index = functions.prep_io(&ring, &memory, read, memory.base, fd, offset, bytes, this);
    if (index < 0) return -error_of(index);
    if (const int code = functions.submit_ios(&ring); code != 0) return -error_of(code);
    while (true) {
      std::timespec until{};
      ::clock_gettime(CLOCK_REALTIME, &until);
      until.tv_sec += kWaitSeconds;
      Cqe cqe{};
      const int got = functions.wait_for_ios(&ring, &cqe, 1, 1, &until);
      if (got == 0 || got == -ETIMEDOUT || got == -EAGAIN || got == -EINTR) continue;
      if (got < 0) return -error_of(got);
      if (cqe.result < 0) return -error_of(cqe.result);
      return std::min(static_cast<std::ptrdiff_t>(cqe.result), static_cast<std::ptrdiff_t>(bytes));
    }
  }

  const Functions& functions;
  Iov memory{};
  Ior ring{};
  bool memory_made = false, ring_made = false;
};

// Lanes for one direction.
class Lanes {
 public:
  Lanes(const Functions& functions, const UsrbioOptions& options, bool for_read)
      : functions_(functions), options_(options), for_read_(for_read), free_(options.lanes) {}

  // Waits for a free one and makes it when it was never used; null: `error` says why.
  std::unique_ptr<Lane> borrow(int& error) {
    std::unique_lock lock(mutex_);
    back_.wait(lock, [this] { return !free_.empty(); });
    std::unique_ptr<Lane> lane = std::move(free_.back());
    free_.pop_back();
    lock.unlock();
    if (lane != nullptr) return lane;
    std::array<char, 256> mount_point{};
    lane = std::make_unique<Lane>(functions_);
    const int length = functions_.extract_mount_point(
        mount_point.data(), static_cast<int>(mount_point.size()), options_.folder.c_str());
    error = length <= 0 || length > static_cast<int>(mount_point.size())
                ? ENOTSUP
                : lane->make(mount_point.data(), options_.lane_bytes, for_read_);
    if (error == 0) return lane;
    give_back(nullptr);
    return nullptr;
  }
  void give_back(std::unique_ptr<Lane> lane) {
    {
      const std::lock_guard lock(mutex_);
      free_.push_back(std::move(lane));
    }
    back_.notify_one();
  }

 private:
  const Functions& functions_;
  const UsrbioOptions& options_;
  const bool for_read_;
  std::mutex mutex_;
  std::condition_variable back_;
  std::vector<std::unique_ptr<Lane>> free_;  // null: not made yet
};

class UsrbioData final : public posix_store::FileData {
 public:
  UsrbioData(const Functions& functions, UsrbioOptions options)
      : functions_(functions), options_(std::move(options)) {}

  int write(int fd, std::span<const std::byte> bytes) override {
    const std::ptrdiff_t code = with_lane(writing_, fd, [&](Lane& lane) -> std::ptrdiff_t {
      for (std::uint64_t offset = 0; !bytes.empty();) {
        const std::size_t part = std::min(bytes.size(), options_.lane_bytes);
        std::memcpy(lane.memory.base, bytes.data(), part);
        const std::ptrdiff_t moved = lane.move(false, fd, offset, part);
        if (moved < 0) return moved;
        if (moved == 0) return -EIO;
        offset += static_cast<std::uint64_t>(moved);
        bytes = bytes.subspan(static_cast<std::size_t>(moved));
      }
      return ::fsync(fd) == 0 ? 0 : -errno;
    });
    return static_cast<int>(-code);
  }

  std::ptrdiff_t read(int fd, std::span<std::byte> to, std::uint64_t offset) override {
    return with_lane(reading_, fd, [&](Lane& lane) -> std::ptrdiff_t {
      std::ptrdiff_t total = 0;
      while (!to.empty()) {
        const std::size_t part = std::min(to.size(), options_.lane_bytes);
        const std::ptrdiff_t moved =
            lane.move(true, fd, offset + static_cast<std::uint64_t>(total), part);
        if (moved < 0) return moved;
        if (moved == 0) break;
        std::memcpy(to.data(), lane.memory.base, static_cast<std::size_t>(moved));
        total += moved;
        to = to.subspan(static_cast<std::size_t>(moved));
      }
      return total;
    });
  }

 private:
  template <typename F>
  std::ptrdiff_t with_lane(Lanes& lanes, int fd, F&& call) {
    int error = 0;
    std::unique_ptr<Lane> lane = lanes.borrow(error);
    if (lane == nullptr) return -error;
    std::ptrdiff_t result = 0;
    if (const int code = functions_.reg_fd(fd, 0); code > 0) {
      result = -error_of(-code);
    } else {
      result = call(*lane);
      functions_.dereg_fd(fd);
    }
    // After an error an operation may still be under way in the ring: it is made anew.
    if (result < 0) lane = nullptr;
    lanes.give_back(std::move(lane));
    return result;
  }

  const Functions functions_;
  const UsrbioOptions options_;
  Lanes reading_{functions_, options_, true};
  Lanes writing_{functions_, options_, false};
};

}  // namespace

Result<std::unique_ptr<posix_store::FileData>> open_usrbio(UsrbioOptions options) {
  if (options.folder.empty() || options.lanes == 0 || options.lane_bytes == 0)
    return fail(ErrorCode::kInvalidArgument,
                "a 3FS store needs a folder on its mount and at least one lane");
  TRY(const Functions functions, load(options.library));
  return std::make_unique<UsrbioData>(functions, std::move(options));
}

}  // namespace penstock::usrbio
