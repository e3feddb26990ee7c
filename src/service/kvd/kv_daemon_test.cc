#include "service/kvd/kv_daemon.h"

#include <boost/json.hpp>
#include <set>

#include "tests/support/kvd_fixture.h"

#include <doctest/doctest.h>

namespace penstock::service {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Operation = testing::FakeBlockTier::Operation;
constexpr MissReason kNone = MissReason::kNone;

std::vector<MissReason> all_stored(std::size_t blocks) {
  return {blocks, kNone};
}

bool told(const SessionView& view, const BlockName& name, KvTier tier, bool stored) {
  for (const kv::Events& message : view.events)
    for (const kv::Event& event : message.events)
      if (event.name == name && event.tier == tier && event.stored == stored) return true;
  return false;
}

bool in_memory(DaemonFixture& f, const BlockName& name) {
  f.connect(900, "tool");
  f.tell(900, kv::Lookup{1, {name}});
  const bool held = (f.sessions[900].lookups.back().tiers[0] & 2) != 0;
  f.close(900);
  f.sessions.erase(900);
  return held;
}

}  // namespace

TEST_CASE("what one worker stores another is granted, byte for byte") {
  DaemonFixture f;
  f.connect(1);
  f.connect(2);
  CHECK(f.sessions[1].welcomes == 1);
  CHECK(f.store(1, 5, 0, 4, {3}) == all_stored(5));
  const LeaseView& lease = f.acquire(2, 9, 5, 6, seconds(1), {1, 3, 5});
  CHECK(lease.history.size() == 4);
  CHECK(lease.windows.size() == 1);
  CHECK(lease.windows.contains(3));
  CHECK(lease.finals == 1);
  CHECK(lease.missing == MissReason::kNeverStored);
  f.tell(2, kv::Release{9});
  CHECK(f.sessions[2].goodbye.empty());
}

TEST_CASE("nothing, an empty chain and an empty store are answered") {
  DaemonFixture f;
  f.connect(1);
  const LeaseView& lease = f.acquire(1, 1, 5, 0);
  CHECK(lease.finals == 1);
  CHECK(lease.missing == kNone);
  f.tell(1, kv::Store{7, 0, root_of(1), 0, 0, 0, {}});
  REQUIRE(f.sessions[1].stored.size() == 1);
  CHECK(f.sessions[1].stored[0].results.empty());
}

TEST_CASE("rule 1: a block that is being loaded is on disk, not in memory, until it is verified") {
  DaemonFixture f;
  f.disk.latency = [](auto) { return 2; };
  f.put_on_disk(5, 0, 2);
  f.connect(1);
  f.connect(7, "gateway");
  f.tell(7, kv::Subscribe{});
  f.work();
  LeaseView& lease = f.acquire(1, 1, 5, 2);
  f.work();
  CHECK(lease.history.empty());
  CHECK(!in_memory(f, history(5, 0)));
  f.settle();
  CHECK(lease.history.size() == 2);
  CHECK(lease.history[0].from == KvTier::kDisk);
  CHECK(lease.finals == 1);
  CHECK(in_memory(f, history(5, 0)));
  CHECK(told(f.sessions[7], history(5, 1), KvTier::kHost, true));
}

TEST_CASE("rule 2: a store whose worker hangs up during the copy is discarded, not published") {
  DaemonFixture f;
  f.connect(1);
  f.tell(1, f.store_message(1, 5, 0, 2));
  f.memory.asks_until_gone = 2;  // once before the copy, then the pool is gone
  f.work();
  CHECK(f.sessions[1].stored.back().results ==
        std::vector{MissReason::kIoError, MissReason::kParentGone});
  CHECK(!in_memory(f, history(5, 0)));
  f.close(1);
  const auto stat = boost::json::parse(f.daemon->stat_json());
  CHECK(stat.at("host").at("free_bytes") == stat.at("host").at("arena_bytes"));
}

TEST_CASE(
    "rule 3: twelve cold arrivals are one read, whoever asked first dies, all get the block") {
  DaemonFixture f;
  f.disk.latency = [](auto) { return 3; };
  f.put_on_disk(5, 0, 3);
  for (std::uint64_t id = 1; id <= 12; ++id) {
    f.connect(id);
    f.acquire(id, 1, 5, 3);
  }
  f.work();
  CHECK(f.disk.reads == 3);
  f.close(1);
  f.settle();
  CHECK(f.disk.reads == 3);
  for (std::uint64_t id = 2; id <= 12; ++id) {
    CHECK(f.sessions[id].leases[1].history.size() == 3);
    CHECK(f.sessions[id].leases[1].finals == 1);
  }
  CHECK(f.sessions[1].leases[1].history.empty());
}

