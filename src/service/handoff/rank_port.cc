#include "service/handoff/rank_port.h"

#include <utility>

#include "base/check.h"

namespace penstock::service {

void PullResult::set(State state) {
  state_.with([&](State& now) {
    ENSURE(now == State::kRunning);
    now = state;
  });
}

void PullResult::done(std::uint32_t tokens, std::optional<EngineOutput> output) {
  tokens_ = tokens;
  output_ = std::move(output);
  set(State::kDone);
}

void PullResult::fail(std::string why) {
  why_ = std::move(why);
  set(State::kFailed);
}

void RankPort::push(Command command) {
  const bool first = mailbox_.with([&](Mailbox& mailbox) {
    mailbox.commands.push_back(std::move(command));
    return mailbox.commands.size() == 1;
  });
  if (first) clock_.post(turn_);
}

void RankPort::announce(HandoffId id, const std::string& model) {
  push(AnnounceCommand{id, model});
}

void RankPort::publish(HandoffId id, std::uint32_t first, std::span<const HandoffBlock> blocks,
                       std::uint32_t tokens) {
  PublishCommand command{id, first, {}, tokens};
  command.blocks.reserve(blocks.size());
  for (const HandoffBlock& block : blocks)
    command.blocks.push_back({block.block, block.generation});
  push(std::move(command));
}

void RankPort::close(HandoffId id, std::optional<EngineOutput> first_output) {
  push(CloseCommand{id, std::move(first_output)});
}

void RankPort::withdraw(HandoffId id, const std::string& why) {
  push(WithdrawCommand{id, why});
}

std::shared_ptr<Pull> RankPort::pull(const HandoffRef& from, const std::string& model,
                                     std::uint32_t tokens, std::vector<std::uint32_t> to) {
  auto result = std::make_shared<PullResult>();
  push(PullCommand{from, model, tokens, std::move(to), result});
  return result;
}

// Every Pull that an engine has came from pull().
void RankPort::fill(const std::shared_ptr<Pull>& pull, std::vector<std::uint32_t> to) {
  push(FillCommand{std::static_pointer_cast<PullResult>(pull), std::move(to)});
}

void RankPort::stop(const std::shared_ptr<Pull>& pull) {
  push(StopCommand{std::static_pointer_cast<PullResult>(pull)});
}

std::vector<std::uint32_t> RankPort::take_freed() {
  return mailbox_.with([](Mailbox& mailbox) { return std::exchange(mailbox.freed, {}); });
}

std::vector<Command> RankPort::take_commands() {
  return mailbox_.with([](Mailbox& mailbox) { return std::exchange(mailbox.commands, {}); });
}

void RankPort::give_back(std::span<const std::uint32_t> blocks) {
  mailbox_.with([&](Mailbox& mailbox) {
    mailbox.freed.insert(mailbox.freed.end(), blocks.begin(), blocks.end());
  });
}

}  // namespace penstock::service
