// A library with the ABI of 3FS's USRBIO over plain files, strict where the real one is: rings take
// one direction, memory and descriptors that they know, and a descriptor that was closed while it
// was registered can't be registered again.
//
// Every path counts as on 3FS but those under /not-3fs. hf3fs_for_tests_fail(n, result): the nth
// operation from now on ends with `result` (and moves nothing). A thread per ring does the work.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "io/usrbio/usrbio_abi.h"

namespace {

using penstock::usrbio::Cqe;
using penstock::usrbio::Ior;
using penstock::usrbio::Iov;

struct Operation {
  bool read = false;
  void* at = nullptr;
  int fd = -1;
  std::size_t offset = 0;
  std::uint64_t bytes = 0;
  const void* user_data = nullptr;
};

std::atomic<int> fail_after = 0;
std::atomic<std::int64_t> fail_result = 0;

std::int64_t run(const Operation& operation) {
  if (fail_after > 0 && --fail_after == 0) return fail_result;
  const auto offset = static_cast<off_t>(operation.offset);
  const ssize_t moved = operation.read
                            ? ::pread(operation.fd, operation.at, operation.bytes, offset)
                            : ::pwrite(operation.fd, operation.at, operation.bytes, offset);
  return moved < 0 ? -errno : moved;
}

class Ring {
 public:
  Ring() : thread_([this] { work(); }) {}
  ~Ring() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    news_.notify_all();
    thread_.join();
  }
  void prepare(const Operation& operation) { prepared_.push_back(operation); }
  void submit() {
    {
      const std::lock_guard lock(mutex_);
      queue_.insert(queue_.end(), prepared_.begin(), prepared_.end());
    }
    prepared_.clear();
    news_.notify_all();
  }
  int wait(Cqe* cqes, int count, int results_min) {
    std::unique_lock lock(mutex_);
    // Short waits: what waits for a lost operation is woken again.
    news_.wait_for(lock, std::chrono::milliseconds(50),
                   [&] { return static_cast<int>(done_.size()) >= results_min; });
    const int got = std::min(count, static_cast<int>(done_.size()));
    std::copy_n(done_.begin(), got, cqes);
    done_.erase(done_.begin(), done_.begin() + got);
    return got;
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      news_.wait(lock, [this] { return ending_ || !queue_.empty(); });
      if (ending_) return;
      const Operation operation = queue_.front();
      queue_.pop_front();
      lock.unlock();
      const std::int64_t result = run(operation);
      lock.lock();
      done_.push_back({0, 0, result, operation.user_data});
      news_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<Operation> prepared_;
  std::deque<Operation> queue_;
  std::deque<Cqe> done_;
  bool ending_ = false;
  std::thread thread_;
};

std::mutex descriptors_mutex;
std::map<int, ino_t> descriptors;  // registered

}  // namespace

extern "C" {

void hf3fs_for_tests_fail(int after, std::int64_t result);
void hf3fs_for_tests_fail(int after, std::int64_t result) {
  fail_result = result;
  fail_after = after;
}

int hf3fs_extract_mount_point(char* mount_point, int size, const char* path);
int hf3fs_extract_mount_point(char* mount_point, int size, const char* path) {
  if (path == nullptr || std::string_view(path).starts_with("/not-3fs")) return -1;
  if (size >= 2) std::memcpy(mount_point, "/", 2);
  return 2;
}

int hf3fs_iovcreate(Iov* iov, const char* mount_point, std::size_t size, std::size_t, int);
int hf3fs_iovcreate(Iov* iov, const char* mount_point, std::size_t size, std::size_t, int) {
  if (std::string_view(mount_point) != "/") return -EINVAL;
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return -errno;
  iov->base = static_cast<std::uint8_t*>(base);
  iov->size = size;
  return 0;
}

void hf3fs_iovdestroy(Iov* iov);
void hf3fs_iovdestroy(Iov* iov) {
  ::munmap(iov->base, iov->size);
}

int hf3fs_iorcreate4(Ior* ior, const char*, int entries, bool for_read, int, int, int,
                     std::uint64_t);
int hf3fs_iorcreate4(Ior* ior, const char*, int entries, bool for_read, int, int, int,
                     std::uint64_t) {
  if (entries <= 0) return -EINVAL;
  ior->for_read = for_read;
  ior->handle = new Ring;
  return 0;
}

void hf3fs_iordestroy(Ior* ior);
void hf3fs_iordestroy(Ior* ior) {
  delete static_cast<Ring*>(ior->handle);
}

int hf3fs_reg_fd(int fd, std::uint64_t);
int hf3fs_reg_fd(int fd, std::uint64_t) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) return errno;
  const std::lock_guard lock(descriptors_mutex);
  return descriptors.emplace(fd, status.st_ino).second ? -fd : EINVAL;
}

void hf3fs_dereg_fd(int fd);
void hf3fs_dereg_fd(int fd) {
  const std::lock_guard lock(descriptors_mutex);
  descriptors.erase(fd);
}

int hf3fs_prep_io(const Ior* ior, const Iov* iov, bool read, void* at, int fd, std::size_t offset,
                  std::uint64_t bytes, const void* user_data);
int hf3fs_prep_io(const Ior* ior, const Iov* iov, bool read, void* at, int fd, std::size_t offset,
                  std::uint64_t bytes, const void* user_data) {
  const auto* from = static_cast<std::uint8_t*>(at);
  if (read != ior->for_read || from < iov->base || from + bytes > iov->base + iov->size)
    return -EINVAL;
  {
    const std::lock_guard lock(descriptors_mutex);
    if (!descriptors.contains(fd)) return -EBADF;
  }
  static_cast<Ring*>(ior->handle)->prepare({read, at, fd, offset, bytes, user_data});
  return 0;
}

int hf3fs_submit_ios(const Ior* ior);
int hf3fs_submit_ios(const Ior* ior) {
  static_cast<Ring*>(ior->handle)->submit();
  return 0;
}

int hf3fs_wait_for_ios(const Ior* ior, Cqe* cqes, int count, int results_min, const std::timespec*);
int hf3fs_wait_for_ios(const Ior* ior, Cqe* cqes, int count, int results_min,
                       const std::timespec*) {
  return static_cast<Ring*>(ior->handle)->wait(cqes, count, results_min);
}
}
