// Compute threads for one caller: parallel_for over numbered items, and one call beside it.
//
// The caller works too and takes items from the same counter, so when the other threads are asleep
// or descheduled it simply does more itself and waits only for items that another thread has begun.
// Idle threads spin for some tens of microseconds, as the regions of a forward pass follow each
// other closely, and then park on a condition variable: an idle engine uses no CPU.
//
// begin_beside() gives a call to whichever thread next finds no item to take, so it fills the gaps
// in which a thread would wait for the caller's next region; end_beside() does it itself if none
// did.
//
// Invariants: every item runs exactly once, and has ended when parallel_for returns. Results must
// not depend on which thread runs an item (thread numbers are for scratch memory only).
// Errors: none; items must not throw.
// Concurrency: parallel_for is called by one thread at a time, never from inside an item; so are
// begin_beside and end_beside.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock::engine {

class ThreadPool {
 public:
  // `threads` counts the caller: 1 starts none.
  explicit ThreadPool(std::uint32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::uint32_t size() const { return static_cast<std::uint32_t>(threads_.size()) + 1; }

  // A region of less work than this (in multiply-adds) is done by the caller alone: it takes some
  // ten microseconds, about what it costs to wake a parked thread.
  static constexpr std::uint64_t kWorkToShare = 1U << 18;

  // parallel_for, or a plain loop when the work is not worth sharing.
  template <typename F>
  void for_each(std::uint32_t items, std::uint64_t work, F&& f) {
    if (work < kWorkToShare) {
      for (std::uint32_t i = 0; i < items; ++i)
        f(i, std::uint32_t{0});
    } else {
      parallel_for(items, f);
    }
  }

  // Calls f(item, thread) for item in [0, items), thread in [0, size()).
  template <typename F>
  void parallel_for(std::uint32_t items, F&& f) {
    if (items <= 1 || threads_.empty()) {
      for (std::uint32_t i = 0; i < items; ++i)
        f(i, std::uint32_t{0});
      return;
    }
    using Function = std::remove_reference_t<F>;
    run(
        items,
        [](void* context, std::uint32_t item, std::uint32_t thread) {
          (*static_cast<Function*>(context))(item, thread);
        },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

  // Starts f(): it runs once, at any time before end_beside() returns. Keeps a reference to f.
  template <typename F>
  void begin_beside(F& f) {
    beside_.open(
        1, [](void* context, std::uint32_t, std::uint32_t) { (*static_cast<F*>(context))(); }, &f);
    wake();
  }
  // True when another thread had done it by now.
  bool end_beside();

 private:
  using Call = void (*)(void*, std::uint32_t, std::uint32_t);

  // Numbered items that any thread takes.
  class Job {
   public:
    void open(std::uint32_t items, Call call, void* context);
    // Takes and runs items until none is left; true when it ran any.
    bool help(std::uint32_t thread);
    // By whoever opened it: until every item has ended. Helps first; true when there was no need.
    bool finish();
    // Changes with each open().
    std::uint32_t generation() const {
      return static_cast<std::uint32_t>(ticket_.load(std::memory_order_seq_cst) >> 32);
    }
    bool has_items() const {
      return static_cast<std::uint32_t>(ticket_.load(std::memory_order_seq_cst)) <
             items_.load(std::memory_order_acquire);
    }

   private:
    // Generation in the upper half, next item in the lower; the lower half is kClosed while the
    // fields change, so that nobody takes an item with another job's fields.
    static constexpr std::uint64_t kClosed = 0xFFFFFFFFULL;
    std::atomic<std::uint64_t> ticket_{kClosed};
    std::atomic<std::uint32_t> items_{0};
    std::atomic<Call> call_{nullptr};
    std::atomic<void*> context_{nullptr};
    std::atomic<std::uint32_t> done_{0};
  };

  void run(std::uint32_t items, Call call, void* context);
  void wake();
  void work(std::uint32_t thread);

  Job region_;
  Job beside_;
  std::atomic<std::uint32_t> parked_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
};

}  // namespace penstock::engine
