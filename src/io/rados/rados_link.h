// RadosLink: the connection to a cluster, made and kept by a thread of its own, which also runs
// blocking calls one after the other.
//
// Invariants: once up() is true the pools stay valid until the link is destroyed; librados itself
// goes on through lost monitors and OSDs. Every blocking call of librados ends within
// its limits (kSettings). Errors: state() says in words what is in the way and what to do.
// Concurrency: the owner's thread; jobs run on the link's.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "io/rados/rados_library.h"
#include "io/rados/rados_store.h"

namespace penstock::rados {

class RadosLink {
 public:
  RadosLink(const RadosLibrary& library, const RadosStoreOptions& options);
  ~RadosLink();
  RadosLink(const RadosLink&) = delete;
  RadosLink& operator=(const RadosLink&) = delete;

  bool up() const { return up_.load(std::memory_order_acquire); }
  std::string state() const;  // "ok", or the trouble
  // Valid when up().
  rados_ioctx_t pool(StorePool pool) const {
    return pool == StorePool::kExtents ? extents_ : small_;
  }
  rados_t cluster() const { return cluster_; }
  // Runs `job` on the link's thread.
  void run(std::function<void()> job);

 private:
  void work();
  std::string connect();  // empty, or the trouble
  std::string open_pools();
  void disconnect();

  const RadosLibrary& library_;
  const RadosStoreOptions options_;
  rados_t cluster_ = nullptr;
  rados_ioctx_t extents_ = nullptr, small_ = nullptr;
  std::atomic<bool> up_ = false;

  mutable std::mutex mutex_;
  std::condition_variable news_;
  bool ending_ = false;
  std::string state_ = "connecting";
  std::deque<std::function<void()>> jobs_;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace penstock::rados
