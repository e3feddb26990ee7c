// Blocks for other hosts, and from them.
#include "service/kvd/fetches.h"

#include <boost/json.hpp>

#include <doctest/doctest.h>

#include "tests/support/kvd_fixture.h"

namespace penstock::service {
namespace {

struct PeerFixture : DaemonFixture {
  explicit PeerFixture(std::uint64_t units = 64) : DaemonFixture(units, true, {}, true) {
    connect(1);
    connect(9, "peer");
  }
  // Asks for blocks [first, first + count) of the chain with numbers from `number` on.
  void fetch(std::uint64_t number, std::uint64_t chain, std::uint32_t first, std::uint32_t count,
             Duration budget = std::chrono::seconds(1)) {
    Fetch wanted;
    wanted.first = number;
    wanted.root = root_of(chain);
    wanted.budget = budget;
    for (std::uint32_t depth = first; depth < first + count; ++depth)
      wanted.blocks.push_back(
          {history(chain, depth), depth == 0 ? root_of(chain) : key_of(chain, depth - 1), depth});
    daemon->fetch(kv::SessionId(9), wanted, time());
    collect();
  }
  void collect() {
    for (Fetched& fetched : daemon->take_fetched()) {
      REQUIRE(fetched.session == kv::SessionId(9));
      if (fetched.reason == MissReason::kNone) {
        std::uint64_t at = 0;
        REQUIRE(fetched.payload.size() == fetched.info.bytes());
        for (const std::byte b : fetched.payload)
          REQUIRE(b == byte_of(fetched.info.name, at++));
      }
      REQUIRE(answers.emplace(fetched.number, fetched.reason).second);
    }
  }
  void settle_all() {
    settle();
    collect();
  }
  std::map<std::uint64_t, MissReason> answers;
};

}  // namespace

TEST_CASE("a fetch is answered block by block, from memory, from disk, or with a reason") {
  PeerFixture f;
  f.store(1, 5, 0, 2);
  f.put_on_disk(5, 2, 2);
  f.fetch(1, 5, 0, 5);
  CHECK(f.answers == std::map<std::uint64_t, MissReason>{{1, MissReason::kNone},
                                                         {2, MissReason::kNone},
                                                         {5, MissReason::kNeverStored}});
  f.settle_all();
  CHECK(f.answers[3] == MissReason::kNone);
  CHECK(f.answers[4] == MissReason::kNone);
  CHECK(f.answers.size() == 5);
  // Under another root or at another depth it is not the block.
  Fetch other{10, root_of(6), 0, 0, {{history(5, 0), root_of(6), 0}}, std::chrono::seconds(1)};
  f.daemon->fetch(kv::SessionId(9), other, f.time());
  f.collect();
  CHECK(f.answers[10] == MissReason::kNeverStored);
}

TEST_CASE("a fetch never asks other hosts, nor waits for what comes from them") {
  PeerFixture f;
  const BlockName name = history(5, 0);
  f.peers.put(info_of(name, 5, 0, f.layout), payload_of(name, f.layout));
  f.fetch(1, 5, 0, 1);
  CHECK(f.answers[1] == MissReason::kNeverStored);
  CHECK(f.peers.reads == 0);
  f.peers.latency = [](auto) { return 3; };
  f.acquire(1, 1, 5, 1);  // it is being loaded now
  f.work();
  CHECK(f.peers.reads == 1);
  f.fetch(2, 5, 0, 1);
  CHECK(f.answers[2] == MissReason::kNeverStored);
  f.settle_all();
  f.fetch(3, 5, 0, 1);
  CHECK(f.answers[3] == MissReason::kNone);
}

TEST_CASE("a fetch ends with its budget, and its session's end drops its pins") {
  PeerFixture f;
  f.put_on_disk(5, 0, 1);
  f.disk.latency = [](auto) { return 1000; };
  f.fetch(1, 5, 0, 1, std::chrono::milliseconds(100));
  CHECK(f.answers.empty());
  f.advance(std::chrono::milliseconds(100));
  CHECK(*f.daemon->next_deadline() <= f.now);
  f.poll();
  f.collect();
  CHECK(f.answers[1] == MissReason::kTooSlow);
  f.store(1, 6, 0, 4);
  f.fetch(2, 6, 0, 2);
  f.daemon->unpin(kv::SessionId(9), 2);
  f.daemon->unpin(kv::SessionId(9), 2);
  CHECK(f.daemon->stat_json().find(R"("pinned_blocks":1)") != std::string::npos);
  f.close(9);
  CHECK(f.daemon->stat_json().find(R"("pinned_blocks":0)") != std::string::npos);
}

TEST_CASE("a session pins an eighth of the arena at most") {
  PeerFixture f(64);
  f.store(1, 5, 0, 20);
  f.fetch(1, 5, 0, 20);
  const auto served = std::ranges::count_if(
      f.answers, [](const auto& answer) { return answer.second == MissReason::kNone; });
  CHECK(served < 20);
  CHECK(served >= 8);
  CHECK(f.answers[20] == MissReason::kTooSlow);
}

TEST_CASE("an acquire goes on with what other hosts hold, and the grant says so") {
  PeerFixture f;
  f.store(1, 5, 0, 1);
  f.put_on_disk(5, 1, 1);
  for (const std::uint32_t depth : {1U, 2U, 3U}) {
    const BlockName name = history(5, depth);
    f.peers.put(info_of(name, 5, depth, f.layout), payload_of(name, f.layout));
  }
  f.acquire(1, 1, 5, 5);
  f.settle_all();
  const LeaseView& lease = f.sessions[1].leases[1];
  REQUIRE(lease.history.size() == 4);
  CHECK(lease.missing == MissReason::kNeverStored);
  CHECK(lease.history[0].from == KvTier::kHost);
  CHECK(lease.history[1].from == KvTier::kDisk);
  CHECK(lease.history[2].from == KvTier::kPeer);
  CHECK(lease.history[3].from == KvTier::kPeer);
  CHECK(f.daemon->stat_json().find(R"("hit_blocks_peer":2)") != std::string::npos);
  f.connect(2, "tool");
  f.tell(2, kv::Admin{1, "explain", R"({"request":"request-1"})"});
  CHECK(f.sessions[2].admin.back().json.find(R"("served_from":"peer")") != std::string::npos);
  // They are in memory now.
  f.acquire(1, 2, 5, 4);
  CHECK(f.sessions[1].leases[2].history.size() == 4);
  CHECK(f.sessions[1].leases[2].history[3].from == KvTier::kHost);
}

TEST_CASE("a block that another host sent damaged is never granted") {
  PeerFixture f;
  const BlockName name = history(5, 0);
  f.peers.put(info_of(name, 5, 0, f.layout), payload_of(name, f.layout));
  f.peers.damage(name, 17);
  f.acquire(1, 1, 5, 1);
  f.settle_all();
  CHECK(f.sessions[1].leases[1].history.empty());
  CHECK(f.sessions[1].leases[1].missing == MissReason::kCorrupt);
  CHECK(!f.peers.contains(name));
}

TEST_CASE("a copy that another host got damaged is looked at, and goes when it is bad") {
  DaemonFixture f;
  f.connect(1);
  f.store(1, 5, 0, 3);
  const auto number = [&](const char* key) {
    return boost::json::parse(f.daemon->stat_json()).at("reports").at(key).to_number<int>();
  };
  f.daemon->suspect(history(5, 1), f.time());  // the wire's fault: the copy is right
  f.daemon->suspect(history(9, 0), f.time());  // not here
  f.work();
  CHECK(number("by_peers") == 2);
  CHECK(number("confirmed") == 0);
  CHECK(f.daemon->bytes_of(history(5, 1)).has_value());
  const std::uint64_t place = f.acquire(1, 1, 5, 3).history.at(1).offset;
  f.tell(1, kv::Release{1});
  f.memory.arena()[place + 17] ^= std::byte{4};
  f.daemon->suspect(history(5, 1), f.time());
  f.work();
  CHECK(number("by_peers") == 3);
  CHECK(number("confirmed") == 1);
  CHECK_FALSE(f.daemon->bytes_of(history(5, 1)).has_value());
  CHECK(f.daemon->bytes_of(history(5, 0)).has_value());
}

}  // namespace penstock::service
