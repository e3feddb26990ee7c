#include "engine/kernels/thread_pool.h"

#include <immintrin.h>

#include "engine/kernels/float_environment.h"

namespace penstock::engine {
namespace {

// A pause is 40-140 cycles on current CPUs, so this is some 20-60 us before a thread parks.
constexpr int kSpinsBeforePark = 1000;
constexpr int kSpinsBeforeYield = 200;

}  // namespace

ThreadPool::ThreadPool(std::uint32_t threads) {
  for (std::uint32_t i = 1; i < threads; ++i) {
    threads_.emplace_back([this, i] { work(i); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_)
    thread.join();
}

void ThreadPool::Job::open(std::uint32_t items, Call call, void* context) {
  const std::uint64_t generation = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  // Closing comes first: whoever reads a new field (acquire) also sees the closed ticket, so its
  // compare-and-swap with an older ticket fails.
  ticket_.store(generation << 32 | kClosed, std::memory_order_release);
  done_.store(0, std::memory_order_release);
  items_.store(items, std::memory_order_release);
  call_.store(call, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  ticket_.store(generation << 32, std::memory_order_seq_cst);
}

bool ThreadPool::Job::help(std::uint32_t thread) {
  bool any = false;
  std::uint64_t ticket = ticket_.load(std::memory_order_seq_cst);
  for (;;) {
    const Call call = call_.load(std::memory_order_acquire);
    void* const context = context_.load(std::memory_order_acquire);
    const auto item = static_cast<std::uint32_t>(ticket);
    if (item >= items_.load(std::memory_order_acquire)) return any;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    call(context, item, thread);
    done_.fetch_add(1, std::memory_order_acq_rel);
    any = true;
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

bool ThreadPool::Job::finish() {
  const std::uint32_t items = items_.load(std::memory_order_relaxed);
  if (done_.load(std::memory_order_acquire) == items) return true;
  help(0);
  for (int spins = 0; done_.load(std::memory_order_acquire) != items; ++spins) {
    if (spins < kSpinsBeforeYield) {
      _mm_pause();
    } else {
      std::this_thread::yield();  // the thread we wait for may need this very CPU
    }
  }
  return false;
}

void ThreadPool::wake() {
  if (parked_.load(std::memory_order_seq_cst) == 0) return;
  const std::lock_guard lock(mutex_);
  wake_.notify_all();
}

void ThreadPool::run(std::uint32_t items, Call call, void* context) {
  region_.open(items, call, context);
  wake();
  region_.finish();
}

bool ThreadPool::end_beside() {
  return beside_.finish();
}

void ThreadPool::work(std::uint32_t thread) {
  const FloatEnvironment environment;
  int idle = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (region_.help(thread) || beside_.help(thread)) {
      idle = 0;
    } else if (++idle < kSpinsBeforePark) {
      _mm_pause();
    } else {
      std::unique_lock lock(mutex_);
      const std::uint32_t seen = region_.generation();
      parked_.fetch_add(1, std::memory_order_seq_cst);
      // A job opened since help() last looked is caught by the first test of the condition: `seen`
      // may already be that job's generation, so items left are tested as well.
      wake_.wait(lock, [&] {
        return stop_.load(std::memory_order_relaxed) || region_.generation() != seen ||
               region_.has_items() || beside_.has_items();
      });
      parked_.fetch_sub(1, std::memory_order_seq_cst);
      idle = 0;
    }
  }
}

}  // namespace penstock::engine
