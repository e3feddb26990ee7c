// Requests of two legs, their ends in every order; the test plays both workers.
#include <array>
#include <memory>

#include "service/gateway/engine_run.h"
#include "tests/support/fake_engines.h"
#include "tests/support/virtual_clock.h"

#include <doctest/doctest.h>

namespace penstock::gateway {
namespace {

using testing::FakeEngines;
using testing::VirtualClock;

class NoPool final : public ComputePool {
 public:
  bool submit(std::function<void()>) override { return false; }
};
class NoObserver final : public RequestObserver {
 public:
  void request_started() override {}
  void request_finished(const RequestRecord&) override {}
};

struct Rig {
  VirtualClock clock;
  FakeEngines engines{clock};
  NoPool pool;
  std::array<std::uint8_t, 32> secret{};
  PromptEncoder encoder{clock, pool, secret};
  NoObserver observer;
  ModelCatalog catalog;
  GatewayContext context{clock, engines, encoder, observer, catalog, {}, Rng(1), {}, {}, {}};
  std::unique_ptr<EngineRun> run;
  Gate gate;
  std::vector<TokenId> tokens;
  std::uint32_t cached = 0;
  std::optional<FinishReason> finish;
  std::optional<Error> error;
  bool over = false;

  Rig() {
    engines.add_worker(1, "m", 4096);
    engines.add_worker(2, "m", 4096);
    engines.worker(0).description.role = WorkerRole::kPrefill;
    engines.worker(0).description.transport = "shm:/p";
    engines.worker(0).description.epoch = Epoch(7);
    engines.worker(1).description.role = WorkerRole::kDecode;
    engines.worker(1).description.transport = "shm:/d";
    context.limits.placement.local_prefill_max = Duration::zero();
  }
  ~Rig() {
    if (run) run->abandon({ErrorCode::kCancelled, "the test is over", {}, {}});
    clock.run();
    run.reset();
    CHECK(context.ledger.empty());
  }

  void start(std::uint32_t choices = 1) {
    run = std::make_unique<EngineRun>(context, clock.now() + std::chrono::minutes(10));
    gate.start(live(choices));
    clock.run();
  }
  Task<void> live(std::uint32_t choices) {
    EngineRequest request;
    request.model = "m";
    request.prompt = std::make_shared<const std::vector<TokenId>>(100, 5);
    request.sampling.max_tokens = 50;
    request.sampling.choices = choices;
    auto placed = co_await run->place({"m", 100, 0, 30});
    REQUIRE(placed);
    REQUIRE(run->submit(*placed, std::move(request)));
    while (!finish) {
      auto next = co_await run->next(clock.now() + std::chrono::hours(1));
      if (!next) {
        error = next.error();
        break;
      }
      for (const OutputToken& token : (*next)->tokens)
        tokens.push_back(token.token);
      cached = std::max(cached, (*next)->cached_tokens);
      finish = (*next)->finish;
    }
    over = true;
  }

