// Transports against processes that stop, die, talk without listening or talk nonsense; limits; and
// what is left when connections have gone.
#include <dirent.h>
#include <sys/socket.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "io/sockets/tcp_socket.h"
#include "io/sockets/unix_socket.h"
#include "io/transport/testing/any_driver.h"
#include "io/transport/testing/sample_pool.h"
#include "io/transport/wire.h"
#include "tests/support/transport_peer.h"

namespace penstock::transport {
namespace {

using Steady = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::uint32_t kBlockBytes = 1 << 20;

// What PeerProcess's pool holds, without a pool.
RemoteSlice slice_of(std::uint32_t block, std::uint32_t length) {
  std::vector<std::byte> bytes(length);
  sample_bytes(block, kFirstGeneration, bytes);
  return {0, block, kFirstGeneration, 0, length, checksum64(std::span<const std::byte>(bytes))};
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr)
    ++count;
  ::closedir(folder);
  return count;
}

// How long it takes to notice, at best of a few: the machine may be busy.
template <typename Round>
milliseconds best_of_three(Round round) {
  milliseconds best = milliseconds::max();
  for (int i = 0; i < 3; ++i)
    best = std::min(best, round());
  return best;
}

}  // namespace

TEST_CASE("a process that is killed is noticed within a second, idle") {
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    Addresses addresses;
    TestPeer reader{TransportOptions{}};
    reader.start();
    const auto noticed = best_of_three([&] {
      PeerProcess process(addresses.of(driver), 4, kBlockBytes);
      const PeerId peer = reader.connect(process.address());
      const auto begin = Steady::now();
      process.kill();
      CHECK_FALSE(reader.why_closed(peer).empty());
      return std::chrono::duration_cast<milliseconds>(Steady::now() - begin);
    });
    CHECK(noticed < std::chrono::seconds(1));
  }
}

TEST_CASE("a process that is killed with reads under way: they end once, then the connection") {
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    Addresses addresses;
    const auto noticed = best_of_three([&] {
      PeerProcess process(addresses.of(driver), 4, kBlockBytes);
      TestPeer reader{TransportOptions{}};
      reader.start();
      const PeerId peer = reader.connect(process.address());
      std::vector<std::byte> into(kBlockBytes);
      const RemoteSlice slice = slice_of(1, kBlockBytes);
      CHECK(reader.read_all(peer, slice, into.data()) == ReadEnd::kDone);
      process.stop();  // nothing is answered any more
      std::vector<ReadId> reads;
      for (int i = 0; i < 100; ++i)
        reads.push_back(reader.read(peer, slice, into.data()));
      const auto begin = Steady::now();
      process.kill();
      reader.why_closed(peer);
      const auto time = std::chrono::duration_cast<milliseconds>(Steady::now() - begin);
      // What is mapped can be read also from the dead.
      const std::scoped_lock lock(reader.mutex);
      for (const ReadId read : reads) {
        REQUIRE(reader.ends[read.value].size() == 1);
        if (driver != "shm") CHECK(reader.ends[read.value][0] == ReadEnd::kGone);
      }
      return time;
    });
    CHECK(noticed < std::chrono::seconds(1));
  }
}

TEST_CASE(
    "a process that is stopped is not dead: reads end at their deadlines, and later ones work") {
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    Addresses addresses;
    PeerProcess process(addresses.of(driver), 4, kBlockBytes);
    TestPeer reader{TransportOptions{}};
    reader.start();
    const PeerId peer = reader.connect(process.address());
    std::vector<std::byte> into(kBlockBytes);
    const RemoteSlice slice = slice_of(2, kBlockBytes);
    process.stop();
    const auto begin = Steady::now();
    if (driver == "shm") {
      CHECK(reader.read_all(peer, slice, into.data()) == ReadEnd::kDone);
    } else {
      const ReadId read = reader.read(peer, slice, into.data(), milliseconds(1500));
      CHECK(reader.end_of(read) == ReadEnd::kDeadline);
      CHECK(Steady::now() - begin >= milliseconds(1500));
      // It has been silent for longer than a host that is gone may be.
      CHECK(reader.closed.empty());
      std::ranges::fill(into, std::byte{0xee});
    }
    process.go_on();
    std::vector<std::byte> others(kBlockBytes);
    for (int i = 0; i < 8; ++i)
      CHECK(reader.read_all(peer, slice, others.data()) == ReadEnd::kDone);
    if (driver != "shm") CHECK(std::ranges::count(into, std::byte{0xee}) == kBlockBytes);
  }
}