TEST_CASE("rule 3: waiters are released as the prefix grows, each with its own deadline") {
  DaemonFixture f;
  std::vector<int> order{1, 4, 0};
  std::size_t next = 0;
  f.disk.latency = [&](auto) { return order.at(next++); };
  f.put_on_disk(5, 0, 3);
  f.connect(1);
  f.connect(2);
  LeaseView& patient = f.acquire(1, 1, 5, 3, seconds(10));
  LeaseView& hurried = f.acquire(2, 1, 5, 3, milliseconds(50));
  f.work();
  f.poll();  // only the last has arrived
  CHECK(patient.history.empty());
  f.poll();  // and the first
  CHECK(patient.history.size() == 1);
  CHECK(hurried.history.size() == 1);
  CHECK(hurried.finals == 0);
  CHECK(f.daemon->next_deadline() <= f.now + milliseconds(50));
  f.advance(milliseconds(50));
  f.poll();
  CHECK(hurried.finals == 1);
  CHECK(hurried.missing == MissReason::kTooSlow);
  CHECK(patient.finals == 0);
  f.settle();
  CHECK(patient.history.size() == 3);
  CHECK(patient.finals == 1);
  CHECK(patient.missing == kNone);
  CHECK(hurried.history.size() == 1);  // and nothing came after its final
}

TEST_CASE("rule 3: what comes after the budget is sealed for the next one") {
  DaemonFixture f;
  f.disk.latency = [](auto) { return 5; };
  f.put_on_disk(5, 0, 2);
  f.connect(1);
  CHECK(f.acquire(1, 1, 5, 2, Duration(0)).missing == MissReason::kTooSlow);
  f.settle();
  const LeaseView& lease = f.acquire(1, 2, 5, 2, Duration(0));
  CHECK(lease.history.size() == 2);
  CHECK(lease.history[0].from == KvTier::kHost);
  CHECK(f.disk.reads == 2);
}

TEST_CASE("rule 4: pins are counts; a lease of a living holder outlasts any clock") {
  DaemonFixture f(2, false);
  f.connect(1);
  f.connect(2);
  CHECK(f.store(1, 5, 0, 2) == all_stored(2));
  f.acquire(1, 1, 5, 2);
  f.acquire(2, 1, 5, 2);
  for (int second = 0; second < 3600; ++second) {
    f.advance(seconds(1));
    f.tell(1, kv::Alive{});
    f.tell(2, kv::Alive{});
    f.poll();
  }
  f.tell(1, kv::Release{1});
  CHECK(f.store(1, 6, 0, 1) == std::vector{MissReason::kEvictedHost});  // the other still reads
  f.close(2);
  CHECK(f.store(1, 6, 0, 1) == all_stored(1));
}

TEST_CASE(
    "rule 5: a place is not reused before the device is done with it, and bears a new number") {
  DaemonFixture f(2);
  f.disk.latency = [](auto) { return 1000; };
  f.put_on_disk(5, 0, 2);
  f.connect(1);
  f.acquire(1, 1, 5, 2, Duration(0));
  f.work();
  f.tell(1, kv::Release{1});
  f.close(1);  // nobody waits any more, but the reads go on
  f.connect(2);
  CHECK(f.store(2, 6, 0, 1) == std::vector{MissReason::kEvictedHost});
  while (f.disk.pending() > 0)
    f.poll();
  f.disk.latency = [](auto) { return 0; };
  CHECK(f.store(2, 6, 0, 1) == all_stored(1));
  const kv::PinnedBlock old = f.acquire(2, 1, 6, 1).history.at(0);
  f.tell(2, kv::Release{1});
  f.settle();
  CHECK(f.store(2, 7, 0, 2) == all_stored(2));
  for (std::uint32_t depth = 0; depth < 2; ++depth) {
    const kv::PinnedBlock block = f.acquire(2, 2 + depth, 7, 2).history.at(depth);
    CHECK(block.generation != old.generation);
  }
}

TEST_CASE("rule 6: removed is told in a turn before the bytes go, stored after they are there") {
  DaemonFixture f(2, false);
  f.connect(1);
  f.connect(7, "gateway");
  f.tell(7, kv::Subscribe{});
  f.work();
  CHECK(f.store(1, 5, 0, 2) == all_stored(2));
  const kv::PinnedBlock victim = f.acquire(1, 1, 5, 2).history.at(1);
  f.tell(1, kv::Release{1});
  f.tell(1, f.store_message(1, 6, 0, 1));
  f.daemon->work(f.time());
  f.deliver();
  CHECK(told(f.sessions[7], history(5, 1), KvTier::kHost, false));
  CHECK(!told(f.sessions[7], history(6, 0), KvTier::kHost, true));
  f.check_bytes(history(5, 1), victim);  // not touched yet
  f.work();
  CHECK(told(f.sessions[7], history(6, 0), KvTier::kHost, true));
}

TEST_CASE(
    "rule 7: whatever the tier answers is a miss with that reason, and the prefix before it a "
    "hit") {
  for (const MissReason reason :
       {MissReason::kCorrupt, MissReason::kIoError, MissReason::kTierOff, MissReason::kExpired,
        MissReason::kEvictedDisk, MissReason::kEvictedShare}) {
    CAPTURE(to_string(reason));
    DaemonFixture f;
    f.put_on_disk(5, 0, 4);
    f.disk.verdict = [&](Operation, const BlockName& name) {
      return name == history(5, 2) ? reason : kNone;
    };
    f.connect(1);
    LeaseView& lease = f.acquire(1, 1, 5, 4);
    f.settle();
    CHECK(lease.history.size() == 2);
    CHECK(lease.finals == 1);
    CHECK(lease.missing == reason);
    CHECK(!in_memory(f, history(5, 3)));  // what hangs under it is garbage
    const bool is_gone = reason == MissReason::kCorrupt || reason == MissReason::kIoError;
    CHECK(f.disk.contains(history(5, 2)) == !is_gone);
    f.disk.verdict = [](Operation, const BlockName&) { return kNone; };
    LeaseView& again = f.acquire(1, 2, 5, 4);
    f.settle();
    CHECK(again.history.size() == (is_gone ? 2U : 4U));
    CHECK(again.missing == (is_gone ? reason : kNone));
  }
}

