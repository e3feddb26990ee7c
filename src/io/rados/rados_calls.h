// RadosCalls: librados calls under way, their deadlines, and what they hold until they let go.
//
// A call is answered exactly once, inside poll(): with its result, or with -ETIMEDOUT at its
// deadline. One given up is cancelled, and what it holds (`held`: buffers librados reads from or
// writes to) stays until librados has called back; its bytes count as stranded that long.
// A thread of its own cancels: rados_aio_cancel waits for a lock of librados until no other thread
// has it, which is long where those are starved or copy extents.
//
// Invariants: nothing that librados may touch is freed before its callback; the destructor cancels
// and waits for all of them. Concurrency: one thread, but for Mailbox::put, which any may call.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/guarded.h"
#include "base/units.h"
#include "io/rados/rados_library.h"
#include "io/sockets/unix_socket.h"

namespace penstock::rados {

// Results on their way from threads of librados and of ours.
class Mailbox {
 public:
  struct Result {
    std::uint64_t call = 0;
    int code = 0;
  };
  void put(Result result) {
    results_.with([&](std::vector<Result>& all) { all.push_back(result); });
    event_.wake();
  }
  std::vector<Result> take() {
    event_.clear();
    return results_.with([](std::vector<Result>& all) { return std::exchange(all, {}); });
  }
  int event_fd() const { return event_.fd(); }

 private:
  Guarded<std::vector<Result>> results_;
  sockets::WakeEvent event_;
};

// The thread that cancels. Puts {call, 0} into the mailbox when one is cancelled.
class Canceller {
 public:
  struct Cancel {
    std::uint64_t call = 0;
    rados_ioctx_t pool = nullptr;
    rados_completion_t completion = nullptr;
  };
  Canceller(const RadosLibrary& library, std::shared_ptr<Mailbox> mailbox);
  ~Canceller();
  Canceller(const Canceller&) = delete;
  Canceller& operator=(const Canceller&) = delete;
  void cancel(Cancel cancel);

 private:
  void work();

  const RadosLibrary& library_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<Cancel> cancels_;
  bool ending_ = false;
  std::thread thread_;  // last: it uses all the others
};

class RadosCalls {
 public:
  using Then = std::function<void(int)>;  // 0 or more: the call's result; less: -errno

  struct Call {
    Instant deadline;
    std::shared_ptr<void> held;
    std::size_t bytes = 0;  // in `held`
    Then then;
  };

  explicit RadosCalls(const RadosLibrary& library);
  ~RadosCalls();
  RadosCalls(const RadosCalls&) = delete;
  RadosCalls& operator=(const RadosCalls&) = delete;

  // Starts `submit(completion)`, an asynchronous call on `pool` that returns 0 or -errno.
  void start(rados_ioctx_t pool, Call call, const std::function<int(rados_completion_t)>& submit);
  // A call that another thread will answer by mailbox()->put(). Returns its number.
  std::uint64_t expect(Call call);
  // Answers in the next poll().
  void answer_soon(int code, Then then);

  void poll(Instant now);
  const std::shared_ptr<Mailbox>& mailbox() const { return mailbox_; }
  std::uint64_t bytes() const { return bytes_; }                    // of all calls
  std::uint64_t stranded_bytes() const { return stranded_bytes_; }  // of calls given up
  std::uint64_t timeouts() const { return timeouts_; }

 private:
  struct Pending {
    Call call;
    rados_ioctx_t pool = nullptr;
    rados_completion_t completion = nullptr;  // null: of another thread
    bool given_up = false;
    int awaited = 1;  // results; 2 when a completion is given up: its callback and its cancel
  };
  void give_up(std::uint64_t number);
  void end(Mailbox::Result result);

  const RadosLibrary& library_;
  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  Canceller canceller_;
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, Pending> pending_;
  std::set<std::pair<Instant, std::uint64_t>> deadlines_;  // of those not given up
  std::vector<std::pair<int, Then>> soon_;
  std::uint64_t bytes_ = 0, stranded_bytes_ = 0, timeouts_ = 0;
};

}  // namespace penstock::rados
