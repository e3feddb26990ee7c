#include "io/zmq/kv_event_publisher.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"
#include "core/dialects/kv_events.h"

namespace penstock::zmq {

Result<std::unique_ptr<KvEventPublisher>> KvEventPublisher::start(KvEventPublisherOptions options) {
  std::unique_ptr<KvEventPublisher> out(new KvEventPublisher(std::move(options)));
  TRY(out->events_, ZmqSocket::publisher(out->context_.get()));
  TRY(out->events_endpoint_, out->events_.bind(out->options_.events));
  if (!out->options_.replay.empty()) {
    TRY(out->replay_, ZmqSocket::router(out->context_.get()));
    TRY(out->replay_endpoint_, out->replay_.bind(out->options_.replay));
  }
  out->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  ENSURE(out->wake_ >= 0);
  out->thread_ = std::thread([publisher = out.get()] { publisher->run(); });
  return out;
}

KvEventPublisher::~KvEventPublisher() {
  if (thread_.joinable()) {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    eventfd_write(wake_, 1);
    thread_.join();
  }
  if (wake_ >= 0) ::close(wake_);
}

void KvEventPublisher::publish(std::string payload, Wire wire) {
  {
    const std::scoped_lock lock(mutex_);
    queued_.emplace_back(std::move(payload), wire);
  }
  eventfd_write(wake_, 1);
}

// False when it is to stop.
bool KvEventPublisher::send_queued() {
  eventfd_t unused = 0;
  eventfd_read(wake_, &unused);
  std::vector<std::pair<std::string, Wire>> queued;
  {
    const std::scoped_lock lock(mutex_);
    if (stopping_) return false;
    queued.swap(queued_);
  }
  for (auto& [payload, wire] : queued) {
    const auto number = dialects::sequence_frame(next_);
    // A subscriber that is slow or gone loses it, as with the engines.
    if (wire == Wire::kSent)
      static_cast<void>(events_.send({options_.topic, {number.data(), number.size()}, payload}));
    if (replay_) kept_.emplace_back(next_, std::move(payload));
    if (kept_.size() > options_.kept_max) kept_.pop_front();
    ++next_;
  }
  return true;
}

void KvEventPublisher::answer_replay(const std::vector<std::string>& frames) {
  const auto from = frames.size() == 3 ? dialects::read_sequence(frames[2]) : std::nullopt;
  if (!from) return;
  const auto answer = [&](std::uint64_t number, std::string_view payload) {
    const auto frame = dialects::sequence_frame(number);
    static_cast<void>(replay_.send({frames[0], "", {frame.data(), frame.size()}, payload}));
  };
  for (const auto& [number, payload] : kept_) {
    if (number >= *from) answer(number, payload);
  }
  answer(dialects::kReplayEnd, "");
}

void KvEventPublisher::run() {
  std::vector<std::string> frames;
  while (true) {
    zmq_pollitem_t items[] = {{nullptr, wake_, ZMQ_POLLIN, 0},
                              {replay_ ? replay_.get() : nullptr, -1, ZMQ_POLLIN, 0}};
    zmq_poll(items, replay_ ? 2 : 1, -1);
    // What was published before the question is part of its answer.
    if (!send_queued()) break;
    while (replay_ && replay_.receive(frames))
      answer_replay(frames);
  }
  events_.close();
  replay_.close();
}

}  // namespace penstock::zmq
