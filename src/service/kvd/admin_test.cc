#include "service/kvd/admin.h"

#include <boost/json.hpp>

#include "service/kvd/describe.h"
#include "tests/support/kvd_fixture.h"

#include <doctest/doctest.h>

namespace penstock::service {
namespace {

namespace json = boost::json;
using std::chrono::seconds;

struct Fixture : DaemonFixture {
  using DaemonFixture::DaemonFixture;

  // Asks as a tool; the last answer must be final.
  const kv::AdminAnswer& ask(const std::string& command, const std::string& arguments = "") {
    if (!sessions.contains(kTool)) connect(kTool, "tool");
    tell(kTool, kv::Admin{++last_question, command, arguments});
    settle();
    const kv::AdminAnswer& answer = sessions[kTool].admin.back();
    REQUIRE(answer.number == last_question);
    REQUIRE(answer.final);
    return answer;
  }
  json::object answer_to(const std::string& command, const std::string& arguments = "") {
    const kv::AdminAnswer& answer = ask(command, arguments);
    REQUIRE(!answer.error);
    return json::parse(answer.json).as_object();
  }
  std::string explain(const std::string& request) {
    const json::object answer = answer_to("explain", R"({"request":")" + request + R"("})");
    return json::serialize(answer.at("acquires").at(0).at("runs"));
  }
  void describe_root(std::uint64_t chain, const std::string& scope, const std::string& build) {
    tell(1, kv::RegisterRoot{root_of(chain), scope, build, layout});
  }

