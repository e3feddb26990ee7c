// ThreadPool: ComputePool on std::thread, first in first out.
//
// Invariants: the destructor runs what is queued and joins. Errors: submit() is false at the limit.
// Concurrency: submit() from any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "port/compute_pool.h"

namespace penstock {

class ThreadPool final : public ComputePool {
 public:
  ThreadPool(std::size_t threads, std::size_t queue_max);
  ~ThreadPool() override;
  bool submit(std::function<void()> work) override;

 private:
  void run();

  const std::size_t queue_max_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace penstock
