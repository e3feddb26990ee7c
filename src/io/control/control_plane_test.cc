// The client against the server over a Unix socket, with a scripted engine behind.
#include <chrono>

#include "io/control/test_worker.h"

#include <doctest/doctest.h>

namespace penstock::control::testing {
namespace {

using Pace = ScriptedEngine::Pace;

struct Plane {
  SocketFolder folder;
  std::shared_ptr<EngineProbe> probe = std::make_shared<EngineProbe>();
  std::unique_ptr<EngineServer> server;
  std::unique_ptr<Shard> shard;

  explicit Plane(Pace pace = Pace::kFree, EngineServerOptions options = {},
                 EngineClientOptions client = {}) {
    const EngineServerOptions base = server_options(folder.address());
    options.listen = base.listen;
    options.name = base.name;
    options.engine = base.engine;
    options.epoch = base.epoch;
    server = start_worker(std::move(options), probe, pace);
    REQUIRE(server != nullptr);
    shard = std::make_unique<Shard>(folder.address(), 1, std::move(client));
    shard->wait_connected();
  }
};

bool counts_up(const std::vector<OutputToken>& tokens, TokenId first) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].token != (first + i) % kVocab) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("the hello describes the worker") {
  Plane plane;
  const WorkerView& view = plane.shard->view();
  CHECK(view.description.id == WorkerId(1));
  CHECK(view.description.epoch == Epoch(77));
  CHECK(view.description.name == "worker-a");
  CHECK(view.description.engine == "scripted 1");
  REQUIRE(view.description.models.size() == 1);
  CHECK(view.description.models[0].name == "alpha");
  CHECK(view.description.models[0].vocab_size == kVocab);
  REQUIRE(view.loads.size() == 1);
  CHECK(view.loads[0].kv_tokens_total == Tokens(4096));
}

TEST_CASE("outputs come in order, every choice finishes once") {
  Plane plane;
  Answer a;
  Answer b;
  REQUIRE(plane.shard->submit(request(1, 10, 200, 3), a));
  auto with_logprobs = request(2, 4990, 50);
  with_logprobs.sampling.top_logprobs = 2;
  REQUIRE(plane.shard->submit(with_logprobs, b));
  CHECK(a.outputs == 0);  // never inside submit()
  CHECK(plane.shard->view().in_flight == 2);
  plane.shard->clock.run_until([&] { return a.over(3) && b.over(); });
  for (std::uint32_t choice = 0; choice < 3; ++choice) {
    CHECK(a.tokens[choice].size() == 200);
    CHECK(counts_up(a.tokens[choice], 10 + 1000 * choice));
    CHECK(a.finishes[choice] == FinishReason::kLength);
  }
  CHECK(a.cached_tokens == 3);
  CHECK(counts_up(b.tokens[0], 4990));
  REQUIRE(b.tokens[0].size() == 50);
  CHECK(b.tokens[0][49].logprob == -0.5F);
  REQUIRE(b.tokens[0][49].top.size() == 2);
  CHECK(b.tokens[0][49].top[1] == TokenLogprob{1, -2.0F});
  CHECK(plane.shard->view().in_flight == 0);
  CHECK(plane.shard->client->counters().violations == 0);
}

TEST_CASE("frames merge while the gateway does not read") {
  EngineClientOptions client;
  client.frames_max = 2;
  Plane plane(Pace::kFree, {}, client);
  Answer a;
  constexpr std::uint32_t kTokens = 200'000;
  REQUIRE(plane.shard->submit(request(1, 3, kTokens), a));
  plane.probe->wait_idle();  // the engine has made all of them; the shard has not looked once
  plane.shard->clock.run_until([&] { return a.over(); });
  CHECK(a.tokens[0].size() == kTokens);
  CHECK(counts_up(a.tokens[0], 3));
  CHECK(plane.shard->client->counters().frames < kTokens);
}

TEST_CASE("a gateway that does not read is cut off at the byte limit") {
  EngineServerOptions options;
  options.pending_bytes_max = 2000;
  EngineClientOptions client;
  client.frames_max = 1;
  Plane plane(Pace::kFree, options, client);
  Answer a;
  REQUIRE(plane.shard->submit(request(1, 3, 50'000'000), a));
  plane.probe->wait_cancelled(1);
  CHECK(plane.server->counters().cut_offs == 1);
  plane.shard->clock.run_until([&] { return a.over(); });
  REQUIRE(a.error);
  CHECK(a.error->code == ErrorCode::kUnavailable);
}

