// Guarded<T>: a value that several threads look at, one at a time.
//
// with() runs a short function on the value under the lock; nothing else reaches it. For mailboxes
// and results that cross threads, so that whoever uses them needs no locks of his own.
//
// Invariants: the function must not call with() of the same object again, nor keep a reference.
// Concurrency: any thread.
#pragma once

#include <mutex>
#include <utility>

namespace penstock {

template <typename T>
class Guarded {
 public:
  Guarded() = default;
  explicit Guarded(T value) : value_(std::move(value)) {}

  template <typename F>
  auto with(F&& function) {
    const std::lock_guard lock(mutex_);
    return std::forward<F>(function)(value_);
  }
  template <typename F>
  auto with(F&& function) const {
    const std::lock_guard lock(mutex_);
    return std::forward<F>(function)(value_);
  }
  T get() const {
    return with([](const T& value) { return value; });
  }

 private:
  mutable std::mutex mutex_;
  T value_{};
};

}  // namespace penstock
