#include "io/transport/testing/faulty_transport.h"

#include <doctest/doctest.h>

#include <vector>

#include "io/transport/testing/any_driver.h"
#include "io/transport/testing/sample_pool.h"
#include "tests/support/transport_peer.h"

namespace penstock::transport {

TEST_CASE("planned faults happen to the operation they are planned for, and to no other") {
  using Fault = FaultyTransport::Fault;
  Addresses addresses;
  const SamplePool pool(2, 4096);
  TransportOptions options;
  options.listen = addresses.of("tcp");
  TestPeer owner(options);
  owner.transport().publish(pool.published());
  owner.start();

  const auto inner = open_transport({});
  REQUIRE(inner);
  FaultyTransport faulty(**inner);
  std::promise<void> opened;
  std::promise<std::string> closed;
  TransportEvents events;
  events.opened = [&](PeerId) { opened.set_value(); };
  events.closed = [&](PeerId, const std::string& why) { closed.set_value(why); };
  faulty.set_events(std::move(events));
  const auto on_thread = [&](auto call) {
    std::promise<decltype(call())> promise;
    faulty.clock().post([&] { promise.set_value(call()); });
    return promise.get_future().get();
  };
  const auto now = [&] { return faulty.clock().now(); };
  std::vector<std::byte> into(4096);
  PeerId peer;
  const auto read = [&] {
    std::promise<ReadEnd> end;
    on_thread([&] {
      return faulty.read(peer, pool.slice(0, 0, 4096), into.data(), now() + kLong,
                         [&](ReadEnd e) { end.set_value(e); });
    });
    return end.get_future().get();
  };

  faulty.plan(1, {Fault::Kind::kFail, {}, {}});
  faulty.plan(4, {Fault::Kind::kFail, ReadEnd::kStale, {}});
  faulty.plan(5, {Fault::Kind::kCorrupt, {}, {}});
  faulty.plan(6, {Fault::Kind::kDelay, {}, std::chrono::milliseconds(50)});
  faulty.plan(7, {Fault::Kind::kFail, {}, {}});
  faulty.plan(9, {Fault::Kind::kClose, {}, {}});
  CHECK(!on_thread([&] { return faulty.connect(owner.address(), now() + kLong); }));  // 1
  peer = *on_thread([&] { return faulty.connect(owner.address(), now() + kLong); });  // 2
  opened.get_future().wait();
  CHECK(read() == ReadEnd::kDone);  // 3
  into.assign(4096, std::byte{0xee});
  CHECK(read() == ReadEnd::kStale);  // 4
  CHECK(std::ranges::count(into, std::byte{0xee}) == 4096);
  CHECK(read() == ReadEnd::kCorrupt);  // 5
  CHECK((into[0] ^ std::byte{1}) == pool.payload(0)[0]);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(read() == ReadEnd::kDone);  // 6
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(50));
  CHECK(on_thread([&] { return faulty.send(peer, "x"); }).error().code ==
        ErrorCode::kOverloaded);                             // 7
  CHECK(on_thread([&] { return faulty.send(peer, "x"); }));  // 8
  CHECK(read() == ReadEnd::kGone);                           // 9
  CHECK(closed.get_future().get().contains("planned fault"));
  CHECK(faulty.operations() == 9);
}

}  // namespace penstock::transport
