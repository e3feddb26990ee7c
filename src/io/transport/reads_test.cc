// Reads between two transports of this process, over each driver: what arrives, and every way in
// which a read must not succeed.
#include <doctest/doctest.h>

// UCX keeps some of its pointers packed, so the leak checker does not see what hangs on workers
// that are left to the end (ucx_worker.h) because a peer was killed. Connections that end well
// leave nothing, and hundreds of them leave no descriptor.
extern "C" const char* __lsan_default_suppressions() {  // NOLINT: the checker's name for it
  return "leak:libucs.so\nleak:libuct.so\nleak:libucp.so\n";
}

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "io/transport/testing/any_driver.h"
#include "io/transport/testing/sample_pool.h"
#include "tests/support/effort.h"
#include "tests/support/transport_peer.h"

namespace penstock::transport {
namespace {

constexpr std::uint32_t kBlocks = 8;
constexpr std::uint32_t kBlockBytes = 4 << 20;

// An owner and a reader; `between_looks` runs on the thread of whoever looks.
struct Pair {
  explicit Pair(const std::string& driver, std::uint32_t blocks = kBlocks,
                std::uint32_t block_bytes = kBlockBytes)
      : pool(blocks, block_bytes) {
    TransportOptions options;
    options.listen = addresses.of(driver);
    options.between_looks = [this] {
      if (between_looks) between_looks();
    };
    owner = std::make_unique<TestPeer>(options);
    owner->transport().publish(pool.published());
    owner->refuses = [this](std::uint32_t block) { return block == refused; };
    owner->start();
    options.listen.clear();
    reader = std::make_unique<TestPeer>(options);
    reader->start();
    peer = reader->connect(owner->address());
  }
  ~Pair() {
    reader->end();
    owner->end();
  }

  std::vector<std::byte> expected(std::uint32_t block, std::uint32_t offset,
                                  std::uint32_t length) const {
    const auto bytes = pool.payload(block).subspan(offset, length);
    return {bytes.begin(), bytes.end()};
  }

  Addresses addresses;
  SamplePool pool;
  std::function<void()> between_looks;  // set before reads start
  std::atomic<std::uint32_t> refused = UINT32_MAX;
  std::unique_ptr<TestPeer> owner;
  std::unique_ptr<TestPeer> reader;
  PeerId peer;
};

}  // namespace

TEST_CASE("slices of any size and place arrive as they are") {
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    Pair pair(driver);
    for (const std::uint32_t length :
         {1U, 7U, 64U, 1000U, 4096U, 4097U, 65'535U, 65'536U, 262'144U, 262'145U, 1U << 20,
          (1U << 20) + 13U, 3'000'001U, kBlockBytes}) {
      for (const std::uint32_t offset : {0U, 1U, 4095U}) {
        CAPTURE(length);
        CAPTURE(offset);
        if (offset + length > kBlockBytes) continue;
        const std::uint32_t block = length % kBlocks;
        std::vector<std::byte> into(length + 2, std::byte{0xee});
        const RemoteSlice slice = pair.pool.slice(block, offset, length);
        CHECK(pair.reader->read_all(pair.peer, slice, into.data() + 1) == ReadEnd::kDone);
        CHECK(into.front() == std::byte{0xee});
        CHECK(into.back() == std::byte{0xee});
        CHECK(std::ranges::equal(std::span(into).subspan(1, length),
                                 pair.expected(block, offset, length)));
      }
    }
  }
}

TEST_CASE("hundreds of reads at once all arrive") {
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    Pair pair(driver);
    struct One {
      RemoteSlice slice;
      std::vector<std::byte> into;
      ReadId read;
    };
    std::vector<One> all(400);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto length = static_cast<std::uint32_t>(1 + i * i * 7919 % 300'000);
      const auto offset = static_cast<std::uint32_t>(i * 104'729 % (kBlockBytes - length));
      all[i].slice = pair.pool.slice(static_cast<std::uint32_t>(i % kBlocks), offset, length);
      all[i].into.resize(length);
    }
    pair.reader->on_thread([&] {
      for (One& one : all)
        one.read = pair.reader->read_here(pair.peer, one.slice, one.into.data(), kLong);
    });
    for (const One& one : all) {
      CHECK(pair.reader->end_of(one.read) == ReadEnd::kDone);
      CHECK(one.into == pair.expected(one.slice.block, one.slice.offset, one.slice.length));
    }
  }
}