  // The open leg of that kind, counted from the back as emit() does.
  std::size_t back(Leg leg) {
    for (std::size_t i = 0; i < engines.open().size(); ++i) {
      const std::size_t at = engines.open().size() - 1 - i;
      if (engines.open()[at].request.handoff.leg == leg) return i;
    }
    FAIL("no such leg is open");
    return 0;
  }
  const EngineRequest& request(Leg leg) {
    return engines.open()[engines.open().size() - 1 - back(leg)].request;
  }
  void emit(Leg leg, std::vector<TokenId> what, std::optional<FinishReason> end = {},
            std::uint32_t choice = 0) {
    engines.emit(std::move(what), end, choice, back(leg));
    clock.run();
  }
};

using Expected = std::vector<TokenId>;

}  // namespace

TEST_CASE("both legs are submitted at once and name the same handoff") {
  Rig rig;
  rig.start();
  REQUIRE(rig.engines.open().size() == 2);
  const HandoffRef prefill = rig.request(Leg::kPrefill).handoff;
  const HandoffRef decode = rig.request(Leg::kDecode).handoff;
  CHECK(prefill.id == decode.id);
  CHECK(prefill.source.empty());
  CHECK(decode.source == "shm:/p");
  CHECK(decode.source_epoch == Epoch(7));
  CHECK(rig.engines.open()[0].worker == WorkerId(1));
  CHECK(rig.engines.open()[1].worker == WorkerId(2));
  // The decode rank's KV is promised with the prefill leg, answer included.
  const RankLedger::Entry prompt = rig.context.ledger.of({WorkerId(1), 0});
  CHECK(prompt.prompt_tokens == 100);
  CHECK(prompt.requests == 1);
  CHECK(prompt.kv_tokens == 100);
  CHECK(prompt.prompt_time > Duration::zero());
  CHECK(rig.context.ledger.of({WorkerId(2), 0}) == RankLedger::Entry{0, 1, 130, {}});
}

TEST_CASE("the first token comes from whoever is first, once") {
  for (const bool prefill_first : {true, false}) {
    Rig rig;
    rig.start();
    if (prefill_first) rig.emit(Leg::kPrefill, {10}, FinishReason::kHandedOff);
    rig.emit(Leg::kDecode, {10});
    if (!prefill_first) rig.emit(Leg::kPrefill, {10}, FinishReason::kHandedOff);
    rig.emit(Leg::kDecode, {11, 12});
    rig.emit(Leg::kDecode, {13}, FinishReason::kStop);
    CHECK(rig.over);
    CHECK(rig.tokens == Expected{10, 11, 12, 13});
    CHECK(rig.finish == FinishReason::kStop);
    CHECK(rig.cached == 2);
    CHECK(rig.engines.open().empty());
    CHECK(rig.run->moves() == 0);
  }
}

TEST_CASE("an answer that ends with its first token ends the decode leg") {
  Rig rig;
  rig.start();
  rig.emit(Leg::kPrefill, {10}, FinishReason::kStop);
  CHECK(rig.over);
  CHECK(rig.tokens == Expected{10});
  CHECK(rig.finish == FinishReason::kStop);
  CHECK(rig.engines.open().empty());
}

TEST_CASE("several choices: the prefill leg draws nothing") {
  Rig rig;
  rig.start(2);
  rig.emit(Leg::kPrefill, {}, FinishReason::kHandedOff, 0);
  rig.emit(Leg::kPrefill, {}, FinishReason::kHandedOff, 1);
  CHECK(rig.engines.open().size() == 1);
  CHECK_FALSE(rig.over);
  rig.emit(Leg::kDecode, {10}, {}, 0);
  rig.emit(Leg::kDecode, {20}, {}, 1);
  CHECK(rig.tokens == Expected{10, 20});
  CHECK_FALSE(rig.over);
}

TEST_CASE("prefill dies before the first token: both legs are placed again") {
  Rig rig;
  rig.start();
  const HandoffId before = rig.request(Leg::kDecode).handoff.id;
  rig.engines.kill(0);
  rig.engines.worker(0).connected = true;
  rig.clock.run();
  REQUIRE(rig.engines.open().size() == 2);
  CHECK(rig.request(Leg::kDecode).handoff.id != before);
  CHECK(rig.run->moves() == 1);
  rig.emit(Leg::kPrefill, {10}, FinishReason::kHandedOff);
  rig.emit(Leg::kDecode, {10, 11}, FinishReason::kLength);
  CHECK(rig.tokens == Expected{10, 11});
}

TEST_CASE("prefill dies after the first token: the decode leg goes on") {
  Rig rig;
  rig.start();
  rig.emit(Leg::kPrefill, {10});
  rig.engines.kill(0);
  rig.clock.run();
  REQUIRE(rig.engines.open().size() == 1);
  CHECK(rig.run->moves() == 0);
  rig.emit(Leg::kDecode, {10, 11}, FinishReason::kStop);
  CHECK(rig.tokens == Expected{10, 11});
}

TEST_CASE("a decode leg that had to compute the prompt itself ends the prefill leg") {
  Rig rig;
  rig.start();
  rig.emit(Leg::kDecode, {10});
  CHECK(rig.engines.open().size() == 2);
  rig.emit(Leg::kDecode, {11});
  REQUIRE(rig.engines.open().size() == 1);
  CHECK(rig.engines.open()[0].request.handoff.leg == Leg::kDecode);
  CHECK(rig.context.ledger.of({WorkerId(1), 0}) == RankLedger::Entry{});
  rig.emit(Leg::kDecode, {12}, FinishReason::kStop);
  CHECK(rig.tokens == Expected{10, 11, 12});
}

TEST_CASE("decode dies in mid-answer: placed again with what was emitted") {
  Rig rig;
  rig.start();
  rig.emit(Leg::kPrefill, {10}, FinishReason::kHandedOff);
  rig.emit(Leg::kDecode, {10, 11, 12});
  rig.engines.kill(1);
  rig.engines.worker(1).connected = true;
  rig.clock.run();
  REQUIRE(rig.engines.open().size() == 2);
  CHECK(rig.request(Leg::kPrefill).emitted == Expected{10, 11, 12});
  CHECK(rig.request(Leg::kDecode).emitted == Expected{10, 11, 12});
  rig.emit(Leg::kPrefill, {13}, FinishReason::kHandedOff);
  rig.emit(Leg::kDecode, {13, 14}, FinishReason::kStop);
  CHECK(rig.tokens == Expected{10, 11, 12, 13, 14});
  CHECK(rig.run->moves() == 1);
}

TEST_CASE("decode dies while prefill computes: both are placed again") {
  Rig rig;
  rig.start();
  rig.engines.kill(1);
  rig.clock.run();  // nobody decodes: the prefill worker does it all
  REQUIRE(rig.engines.open().size() == 1);
  CHECK(rig.engines.open()[0].worker == WorkerId(1));
  CHECK(rig.engines.open()[0].request.handoff.leg == Leg::kWhole);
  rig.emit(Leg::kWhole, {10, 11}, FinishReason::kStop);
  CHECK(rig.tokens == Expected{10, 11});
}

TEST_CASE("at most three moves, then an error") {
  Rig rig;
  rig.start();
  for (int i = 0; i < 4; ++i) {
    REQUIRE_FALSE(rig.over);
    rig.engines.kill(1);
    rig.engines.worker(1).connected = true;
    rig.clock.run();
  }
  REQUIRE(rig.over);
  REQUIRE(rig.error);
  CHECK(rig.error->code == ErrorCode::kUnavailable);
  CHECK(rig.run->moves() == 3);
  CHECK(rig.engines.open().empty());
}

TEST_CASE("a worker that is found gone at the submit is one that died") {
  for (const std::size_t gone : {0U, 1U}) {
    Rig rig;
    rig.engines.refuses.emplace(WorkerId(gone + 1),
                                Error{ErrorCode::kUnavailable, "the stream has ended", {}, {}});
    // The view hears of it a moment later.
    rig.clock.call_at(rig.clock.now() + std::chrono::milliseconds(5),
                      [&] { rig.engines.worker(gone).connected = false; });
    rig.start();
    rig.clock.advance(std::chrono::seconds(1));
    CHECK_FALSE(rig.over);
    CHECK(rig.run->moves() == 1);
    REQUIRE(rig.engines.open().size() == 1);
    CHECK(rig.engines.open()[0].worker == WorkerId(2 - gone));
    rig.emit(Leg::kWhole, {10, 11}, FinishReason::kStop);
    CHECK(rig.tokens == Expected{10, 11});
  }
}

TEST_CASE("a worker that is never there and never gone ends the request, in time") {
  Rig rig;
  for (const std::uint64_t worker : {1U, 2U})
    rig.engines.refuses.emplace(WorkerId(worker), Error{ErrorCode::kUnavailable, "gone", {}, {}});
  rig.start();
  rig.clock.advance(std::chrono::seconds(1));
  REQUIRE(rig.error);
  CHECK(rig.error->code == ErrorCode::kUnavailable);
  CHECK(rig.run->moves() == 3);
}

TEST_CASE("a client that leaves ends both legs at once, whatever has come") {
  for (const int tokens : {0, 1, 2}) {
    Rig rig;
    rig.start();
    if (tokens > 0) rig.emit(Leg::kPrefill, {10}, FinishReason::kHandedOff);
    if (tokens > 1) rig.emit(Leg::kDecode, {10, 11});
    rig.run->abandon({ErrorCode::kCancelled, "gone", {}, {}});
    CHECK(rig.engines.open().empty());
    CHECK(rig.context.ledger.empty());
    rig.clock.run();
    CHECK(rig.over);
  }
}

TEST_CASE("a leg that is refused for good ends the other, and the request") {
  for (const Leg leg : {Leg::kPrefill, Leg::kDecode}) {
    Rig rig;
    rig.start();
    rig.engines.fail({ErrorCode::kOverloaded, "too many", {}, {}}, rig.back(leg));
    rig.clock.run();
    REQUIRE(rig.error);
    CHECK(rig.error->code == ErrorCode::kOverloaded);
    CHECK(rig.engines.open().empty());
  }
}

}  // namespace penstock::gateway