TEST_CASE("rule 7: a block that arrives before its damaged parent goes with it") {
  for (const std::uint32_t damaged : {0U, 1U, 2U}) {
    CAPTURE(damaged);
    DaemonFixture f;
    f.disk.newest_first = true;
    f.put_on_disk(5, 0, 4);
    f.disk.damage(history(5, damaged), 77);
    f.connect(1);
    LeaseView& lease = f.acquire(1, 1, 5, 4);
    f.settle();
    CHECK(lease.finals == 1);
    CHECK(lease.history.size() == damaged);
    CHECK(lease.missing == MissReason::kCorrupt);
  }
}

TEST_CASE("rule 7: bytes that rot on disk are never granted") {
  DaemonFixture f;
  f.put_on_disk(5, 0, 3);
  f.disk.damage(history(5, 1), 77);
  f.connect(1);
  LeaseView& lease = f.acquire(1, 1, 5, 3);
  f.settle();
  CHECK(lease.history.size() == 1);
  CHECK(lease.missing == MissReason::kCorrupt);
  CHECK(!f.disk.contains(history(5, 1)));
}

TEST_CASE(
    "rule 7: a copy that rots in memory is found when it is reported, and only then believed") {
  DaemonFixture f(128, false);
  f.connect(1);
  CHECK(f.store(1, 5, 0, 3) == all_stored(3));
  const LeaseView lease = f.acquire(1, 1, 5, 3);
  f.tell(1, kv::Report{1, history(5, 1)});  // a reader whose own memory is broken
  f.tell(1, kv::Report{1, history(6, 1)});  // a name it does not hold
  f.work();
  CHECK(in_memory(f, history(5, 1)));
  f.memory.arena()[lease.history[1].offset + 5] ^= std::byte{4};
  f.tell(1, kv::Report{1, history(5, 1)});
  f.work();
  CHECK(in_memory(f, history(5, 0)));
  CHECK(!in_memory(f, history(5, 1)));
  CHECK(!in_memory(f, history(5, 2)));
  const LeaseView& again = f.acquire(1, 2, 5, 3);
  CHECK(again.history.size() == 1);
  CHECK(again.missing == MissReason::kCorrupt);
  f.tell(1, kv::Release{1});
  const auto stat = boost::json::parse(f.daemon->stat_json());
  CHECK(stat.at("host").at("corrupt_bytes").to_number<std::uint64_t>() == kUnit);
  CHECK(stat.at("reports").at("confirmed").to_number<int>() == 1);
}

TEST_CASE("rule 9: a batch fails per block, a duplicate is no failure") {
  DaemonFixture f;
  f.connect(1);
  kv::Store message = f.store_message(1, 5, 0, 4);
  message.blocks[1].slices[1] = 64 * kUnit - 999;  // ends one byte behind the pool
  message.blocks.push_back(message.blocks[0]);
  message.blocks.push_back(message.blocks[0]);
  message.blocks.back().name = history(8, 0);
  message.blocks.back().slices.pop_back();
  f.tell(1, message);
  f.work();
  CHECK(f.sessions[1].stored.back().results ==
        std::vector{kNone, MissReason::kIoError, MissReason::kParentGone, MissReason::kParentGone,
                    kNone, MissReason::kIoError});
  CHECK(f.store(1, 5, 0, 4) == all_stored(4));
}

TEST_CASE("rule 10: another deployment secret, or another protocol, is told at the first message") {
  DaemonFixture f;
  f.daemon->open(kv::SessionId(1), f.time());
  kv::Hello hello;
  hello.role = "worker";
  hello.protocol_version = kv::kKvProtocolVersion;
  hello.key_check = key_of(1, 2);
  f.tell(1, hello);
  CHECK(f.sessions[1].closed);
  CHECK(f.sessions[1].goodbye.find("secret") != std::string::npos);
  f.daemon->open(kv::SessionId(2), f.time());
  hello.key_check = {};
  hello.protocol_version = 99;
  f.tell(2, hello);
  CHECK(f.sessions[2].goodbye.find("99") != std::string::npos);
  f.daemon->open(kv::SessionId(3), f.time());
  f.tell(3, kv::Alive{});
  CHECK(f.sessions[3].closed);
}

TEST_CASE("rule 11: a look-up is answered between two copies, however many wait") {
  DaemonFixture f;
  f.connect(1);
  f.tell(1, f.store_message(1, 5, 0, 30));
  for (std::uint64_t copied = 0; copied < 30; ++copied) {
    f.tell(1, kv::Lookup{copied, {history(5, 0), history(5, 29)}});
    REQUIRE(f.sessions[1].lookups.size() == copied + 1);
    CHECK(f.sessions[1].lookups.back().tiers[0] == (copied == 0 ? 0 : 2));
    CHECK(f.sessions[1].lookups.back().tiers[1] == 0);
    f.daemon->work(f.time());
    f.deliver();
  }
}

