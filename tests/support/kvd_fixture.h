// What the daemon's tests share: memory, clock, chains of blocks with known bytes, sessions that
// read what they are granted at once.
//
// The bytes of a block are a function of its name, so a wrong byte is seen wherever it turns up.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "service/kvd/kv_daemon.h"
#include "tests/support/fake_block_tier.h"

#include <doctest/doctest.h>

namespace penstock::service {

inline constexpr std::uint64_t kUnit = 4096;

inline BlockKey key_of(std::uint64_t chain, std::uint64_t depth) {
  BlockKey key;
  const std::uint64_t both = chain << 32 | depth;  // hashing looks at the first half only
  std::memcpy(key.bytes.data(), &both, sizeof(both));
  std::memcpy(key.bytes.data() + 8, &chain, sizeof(chain));
  return key;
}
inline BlockKey root_of(std::uint64_t chain) {
  return key_of(chain, 1'000'000);
}
inline BlockName history(std::uint64_t chain, std::uint64_t depth) {
  return {key_of(chain, depth), KvGroup::kHistory};
}
inline BlockName window(std::uint64_t chain, std::uint64_t depth) {
  return {key_of(chain, depth), KvGroup::kWindow};
}
inline std::byte byte_of(const BlockName& name, std::uint64_t at) {
  std::uint64_t words[2];
  std::memcpy(words, name.key.bytes.data(), sizeof(words));
  const std::uint64_t mixed = words[0] * 131 + words[1] * 17 +
                              static_cast<std::uint64_t>(name.group) * 101 + at * 7 + at / 256;
  return static_cast<std::byte>(mixed & 0xFF);
}

inline KvLayoutSpec test_layout() {
  return {64, {3000, 1000}, {500}, 64};
}

inline BlockInfo info_of(const BlockName& name, std::uint64_t chain, std::uint32_t depth,
                         const KvLayoutSpec& layout) {
  BlockInfo info;
  info.name = name;
  info.parent = depth == 0 ? root_of(chain) : key_of(chain, depth - 1);
  info.root = root_of(chain);
  info.depth = depth;
  std::uint64_t at = 0;
  for (const std::uint32_t bytes : layout.slices(name.group)) {
    std::vector<std::byte> slice(bytes);
    for (std::byte& b : slice)
      b = byte_of(name, at++);
    info.slices.push_back({bytes, checksum64(slice)});
  }
  return info;
}
inline std::vector<std::byte> payload_of(const BlockName& name, const KvLayoutSpec& layout) {
  std::vector<std::byte> payload(layout.bytes(name.group));
  for (std::size_t at = 0; at < payload.size(); ++at)
    payload[at] = byte_of(name, at);
  return payload;
}

class FakeMemory final : public KvMemory {
 public:
  explicit FakeMemory(std::uint64_t units) : bytes_(units * kUnit) {
    memory_ = static_cast<std::byte*>(::operator new(bytes_, std::align_val_t{kUnit}));
    std::memset(memory_, 0, bytes_);
  }
  ~FakeMemory() override { ::operator delete(memory_, std::align_val_t{kUnit}); }
  std::span<std::byte> arena() override { return {memory_, bytes_}; }
  std::span<const std::byte> pool(kv::SessionId session, std::uint32_t pool) override {
    if (asks_until_gone > 0 && --asks_until_gone == 0) pools.erase({session, pool});
    const auto found = pools.find({session, pool});
    if (found == pools.end()) return {};
    return found->second;
  }
  std::map<std::pair<kv::SessionId, std::uint32_t>, std::vector<std::byte>> pools;
  int asks_until_gone = 0;  // 0: pools stay

 private:
  std::size_t bytes_;
  std::byte* memory_ = nullptr;
};

// What one lease has been told.
struct LeaseView {
  std::vector<kv::PinnedBlock> history;
  std::map<std::uint32_t, kv::PinnedBlock> windows;
  int finals = 0;
  MissReason missing = MissReason::kNone;
};

struct SessionView {
  std::map<kv::LeaseId, LeaseView> leases;
  std::vector<kv::Stored> stored;
  std::vector<kv::Events> events;
  std::vector<kv::LookupAnswer> lookups;
  std::vector<kv::AdminAnswer> admin;
  int welcomes = 0;
  bool has_arena = false;
  std::string goodbye;
  bool closed = false;
  bool killed = false;
};

struct DaemonFixture {
  explicit DaemonFixture(std::uint64_t units = 64, bool with_disk = true,
                         KvDaemonOptions given = {}, bool with_peers = false)
      : memory(units) {
    given.epoch = 77;
    daemon = std::make_unique<KvDaemon>(given, memory, with_disk ? &disk : nullptr,
                                        with_peers ? &peers : nullptr);
  }

