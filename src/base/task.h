// Task<T>: a lazily started coroutine that returns one T; and the few things service code awaits.
//
// `co_await task` starts it and resumes the awaiter when it ends, on the same thread, by symmetric
// transfer (no recursion, so a loop of a million awaits needs no stack). Nothing here knows of
// threads, clocks or sockets: the same service code runs on Asio in production and on a queue of
// virtual time in the simulator. The outside resumes it through OneShot and Channel (port/clock.h
// adds deadlines).
//
// Invariants: a Task is awaited at most once, or started with start() by a Gate, which owns it
// until it ends; destroying an unfinished Task destroys its frame and everything it owns. Errors:
// functions return Task<Result<T>>; an escaping exception is a bug and ends the process.
// Concurrency: a Task and all it awaits belong to one thread (the shard's).
// Source: design.md section 3; the shape of std::lazy in P2506.
#pragma once

#include <coroutine>
#include <deque>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace penstock {

template <typename T>
class Task;

namespace detail {

struct FinalAwaiter {
  bool await_ready() const noexcept { return false; }
  template <typename Promise>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> h) const noexcept {
    const auto continuation = h.promise().continuation;
    return continuation ? continuation : std::noop_coroutine();
  }
  void await_resume() const noexcept {}
};

struct PromiseBase {
  std::coroutine_handle<> continuation;
  std::suspend_always initial_suspend() const noexcept { return {}; }
  FinalAwaiter final_suspend() const noexcept { return {}; }
  [[noreturn]] void unhandled_exception() const noexcept { std::terminate(); }
};

template <typename T>
struct Promise : PromiseBase {
  std::optional<T> value;
  Task<T> get_return_object();
  template <typename U>
  void return_value(U&& v) {
    value.emplace(std::forward<U>(v));
  }
  T take() { return std::move(*value); }
};

template <>
struct Promise<void> : PromiseBase {
  Task<void> get_return_object();
  void return_void() const noexcept {}
  void take() const noexcept {}
};

}  // namespace detail

template <typename T = void>
class [[nodiscard]] Task {
 public:
  using promise_type = detail::Promise<T>;
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  explicit Task(Handle handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Task() { reset(); }

  bool done() const { return !handle_ || handle_.done(); }

  auto operator co_await() && {
    struct Awaiter {
      Handle handle;
      bool await_ready() const noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) const noexcept {
        handle.promise().continuation = awaiting;
        return handle;
      }
      T await_resume() const { return handle.promise().take(); }
    };
    ENSURE(handle_ && !handle_.done());
    return Awaiter{handle_};
  }

 private:
  friend class Gate;
  void reset() {
    if (handle_) std::exchange(handle_, nullptr).destroy();
  }
  Handle handle_;
};

namespace detail {
template <typename T>
Task<T> Promise<T>::get_return_object() {
  return Task<T>(std::coroutine_handle<Promise<T>>::from_promise(*this));
}
inline Task<void> Promise<void>::get_return_object() {
  return Task<void>(std::coroutine_handle<Promise<void>>::from_promise(*this));
}
}  // namespace detail

// A value set once by the outside and awaited once by a coroutine of the same thread.
template <typename T>
class OneShot {
 public:
  OneShot() = default;
  OneShot(const OneShot&) = delete;
  OneShot& operator=(const OneShot&) = delete;

  bool is_set() const { return value_.has_value(); }

  // Sets the value and resumes the awaiter, if there is one. Later calls are ignored, so a result
  // and its time-out can race harmlessly.
  void set(T value) {
    if (value_) return;
    value_.emplace(std::move(value));
    if (waiter_) std::exchange(waiter_, nullptr).resume();
  }

  auto operator co_await() {
    struct Awaiter {
      OneShot& shot;
      bool await_ready() const noexcept { return shot.value_.has_value(); }
      void await_suspend(std::coroutine_handle<> h) const {
        ENSURE(!shot.waiter_);
        shot.waiter_ = h;
      }
      T await_resume() const { return std::move(*shot.value_); }
    };
    return Awaiter{*this};
  }

 private:
  std::optional<T> value_;
  std::coroutine_handle<> waiter_;
};

// Owns running tasks that nobody awaits, and can be waited for: no task is ever detached.
class Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  // A Gate outlives its tasks: close() it, or run it empty, before destroying it.
  ~Gate() { ENSURE(running_ == 0); }

  // Starts the task now, up to its first suspension; the gate keeps it alive until it ends.
  void start(Task<void> task) {
    ++running_;
    run(this, std::move(task));
  }

  std::size_t running() const { return running_; }

  // Resumes the caller when no task is running any more; one waiter at a time.
  auto drained() {
    struct Awaiter {
      Gate& gate;
      bool await_ready() const noexcept { return gate.running_ == 0; }
      void await_suspend(std::coroutine_handle<> h) const {
        ENSURE(!gate.waiter_);
        gate.waiter_ = h;
      }
      void await_resume() const noexcept {}
    };
    return Awaiter{*this};
  }

 private:
  // Starts at once and destroys itself at the end; `task` lives in its frame.
  struct Detached {
    struct promise_type {
      Detached get_return_object() const noexcept { return {}; }
      std::suspend_never initial_suspend() const noexcept { return {}; }
      std::suspend_never final_suspend() const noexcept { return {}; }
      void return_void() const noexcept {}
      [[noreturn]] void unhandled_exception() const noexcept { std::terminate(); }
    };
  };
  static Detached run(Gate* gate, Task<void> task) {
    co_await std::move(task);
    // The task's frame goes before the waiter learns of it.
    task = Task<void>();
    --gate->running_;
    if (gate->running_ == 0 && gate->waiter_) std::exchange(gate->waiter_, nullptr).resume();
  }

  std::size_t running_ = 0;
  std::coroutine_handle<> waiter_;
};

}  // namespace penstock