  static constexpr std::uint64_t kTool = 50;
  std::uint64_t last_question = 0;
};

std::int64_t number(const json::value& value) {
  return value.to_number<std::int64_t>();
}

}  // namespace

TEST_CASE("stat tells what is held, by tier, class and tenant, and why things went or missed") {
  KvDaemonOptions options;
  options.classes = {{"default", seconds(60)}, {"agent", seconds(600)}};
  Fixture f(4, true, options);
  f.connect(1);
  kv::Store message = f.store_message(1, 5, 0, 3);
  message.ttl_class = 1;
  message.tenant = 0xAB;
  f.tell(1, message);
  f.settle();
  kv::Acquire wanted = f.acquire_message(1, 5, 4);
  wanted.ttl_class = 1;
  wanted.tenant = 0xAB;
  f.tell(1, wanted);
  f.tell(1, kv::Release{1});
  f.advance(seconds(30));
  f.store(1, 6, 0, 2);
  f.settle();
  f.advance(seconds(2));
  const json::object stat = f.answer_to("stat");
  CHECK(number(stat.at("host").at("blocks")) == 4);
  CHECK(number(stat.at("host").at("removals").at("evicted_share")) == 1);
  CHECK(number(stat.at("disk").at("blocks")) == 5);
  CHECK(number(stat.at("acquires").at("hit_blocks_host")) == 3);
  CHECK(number(stat.at("acquires").at("hit_tokens")) == 3 * 64);
  CHECK(number(stat.at("acquires").at("prefix_ended_by").at("never_stored")) == 1);
  CHECK(number(stat.at("stores").at("blocks")) == 5);
  CHECK(number(stat.at("writes").at("ended").at("none")) == 5);
  CHECK(number(stat.at("sessions").at("open")) == 2);
  CHECK(stat.at("capacity").at("hit_rate_by_bytes").as_array().size() == 8);
  CHECK(stat.at("capacity").at("distinct_blocks").as_double() == 4.0);
  const json::array& tenants = stat.at("tenants").as_array();
  REQUIRE(tenants.size() == 2);
  CHECK(tenants[1].at("class").as_string() == "agent");
  CHECK(tenants[1].at("tenant").as_string() == "00000000000000ab");
  CHECK(number(tenants[1].at("host_blocks")) == 2);
  CHECK(number(tenants[1].at("hit_tokens")) == 3 * 64);
  CHECK(number(tenants[1].at("miss_blocks")) == 1);
  CHECK(number(tenants[1].at("removals").at("evicted_share")) == 1);
  CHECK(number(tenants[1].at("mean_idle_seconds_when_evicted")) == 30);
  CHECK(number(tenants[1].at("max_idle_seconds_when_evicted")) == 30);
  CHECK(number(tenants[1].at("written_blocks")) == 3);
  CHECK(number(tenants[1].at("written_bytes")) == 12'000);
  CHECK(number(tenants[1].at("disk_blocks")) == 3);
  CHECK(number(tenants[1].at("disk_bytes")) == 12'000);
  CHECK(number(tenants[0].at("disk_blocks")) == 2);
  CHECK(tenants[0].at("removals").as_object().empty());
  CHECK(number(stat.at("host").at("mean_idle_seconds_when_evicted")) == 30);
  CHECK(number(stat.at("host").at("max_idle_seconds_when_evicted")) == 30);
  CHECK(number(stat.at("host").at("oldest_idle_seconds")) == 32);
  CHECK(number(stat.at("host").at("median_idle_seconds")) == 32);
}

TEST_CASE("stat tells what tenants have on disk, also of before the start, and why it went") {
  KvDaemonOptions options;
  options.classes = {{"default", seconds(60)}, {"agent", seconds(600)}};
  Fixture f(4, true, options);
  const auto put = [&](std::uint64_t chain, std::uint32_t depth, TtlClass ttl_class,
                       std::uint64_t tenant) {
    BlockInfo info = info_of(history(chain, depth), chain, depth, f.layout);
    info.ttl_class = ttl_class;
    info.tenant = tenant;
    f.disk.put(info, payload_of(info.name, f.layout));
  };
  put(1, 0, 1, 0xAB);
  put(1, 1, 1, 0xAB);
  put(2, 0, 0, 0xCD);
  f.disk.remove(history(1, 1), MissReason::kExpired);
  f.disk.remove(history(2, 0), MissReason::kEvictedShare);
  f.poll();
  const json::object stat = f.answer_to("stat");
  CHECK(number(stat.at("disk").at("oldest_idle_seconds")) == 90);
  CHECK(number(stat.at("disk").at("median_idle_seconds")) == 40);
  const json::array& tenants = stat.at("tenants").as_array();
  REQUIRE(tenants.size() == 2);
  CHECK(tenants[0].at("tenant").as_string() == "00000000000000cd");
  CHECK(number(tenants[0].at("disk_bytes")) == 0);
  CHECK(number(tenants[0].at("disk_removals").at("evicted_share")) == 1);
  CHECK(tenants[0].at("removals").as_object().empty());
  CHECK(tenants[1].at("tenant").as_string() == "00000000000000ab");
  CHECK(number(tenants[1].at("disk_blocks")) == 1);
  CHECK(number(tenants[1].at("disk_bytes")) == 4000);
  CHECK(number(tenants[1].at("disk_removals").at("expired")) == 1);
}

TEST_CASE("rows of tenants that are only on disk are bounded; the rest share one") {
  Fixture f;
  for (std::uint64_t chain = 1; chain <= KvStatistics::kTenantsMax + 10; ++chain) {
    BlockInfo info = info_of(history(chain, 0), chain, 0, f.layout);
    info.tenant = chain;
    f.disk.put(info, payload_of(info.name, f.layout));
  }
  const json::object stat = f.answer_to("stat");
  const json::array& tenants = stat.at("tenants").as_array();
  CHECK(tenants.size() == KvStatistics::kTenantsMax + 1);
  std::int64_t blocks = 0;
  for (const json::value& row : tenants)
    blocks += number(row.at("disk_blocks"));
  CHECK(blocks == static_cast<std::int64_t>(KvStatistics::kTenantsMax) + 10);
}

TEST_CASE("ls pages through roots, and through the blocks of one") {
  Fixture f;
  f.connect(1);
  for (std::uint64_t chain = 1; chain <= 3; ++chain) {
    f.describe_root(chain, "tenant:" + std::to_string(chain), "nano bf16");
    f.store(1, chain, 0, 2);
  }
  json::object page = f.answer_to("ls", R"({"limit":2})");
  CHECK(page.at("roots").as_array().size() == 2);
  CHECK(page.at("roots").at(0).at("scope").as_string() == "tenant:1");
  CHECK(number(page.at("roots").at(0).at("host_blocks")) == 2);
  CHECK(number(page.at("roots").at(0).at("host_bytes")) == 8000);
  const std::string next(page.at("next").as_string());
  page = f.answer_to("ls", R"({"limit":2,"after":")" + next + R"("})");
  CHECK(page.at("roots").as_array().size() == 1);
  CHECK(page.at("next").is_null());
  page = f.answer_to("ls", R"({"limit":1,"root":")" + hex(root_of(2)) + R"("})");
  CHECK(page.at("blocks").at(0).at("key").as_string() == hex(key_of(2, 0)));
  CHECK(page.at("blocks").at(0).at("on_disk").as_bool());
  CHECK(number(page.at("next")) > 0);
  CHECK(!page.at("blocks").at(0).as_object().contains("parent"));

  // What export needs.
  page = f.answer_to("ls", R"({"details":true})");
  const json::value& layout = page.at("roots").at(1).at("layout");
  CHECK(number(layout.at("block_tokens")) > 0);
  CHECK(!layout.at("history_slices").as_array().empty());
  CHECK(number(page.at("disk").at("blocks")) == 6);
  page = f.answer_to("ls", R"({"details":true,"root":")" + hex(root_of(2)) + R"("})");
  for (const json::value& block : page.at("blocks").as_array()) {
    const bool first = number(block.at("depth")) == 0;
    CHECK(block.at("parent").as_string() == hex(first ? root_of(2) : key_of(2, 0)));
    CHECK(block.at("tenant").as_string().size() == 16);
  }
}

TEST_CASE("verify reads both tiers, finds every flipped bit, and lets messages through meanwhile") {
  Fixture f(256);
  f.connect(1);
  CHECK(f.store(1, 5, 0, 6).size() == 6);
  f.settle();
  f.put_on_disk(8, 0, 5);
  const std::uint64_t place = f.acquire(1, 1, 5, 6).history.at(3).offset;
  f.tell(1, kv::Release{1});
  f.memory.arena()[place + 3999] ^= std::byte{128};
  f.disk.damage(history(8, 2), 11);
  f.disk.latency = [](auto) { return 3; };
  f.connect(Fixture::kTool, "tool");
  f.tell(Fixture::kTool, kv::Admin{1, "verify", R"({"tier":"all"})"});
  f.tell(Fixture::kTool, kv::Admin{2, "verify", ""});
  CHECK(f.sessions[Fixture::kTool].admin.back().error->code == ErrorCode::kConflict);
  f.advance(seconds(2));
  f.daemon->work(f.time());
  f.deliver();
  CHECK(!f.sessions[Fixture::kTool].admin.back().final);
  const json::value progress = json::parse(f.sessions[Fixture::kTool].admin.back().json);
  CHECK(number(progress.at("host_blocks")) + number(progress.at("host_blocks_left")) == 6);
  CHECK(number(progress.at("host_blocks_left")) > 0);
  CHECK(number(progress.at("disk_blocks_left")) == 11);
  CHECK(f.acquire(1, 2, 5, 1).history.size() == 1);
  f.settle();
  f.settle();
  const kv::AdminAnswer& answer = f.sessions[Fixture::kTool].admin.back();
  REQUIRE(answer.final);
  const json::value found = json::parse(answer.json);
  CHECK(number(found.at("host_blocks")) == 4);  // two hung under the bad one
  CHECK(number(found.at("disk_blocks")) == 11);
  CHECK(number(found.at("disk_blocks_left")) == 0);
  CHECK(number(found.at("bad_blocks")) == 2);
  CHECK(found.at("bad").at(0).at("key").as_string() == hex(key_of(5, 3)));
  CHECK(found.at("bad").at(0).at("tier").as_string() == "host");
  CHECK(found.at("bad").at(1).at("key").as_string() == hex(key_of(8, 2)));
  CHECK(!f.disk.contains(history(8, 2)));
  const json::object again = f.answer_to("verify");
  CHECK(number(again.at("bad_blocks")) == 0);
  CHECK(number(f.answer_to("stat").at("host").at("corrupt_bytes")) == kUnit);
  const json::object dry = f.answer_to("gc", R"({"dry_run":true})");
  CHECK(number(dry.at("corrupt_bytes_reused")) == kUnit);
  CHECK(number(f.answer_to("gc").at("corrupt_bytes_reused")) == kUnit);
  CHECK(number(f.answer_to("stat").at("host").at("corrupt_bytes")) == 0);
}

TEST_CASE("verify ends with its session, and its reads give their places back") {
  Fixture f(16);
  f.put_on_disk(8, 0, 9);
  f.disk.latency = [](auto) { return 4; };
  f.connect(Fixture::kTool, "tool");
  f.tell(Fixture::kTool, kv::Admin{1, "verify", R"({"tier":"disk"})"});
  f.work();
  CHECK(f.disk.pending() == Admin::kReadsInFlightMax);
  f.close(Fixture::kTool);
  f.settle();
  const json::value stat = json::parse(f.daemon->stat_json());
  CHECK(stat.at("host").at("free_bytes") == stat.at("host").at("arena_bytes"));
}

TEST_CASE("verify of the disk waits for room and does not spin") {
  Fixture f(2);
  f.connect(1);
  f.store(1, 5, 0, 1);
  f.acquire(1, 1, 5, 1);
  f.settle();
  f.put_on_disk(8, 0, 4);
  f.disk.latency = [](auto) { return 2; };
  f.connect(Fixture::kTool, "tool");
  f.tell(Fixture::kTool, kv::Admin{1, "verify", R"({"tier":"disk"})"});
  f.work();  // would not end if it spun
  CHECK(f.disk.pending() == 1);
  for (int polls = 0; polls < 30; ++polls) {
    f.poll();
    f.work();
  }
  const kv::AdminAnswer& answer = f.sessions[Fixture::kTool].admin.back();
  REQUIRE(answer.final);
  CHECK(number(json::parse(answer.json).at("disk_blocks")) == 5);
}

TEST_CASE("flush answers when nothing waits to be copied or written") {
  Fixture f;
  f.connect(1);
  f.disk.latency = [](auto) { return 3; };
  f.tell(1, f.store_message(1, 5, 0, 2));
  f.connect(Fixture::kTool, "tool");
  f.tell(Fixture::kTool, kv::Admin{1, "flush", ""});
  f.work();
  f.poll();
  CHECK(f.sessions[Fixture::kTool].admin.empty());
  f.settle();
  REQUIRE(f.sessions[Fixture::kTool].admin.size() == 1);
  CHECK(f.disk.size() == 2);
}

TEST_CASE("explain: each block has the tier it came from, or the reason it missed") {
  Fixture f;
  f.connect(1);
  SUBCASE("never stored") {
    f.store(1, 5, 0, 2);
    f.acquire(1, 1, 5, 4);
    CHECK(f.explain("request-1") == R"([{"first_block":0,"blocks":2,"served_from":"host"},)"
                                    R"({"first_block":2,"blocks":2,"missed":"never_stored"}])");
  }
  SUBCASE("expired on disk, and what hangs under it") {
    f.put_on_disk(5, 0, 3);
    f.disk.remove(history(5, 1), MissReason::kExpired);
    f.poll();
    f.acquire(1, 1, 5, 3);
    f.settle();
    CHECK(f.explain("request-1") == R"([{"first_block":0,"blocks":1,"served_from":"disk"},)"
                                    R"({"first_block":1,"blocks":1,"missed":"expired"},)"
                                    R"({"first_block":2,"blocks":1,"missed":"parent_gone"}])");
  }
  SUBCASE("no daemon: told by a worker that went without one") {
    kv::Missed missed;
    missed.requests.push_back({"gone-1", root_of(5), 0xAB, 7, {}, UnixSeconds(999'000)});
    missed.requests.push_back({"gone-2", root_of(5), 0xAB, 3, {KvTier::kDisk}, UnixSeconds(9)});
    f.tell(1, missed);
    CHECK(f.explain("gone-1") == R"([{"first_block":0,"blocks":7,"missed":"no_daemon"}])");
    CHECK(f.explain("gone-2") == R"([{"first_block":0,"blocks":1,"served_from":"disk"},)"
                                 R"({"first_block":1,"blocks":2,"missed":"no_daemon"}])");
    const json::object answer = f.answer_to("explain", R"({"request":"gone-1"})");
    CHECK(number(answer.at("acquires").at(0).at("at")) == 999'000);
    CHECK(answer.at("acquires").at(0).at("ended_by").as_string() == "no_daemon");
    CHECK(number(answer.at("daemon_started")) == 1'000'000);
    const json::object stat = f.answer_to("stat");
    CHECK(number(stat.at("acquires").at("prefix_ended_by").at("no_daemon")) == 2);
  }
  SUBCASE("no daemon: what a worker says is bounded") {
    kv::Missed missed;
    missed.requests.push_back(
        {"gone-1", root_of(5), 0, 4'000'000'000, {KvTier::kHost}, UnixSeconds(9)});
    f.tell(1, missed);
    CHECK(f.explain("gone-1") == R"([{"first_block":0,"blocks":1,"served_from":"host"},)"
                                 R"({"first_block":1,"blocks":65535,"missed":"no_daemon"}])");
  }
  SUBCASE("too slow") {
    f.put_on_disk(5, 0, 1);
    f.acquire(1, 1, 5, 1, Duration(0));
    CHECK(f.explain("request-1") == R"([{"first_block":0,"blocks":1,"missed":"too_slow"}])");
  }
  SUBCASE("corrupt") {
    f.put_on_disk(5, 0, 1);
    f.disk.damage(history(5, 0), 1);
    f.acquire(1, 1, 5, 1);
    f.settle();
    CHECK(f.explain("request-1") == R"([{"first_block":0,"blocks":1,"missed":"corrupt"}])");
  }
  SUBCASE("gone from disk, by each reason") {
    for (const MissReason reason : {MissReason::kEvictedDisk, MissReason::kEvictedShare,
                                    MissReason::kRemoved, MissReason::kExpired}) {
      f.put_on_disk(5, 0, 2);
      f.disk.remove(history(5, 1), reason);
      f.poll();
      const auto lease = static_cast<kv::LeaseId>(reason);
      f.acquire(1, lease, 5, 2);
      f.settle();
      CHECK(f.explain("request-" + std::to_string(lease)) ==
            R"([{"first_block":0,"blocks":1,"served_from":")" +
                std::string(lease == static_cast<kv::LeaseId>(MissReason::kEvictedDisk) ? "disk"
                                                                                        : "host") +
                R"("},{"first_block":1,"blocks":1,"missed":")" + std::string(to_string(reason)) +
                R"("}])");
    }
  }
  SUBCASE("on disk, and the disk does not give it") {
    for (const MissReason reason : {MissReason::kIoError, MissReason::kTierOff}) {
      f.disk.verdict = [&](auto, const BlockName&) { return reason; };
      f.put_on_disk(5, 0, 1);
      const auto lease = static_cast<kv::LeaseId>(reason);
      f.acquire(1, lease, 5, 1);
      f.settle();
      CHECK(f.explain("request-" + std::to_string(lease)) ==
            R"([{"first_block":0,"blocks":1,"missed":")" + std::string(to_string(reason)) +
                R"("}])");
    }
  }
  SUBCASE("evicted from memory, and why the disk did not have it") {
    struct Case {
      MissReason disk;
      std::string_view told;
    };
    const Case cases[] = {{MissReason::kNotAdmitted, "not_admitted"},
                          {MissReason::kEvictedShare, "evicted_share"},
                          {MissReason::kTierOff, "evicted_host"},
                          {MissReason::kIoError, "evicted_host"}};
    for (const Case& c : cases) {
      f.disk.verdict = [&](auto, const BlockName&) { return c.disk; };
      const auto number = static_cast<std::uint64_t>(c.disk);
      f.store(1, number, 0, 1);
      for (std::uint64_t chain = 100 * number; chain < 100 * number + 10; ++chain) {
        f.store(1, chain, 0, 7);
        f.settle();
      }
      f.acquire(1, number, number, 1);
      CHECK(f.explain("request-" + std::to_string(number)) ==
            R"([{"first_block":0,"blocks":1,"missed":")" + std::string(c.told) + R"("}])");
    }
  }
  SUBCASE("evicted from memory because its tenant was above its share") {
    f.disk.verdict = [](auto, const BlockName&) { return MissReason::kIoError; };
    const auto store = [&](std::uint64_t chain, std::uint32_t blocks) {
      kv::Store message = f.store_message(1, chain, 0, blocks);
      message.tenant = chain;
      f.tell(1, message);
      f.settle();
    };
    store(5, 40);  // of 64
    store(6, 30);  // six of the others go
    f.acquire(1, 1, 5, 35);
    f.acquire(1, 2, 6, 30);
    CHECK(f.explain("request-1") == R"([{"first_block":0,"blocks":34,"served_from":"host"},)"
                                    R"({"first_block":34,"blocks":1,"missed":"evicted_share"}])");
    CHECK(f.explain("request-2") == R"([{"first_block":0,"blocks":30,"served_from":"host"}])");
  }
  SUBCASE("another scope, another build") {
    f.describe_root(5, "tenant:a", "nano bf16");
    f.describe_root(6, "tenant:b", "nano bf16");
    f.describe_root(7, "tenant:a", "nano f32");
    kv::Store message = f.store_message(1, 5, 0, 1);
    message.content_tag = 42;
    f.tell(1, message);
    f.work();
    for (const std::uint64_t chain : {6, 7}) {
      kv::Acquire wanted = f.acquire_message(chain, chain, 2);
      wanted.content_tag = 42;
      f.tell(1, wanted);
      CHECK(f.sessions[1].leases[chain].missing == MissReason::kNeverStored);  // tells nothing
    }
    CHECK(f.explain("request-6").find(R"("missed":"other_scope")") != std::string::npos);
    CHECK(f.explain("request-7").find(R"("missed":"other_build")") != std::string::npos);
    CHECK(f.explain("request-7").find(R"("build":"nano bf16")") != std::string::npos);
  }
}

TEST_CASE("a bad command is refused with what to do") {
  Fixture f;
  f.connect(1);
  struct Case {
    std::string command;
    std::string arguments;
    ErrorCode code;
  };
  for (const Case& c :
       {Case{"dance", "", ErrorCode::kNotFound}, Case{"stat", "{", ErrorCode::kInvalidArgument},
        Case{"stat", "[]", ErrorCode::kInvalidArgument},
        Case{"ls", R"({"root":"12"})", ErrorCode::kInvalidArgument},
        Case{"ls", R"({"limit":-1})", ErrorCode::kInvalidArgument},
        Case{"ls", R"({"after":7})", ErrorCode::kInvalidArgument},
        Case{"ls", R"({"details":1})", ErrorCode::kInvalidArgument},
        Case{"verify", R"({"tier":"moon"})", ErrorCode::kInvalidArgument},
        Case{"gc", R"({"dry_run":1})", ErrorCode::kInvalidArgument},
        Case{"explain", "", ErrorCode::kInvalidArgument},
        Case{"explain", R"({"request":"unknown"})", ErrorCode::kNotFound}}) {
    CAPTURE(c.command + c.arguments);
    const kv::AdminAnswer& answer = f.ask(c.command, c.arguments);
    REQUIRE(answer.error);
    CHECK(answer.error->code == c.code);
    CHECK(!answer.error->message.empty());
  }
  CHECK(hex(*parse_key("00112233445566778899aabbccddeeff")) == "00112233445566778899aabbccddeeff");
  CHECK(!parse_key("00112233445566778899aabbccddeefg"));
}

}  // namespace penstock::service