  TierNow time() const {
    return {now, UnixSeconds(1'000'000 + now.time_since_epoch().count() / 1'000'000'000)};
  }
  void advance(Duration by) { now += by; }

  void connect(std::uint64_t id, const std::string& role = "worker") {
    daemon->open(kv::SessionId(id), time());
    kv::Hello hello;
    hello.protocol_version = kv::kKvProtocolVersion;
    hello.role = role;
    tell(id, hello);
    const std::uint64_t slots = 64;
    memory.pools[{kv::SessionId(id), 0}].resize(slots * kUnit);
    if (role == "worker") tell(id, kv::RegisterPool{0, slots * kUnit, layout});
  }
  void tell(std::uint64_t id, kv::ClientMessage message) {
    daemon->handle(kv::SessionId(id), std::move(message), time());
    deliver();
  }
  void close(std::uint64_t id) {
    daemon->close(kv::SessionId(id), time());
    memory.pools.erase({kv::SessionId(id), 0});
    deliver();
  }
  void poll() {
    daemon->poll(time());
    deliver();
  }
  // Works until there is nothing to do; what the disk owes stays owed.
  void work() {
    for (int turns = 0; daemon->has_work(); ++turns) {
      REQUIRE(turns < 100'000);
      daemon->work(time());
      deliver();
    }
  }
  // Until nothing is under way.
  void settle() {
    for (int turns = 0; turns < 1000; ++turns) {
      work();
      poll();
      work();
      if (disk.pending() == 0 && peers.pending() == 0 && daemon->settled() && !daemon->has_work())
        break;
    }
    poll();
  }

  // Puts blocks [first, first + count) of the chain into the pool, and offers them.
  kv::Store store_message(std::uint64_t id, std::uint64_t chain, std::uint32_t first,
                          std::uint32_t count, std::vector<std::uint32_t> windows = {}) {
    kv::Store message;
    message.number = ++last_number;
    message.root = root_of(chain);
    std::vector<std::byte>& pool = memory.pools.at({kv::SessionId(id), 0});
    std::uint64_t place = 0;
    const auto offer = [&](const BlockName& name, std::uint32_t depth) {
      kv::StoreBlock block{name, depth == 0 ? root_of(chain) : key_of(chain, depth - 1), depth, {}};
      const std::vector<std::byte> payload = payload_of(name, layout);
      REQUIRE(place + payload.size() <= pool.size());
      std::memcpy(pool.data() + place, payload.data(), payload.size());
      for (const std::uint32_t bytes : layout.slices(name.group)) {
        block.slices.push_back(place);
        place += bytes;
      }
      message.blocks.push_back(std::move(block));
    };
    for (std::uint32_t depth = first; depth < first + count; ++depth) {
      offer(history(chain, depth), depth);
      if (std::find(windows.begin(), windows.end(), depth) != windows.end())
        offer(window(chain, depth), depth);
    }
    return message;
  }
  std::vector<MissReason> store(std::uint64_t id, std::uint64_t chain, std::uint32_t first,
                                std::uint32_t count, std::vector<std::uint32_t> windows = {}) {
    tell(id, store_message(id, chain, first, count, std::move(windows)));
    work();
    REQUIRE(!sessions[id].stored.empty());
    return sessions[id].stored.back().results;
  }
  void put_on_disk(std::uint64_t chain, std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t depth = first; depth < first + count; ++depth)
      put_on_disk(history(chain, depth), chain, depth);
  }
  void put_on_disk(const BlockName& name, std::uint64_t chain, std::uint32_t depth) {
    disk.put(service::info_of(name, chain, depth, layout), payload_of(name, layout));
  }

  kv::Acquire acquire_message(kv::LeaseId lease, std::uint64_t chain, std::uint32_t count,
                              Duration budget = std::chrono::seconds(1),
                              std::vector<std::uint32_t> windows = {}) {
    kv::Acquire message;
    message.lease = lease;
    message.root = root_of(chain);
    for (std::uint32_t depth = 0; depth < count; ++depth)
      message.keys.push_back(key_of(chain, depth));
    message.windows = std::move(windows);
    message.budget = budget;
    message.request = "request-" + std::to_string(lease);
    asked[{id_of_next, lease}] = message;
    return message;
  }
  LeaseView& acquire(std::uint64_t id, kv::LeaseId lease, std::uint64_t chain, std::uint32_t count,
                     Duration budget = std::chrono::seconds(1),
                     std::vector<std::uint32_t> windows = {}) {
    id_of_next = id;
    tell(id, acquire_message(lease, chain, count, budget, std::move(windows)));
    return sessions[id].leases[lease];
  }

  // Every byte of a granted block is the one its name stands for, and the checksums agree.
  void check_bytes(const BlockName& name, const kv::PinnedBlock& block) {
    std::uint64_t at = 0;
    const std::vector<std::uint32_t>& slices = layout.slices(name.group);
    REQUIRE(block.checksums.size() == slices.size());
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const auto slice = memory.arena().subspan(block.offset + at, slices[i]);
      REQUIRE(checksum64(slice) == block.checksums[i]);
      for (const std::byte b : slice)
        if (b != byte_of(name, at++)) FAIL("a wrong byte was granted");
    }
  }

  void deliver() {
    for (KvOutgoing& outgoing : daemon->take_outbox()) {
      const std::uint64_t id = outgoing.session.value;
      SessionView& view = sessions[id];
      REQUIRE(!view.closed);
      view.closed = outgoing.close;
      view.killed = view.killed || outgoing.kill_process;
      view.has_arena = view.has_arena || outgoing.with_arena;
      std::visit([&](auto& message) { take(id, view, message); }, outgoing.message);
    }
  }
  void take(std::uint64_t, SessionView& view, kv::Welcome&) { ++view.welcomes; }
  void take(std::uint64_t id, SessionView& view, kv::Granted& message) {
    LeaseView& lease = view.leases[message.lease];
    REQUIRE(lease.finals == 0);  // nothing follows the final
    const auto request = asked.find({id, message.lease});
    for (kv::PinnedBlock& block : message.history) {
      if (request != asked.end())
        check_bytes({request->second.keys.at(lease.history.size()), KvGroup::kHistory}, block);
      lease.history.push_back(std::move(block));
    }
    for (auto& [depth, block] : message.windows) {
      REQUIRE(depth < lease.history.size());
      if (request != asked.end())
        check_bytes({request->second.keys.at(depth), KvGroup::kWindow}, block);
      REQUIRE(lease.windows.emplace(depth, std::move(block)).second);
    }
    if (message.final) {
      ++lease.finals;
      lease.missing = message.missing;
    }
  }
  void take(std::uint64_t, SessionView& view, kv::Stored& message) {
    view.stored.push_back(std::move(message));
  }
  void take(std::uint64_t, SessionView& view, kv::LookupAnswer& message) {
    view.lookups.push_back(std::move(message));
  }
  void take(std::uint64_t, SessionView& view, kv::Events& message) {
    view.events.push_back(std::move(message));
  }
  void take(std::uint64_t, SessionView& view, kv::AdminAnswer& message) {
    view.admin.push_back(std::move(message));
  }
  void take(std::uint64_t, SessionView& view, kv::Goodbye& message) {
    view.goodbye = message.reason;
  }

  FakeMemory memory;
  testing::FakeBlockTier disk;
  testing::FakeBlockTier peers;  // what other hosts hold
  KvLayoutSpec layout = test_layout();
  std::unique_ptr<KvDaemon> daemon;
  Instant now;
  std::map<std::uint64_t, SessionView> sessions;
  std::map<std::pair<std::uint64_t, kv::LeaseId>, kv::Acquire> asked;
  std::uint64_t id_of_next = 0;
  std::uint64_t last_number = 0;
};

}  // namespace penstock::service