TEST_CASE("a block that was reused before the read is stale") {
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    Pair pair(driver);
    const RemoteSlice slice = pair.pool.slice(3, 0, 100'000);
    pair.pool.set_generation(3, kFirstGeneration + 1);
    std::vector<std::byte> into(slice.length);
    CHECK(pair.reader->read_all(pair.peer, slice, into.data()) == ReadEnd::kStale);
    RemoteSlice later = pair.pool.slice(4, 0, 100'000);
    later.generation += 7;
    CHECK(pair.reader->read_all(pair.peer, later, into.data()) == ReadEnd::kStale);
    CHECK(pair.reader->read_all(pair.peer, pair.pool.slice(4, 0, 100'000), into.data()) ==
          ReadEnd::kDone);
  }
}

TEST_CASE("a block that is reused in the middle of the read is stale, though its bytes are right") {
  for (const std::string& driver : all_drivers()) {
    for (const std::uint32_t length : {100U, 65'536U, kBlockBytes}) {
      CAPTURE(driver);
      CAPTURE(length);
      Pair pair(driver);
      std::atomic<int> looks = 0;
      pair.between_looks = [&] {
        ++looks;
        pair.pool.set_generation(5, kFirstGeneration + 1);
      };
      std::vector<std::byte> into(length);
      const RemoteSlice slice = pair.pool.slice(5, 0, length);
      CHECK(pair.reader->read_all(pair.peer, slice, into.data()) == ReadEnd::kStale);
      CHECK(looks > 0);
    }
  }
}

TEST_CASE("bytes that don't match the ticket's checksum are corrupt") {
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    Pair pair(driver);
    for (const std::uint32_t length : {1U, 65'536U, 2'000'000U}) {
      std::vector<std::byte> into(length);
      RemoteSlice slice = pair.pool.slice(1, 50, length);
      slice.checksum ^= 1;
      CHECK(pair.reader->read_all(pair.peer, slice, into.data()) == ReadEnd::kCorrupt);
      slice = pair.pool.slice(2, 0, length);
      pair.pool.payload(2)[length - 1] ^= std::byte{0x10};
      CHECK(pair.reader->read_all(pair.peer, slice, into.data()) == ReadEnd::kCorrupt);
      pair.pool.payload(2)[length - 1] ^= std::byte{0x10};
      CHECK(pair.reader->read_all(pair.peer, slice, into.data()) == ReadEnd::kDone);
    }
  }
}

TEST_CASE("places that are none are refused, and the connection stays") {
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    Pair pair(driver);
    const RemoteSlice good = pair.pool.slice(0, 0, 4096);
    std::vector<std::byte> into(4096, std::byte{0xee});
    std::vector<RemoteSlice> bad(6, good);
    bad[0].pool = 1;
    bad[1].block = kBlocks;
    bad[2].offset = kBlockBytes;
    bad[3].offset = kBlockBytes - 4095;
    bad[4].offset = UINT32_MAX;
    bad[5].length = 0;
    for (const RemoteSlice& slice : bad)
      CHECK(pair.reader->read_all(pair.peer, slice, into.data()) == ReadEnd::kRefused);
    CHECK(std::ranges::count(into, std::byte{0xee}) == 4096);
    CHECK(pair.reader->read_all(pair.peer, good, into.data()) == ReadEnd::kDone);
    // The side that was connected to reads nothing.
    pair.owner->wait([&] { return pair.owner->accepted.size() == 1; });
    CHECK(pair.owner->read_all(pair.owner->accepted[0], good, into.data()) == ReadEnd::kRefused);
  }
}

TEST_CASE("the owner refuses what it does not let this peer read") {
  for (const std::string& driver : all_drivers()) {
    if (driver == "shm") continue;  // its owner takes no part
    CAPTURE(driver);
    Pair pair(driver);
    pair.refused = 6;
    std::vector<std::byte> into(1 << 20, std::byte{0xee});
    const RemoteSlice slice = pair.pool.slice(6, 0, 1 << 20);
    CHECK(pair.reader->read_all(pair.peer, slice, into.data()) == ReadEnd::kRefused);
    CHECK(std::ranges::count(into, std::byte{0xee}) == 1 << 20);
    pair.refused = UINT32_MAX;
    CHECK(pair.reader->read_all(pair.peer, slice, into.data()) == ReadEnd::kDone);
  }
}

TEST_CASE("after cancel the memory is the caller's, in the middle of the bytes too") {
  constexpr std::uint32_t kLarge = 32 << 20;
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    Pair pair(driver, 2, kLarge);
    std::vector<std::byte> into(kLarge);
    const std::byte other = ~pair.pool.payload(0)[0];
    const RemoteSlice slice = pair.pool.slice(0, 0, kLarge);
    ReadId read;
    std::promise<bool> cancelled;
    // Once its first byte is there and while it goes on: whole reads take many turns of the loop.
    std::function<void()> cancel = [&] {
      if (into[0] == other) return pair.reader->transport().clock().post(cancel);
      const bool goes_on = !pair.reader->ends.contains(read.value);
      pair.reader->transport().cancel(read);
      std::ranges::fill(into, std::byte{0xee});
      cancelled.set_value(goes_on);
    };
    pair.reader->on_thread([&] {
      into[0] = other;
      read = pair.reader->read_here(pair.peer, slice, into.data(), kLong);
      pair.reader->transport().clock().post(cancel);
    });
    CHECK(cancelled.get_future().get());
    // Reads that come after it are answered after its bytes, on every stream.
    std::vector<std::byte> others(1000);
    for (int i = 0; i < 8; ++i) {
      CHECK(pair.reader->read_all(pair.peer, pair.pool.slice(1, 0, 1000), others.data()) ==
            ReadEnd::kDone);
    }
    CHECK(std::ranges::count(into, std::byte{0xee}) == kLarge);
    CHECK_FALSE(pair.reader->ends.contains(read.value));
    // The same memory serves again.
    CHECK(pair.reader->read_all(pair.peer, slice, into.data()) == ReadEnd::kDone);
    CHECK(into == pair.expected(0, 0, kLarge));
  }
}

TEST_CASE("closing ends the reads, later and once, and nothing else is said") {
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    Pair pair(driver);
    std::vector<std::byte> into(kBlockBytes);
    std::vector<ReadId> reads;
    pair.reader->on_thread([&] {
      for (int i = 0; i < 50; ++i)
        reads.push_back(pair.reader->read_here(pair.peer, pair.pool.slice(0, 0, kBlockBytes),
                                               into.data(), kLong));
      pair.reader->transport().close(pair.peer);
      CHECK(pair.reader->ends.empty());
      reads.push_back(
          pair.reader->read_here(pair.peer, pair.pool.slice(0, 0, 10), into.data(), kLong));
    });
    for (const ReadId read : reads)
      CHECK(pair.reader->end_of(read) == ReadEnd::kGone);
    CHECK(pair.reader->closed.empty());
    CHECK(pair.reader->send(pair.peer, "x").error().code == ErrorCode::kUnavailable);
    pair.owner->wait([&] { return pair.owner->closed.size() == 1; });
    CHECK(pair.owner->closed[0].second.contains("the peer has closed the connection"));
  }
}

// UCX aborts a process that ends while an answer to a new endpoint of its peer waits in it.
TEST_CASE("both sides may end as soon as they are connected") {
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    for (int round = 0; round < rounds(20); ++round) {
      Pair pair(driver);
      std::byte into[10];
      ReadId read;
      pair.reader->on_thread([&] {
        read = pair.reader->read_here(pair.peer, pair.pool.slice(0, 0, 10), into, kLong);
        pair.reader->transport().close(pair.peer);
      });
      CHECK(pair.reader->end_of(read) == ReadEnd::kGone);
    }
  }
}

