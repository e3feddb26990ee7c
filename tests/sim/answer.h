// Answer: what a client got, without what may differ between two right answers.
//
// How tokens are shared out to chunks, ids and times differ; text, reasoning, log-probabilities,
// finish reasons and counts don't. Read from the bytes of a chat completion, whole or streamed,
// finished or cut off.
// Errors: what is no answer at all gives `broken`. Concurrency: values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace penstock::simulated {

struct AnswerChoice {
  std::string reasoning;
  std::string content;
  std::string logprobs;  // of every token, as text
  std::string finish;
  bool operator==(const AnswerChoice&) const = default;
};

struct Answer {
  std::map<std::int64_t, AnswerChoice> choices;
  std::int64_t prompt_tokens = -1;
  std::int64_t completion_tokens = -1;
  bool done = false;  // nothing is missing
  std::string error;  // its message, in place of the rest
  bool broken = false;

  // Both whole and the same.
  bool equals(const Answer& other) const;
  // What is there is how `whole` begins.
  bool begins(const Answer& whole) const;
};

Answer read_answer(std::string_view bytes, bool streamed);

}  // namespace penstock::simulated