TEST_CASE("rule 7: a record that is not what its name says is a miss, whatever the tier says") {
  const std::vector<std::pair<std::function<void(BlockInfo&)>, MissReason>> lies = {
      {[](BlockInfo& info) { info.name.key = key_of(9, 9); }, MissReason::kCorrupt},
      {[](BlockInfo& info) { info.slices.clear(); }, MissReason::kCorrupt},
      {[](BlockInfo& info) { info.slices[0].bytes -= 1; }, MissReason::kCorrupt},
      {[](BlockInfo& info) { info.root = root_of(9); }, MissReason::kNeverStored},
      {[](BlockInfo& info) { info.depth += 1; }, MissReason::kNeverStored},
      {[](BlockInfo& info) { info.parent = key_of(9, 9); }, MissReason::kNeverStored}};
  for (const auto& [lie, reason] : lies) {
    DaemonFixture f;
    f.put_on_disk(5, 0, 2);
    f.disk.lie = lie;
    f.connect(1);
    LeaseView& lease = f.acquire(1, 1, 5, 2);
    f.settle();
    CHECK(lease.history.empty());
    CHECK(lease.missing == reason);
    CHECK(f.disk.contains(history(5, 0)) == (reason != MissReason::kCorrupt));
  }
}

TEST_CASE("a failed store or load is retried by nobody and stays a miss") {
  DaemonFixture f;
  f.put_on_disk(5, 0, 1);
  f.disk.verdict = [](Operation, const BlockName&) { return MissReason::kTierOff; };
  f.connect(1);
  f.acquire(1, 1, 5, 1);
  f.settle();
  CHECK(f.disk.reads == 1);
  CHECK(f.sessions[1].leases[1].missing == MissReason::kTierOff);
}

TEST_CASE(
    "a silent holder keeps its places until it is gone, waits for nothing, and may come back") {
  DaemonFixture f(40);
  f.connect(1);
  f.connect(2);
  CHECK(f.store(1, 5, 0, 2) == all_stored(2));
  f.put_on_disk(6, 0, 1);
  f.disk.latency = [](auto) { return 1000; };
  f.acquire(1, 1, 5, 2);
  LeaseView& waiting = f.acquire(1, 2, 6, 1, seconds(30));
  f.advance(seconds(5));
  f.tell(2, kv::Alive{});
  CHECK(f.daemon->next_deadline() <= f.now);
  f.poll();
  CHECK(waiting.finals == 1);
  CHECK(!f.sessions[1].closed);
  const auto quarantined = [&] {
    return boost::json::parse(f.daemon->stat_json())
        .at("host")
        .at("quarantined_bytes")
        .to_number<std::uint64_t>();
  };
  CHECK(quarantined() == 8000);
  f.check_bytes(history(5, 0), f.sessions[1].leases[1].history[0]);
  f.tell(1, kv::Alive{});
  CHECK(quarantined() == 0);
  f.tell(1, kv::Release{1});
  f.close(1);
}

TEST_CASE("silent holders of more than a tenth of the arena are ended, and only then reused") {
  DaemonFixture f(10, false);
  f.connect(1);
  f.connect(2);
  CHECK(f.store(1, 5, 0, 2) == all_stored(2));
  f.acquire(1, 1, 5, 2);
  f.advance(seconds(6));
  f.tell(2, kv::Alive{});
  f.poll();
  CHECK(f.sessions[1].closed);
  CHECK(f.sessions[1].killed);
  CHECK(f.store(2, 6, 0, 9) == std::vector{kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone,
                                           MissReason::kEvictedHost});
  f.check_bytes(history(5, 0), f.sessions[1].leases[1].history[0]);
  f.close(1);
  CHECK(f.store(2, 6, 8, 1) == all_stored(1));
}

TEST_CASE("a store is written through, and once more offered on second use") {
  DaemonFixture f;
  f.connect(1);
  int offers = 0;
  f.disk.verdict = [&](Operation, const BlockName&) {
    return ++offers <= 2 ? MissReason::kNotAdmitted : kNone;
  };
  CHECK(f.store(1, 5, 0, 2) == all_stored(2));
  CHECK(!f.daemon->settled());
  f.settle();
  CHECK(f.daemon->settled());
  CHECK(f.disk.size() == 0);
  f.acquire(1, 1, 5, 2);
  f.settle();
  CHECK(f.disk.size() == 2);
  CHECK(f.disk.touched == std::vector<std::vector<BlockName>>{{history(5, 0), history(5, 1)}});
  f.tell(1, kv::Release{1});
  f.acquire(1, 2, 5, 2);
  f.settle();
  CHECK(f.disk.writes == 4);  // it is there now
}

