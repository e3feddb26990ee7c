#include "service/kvd/event_log.h"

#include <algorithm>

#include "base/check.h"

namespace penstock::service {

void EventLog::add(const kv::Event& event) {
  events_.push_back(event);
  if (events_.size() <= kept_max_) return;
  events_.pop_front();
  ++first_;
}

std::vector<kv::Event> EventLog::from(std::uint64_t number) const {
  ENSURE(number >= first_ && number <= next());
  const std::size_t begin = number - first_;
  const std::size_t count = std::min(kEventsPerMessage, events_.size() - begin);
  const auto at = events_.begin() + static_cast<std::ptrdiff_t>(begin);
  return {at, at + static_cast<std::ptrdiff_t>(count)};
}

void EventFeed::subscribe(kv::SessionId session, const kv::Subscribe& request) {
  Subscriber& subscriber = subscribers_[session];
  subscriber = {};
  subscriber.congested = congested_.contains(session);
  const bool known = request.epoch == epoch_ && request.after > 0 && request.after < log_.next() &&
                     request.after + 1 >= log_.first();
  subscriber.next = known ? request.after + 1 : log_.next();
  subscriber.snapshotting = !known;
}

void EventFeed::drop(kv::SessionId session) {
  subscribers_.erase(session);
  congested_.erase(session);
}

void EventFeed::set_congested(kv::SessionId session, bool congested) {
  if (congested) {
    congested_.insert(session);
  } else {
    congested_.erase(session);
  }
  if (const auto found = subscribers_.find(session); found != subscribers_.end())
    found->second.congested = congested;
}

void EventFeed::flush(Outbox& outbox) {
  for (auto& [session, subscriber] : subscribers_) {
    if (subscriber.congested || subscriber.snapshotting) continue;
    if (subscriber.next < log_.first()) {
      subscriber.snapshotting = true;
      continue;
    }
    while (subscriber.next < log_.next()) {
      kv::Events message{epoch_, subscriber.next, false, false, log_.from(subscriber.next)};
      subscriber.next += message.events.size();
      send(session, subscriber, std::move(message), outbox);
    }
    if (subscriber.tiers_off != tiers_off_)
      send(session, subscriber, {epoch_, subscriber.next, false, false, {}}, outbox);
  }
}

bool EventFeed::has_work() const {
  return std::any_of(subscribers_.begin(), subscribers_.end(), [](const auto& entry) {
    return entry.second.snapshotting && !entry.second.congested;
  });
}

void EventFeed::work(Outbox& outbox) {
  const auto found = std::find_if(subscribers_.begin(), subscribers_.end(), [](const auto& entry) {
    return entry.second.snapshotting && !entry.second.congested;
  });
  if (found == subscribers_.end()) return;
  Subscriber& subscriber = found->second;
  if (!subscriber.walking) {
    subscriber.next = log_.next();
    subscriber.walking = true;
    subscriber.walked = false;
    subscriber.cursor = {};
  }
  if (subscriber.sent == subscriber.found.size() && !subscriber.walked) {
    subscriber.found.clear();
    subscriber.sent = 0;
    subscriber.walked = snapshot_(subscriber.cursor, subscriber.found);
    if (subscriber.found.empty() && !subscriber.walked) return;
  }
  const std::size_t count = std::min(kEventsPerMessage, subscriber.found.size() - subscriber.sent);
  const auto begin = subscriber.found.begin() + static_cast<std::ptrdiff_t>(subscriber.sent);
  kv::Events message{
      epoch_, subscriber.next, true, false, {begin, begin + static_cast<std::ptrdiff_t>(count)}};
  subscriber.sent += count;
  message.snapshot_end = subscriber.walked && subscriber.sent == subscriber.found.size();
  if (message.snapshot_end) {
    subscriber.found = {};
    subscriber.sent = 0;
    subscriber.snapshotting = subscriber.walking = false;
  }
  send(found->first, subscriber, std::move(message), outbox);
}

void EventFeed::send(kv::SessionId session, Subscriber& subscriber, kv::Events message,
                     Outbox& outbox) {
  subscriber.tiers_off = message.tiers_off = tiers_off_;
  outbox.send(session, std::move(message));
}

}  // namespace penstock::service
