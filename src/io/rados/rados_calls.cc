#if PENSTOCK_RADOS
#include "io/rados/rados_calls.h"

#include <poll.h>

#include <cerrno>

namespace penstock::rados {
namespace {

// What librados gets as a callback's argument.
struct Arrival {
  const RadosLibrary& library;
  std::shared_ptr<Mailbox> mailbox;
  std::uint64_t call;
};

// On a thread of librados.
void on_complete(rados_completion_t completion, void* argument) {
  const std::unique_ptr<Arrival> arrival(static_cast<Arrival*>(argument));
  arrival->mailbox->put({arrival->call, arrival->library.aio_get_return_value(completion)});
}

}  // namespace

Canceller::Canceller(const RadosLibrary& library, std::shared_ptr<Mailbox> mailbox)
    : library_(library), mailbox_(std::move(mailbox)), thread_([this] { work(); }) {}

Canceller::~Canceller() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  news_.notify_all();
  thread_.join();
}

void Canceller::cancel(Cancel cancel) {
  {
    const std::lock_guard lock(mutex_);
    cancels_.push_back(cancel);
  }
  news_.notify_all();
}

void Canceller::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    news_.wait(lock, [this] { return ending_ || !cancels_.empty(); });
    if (cancels_.empty()) return;
    const std::vector<Cancel> cancels = std::exchange(cancels_, {});
    lock.unlock();
    for (const Cancel& cancel : cancels) {
      library_.aio_cancel(cancel.pool, cancel.completion);
      mailbox_->put({cancel.call, 0});
    }
    lock.lock();
  }
}

RadosCalls::RadosCalls(const RadosLibrary& library)
    : library_(library), canceller_(library, mailbox_) {}

RadosCalls::~RadosCalls() {
  while (!deadlines_.empty()) {
    pending_.at(deadlines_.begin()->second).call.then = nullptr;
    give_up(deadlines_.begin()->second);
  }
  // A cancelled call comes back at once; one of our own thread within its time limits.
  while (!pending_.empty()) {
    pollfd event{mailbox_->event_fd(), POLLIN, 0};
    (void)::poll(&event, 1, 1000);
    for (const Mailbox::Result result : mailbox_->take())
      end(result);
  }
}

void RadosCalls::start(rados_ioctx_t pool, Call call,
                       const std::function<int(rados_completion_t)>& submit) {
  const std::uint64_t number = expect(std::move(call));
  Pending& pending = pending_.at(number);
  pending.pool = pool;
  auto arrival = std::make_unique<Arrival>(library_, mailbox_, number);
  library_.aio_create_completion2(arrival.get(), on_complete, &pending.completion);
  if (const int code = submit(pending.completion); code < 0) {
    mailbox_->put({number, code});  // no callback comes
  } else {
    (void)arrival.release();
  }
}

std::uint64_t RadosCalls::expect(Call call) {
  const std::uint64_t number = ++last_number_;
  bytes_ += call.bytes;
  deadlines_.emplace(call.deadline, number);
  pending_.emplace(number, Pending{.call = std::move(call)});
  return number;
}

void RadosCalls::answer_soon(int code, Then then) {
  soon_.emplace_back(code, std::move(then));
  mailbox_->put({});  // wakes; there is no call 0
}

void RadosCalls::give_up(std::uint64_t number) {
  Pending& pending = pending_.at(number);
  deadlines_.erase({pending.call.deadline, number});
  pending.given_up = true;
  stranded_bytes_ += pending.call.bytes;
  const Then then = std::exchange(pending.call.then, nullptr);
  if (pending.completion != nullptr) {
    ++pending.awaited;
    canceller_.cancel({number, pending.pool, pending.completion});
  }
  if (then) then(-ETIMEDOUT);
}

void RadosCalls::end(Mailbox::Result result) {
  const auto found = pending_.find(result.call);
  if (found == pending_.end() || --found->second.awaited > 0) return;
  const Pending pending = std::move(found->second);
  pending_.erase(found);
  bytes_ -= pending.call.bytes;
  if (pending.given_up) {
    stranded_bytes_ -= pending.call.bytes;
  } else {
    deadlines_.erase({pending.call.deadline, result.call});
  }
  if (pending.completion != nullptr) library_.aio_release(pending.completion);
  if (!pending.given_up && pending.call.then) pending.call.then(result.code);
}

void RadosCalls::poll(Instant now) {
  for (const Mailbox::Result result : mailbox_->take())
    end(result);
  for (const auto& [code, then] : std::exchange(soon_, {}))
    then(code);
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    ++timeouts_;
    give_up(deadlines_.begin()->second);
  }
}

}  // namespace penstock::rados
#endif