TEST_CASE("what takes longer to load than to compute is left out, and explain has the numbers") {
  struct Case {
    const char* what;
    double per_token;  // seconds to compute one
    std::size_t served;
    MissReason missing;
  };
  // Until a load was measured, the disk is taken to give 1 GB/s: 4 KiB in 4 us.
  const Case cases[] = {
      {"not known: load", 0, 6, MissReason::kNone},
      {"computing is slow: load", 1e-3, 6, MissReason::kNone},
      {"computing is fast: what is in memory", 1e-9, 2, MissReason::kRecomputeFaster},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    DaemonFixture f;
    f.connect(1);
    f.connect(2, "tool");
    f.store(1, 5, 0, 2);
    f.put_on_disk(5, 2, 4);
    f.id_of_next = 1;
    kv::Acquire wanted = f.acquire_message(1, 5, 6);
    wanted.prefill.per_token = c.per_token;
    f.tell(1, wanted);
    f.settle();
    const LeaseView& lease = f.sessions[1].leases[1];
    CHECK(lease.finals == 1);
    CHECK(lease.history.size() == c.served);
    CHECK(lease.missing == c.missing);
    f.tell(2, kv::Admin{1, "explain", R"({"request":"request-1"})"});
    const std::string answer = f.sessions[2].admin.back().json;
    CHECK((answer.find("prefill_without_ms") != std::string::npos) == (c.per_token > 0));
  }
}

TEST_CASE("with windows a load that is left out ends where a window is held") {
  DaemonFixture f;
  f.connect(1);
  f.store(1, 5, 0, 2, {1});
  f.put_on_disk(5, 2, 4);
  f.put_on_disk(window(5, 5), 5, 5);
  f.id_of_next = 1;
  kv::Acquire wanted = f.acquire_message(1, 5, 6, std::chrono::seconds(1), {1, 5});
  wanted.prefill.per_token = 1e-9;
  f.tell(1, wanted);
  f.settle();
  CHECK(f.sessions[1].leases[1].history.size() == 2);
  CHECK(f.sessions[1].leases[1].windows.contains(1));
  wanted = f.acquire_message(2, 5, 6, std::chrono::seconds(1), {1, 5});
  wanted.prefill.per_token = 1;
  f.tell(1, wanted);
  f.settle();
  CHECK(f.sessions[1].leases[2].history.size() == 6);
  CHECK(f.sessions[1].leases[2].windows.contains(5));
}

TEST_CASE("no more loads than allowed, in turns; all arrive") {
  KvDaemonOptions options;
  options.loads_in_flight_max = 3;
  DaemonFixture f(64, true, options);
  f.put_on_disk(5, 0, 8);
  f.put_on_disk(6, 0, 8);
  f.connect(1);
  f.acquire(1, 1, 5, 8);
  f.acquire(1, 2, 6, 8);
  f.work();
  CHECK(f.disk.pending() == 3);
  f.settle();
  CHECK(f.sessions[1].leases[1].history.size() == 8);
  CHECK(f.sessions[1].leases[2].history.size() == 8);
}

TEST_CASE(
    "a tool sees no block: it gets no arena, and is sent away when it wants more than answers") {
  DaemonFixture f;
  f.connect(1);
  f.store(1, 5, 0, 1);
  CHECK(f.sessions[1].has_arena);
  std::uint64_t id = 100;
  const auto says = [&](kv::ClientMessage message) {
    f.connect(++id, "tool");
    CHECK(!f.sessions[id].has_arena);
    f.tell(id, std::move(message));
    f.work();
    const bool is_sent_away = f.sessions[id].closed;
    CHECK(is_sent_away == !f.sessions[id].goodbye.empty());
    CHECK(f.sessions[id].leases.empty());
    CHECK(f.sessions[id].stored.empty());
    f.close(id);
    return is_sent_away;
  };
  CHECK(!says(kv::Admin{1, "stat", ""}));
  CHECK(!says(kv::Lookup{1, {history(5, 0)}}));
  CHECK(!says(kv::Alive{}));
  CHECK(says(kv::RegisterPool{0, 4096, f.layout}));
  CHECK(says(kv::RegisterRoot{root_of(5), "tenant:mine", "", f.layout}));
  CHECK(says(f.acquire_message(1, 5, 1)));
  CHECK(says(f.store_message(1, 6, 0, 1)));
  CHECK(says(kv::Subscribe{}));
  CHECK(says(kv::Release{1}));
  CHECK(says(kv::Report{1, history(5, 0)}));
}

TEST_CASE("the keys of all open leases are limited, and room comes back with their end") {
  KvDaemonOptions options;
  options.acquire_keys_open_max = 10;
  DaemonFixture f(64, true, options);
  f.connect(1);
  f.connect(2);
  f.store(1, 5, 0, 4);
  CHECK(f.acquire(1, 1, 5, 6).history.size() == 4);
  CHECK(f.acquire(2, 1, 5, 4).history.size() == 4);
  const LeaseView& refused = f.acquire(2, 2, 5, 1);
  CHECK(refused.finals == 1);
  CHECK(refused.history.empty());
  CHECK(refused.missing == MissReason::kTooSlow);
  f.tell(1, kv::Release{1});
  CHECK(f.acquire(2, 3, 5, 6).history.size() == 4);
  CHECK(f.acquire(2, 4, 5, 1).history.empty());
  f.close(2);
  CHECK(f.acquire(1, 5, 5, 10).history.size() == 4);
  const auto acquires = boost::json::parse(f.daemon->stat_json()).at("acquires");
  CHECK(acquires.at("refused_over_limit").to_number<int>() == 2);
  CHECK(acquires.at("open_keys").to_number<int>() == 10);
}

