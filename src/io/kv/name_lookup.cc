#include "io/kv/name_lookup.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace penstock::kv {

struct NameLookup::State {
  explicit State(Resolver r) : resolver(std::move(r)) {}

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stopping || !questions.empty(); });
      if (stopping) return;
      const auto [number, host_port] = std::move(questions.front());
      questions.pop_front();
      lock.unlock();
      Result<sockets::TcpAddress> address = resolver(host_port);
      lock.lock();
      answers.push_back({number, std::move(address)});
      event.wake();
    }
  }

  const Resolver resolver;
  sockets::WakeEvent event;
  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::deque<std::pair<std::size_t, std::string>> questions;
  std::vector<Answer> answers;
  bool has_thread = false;
  bool stopping = false;
};

NameLookup::NameLookup(Resolver resolver) : state_(std::make_shared<State>(std::move(resolver))) {}

NameLookup::~NameLookup() {
  const std::lock_guard lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
}

void NameLookup::ask(std::size_t number, const std::string& host_port) {
  const std::lock_guard lock(state_->mutex);
  state_->questions.emplace_back(number, host_port);
  state_->changed.notify_all();
  if (std::exchange(state_->has_thread, true)) return;
  // Not joined: a resolver can't be interrupted, and a stop must not wait for a dead name server.
  // The thread holds on to what it uses.
  std::thread([state = state_] { state->run(); }).detach();
}

int NameLookup::event_fd() const {
  return state_->event.fd();
}

std::vector<NameLookup::Answer> NameLookup::take() {
  const std::lock_guard lock(state_->mutex);
  state_->event.clear();
  return std::exchange(state_->answers, {});
}

}  // namespace penstock::kv
