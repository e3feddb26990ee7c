#if PENSTOCK_RADOS
#include "io/rados/rados_link.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace penstock::rados {
namespace {

constexpr auto kRetryFirst = std::chrono::milliseconds(250);
constexpr auto kRetryMax = std::chrono::milliseconds(5000);

// Ceph's settings that the store depends on, over those of the ceph.conf.
constexpr std::array<std::pair<const char*, const char*>, 6> kSettings{{
    // Blocking calls end.
    {"client_mount_timeout", "5"},
    {"rados_mon_op_timeout", "5"},
    // The backstop behind our deadlines. With any value but 0 librados does not let its messenger
    // write into a reader's buffer, which would go on after the operation was cancelled.
    {"rados_osd_op_timeout", "30"},
    // At these limits librados would block the thread that starts an operation: ours come first.
    {"objecter_inflight_ops", "1048576"},
    {"objecter_inflight_op_bytes", "17179869184"},
    {"log_to_stderr", "false"},
}};

std::string because(int code) {
  return fmt::format("{} ({})", std::strerror(-code), code);
}

}  // namespace

RadosLink::RadosLink(const RadosLibrary& library, const RadosStoreOptions& options)
    : library_(library), options_(options), thread_([this] { work(); }) {}

RadosLink::~RadosLink() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  news_.notify_all();
  thread_.join();
  disconnect();
}

std::string RadosLink::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void RadosLink::run(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  news_.notify_all();
}

void RadosLink::work() {
  auto pause = kRetryFirst;
  std::unique_lock lock(mutex_);
  while (!up() && !ending_) {
    lock.unlock();
    std::string trouble = connect();
    if (!trouble.empty()) disconnect();
    lock.lock();
    if (trouble.empty()) {
      state_ = "ok";
      up_.store(true, std::memory_order_release);
    } else {
      state_ = std::move(trouble);
      news_.wait_for(lock, pause, [this] { return ending_; });
      pause = std::min(pause * 2, kRetryMax);
    }
  }
  // What is queued at the end still runs: somebody waits for its answer.
  while (true) {
    news_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

std::string RadosLink::connect() {
  const std::string who = options_.user.substr(options_.user.find('.') + 1);
  int code = library_.create2(&cluster_, "ceph", options_.user.c_str(), 0);
  if (code < 0) {
    cluster_ = nullptr;
    return fmt::format("cannot make a RADOS client for {}: {}", options_.user, because(code));
  }
  code = library_.conf_read_file(cluster_, options_.conf.c_str());
  if (code < 0)
    return fmt::format("cannot read {}: {}. Give the cluster's ceph.conf", options_.conf,
                       because(code));
  if (!options_.keyring.empty())
    (void)library_.conf_set(cluster_, "keyring", options_.keyring.c_str());
  for (const auto& [key, value] : kSettings) {
    code = library_.conf_set(cluster_, key, value);
    if (code < 0) return fmt::format("Ceph refuses {} = {}: {}", key, value, because(code));
  }
  code = library_.connect(cluster_);
  if (code == -ETIMEDOUT)
    return fmt::format("no monitor of {} answers. Look at 'ceph -s'; trying again", options_.conf);
  if (code == -EACCES || code == -EPERM || code == -ENOENT)
    return fmt::format(
        "the cluster of {} does not let {} in: {}. Look at 'ceph auth get {}' and the keyring; "
        "trying again",
        options_.conf, who, because(code), options_.user);
  if (code < 0)
    return fmt::format("cannot connect to the cluster of {}: {}; trying again", options_.conf,
                       because(code));
  return open_pools();
}

std::string RadosLink::open_pools() {
  for (const auto& [name, pool] :
       {std::pair{&options_.extents_pool, &extents_}, std::pair{&options_.small_pool, &small_}}) {
    const int code = library_.ioctx_create(cluster_, name->c_str(), pool);
    if (code == -ENOENT)
      return fmt::format(
          "the cluster of {} has no pool '{}'. Make it (docs/cluster-ceph.md) or "
          "name another; trying again",
          options_.conf, *name);
    if (code < 0) return fmt::format("cannot open the pool '{}': {}", *name, because(code));
    library_.ioctx_set_namespace(*pool, options_.name_space.c_str());
    library_.set_pool_full_try(*pool);
  }
  return {};
}

void RadosLink::disconnect() {
  for (rados_ioctx_t* pool : {&extents_, &small_})
    if (*pool != nullptr) library_.ioctx_destroy(std::exchange(*pool, nullptr));
  if (cluster_ != nullptr) library_.shutdown(std::exchange(cluster_, nullptr));
}

}  // namespace penstock::rados
#endif
