#include "service/kvd/event_log.h"

#include "base/rng.h"

#include <doctest/doctest.h>

namespace penstock::service {
namespace {

kv::Event event(std::uint8_t number, bool stored = true) {
  kv::Event made;
  made.name.key.bytes[0] = number;
  made.stored = stored;
  return made;
}

struct Fixture {
  EventLog log{8};
  std::vector<kv::Event> held;
  EventFeed feed{3, log, [this](SnapshotCursor&, std::vector<kv::Event>& found) {
                   found = held;
                   return true;
                 }};
  Outbox outbox;

  std::vector<kv::Events> sent() {
    feed.flush(outbox);
    while (feed.has_work())
      feed.work(outbox);
    feed.flush(outbox);
    std::vector<kv::Events> messages;
    for (KvOutgoing& outgoing : outbox.take())
      messages.push_back(std::get<kv::Events>(std::move(outgoing.message)));
    return messages;
  }
  void happen(std::uint8_t first, std::uint8_t count) {
    for (std::uint8_t i = 0; i < count; ++i)
      log.add(event(static_cast<std::uint8_t>(first + i)));
  }
};

}  // namespace

TEST_CASE("a new subscriber gets a snapshot, even of nothing, then what happens") {
  Fixture f;
  f.feed.subscribe(kv::SessionId(1), {});
  auto messages = f.sent();
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].snapshot);
  CHECK(messages[0].snapshot_end);
  CHECK(messages[0].first == 1);
  CHECK(messages[0].epoch == 3);
  f.happen(1, 2);
  messages = f.sent();
  REQUIRE(messages.size() == 1);
  CHECK(!messages[0].snapshot);
  CHECK(messages[0].first == 1);
  CHECK(messages[0].events.size() == 2);
  CHECK(f.sent().empty());
}

TEST_CASE("one who comes back goes on where it was; too old or another epoch is a snapshot") {
  Fixture f;
  f.happen(1, 10);  // 1 and 2 are no longer kept
  struct Case {
    kv::Subscribe request;
    std::uint64_t first;
    std::size_t events;
    bool snapshot;
  };
  for (const Case& c :
       {Case{{3, 2}, 3, 8, false}, Case{{3, 7}, 8, 3, false}, Case{{3, 1}, 11, 0, true},
        Case{{4, 7}, 11, 0, true}, Case{{3, 0}, 11, 0, true}, Case{{3, 11}, 11, 0, true}}) {
    CAPTURE(c.request.after);
    f.feed.subscribe(kv::SessionId(1), c.request);
    const auto messages = f.sent();
    REQUIRE(messages.size() == 1);
    CHECK(messages[0].snapshot == c.snapshot);
    CHECK(messages[0].first == c.first);
    CHECK(messages[0].events.size() == c.events);
  }
  f.feed.subscribe(kv::SessionId(1), {3, 10});  // knows all, but not what is in service by now
  const auto messages = f.sent();
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].first == 11);
  CHECK(messages[0].events.empty());
  CHECK(f.sent().empty());
}

TEST_CASE("each message says which tiers are out of service; a change is told at once, and once") {
  Fixture f;
  f.feed.set_tiers_off(16);
  f.feed.subscribe(kv::SessionId(1), {});
  CHECK(f.sent().at(0).tiers_off == 16);
  CHECK(f.sent().empty());
  f.feed.set_tiers_off(0);
  f.happen(1, 2);
  auto messages = f.sent();
  REQUIRE(messages.size() == 1);  // with the events
  CHECK(messages[0].tiers_off == 0);
  f.feed.set_tiers_off(16);
  f.feed.set_congested(kv::SessionId(1), true);
  CHECK(f.sent().empty());
  f.feed.set_congested(kv::SessionId(1), false);
  messages = f.sent();
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].tiers_off == 16);
  CHECK(messages[0].events.empty());
  CHECK(messages[0].first == 3);
  CHECK(!messages[0].snapshot);
  f.feed.subscribe(kv::SessionId(1), {3, 1});  // comes back, and may have been told anything before
  f.feed.set_tiers_off(0);
  CHECK(f.sent().at(0).tiers_off == 0);
  CHECK(f.sent().empty());
}

TEST_CASE("a large snapshot comes in messages of a bounded size, one a turn, events after it") {
  Fixture f;
  f.held.assign(2 * kEventsPerMessage + 5, event(9));
  f.feed.subscribe(kv::SessionId(1), {});
  f.feed.flush(f.outbox);
  f.feed.work(f.outbox);
  f.happen(1, 1);  // while it is being sent
  const auto messages = f.sent();
  REQUIRE(messages.size() == 4);
  std::size_t total = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(messages[i].snapshot);
    CHECK(messages[i].snapshot_end == (i == 2));
    CHECK(messages[i].events.size() <= kEventsPerMessage);
    CHECK(messages[i].first == 1);
    total += messages[i].events.size();
  }
  CHECK(total == f.held.size());
  CHECK(messages[3].first == 1);
  CHECK(messages[3].events.size() == 1);
}

TEST_CASE("a congested subscriber is sent nothing; left behind by the log it gets a snapshot") {
  Fixture f;
  f.feed.subscribe(kv::SessionId(1), {});
  f.sent();
  f.feed.set_congested(kv::SessionId(1), true);
  f.happen(1, 3);
  CHECK(f.sent().empty());
  CHECK(!f.feed.has_work());
  f.feed.set_congested(kv::SessionId(1), false);
  CHECK(f.sent().at(0).events.size() == 3);
  f.feed.set_congested(kv::SessionId(1), true);
  f.happen(4, 20);
  CHECK(f.sent().empty());
  f.feed.set_congested(kv::SessionId(1), false);
  f.held.push_back(event(1));
  const auto messages = f.sent();
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].snapshot);
  CHECK(messages[0].first == 24);
  f.feed.drop(kv::SessionId(1));
  f.happen(30, 1);
  CHECK(f.sent().empty());
}

}  // namespace penstock::service