TEST_CASE("messages arrive whole and in order, of any size") {
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    Addresses addresses;
    PeerProcess process(addresses.of(driver), 1, 4096);
    TestPeer reader{TransportOptions{}};
    reader.start();
    const PeerId peer = reader.connect(process.address());
    std::vector<std::string> sent;
    for (std::size_t i = 0; i < 300; ++i)
      sent.push_back(std::string(i * i * 31 % 20'000, static_cast<char>('a' + i % 26)));
    sent.push_back(std::string(kMessageBytesMax, 'z'));
    for (const std::string& text : sent)
      REQUIRE(reader.send(peer, text));
    reader.wait([&] { return reader.messages.size() == sent.size(); });
    for (std::size_t i = 0; i < sent.size(); ++i)
      CHECK((reader.messages[i].first == peer && reader.messages[i].second == sent[i]));
    CHECK(reader.send(peer, std::string(kMessageBytesMax + 1, 'z')).error().code ==
          ErrorCode::kPayloadTooLarge);
  }
}

TEST_CASE("a peer that does not read is not sent to without end, and loses nothing") {
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    Addresses addresses;
    PeerProcess process(addresses.of(driver), 1, 4096);
    TransportOptions options;
    options.limits.queued_bytes_max = kMessageBytesMax;
    options.limits.unreachable_after = std::chrono::seconds(60);  // its window is shut for long
    TestPeer reader(options);
    reader.start();
    const PeerId peer = reader.connect(process.address());
    process.stop();
    std::size_t taken = 0;
    for (Status sent; taken < 1000; ++taken) {
      sent = reader.send(peer, std::to_string(taken) + std::string(60'000, '.'));
      if (sent) continue;
      CHECK(sent.error().code == ErrorCode::kOverloaded);
      break;
    }
    CHECK(taken >= kMessageBytesMax / 61'000);
    CHECK(taken < 1000);
    process.go_on();
    reader.wait([&] { return reader.messages.size() == taken; });
    for (std::size_t i = 0; i < taken; ++i)
      CHECK(reader.messages[i].second.starts_with(std::to_string(i) + "."));
  }
}

TEST_CASE("connections beyond the limits are turned away with a reason") {
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    Addresses addresses;
    TransportOptions options;
    options.listen = addresses.of(driver);
    options.limits.connections_max = 3;
    TestPeer owner(options);
    owner.start();
    options.listen.clear();
    TestPeer first(options);
    first.start();
    std::vector<PeerId> peers;
    for (int i = 0; i < 3; ++i)
      peers.push_back(first.connect(owner.address()));
    CHECK(first.try_connect(owner.address()).error().code == ErrorCode::kOverloaded);
    TestPeer second(options);
    second.start();
    const PeerId turned_away = *second.try_connect(owner.address());
    CHECK(second.why_closed(turned_away).contains("too many connections"));
    CHECK(second.opened.empty());
    first.on_thread([&] { first.transport().close(peers[0]); });
    owner.wait([&] { return owner.closed.size() == 1; });
    second.connect(owner.address());
  }
}

TEST_CASE("nobody there, or nobody who answers: closed with a reason, never opened") {
  Addresses addresses;
  TestPeer reader{TransportOptions{}};
  reader.start();
  const PeerId absent = *reader.try_connect(addresses.of("shm"));
  CHECK(reader.why_closed(absent).contains("cannot connect"));
  // A listener that nobody accepts from.
  const auto listener = sockets::listen_on(*sockets::resolve("127.0.0.1:0"));
  const std::string address = "tcp:127.0.0.1:" + std::to_string(sockets::port_of(*listener));
  const PeerId silent = *reader.on_thread(
      [&] { return reader.transport().connect(address, reader.in(milliseconds(100))); });
  CHECK(reader.why_closed(silent).contains("did not answer"));
  CHECK(reader.opened.empty());
  for (const char* wrong : {"", "shm:", "tcp:", "tcp:host", "smoke:/x", "shm"})
    CHECK(reader.try_connect(wrong).error().code == ErrorCode::kInvalidArgument);
}

TEST_CASE("hundreds of connections come and go and leave nothing") {
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    Addresses addresses;
    const SamplePool pool(2, 4096);
    TransportOptions options;
    options.listen = addresses.of(driver);
    TestPeer owner(options);
    owner.transport().publish(pool.published());
    owner.start();
    TestPeer reader{TransportOptions{}};
    reader.start();
    std::vector<std::byte> into(4096);
    const int rounds = driver == "ucx" ? 50 : 300;
    std::size_t before = 0;
    for (int i = 0; i < rounds; ++i) {
      const PeerId peer = reader.connect(owner.address());
      CHECK(reader.read_all(peer, pool.slice(1, 0, 4096), into.data()) == ReadEnd::kDone);
      // Either side may end it.
      if (i % 2 == 0) {
        reader.on_thread([&] { reader.transport().close(peer); });
        owner.wait([&] { return owner.closed.size() == static_cast<std::size_t>(i / 2) + 1; });
      } else {
        owner.on_thread([&] { owner.transport().close(owner.accepted.back()); });
        reader.why_closed(peer);
      }
      owner.on_thread([] {});
      reader.on_thread([] {});
      if (i == 1) before = open_descriptors();
    }
    // UCX ends its connections when both sides have greeted each other.
    for (int i = 0; i < 500 && open_descriptors() > before; ++i)
      std::this_thread::sleep_for(milliseconds(10));
    CHECK(open_descriptors() <= before);
  }
}

TEST_CASE("a stranger that talks nonsense is sent away; others stay") {
  for (const std::string driver : {"shm", "tcp"}) {
    CAPTURE(driver);
    Addresses addresses;
    const SamplePool pool(2, 4096);
    TransportOptions options;
    options.listen = addresses.of(driver);
    options.limits.greeting_max = milliseconds(200);
    TestPeer owner(options);
    owner.transport().publish(pool.published());
    owner.start();
    TestPeer reader{TransportOptions{}};
    reader.start();
    const PeerId peer = reader.connect(owner.address());

    Hello other;
    other.driver = driver == "shm" ? Driver::kTcp : Driver::kShm;
    std::string wrong_magic = encode(other);
    wrong_magic[kHeadBytes] ^= 1;
    std::string long_length = frame(Kind::kMessage, "x");
    long_length[3] = 0x7f;
    Hello good{driver == "shm" ? Driver::kShm : Driver::kTcp, 1, {}};
    const std::string nonsense[] = {std::string(100, '\xff'),
                                    frame(Kind::kMessage, "before any greeting"),
                                    frame(Kind::kPool, std::string(32, '\1')),
                                    encode(other),
                                    wrong_magic,
                                    long_length,
                                    encode(Join{}),
                                    encode(good) + encode(good),
                                    encode(good) + std::string(8, '\x7f'),
                                    encode(good) + encode(Verdict{1, ReadEnd::kDone}),
                                    encode(good) + encode(ReadRequest{1, {}}),
                                    "",  // says nothing
                                    encode(good).substr(0, 12)};
    for (const std::string& text : nonsense) {
      const std::string where = owner.address().substr(4);
      auto socket = driver == "shm" ? sockets::connect_to(where)
                                    : sockets::start_connecting(*sockets::resolve(where));
      REQUIRE(socket);
      ::fcntl(socket->get(), F_SETFL, 0);  // blocking
      REQUIRE(::send(socket->get(), text.data(), text.size(), MSG_NOSIGNAL) ==
              static_cast<ssize_t>(text.size()));
      // It ends, whatever was said before.
      char bytes[4096];
      ssize_t n = 0;
      while ((n = ::recv(socket->get(), bytes, sizeof bytes, 0)) > 0) {
      }
      CHECK((n == 0 || errno == ECONNRESET));
    }
    std::vector<std::byte> into(4096);
    CHECK(reader.read_all(peer, pool.slice(1, 0, 4096), into.data()) == ReadEnd::kDone);
    CHECK(reader.closed.empty());
  }
}

TEST_CASE("an owner that answers nonsense is left; the reader lives on") {
  // Over tcp, an owner of the test's own: it greets well, and answers the first read with `answer`.
  const RemoteSlice slice = slice_of(0, 1000);
  const std::string answers[] = {
      encode(BytesHead{1, 999}) + std::string(999, 'x'),
      encode(BytesHead{77, 1000}),
      encode(Verdict{77, ReadEnd::kDone}),
      encode(Verdict{1, ReadEnd::kDone}),
      frame(Kind::kMessage, "on a stream"),
      std::string(64, '\xfe'),
      encode(BytesHead{1, 1000}) + std::string(1000, 'x') + encode(BytesHead{1, 1000}),
      encode(BytesHead{1, 1000}) + std::string(10, 'x'),  // and then the end
  };
  for (const std::string& answer : answers) {
    const auto listener = sockets::listen_on(*sockets::resolve("127.0.0.1:0"));
    ::fcntl(listener->get(), F_SETFL, 0);
    TransportOptions options;
    options.limits.tcp_streams = 1;
    TestPeer reader(options);
    reader.start();
    const PeerId peer =
        *reader.try_connect("tcp:127.0.0.1:" + std::to_string(sockets::port_of(*listener)));
    const Descriptor control(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::string welcome = encode(Welcome{Driver::kTcp, 1, Token{}, {}});
    REQUIRE(::send(control.get(), welcome.data(), welcome.size(), MSG_NOSIGNAL) > 0);
    Descriptor stream(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
    reader.wait([&] { return !reader.opened.empty(); });
    std::vector<std::byte> into(1000);
    const ReadId read = reader.read(peer, slice, into.data());
    REQUIRE(read.value == 1);
    char bytes[24 + 40];  // the joining and the read
    REQUIRE(::recv(stream.get(), bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
    REQUIRE(::send(stream.get(), answer.data(), answer.size(), MSG_NOSIGNAL) > 0);
    if (&answer == std::end(answers) - 1) stream = Descriptor();
    CHECK(reader.end_of(read) == ReadEnd::kGone);
    CHECK_FALSE(reader.why_closed(peer).empty());
  }
}

}  // namespace penstock::transport