TEST_CASE("cancel ends the request within one step, the sink gets the final outputs") {
  Plane plane;
  Answer a;
  REQUIRE(plane.shard->submit(request(1, 10, 1'000'000'000, 2), a));
  plane.shard->clock.run_until([&] { return a.tokens[1].size() >= 3; });
  plane.shard->client->cancel(RequestId(1));
  plane.shard->client->cancel(RequestId(1));
  plane.shard->client->cancel(RequestId(99));
  plane.shard->clock.run_until([&] { return a.over(2); });
  CHECK(a.finishes[0] == FinishReason::kCancelled);
  CHECK(a.finishes[1] == FinishReason::kCancelled);
  CHECK_FALSE(a.error);
  CHECK(plane.shard->view().in_flight == 0);
}

TEST_CASE("after a cancel only the step that runs already gives the request a token") {
  // A mailbox of one submit tells when the cancel is in: frames of a stream are handled in order,
  // so the refusal of a second submit behind the cancel means that the cancel was posted.
  EngineServerOptions options;
  options.mailbox.submits_max = 1;
  Plane plane(Pace::kByPermit, options);
  Answer cancelled;
  Answer last;
  Answer refused;
  REQUIRE(plane.shard->submit(request(1, 10, 1'000'000, 2), cancelled));
  plane.probe->permit(1);
  plane.shard->clock.run_until([&] { return cancelled.tokens[1].size() == 1; });
  plane.probe->wait_stepping();  // the second step runs
  plane.shard->client->cancel(RequestId(1));
  REQUIRE(plane.shard->submit(request(2, 20, 1), last));
  REQUIRE(plane.shard->submit(request(3, 30, 1), refused));
  plane.shard->clock.run_until([&] { return refused.over(); });
  CHECK(refused.error->code == ErrorCode::kOverloaded);
  CHECK_FALSE(cancelled.over(2));
  plane.probe->permit(2'000'000);  // far more than needed: what counts is the tokens
  plane.shard->clock.run_until([&] { return last.over(); });
  CHECK(last.finishes[0] == FinishReason::kLength);
  for (std::uint32_t choice = 0; choice < 2; ++choice) {
    CHECK(cancelled.tokens[choice].size() == 2);
    CHECK(counts_up(cancelled.tokens[choice], 10 + 1000 * choice));
    CHECK(cancelled.finishes[choice] == FinishReason::kCancelled);
  }
  CHECK_FALSE(cancelled.error);
  plane.probe->wait_idle();
  CHECK(plane.shard->view().in_flight == 0);
  CHECK(plane.shard->client->counters().violations == 0);
}

TEST_CASE("forget drops the sink at once; the number can be used again when the worker is done") {
  Plane plane(Pace::kByPermit);
  Answer a;
  Answer b;
  REQUIRE(plane.shard->submit(request(1, 10, 1'000'000), a));
  plane.probe->permit(1);
  plane.shard->clock.run_until([&] { return a.outputs == 1; });
  plane.shard->client->forget(RequestId(1));
  CHECK(plane.shard->view().in_flight == 0);
  const Status again = plane.shard->submit(request(1, 20, 2), b);
  CHECK(again.error().code == ErrorCode::kConflict);
  plane.probe->permit(2'000'000);
  plane.probe->wait_cancelled(1);
  REQUIRE(plane.shard->submit(request(2, 20, 2), b));
  plane.shard->clock.run_until([&] { return b.over(); });
  CHECK(a.outputs == 1);
  CHECK(plane.shard->submit(request(1, 20, 2), b).has_value());
  CHECK(plane.shard->client->counters().violations == 0);
}

TEST_CASE("a sink may forget another request of the same frame and submit a new one") {
  Plane plane;
  Answer b;
  Answer c;
  bool first = true;
  Answer a;
  auto& client = *plane.shard->client;
  REQUIRE(client.submit(WorkerId(1), request(1, 10, 4), [&](EngineOutput output) {
    a.sink()(std::move(output));
    if (!std::exchange(first, false)) return;
    client.forget(RequestId(2));
    REQUIRE(client.submit(WorkerId(1), request(3, 30, 2), c.sink()));
  }));
  REQUIRE(plane.shard->submit(request(2, 20, 4), b));
  plane.shard->clock.run_until([&] { return a.over() && c.over(); });
  CHECK(counts_up(c.tokens[0], 30));
  CHECK(client.counters().violations == 0);
}

TEST_CASE("when the worker dies every request ends with kUnavailable, and a new one is found") {
  EngineServerOptions dying;
  dying.shutdown_max = std::chrono::milliseconds(10);  // the shard does not read meanwhile
  Plane plane(Pace::kFree, dying);
  Answer a;
  Answer b;
  REQUIRE(plane.shard->submit(request(1, 10, 1'000'000'000), a));
  REQUIRE(plane.shard->submit(request(2, 20, 1'000'000'000, 4), b));
  plane.shard->clock.run_until([&] { return b.outputs > 0; });
  plane.server->stop();
  plane.shard->clock.run_until([&] { return a.over() && b.over(); });
  REQUIRE(a.error);
  REQUIRE(b.error);
  CHECK(a.error->code == ErrorCode::kUnavailable);
  CHECK(b.error->code == ErrorCode::kUnavailable);
  CHECK_FALSE(plane.shard->view().connected);
  CHECK(plane.shard->view().in_flight == 0);
  Answer c;
  CHECK(plane.shard->submit(request(3, 1, 1), c).error().code == ErrorCode::kUnavailable);

  plane.server.reset();
  EngineServerOptions options = server_options(plane.folder.address());
  options.epoch = Epoch(78);
  plane.server = start_worker(options, plane.probe);
  REQUIRE(plane.server != nullptr);
  plane.shard->reconnect();
  CHECK(plane.shard->view().description.epoch == Epoch(78));
  REQUIRE(plane.shard->submit(request(1, 10, 5), c));
  plane.shard->clock.run_until([&] { return c.over(); });
  CHECK(counts_up(c.tokens[0], 10));
}

TEST_CASE("two gateways with the same numbers do not see each other; one goes, its requests end") {
  Plane plane;
  Shard other(plane.folder.address(), 2);
  other.wait_connected();
  Answer a;
  Answer b;
  REQUIRE(plane.shard->submit(request(1, 10, 100'000), a));
  REQUIRE(other.submit(request(1, 2000, 1'000'000'000), b));
  plane.shard->clock.run_until([&] { return a.tokens[0].size() >= 5; });
  other.clock.run_until([&] { return b.tokens[0].size() >= 5; });
  CHECK(counts_up(b.tokens[0], 2000));
  other.client.reset();
  plane.probe->wait_cancelled(1);
  plane.shard->clock.run_until([&] { return a.over(); });
  CHECK(a.tokens[0].size() == 100'000);
  CHECK(counts_up(a.tokens[0], 10));
  CHECK(a.finishes[0] == FinishReason::kLength);
}

TEST_CASE("a gateway's end cancels its requests") {
  Plane plane(Pace::kByPermit);
  Answer a;
  REQUIRE(plane.shard->submit(request(1, 10, 1'000'000), a));
  plane.probe->wait_submitted(1);
  plane.shard.reset();
  plane.probe->permit(10'000'000);
  plane.probe->wait_cancelled(1);
}

TEST_CASE("draining refuses new requests, finishes the running ones and says when it is empty") {
  Plane plane(Pace::kByPermit);
  Answer a;
  REQUIRE(plane.shard->submit(request(1, 10, 5), a));
  plane.probe->wait_submitted(1);
  std::mutex mutex;
  std::condition_variable changed;
  bool empty = false;
  plane.server->drain([&] {
    const std::lock_guard lock(mutex);
    empty = true;
    changed.notify_all();
  });
  plane.shard->clock.run_until([&] { return plane.shard->view().draining; });
  Answer b;
  CHECK(plane.shard->submit(request(2, 10, 5), b).error().code == ErrorCode::kUnavailable);
  plane.probe->permit(100);
  plane.shard->clock.run_until([&] { return a.over(); });
  CHECK(a.tokens[0].size() == 5);
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return empty; });
}

TEST_CASE("heartbeats of a hung engine: frames come, the step stands still") {
  Plane plane(Pace::kByPermit);
  Answer a;
  REQUIRE(plane.shard->submit(request(1, 10, 5), a));
  plane.probe->permit(2);
  plane.shard->clock.run_until([&] { return a.tokens[0].size() == 2; });
  plane.probe->wait_stepping();  // and now it hangs
  for (int beat = 0; beat < 3; ++beat) {
    const std::uint64_t frames = plane.shard->client->counters().frames;
    plane.server->beat();
    plane.shard->clock.run_until([&] { return plane.shard->client->counters().frames > frames; });
    CHECK(plane.shard->view().loads[0].step == 2);
    plane.shard->clock.advance(std::chrono::seconds(1));  // heard, so not silent
  }
  CHECK(plane.shard->view().connected);
  plane.probe->permit(100);
  plane.shard->clock.run_until([&] { return a.over(); });
}

TEST_CASE("the server's own thread keeps the heartbeat") {
  EngineServerOptions options;
  options.heartbeat = std::chrono::milliseconds(1);
  Plane plane(Pace::kFree, options);
  plane.shard->clock.run_until([&] { return plane.shard->client->counters().frames >= 5; });
}

TEST_CASE("several models in one worker, each its own rank") {
  SocketFolder folder;
  auto slow = std::make_shared<EngineProbe>();
  std::vector<std::unique_ptr<service::WorkerEngine>> engines;
  engines.push_back(std::make_unique<ScriptedEngine>("alpha", slow, Pace::kByPermit));
  engines.push_back(std::make_unique<ScriptedEngine>("beta", std::make_shared<EngineProbe>()));
  auto server = EngineServer::start(server_options(folder.address()), std::move(engines));
  REQUIRE(server);
  Shard shard(folder.address(), 1);
  shard.wait_connected();
  REQUIRE(shard.view().loads.size() == 2);
  CHECK(shard.view().loads[1].model == 1);
  Answer a;
  Answer b;
  Answer c;
  REQUIRE(shard.submit(request(1, 10, 3, 1, "alpha"), a));
  EngineRequest second = request(2, 20, 3, 1, "beta");
  second.rank = 1;
  REQUIRE(shard.submit(second, b));
  CHECK(shard.submit(request(3, 20, 3, 1, "gamma"), c).error().code == ErrorCode::kModelNotFound);
  shard.clock.run_until([&] { return b.over(); });  // although alpha hangs
  CHECK(counts_up(b.tokens[0], 20));
  slow->permit(10);
  shard.clock.run_until([&] { return a.over(); });
  CHECK(counts_up(a.tokens[0], 10));
}

TEST_CASE("several ranks of one model: each request goes to the rank it names") {
  SocketFolder folder;
  std::vector<std::shared_ptr<EngineProbe>> probes;
  std::vector<std::unique_ptr<service::WorkerEngine>> engines;
  for (int rank = 0; rank < 3; ++rank) {
    probes.push_back(std::make_shared<EngineProbe>());
    engines.push_back(std::make_unique<ScriptedEngine>("alpha", probes.back(), Pace::kByPermit));
  }
  auto server = EngineServer::start(server_options(folder.address()), std::move(engines));
  REQUIRE(server);
  Shard shard(folder.address(), 1);
  shard.wait_connected();
  REQUIRE(shard.view().loads.size() == 3);
  REQUIRE(shard.view().description.models.size() == 1);
  CHECK(shard.view().loads[2].model == 0);
  Answer a;
  Answer b;
  Answer c;
  EngineRequest r = request(1, 10, 3);
  r.rank = 2;
  REQUIRE(shard.submit(r, a));
  r = request(2, 20, 3);
  r.rank = 1;
  REQUIRE(shard.submit(r, b));
  r = request(3, 20, 3);
  r.rank = 3;
  REQUIRE(shard.submit(r, c));
  shard.clock.run_until([&] { return c.over(); });
  REQUIRE(c.error);
  CHECK(c.error->code == ErrorCode::kModelNotFound);
  probes[2]->permit(10);
  shard.clock.run_until([&] { return a.over(); });  // although rank 1 hangs
  CHECK(counts_up(a.tokens[0], 10));
  CHECK(b.tokens[0].empty());
  probes[1]->permit(10);
  shard.clock.run_until([&] { return b.over(); });
}

TEST_CASE("what the engine refuses is an error of that request only") {
  Plane plane;
  Answer a;
  EngineRequest r = request(1, 1, 1);
  r.prompt = std::make_shared<const std::vector<TokenId>>();
  REQUIRE(plane.shard->submit(r, a));
  plane.shard->clock.run_until([&] { return a.over(); });
  REQUIRE(a.error);
  CHECK(a.error->code == ErrorCode::kInvalidArgument);
  CHECK(a.error->message == "the prompt is empty");
  CHECK(a.error->field == "messages");
  CHECK(plane.shard->view().connected);
}

TEST_CASE("limits of the client: open requests, bytes to send, size of one request") {
  EngineClientOptions client;
  client.requests_max = 2;
  client.send_bytes_max = 8 << 20;
  Plane plane(Pace::kByPermit, {}, client);
  Answer a;
  Answer b;
  Answer c;
  const auto with_prompt = [](std::uint64_t id, std::size_t tokens) {
    EngineRequest r = request(id, 1, 1);
    r.prompt = std::make_shared<const std::vector<TokenId>>(tokens, TokenId{4000});
    return r;
  };
  CHECK(plane.shard->submit(with_prompt(1, 20 << 20), a).error().code ==
        ErrorCode::kPayloadTooLarge);
  CHECK(plane.shard->submit(with_prompt(1, 5 << 20), a).error().code == ErrorCode::kOverloaded);
  REQUIRE(plane.shard->submit(with_prompt(1, 1 << 20), a));
  REQUIRE(plane.shard->submit(request(2, 1, 1), b));
  CHECK(plane.shard->submit(request(3, 1, 1), c).error().code == ErrorCode::kOverloaded);
  CHECK(plane.shard->submit(request(2, 1, 1), c).error().code == ErrorCode::kOverloaded);
  CHECK(plane.shard->client->submit(WorkerId(2), request(3, 1, 1), c.sink()).error().code ==
        ErrorCode::kNotFound);
  CHECK(plane.shard->client->counters().refused == 5);
  plane.probe->permit(100);
  plane.shard->clock.run_until([&] { return a.over() && b.over(); });
  CHECK(a.tokens[0].size() == 1);
}

TEST_CASE("a full mailbox and a full engine answer kOverloaded") {
  EngineServerOptions options;
  options.mailbox.submits_max = 1;
  options.worker.open_max = 1;
  Plane plane(Pace::kByPermit, options);
  Answer first;
  REQUIRE(plane.shard->submit(request(1, 1, 1000), first));
  plane.probe->wait_stepping();
  std::vector<Answer> answers(8);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    REQUIRE(plane.shard->submit(request(2 + i, 1, 1), answers[i]));
  }
  plane.shard->clock.run_until([&] { return answers[7].over(); });
  CHECK(answers[7].error->code == ErrorCode::kOverloaded);
  plane.probe->permit(10'000);
  plane.shard->clock.run_until([&] { return answers[0].over() && first.over(); });
}

TEST_CASE("a newer stream of the same gateway shard ends the older one") {
  Plane plane;
  Shard again(plane.folder.address(), 1);
  again.wait_connected();
  plane.shard->clock.run_until([&] { return !plane.shard->view().connected; });
  CHECK(plane.shard->events.back().reason.find("newer stream") != std::string::npos);
  CHECK(again.view().connected);
}

TEST_CASE("addresses: taken, missing folder, too long, TCP with a free port") {
  Plane plane;
  const auto try_start = [&](const std::string& address) {
    std::vector<std::unique_ptr<service::WorkerEngine>> engines;
    engines.push_back(std::make_unique<ScriptedEngine>("alpha", plane.probe));
    return EngineServer::start(server_options(address), std::move(engines));
  };
  CHECK(try_start(plane.folder.address()).error().code == ErrorCode::kConflict);
  CHECK(try_start("unix:" + plane.folder.path() + "/none/w.sock").error().code == ErrorCode::kIo);
  CHECK(try_start("unix:" + plane.folder.path() + std::string(200, 'x')).error().code ==
        ErrorCode::kInvalidArgument);
  for (const char* bad : {"", "nonsense", ":80", "127.0.0.1:", "127.0.0.1:http", "unix:"}) {
    CHECK(try_start(bad).error().code == ErrorCode::kInvalidArgument);
  }
  auto tcp = try_start("127.0.0.1:0");
  REQUIRE(tcp);
  CHECK(try_start((*tcp)->address()).error().code == ErrorCode::kIo);  // no SO_REUSEPORT
  Shard shard((*tcp)->address(), 3);
  shard.wait_connected();
  Answer a;
  REQUIRE(shard.submit(request(1, 10, 5), a));
  shard.clock.run_until([&] { return a.over(); });
  CHECK(counts_up(a.tokens[0], 10));
}

TEST_CASE("a worker without engines, or whose ranks differ under one name, does not start") {
  SocketFolder folder;
  CHECK_FALSE(EngineServer::start(server_options(folder.address()), {}));
  for (const char* name : {"other alpha", "", "\xff"}) {
    std::vector<std::unique_ptr<service::WorkerEngine>> engines;
    engines.push_back(std::make_unique<ScriptedEngine>("alpha", std::make_shared<EngineProbe>()));
    const bool differs = std::string(name) == "other alpha";
    engines.push_back(std::make_unique<ScriptedEngine>(differs ? "alpha" : name,
                                                       std::make_shared<EngineProbe>(), Pace::kFree,
                                                       differs ? "other weights" : ""));
    CHECK(EngineServer::start(server_options(folder.address()), std::move(engines)).error().code ==
          ErrorCode::kInvalidArgument);
  }
}

}  // namespace penstock::control::testing