TEST_CASE("of more roots than are kept by name, the longest unused is forgotten") {
  KvDaemonOptions options;
  options.roots_max = 2;
  DaemonFixture f(64, true, options);
  f.connect(1);
  const auto name = [&](std::uint64_t chain) {
    f.tell(1, kv::RegisterRoot{root_of(chain), "scope " + std::to_string(chain), "", f.layout});
  };
  name(1);
  name(2);
  f.acquire(1, 1, 1, 1);  // uses the first
  name(3);
  f.connect(2, "tool");
  f.tell(2, kv::Admin{1, "ls", ""});
  f.settle();
  const std::string roots = f.sessions[2].admin.back().json;
  CHECK(roots.find("scope 1") != std::string::npos);
  CHECK(roots.find("scope 2") == std::string::npos);
  CHECK(roots.find("scope 3") != std::string::npos);
  const auto stat = boost::json::parse(f.daemon->stat_json()).at("roots");
  CHECK(stat.at("named").to_number<int>() == 2);
  CHECK(stat.at("replaced").to_number<int>() == 1);
}

TEST_CASE("blocks of a pool that is laid out otherwise than their root are refused") {
  DaemonFixture f;
  f.connect(1);
  KvLayoutSpec other = f.layout;
  other.history_slices = {1000, 3000};  // as many bytes
  f.tell(1, kv::RegisterRoot{root_of(5), "", "", other});
  f.tell(1, kv::RegisterRoot{root_of(6), "", "", f.layout});
  CHECK(f.store(1, 5, 0, 2) == std::vector(2, MissReason::kOtherBuild));
  CHECK(!in_memory(f, history(5, 0)));
  CHECK(f.store(1, 6, 0, 2) == all_stored(2));
  const auto stores = boost::json::parse(f.daemon->stat_json()).at("stores");
  CHECK(stores.at("refused_other_layout").to_number<int>() == 2);
  CHECK(stores.at("refused").at("other_build").to_number<int>() == 2);
}

TEST_CASE("a snapshot walks in steps, and with the events after it tells what is held") {
  DaemonFixture f(64);
  f.connect(1);
  f.connect(7, "gateway");
  f.store(1, 5, 0, 6);
  f.settle();
  f.put_on_disk(6, 0, 40);
  f.tell(7, kv::Subscribe{});
  std::uint64_t steps = 0;
  for (std::uint32_t turn = 0; f.daemon->has_work(); ++turn) {
    REQUIRE(turn < 1000);
    const std::uint64_t before = f.disk.parts_walked;
    f.daemon->work(f.time());
    f.deliver();
    CHECK(f.disk.parts_walked - before <= 1);
    steps += f.disk.parts_walked - before;
    // Things go and come behind and before the walk.
    if (turn < 8) {
      f.disk.remove(history(6, 39 - turn), MissReason::kExpired);
      f.poll();
    }
    if (turn == 2) f.tell(1, f.store_message(1, 8, 0, 3));
  }
  CHECK(steps == 4);
  f.settle();
  std::set<std::pair<BlockName, KvTier>> told;
  for (const kv::Events& message : f.sessions[7].events) {
    for (const kv::Event& event : message.events) {
      if (event.stored) {
        told.emplace(event.name, event.tier);
      } else {
        told.erase({event.name, event.tier});
      }
    }
  }
  std::set<std::pair<BlockName, KvTier>> held;
  for (const BlockName& name : f.disk.names())
    held.emplace(name, KvTier::kDisk);
  for (std::uint32_t depth = 0; depth < 6; ++depth)
    held.emplace(history(5, depth), KvTier::kHost);
  for (std::uint32_t depth = 0; depth < 3; ++depth)
    held.emplace(history(8, depth), KvTier::kHost);
  CHECK(told == held);
  // verify lists the disk in the same steps.
  f.connect(2, "tool");
  f.tell(2, kv::Admin{1, "verify", ""});
  while (f.daemon->has_work() || f.disk.pending() > 0) {
    const std::uint64_t before = f.disk.parts_walked;
    f.daemon->work(f.time());
    CHECK(f.disk.parts_walked - before <= 1);
    f.poll();
  }
  const auto verified = boost::json::parse(f.sessions[2].admin.back().json);
  CHECK(verified.at("disk_blocks").to_number<std::size_t>() == f.disk.size());
  CHECK(verified.at("disk_blocks_left").to_number<int>() == 0);
}

