// Expert loads and maps between the client and the server over a Unix socket.
#include <array>

#include "io/control/test_worker.h"

#include <doctest/doctest.h>

namespace penstock::control::testing {
namespace {

ExpertMap map_for(std::uint64_t version, std::uint64_t replaces, Epoch worker = Epoch(77)) {
  ExpertMap map;
  map.version = version;
  map.replaces = replaces;
  map.worker = worker;
  map.planner = Epoch(5);
  map.layers = 1;
  map.experts = 2;
  map.ranks = 2;
  map.slots_per_rank = 1;
  map.slots = {1, 0};
  return map;
}

struct Plane {
  SocketFolder folder;
  std::shared_ptr<EngineProbe> probe = std::make_shared<EngineProbe>();
  std::unique_ptr<EngineServer> server;
  std::unique_ptr<Shard> shard;

  explicit Plane(EngineServerOptions options = {}) {
    const EngineServerOptions base = server_options(folder.address());
    options.listen = base.listen;
    options.name = base.name;
    options.epoch = base.epoch;
    server = start_worker(std::move(options), probe);
    REQUIRE(server != nullptr);
    shard = std::make_unique<Shard>(folder.address(), 1);
    shard->wait_connected();
  }

  Result<ExpertReport> ask(const ExpertMap* map = nullptr, std::uint32_t rank = 0) {
    std::optional<Result<ExpertReport>> answer;
    const Status sent = shard->client->ask_experts(
        WorkerId(1), rank, map, [&](Result<ExpertReport> report) { answer = std::move(report); });
    if (!sent) return std::unexpected(sent.error());
    CHECK_FALSE(answer);  // never inside
    shard->clock.run_until([&] { return answer.has_value(); });
    return std::move(*answer);
  }
  Result<ExpertReport> push(const ExpertMap& map, std::uint32_t rank = 0) {
    return ask(&map, rank);
  }
};

}  // namespace

TEST_CASE("a rank tells its expert loads, and takes a map") {
  Plane plane;
  Answer done;
  REQUIRE(plane.shard->submit(request(1, 10, 1), done));
  plane.shard->clock.run_until([&] { return done.over(); });
  const auto before = plane.ask();
  REQUIRE(before);
  CHECK(before->picks == std::vector<std::uint64_t>{1, 0});
  CHECK(before->map.version == 0);
  const auto after = plane.push(map_for(1, 0));
  REQUIRE(after);
  CHECK(after->map == map_for(1, 0));
  CHECK(after->rank_picks == std::vector<std::uint64_t>{0, 1});
  // Heartbeats tell in short.
  plane.server->beat();
  plane.shard->clock.run_until([&] {
    const auto& experts = plane.shard->view().experts;
    return !experts.empty() && experts[0].map_version == 1;
  });
  CHECK(plane.shard->view().experts[0].picks == std::vector<std::uint64_t>{1});
}

TEST_CASE("old, foreign and impossible maps are refused with a reason, and the stream stands") {
  Plane plane;
  REQUIRE(plane.push(map_for(3, 0)));
  const auto refusal = [&](const ExpertMap& map, std::uint32_t rank = 0) {
    const auto answer = plane.push(map, rank);
    REQUIRE(!answer);
    return answer.error();
  };
  CHECK(refusal(map_for(3, 0)).code == ErrorCode::kConflict);
  CHECK(refusal(map_for(2, 3)).message.find("map 2 is old") != std::string::npos);
  CHECK(refusal(map_for(4, 2)).message.find("made to replace map 2") != std::string::npos);
  CHECK(refusal(map_for(4, 3, Epoch(76))).message.find("another run of worker worker-a") !=
        std::string::npos);
  CHECK(refusal(map_for(4, 3), 1).code == ErrorCode::kNotFound);
  ExpertMap wrong = map_for(4, 3);
  wrong.slots = {1, 0, 1};
  CHECK(refusal(wrong).code == ErrorCode::kInvalidArgument);
  wrong.slots = {1, 2};
  CHECK(refusal(wrong).code == ErrorCode::kInvalidArgument);
  wrong = map_for(0, 3);
  CHECK(refusal(wrong).code == ErrorCode::kInvalidArgument);
  wrong = map_for(4, 3);
  wrong.slots = {1, 1};  // well-formed, but the engine refuses it
  CHECK(refusal(wrong).message == "expert 0 is nowhere");
  const auto now = plane.ask();
  REQUIRE(now);
  CHECK(now->map == map_for(3, 0));
  CHECK(plane.shard->client->counters().violations == 0);
  CHECK(plane.push(map_for(4, 3)));
}

TEST_CASE("a query whose stream ends is answered once, and a worker that comes back knows no map") {
  Plane plane;
  REQUIRE(plane.push(map_for(9, 0)));
  plane.server.reset();
  std::optional<Result<ExpertReport>> answer;
  // The client may have noticed already or not: either way nothing waits for ever.
  const Status sent = plane.shard->client->ask_experts(
      WorkerId(1), 0, nullptr, [&](Result<ExpertReport> report) { answer = std::move(report); });
  if (sent) {
    plane.shard->clock.run_until([&] { return answer.has_value(); });
    CHECK(answer->error().code == ErrorCode::kUnavailable);
  } else {
    CHECK(sent.error().code == ErrorCode::kUnavailable);
  }
  plane.shard->clock.run_until([&] { return !plane.shard->view().connected; });
  CHECK(plane.shard->view().experts.empty());
  CHECK(plane.ask().error().code == ErrorCode::kUnavailable);
  EngineServerOptions options = server_options(plane.folder.address());
  options.epoch = Epoch(78);
  plane.server = start_worker(std::move(options), plane.probe);
  REQUIRE(plane.server != nullptr);
  plane.shard->reconnect();
  CHECK(plane.ask()->map.version == 0);
  CHECK(plane.push(map_for(9, 0)).error().code == ErrorCode::kConflict);  // for the earlier run
  CHECK(plane.push(map_for(9, 0, Epoch(78))));
  CHECK(plane.shard->client->ask_experts(WorkerId(2), 0, nullptr, {}).error().code ==
        ErrorCode::kNotFound);
}

}  // namespace penstock::control::testing