TEST_CASE("more reads than a connection may have are refused") {
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    Pair pair(driver);
    std::vector<std::byte> into(kBlockBytes);
    std::vector<ReadId> reads;
    pair.reader->on_thread([&] {
      for (int i = 0; i < 1030; ++i)
        reads.push_back(
            pair.reader->read_here(pair.peer, pair.pool.slice(0, 0, 512), into.data(), kLong));
    });
    int refused = 0;
    for (const ReadId read : reads)
      refused += pair.reader->end_of(read) == ReadEnd::kRefused ? 1 : 0;
    CHECK(refused == 6);
  }
}

TEST_CASE("a pool that is published later can be read, and one process may read over two drivers") {
  Addresses addresses;
  const SamplePool first(4, 4096);
  const SamplePool second(4, 8192);
  TestPeer reader{TransportOptions{}};
  reader.start();
  for (const std::string& driver : all_drivers()) {
    CAPTURE(driver);
    TransportOptions options;
    options.listen = addresses.of(driver);
    TestPeer owner(options);
    owner.transport().publish(first.published());
    owner.start();
    const PeerId peer = reader.connect(owner.address());
    owner.on_thread([&] {
      CHECK(owner.transport().publish(second.published()) == 1);
      return owner.transport().send(owner.accepted.at(0), "published");
    });
    reader.wait([&] {
      return std::ranges::count(reader.messages, std::pair(peer, std::string("published"))) > 0;
    });
    std::vector<std::byte> into(8192);
    RemoteSlice slice = second.slice(2, 0, 8192);
    slice.pool = 1;
    CHECK(reader.read_all(peer, slice, into.data()) == ReadEnd::kDone);
    CHECK(std::ranges::equal(into, second.payload(2)));
    owner.end();
    reader.why_closed(peer);
  }
}

}  // namespace penstock::transport