TEST_CASE("after a slow spell of the disk, loads are tried again") {
  KvDaemonOptions options;
  options.silence_max = std::chrono::hours(1);
  DaemonFixture f(64, true, options);
  f.connect(1);
  kv::LeaseId lease = 0;
  const auto served = [&](std::uint64_t chain, Duration disk_takes) {
    f.put_on_disk(chain, 0, 2);
    kv::Acquire wanted = f.acquire_message(++lease, chain, 2, seconds(50));
    wanted.prefill.per_token = 1e-5;  // 1.3 ms for what is asked
    f.tell(1, wanted);
    f.work();
    f.advance(disk_takes);
    f.settle();
    return f.sessions[1].leases[lease].history.size();
  };
  CHECK(served(1, seconds(0)) == 2);
  CHECK(served(2, seconds(40)) == 2);  // 8 kB
  CHECK(served(3, seconds(0)) == 0);
  CHECK(f.sessions[1].leases[lease].missing == MissReason::kRecomputeFaster);
  f.advance(seconds(600));  // ten half-lives
  CHECK(served(4, seconds(0)) == 2);
}

TEST_CASE("without room the prefix ends, and no pinned block is harmed") {
  DaemonFixture f(4);
  f.put_on_disk(5, 0, 8);
  f.connect(1);
  LeaseView& lease = f.acquire(1, 1, 5, 8);
  f.settle();
  CHECK(lease.history.size() == 4);
  CHECK(lease.missing == MissReason::kEvictedHost);
  CHECK(lease.finals == 1);
}

TEST_CASE("of the windows on disk only the deepest useful one is loaded") {
  DaemonFixture f;
  f.put_on_disk(5, 0, 6);
  for (const std::uint32_t depth : {1U, 3U, 5U})
    f.put_on_disk(window(5, depth), 5, depth);
  f.disk.remove(history(5, 5), MissReason::kEvictedDisk);
  f.poll();
  f.connect(1);
  LeaseView& lease = f.acquire(1, 1, 5, 6, seconds(1), {1, 3, 5});
  f.settle();
  CHECK(lease.history.size() == 5);
  CHECK(lease.windows.size() == 1);
  CHECK(lease.windows.contains(3));
  CHECK(lease.missing == MissReason::kEvictedDisk);
  CHECK(f.disk.reads == 6);
}

TEST_CASE("a block is served in the chain it was stored in, and in no other") {
  DaemonFixture f;
  f.connect(1);
  CHECK(f.store(1, 5, 0, 3) == all_stored(3));
  f.put_on_disk(7, 0, 3);
  kv::Acquire bent = f.acquire_message(1, 5, 3);
  std::swap(bent.keys[1], bent.keys[2]);
  f.tell(1, bent);
  CHECK(f.sessions[1].leases[1].history.size() == 1);
  CHECK(f.sessions[1].leases[1].missing == MissReason::kNeverStored);
  bent = f.acquire_message(2, 7, 3);
  bent.keys[1] = key_of(7, 2);
  f.tell(1, bent);
  f.settle();
  CHECK(f.sessions[1].leases[2].history.size() == 1);
  CHECK(f.sessions[1].leases[2].missing == MissReason::kNeverStored);
  CHECK(f.disk.contains(history(7, 2)));
}

TEST_CASE("a miss of what another scope holds is the same work as a miss of what nobody holds") {
  DaemonFixture f;
  f.connect(1);
  for (const std::uint64_t chain : {5, 6, 7})
    f.tell(1, kv::RegisterRoot{root_of(chain), "tenant:" + std::to_string(chain), "", f.layout});
  kv::Store message = f.store_message(1, 5, 0, 4);
  message.content_tag = 55;
  f.tell(1, message);
  f.work();
  REQUIRE(f.sessions[1].stored.back().results == all_stored(4));
  f.settle();
  struct Work {
    std::uint64_t memory = 0, disk = 0, history = 0, reads = 0, writes = 0;
    bool operator==(const Work&) const = default;
  };
  const auto work = [&] {
    const auto stat = boost::json::parse(f.daemon->stat_json());
    return Work{stat.at("host").at("look_ups").to_number<std::uint64_t>(), f.disk.look_ups,
                stat.at("history").at("look_ups").to_number<std::uint64_t>(), f.disk.reads,
                f.disk.writes};
  };
  std::vector<Work> done;
  for (const std::uint64_t chain : {6, 7}) {  // chain 6 would be chain 5's text in another scope
    kv::Acquire foreign = f.acquire_message(chain, chain, 4);
    foreign.content_tag = chain == 6 ? 55 : 56;
    const Work before = work();
    f.daemon->handle(kv::SessionId(1), foreign, f.time());
    const Work after = work();
    done.push_back({after.memory - before.memory, after.disk - before.disk,
                    after.history - before.history, after.reads - before.reads,
                    after.writes - before.writes});
    // What is answered has the same size, too: one message with nothing in it.
    const auto answers = f.daemon->take_outbox();
    REQUIRE(answers.size() == 1);
    const auto& granted = std::get<kv::Granted>(answers[0].message);
    CHECK(granted.lease == chain);
    CHECK(granted.final);
    CHECK(granted.history.empty());
    CHECK(granted.windows.empty());
    CHECK(granted.missing == MissReason::kNeverStored);
  }
  CHECK(done[0].memory > 0);
  CHECK(done[0].reads == 0);
  CHECK(done[0] == done[1]);
}

