// RankPort: what one rank's engine calls, and how its calls reach the service's thread.
//
// A call becomes a Command in a mailbox; the first one after the mailbox was emptied posts a turn
// to the transport's clock. Blocks and results come back the same way: into a list that
// take_freed() empties, and into the PullResult; `wake` says that there is news.
//
// Invariants: commands arrive in the order of the calls. Limits: the engine's own, of requests and
// blocks, bound the mailbox. Errors: none. Concurrency: HandoffPort's functions on the engine's
// thread, PullResult's readers on any, the rest on the service's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/guarded.h"
#include "core/handoff/owner.h"
#include "port/clock.h"
#include "port/handoff.h"

namespace penstock::service {

class PullResult final : public Pull {
 public:
  State state() const override { return state_.get(); }
  std::uint32_t tokens() const override { return tokens_; }
  const std::optional<EngineOutput>& first_output() const override { return output_; }
  std::string why() const override { return why_; }

  // Once. The rest is written before the state and never again, so whoever has seen the state may
  // read it without a lock.
  void done(std::uint32_t tokens, std::optional<EngineOutput> output);
  void fail(std::string why);

  std::uint64_t number = 0;  // of the service's thread: the pull there; 0: not begun or over

 private:
  void set(State state);

  std::uint32_t tokens_ = 0;
  std::optional<EngineOutput> output_;
  std::string why_;
  Guarded<State> state_{State::kRunning};
};

struct AnnounceCommand {
  HandoffId id;
  std::string model;
};
struct PublishCommand {
  HandoffId id;
  std::uint32_t first = 0;
  std::vector<handoff::GivenBlock> blocks;
  std::uint32_t tokens = 0;
};
struct CloseCommand {
  HandoffId id;
  std::optional<EngineOutput> output;
};
struct WithdrawCommand {
  HandoffId id;
  std::string why;
};
struct PullCommand {
  HandoffRef from;
  std::string model;
  std::uint32_t tokens = 0;
  std::vector<std::uint32_t> to;
  std::shared_ptr<PullResult> result;
};
struct FillCommand {
  std::shared_ptr<PullResult> result;
  std::vector<std::uint32_t> to;
};
struct StopCommand {
  std::shared_ptr<PullResult> result;
};
using Command = std::variant<AnnounceCommand, PublishCommand, CloseCommand, WithdrawCommand,
                             PullCommand, FillCommand, StopCommand>;

class RankPort final : public HandoffPort {
 public:
  // `turn` is posted to `clock` when there are commands; it must not use the service after its end.
  RankPort(Clock& clock, std::function<void()> turn, std::function<void()> wake)
      : clock_(clock), turn_(std::move(turn)), wake_(std::move(wake)) {}

  void announce(HandoffId id, const std::string& model) override;
  void publish(HandoffId id, std::uint32_t first, std::span<const HandoffBlock> blocks,
               std::uint32_t tokens) override;
  void close(HandoffId id, std::optional<EngineOutput> first_output) override;
  void withdraw(HandoffId id, const std::string& why) override;
  std::shared_ptr<Pull> pull(const HandoffRef& from, const std::string& model, std::uint32_t tokens,
                             std::vector<std::uint32_t> to) override;
  void fill(const std::shared_ptr<Pull>& pull, std::vector<std::uint32_t> to) override;
  void stop(const std::shared_ptr<Pull>& pull) override;
  std::vector<std::uint32_t> take_freed() override;

  // --- The service's thread
  std::vector<Command> take_commands();
  void give_back(std::span<const std::uint32_t> blocks);
  void wake() { wake_(); }

 private:
  struct Mailbox {
    std::vector<Command> commands;
    std::vector<std::uint32_t> freed;
  };
  void push(Command command);

  Clock& clock_;
  std::function<void()> turn_;
  std::function<void()> wake_;
  Guarded<Mailbox> mailbox_;
};

}  // namespace penstock::service
