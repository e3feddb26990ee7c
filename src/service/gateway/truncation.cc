#include "service/gateway/truncation.h"

#include <algorithm>

namespace penstock::gateway {

Truncation::Truncation(const Conversation& conversation)
    : conversation_(conversation), dropped_(1) {
  const std::vector<Message>& messages = conversation.messages;
  const auto is = [&](std::size_t i, Role role) { return messages[i].role == role; };
  std::size_t last_user = messages.size();  // none
  std::size_t last_answer = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (is(i, Role::kUser)) last_user = i;
    if (is(i, Role::kAssistant)) last_answer = i;
  }
  std::vector<std::size_t> gone;  // up to here, the step that is being made included
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const bool begins_turn = is(i, Role::kUser);
    const bool begins_answer = is(i, Role::kAssistant) && (last_user < i);
    if ((begins_turn || begins_answer) && gone.size() > dropped_.back().size())
      dropped_.push_back(gone);
    const bool stays = is(i, Role::kSystem) || is(i, Role::kDeveloper) || i == last_user ||
                       (last_user < i && i >= last_answer) || last_user == messages.size();
    if (!stays) gone.push_back(i);
  }
  if (gone.size() > dropped_.back().size()) dropped_.push_back(gone);
}

Conversation Truncation::after(std::size_t steps) const {
  Conversation out;
  out.tools = conversation_.tools;
  out.thinking = conversation_.thinking;
  out.continue_last_assistant = conversation_.continue_last_assistant;
  for (std::size_t i = 0; i < conversation_.messages.size(); ++i) {
    if (!std::ranges::binary_search(dropped_[steps], i))
      out.messages.push_back(conversation_.messages[i]);
  }
  return out;
}

}  // namespace penstock::gateway
