// The boundary between an engine's thread and the service's: real threads, no time.
#include "service/handoff/rank_port.h"

#include <thread>

#include <doctest/doctest.h>

#include "base/check.h"

namespace penstock::service {
namespace {

// Keeps what was posted, for the test to run.
class PostOnly final : public Clock {
 public:
  Instant now() const override { return {}; }
  TimerId call_at(Instant, std::function<void()>) override {
    ENSURE(false);
    return 0;
  }
  void cancel(TimerId) override { ENSURE(false); }
  void post(std::function<void()> call) override {
    posted_.with([&](auto& calls) { calls.push_back(std::move(call)); });
  }
  std::size_t run() {
    const auto calls = posted_.with([](auto& c) { return std::exchange(c, {}); });
    for (const auto& call : calls)
      call();
    return calls.size();
  }

 private:
  Guarded<std::vector<std::function<void()>>> posted_;
};

}  // namespace

TEST_CASE("calls arrive in order, blocks go back and results are seen, across threads") {
  constexpr std::uint32_t kCalls = 20000;
  PostOnly clock;
  std::uint32_t seen = 0;
  RankPort* self = nullptr;
  // The service: gives every published block back, ends every pull with its own number of tokens.
  RankPort port(
      clock,
      [&] {
        for (Command& command : self->take_commands()) {
          if (const auto* publish = std::get_if<PublishCommand>(&command)) {
            REQUIRE(publish->first == seen++);
            const std::uint32_t block = publish->blocks.at(0).block;
            self->give_back({&block, 1});
          } else if (auto* pull = std::get_if<PullCommand>(&command)) {
            REQUIRE(pull->tokens == seen++);
            EngineOutput output;
            output.index = pull->tokens;
            if (pull->tokens % 2 == 0)
              pull->result->done(pull->tokens, output);
            else
              pull->result->fail(std::to_string(pull->tokens));
            self->give_back(pull->to);
          }
        }
        self->wake();
      },
      [] {});
  self = &port;
  std::uint64_t freed = 0;
  std::uint64_t right = 0;
  std::thread engine([&] {
    std::vector<std::shared_ptr<Pull>> pulls;
    for (std::uint32_t i = 0; i < kCalls; ++i) {
      const HandoffBlock block{i, 1};
      if (i % 4 == 0)
        port.publish({1, 2}, i, {&block, 1}, i);
      else
        pulls.push_back(port.pull({}, "nano", i, {i}));
      freed += port.take_freed().size();
    }
    while (freed < kCalls)
      freed += port.take_freed().size();
    // Results come before their blocks.
    for (const auto& pull : pulls) {
      if (pull->state() == Pull::State::kDone)
        right += pull->first_output()->index == pull->tokens();
      else if (pull->state() == Pull::State::kFailed)
        right += std::stoul(pull->why()) % 2 == 1;
    }
  });
  std::size_t turns = 0;
  while (seen < kCalls)
    turns += clock.run();
  engine.join();
  CHECK(freed == kCalls);
  CHECK(right == kCalls / 4 * 3);
  CHECK(turns <= kCalls);
  CHECK(clock.run() == 0);
}

}  // namespace penstock::service