TEST_CASE("who breaks the protocol is sent away, and nothing of it stays") {
  const std::vector<std::function<void(DaemonFixture&)>> wrongs = {
      [](DaemonFixture& f) { f.tell(1, kv::Hello{}); },
      [](DaemonFixture& f) { f.tell(1, kv::RegisterPool{0, 4096, test_layout()}); },
      [](DaemonFixture& f) { f.tell(1, kv::RegisterPool{1, 4096, {0, {1}, {}, 0}}); },
      [](DaemonFixture& f) { f.tell(1, kv::RegisterPool{1, 4096, {64, {0}, {}, 0}}); },
      [](DaemonFixture& f) { f.tell(1, kv::RegisterPool{1, 4096, {64, {UINT32_MAX, 1}, {}, 0}}); },
      [](DaemonFixture& f) { f.tell(1, kv::RegisterPool{1, 4096, {64, {1}, {1}, 65}}); },
      [](DaemonFixture& f) {
        f.tell(1, kv::RegisterRoot{root_of(5), "tenant:a", "m", test_layout()});
        f.tell(1, kv::RegisterRoot{root_of(5), "tenant:a", "m", {64, {1}, {}, 0}});
      },
      [](DaemonFixture& f) { f.acquire(1, 1, 5, 1); },
      [](DaemonFixture& f) { f.acquire(1, 2, 5, 200); },
      [](DaemonFixture& f) { f.acquire(1, 2, 5, 3, seconds(1), {2, 1}); },
      [](DaemonFixture& f) { f.tell(1, kv::Lookup{1, std::vector<BlockName>(200)}); }};
  for (std::size_t i = 0; i < wrongs.size(); ++i) {
    CAPTURE(i);
    KvDaemonOptions options;
    options.acquire_keys_max = 100;
    DaemonFixture f(16, false, options);
    f.connect(1);
    CHECK(f.store(1, 5, 0, 2) == all_stored(2));
    f.acquire(1, 1, 5, 2);
    wrongs[i](f);
    CHECK(f.sessions[1].closed);
    CHECK(!f.sessions[1].goodbye.empty());
    f.tell(1, kv::Alive{});
    f.close(1);
    CHECK(
        boost::json::parse(f.daemon->stat_json()).at("host").at("pinned_blocks").to_number<int>() ==
        0);
  }
}

TEST_CASE("limits: sessions, leases of a session, blocks waiting to be copied") {
  KvDaemonOptions options;
  options.sessions_max = 2;
  options.leases_max = 2;
  options.stores_pending_max = 3;
  DaemonFixture f(16, false, options);
  f.connect(1);
  f.connect(2);
  f.daemon->open(kv::SessionId(3), f.time());
  f.deliver();
  CHECK(f.sessions[3].closed);
  f.close(3);
  f.tell(1, f.store_message(1, 5, 0, 2));
  f.tell(2, f.store_message(2, 6, 0, 2));
  CHECK(f.sessions[2].stored.back().results ==
        std::vector{MissReason::kTooSlow, MissReason::kTooSlow});
  f.work();
  CHECK(f.sessions[1].stored.back().results == all_stored(2));
  f.acquire(1, 1, 5, 2);
  f.acquire(1, 2, 5, 2);
  const LeaseView& third = f.acquire(1, 3, 5, 2);
  CHECK(third.finals == 1);
  CHECK(third.missing == MissReason::kTooSlow);
  CHECK(third.history.empty());
}

TEST_CASE(
    "every nth operation of the tier may fail in every way: nothing is lost, nothing is wrong") {
  for (const MissReason reason : {MissReason::kIoError, MissReason::kCorrupt, MissReason::kTierOff,
                                  MissReason::kNotAdmitted}) {
    for (int nth = 1;; ++nth) {
      CAPTURE(nth);
      DaemonFixture f(6);
      int operations = 0;
      f.disk.verdict = [&](Operation, const BlockName&) {
        return ++operations == nth ? reason : kNone;
      };
      f.put_on_disk(9, 0, 3);
      f.put_on_disk(window(9, 2), 9, 2);
      f.connect(1);
      f.connect(2);
      f.acquire(2, 1, 9, 4, seconds(1), {2});
      f.store(1, 5, 0, 4, {3});
      f.settle();
      f.tell(2, kv::Release{1});
      f.store(1, 6, 0, 5);
      f.settle();
      f.acquire(1, 1, 5, 4, seconds(1), {3});
      f.acquire(2, 2, 6, 5);
      f.settle();
      f.acquire(1, 2, 9, 3);
      f.settle();
      f.advance(seconds(3));
      f.poll();
      for (const auto& [key, asked] : f.asked)
        CHECK(f.sessions[key.first].leases[key.second].finals == 1);
      f.close(1);
      f.close(2);
      f.settle();
      const auto stat = boost::json::parse(f.daemon->stat_json());
      CHECK(stat.at("host").at("pinned_blocks").to_number<int>() == 0);
      CHECK(stat.at("host").at("filling_blocks").to_number<int>() == 0);
      CHECK(stat.at("host").at("retiring_blocks").to_number<int>() == 0);
      CHECK(stat.at("host").at("blocks").to_number<std::uint64_t>() * kUnit +
                stat.at("host").at("free_bytes").to_number<std::uint64_t>() ==
            6 * kUnit);
      if (operations < nth) break;
    }
  }
}

}  // namespace penstock::service
