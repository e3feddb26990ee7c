// Completions answers: events in, text_completion chunks or one whole object out.
//
// The choices of a prompt follow one another, prompt by prompt, and the text of each begins with
// the prompt's echo. Logprobs have the older shape: four arrays in step, where `top_logprobs` holds
// a map from token to logprob with the chosen token always in it (so one more than asked for at
// most), and `text_offset` is the character of the choice's text in which a token begins. A token
// that is no whole characters is spelled "bytes:\xe2\x80", as in OpenAI's API, so that two of them
// do not look alike.
//
// Invariants: the chunks of a stream fold into the whole answer: texts joined, arrays joined.
// Errors, concurrency: as AnswerWriter. Source: facts/api.md 3.5.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/protocol/answer_writer.h"

namespace penstock::protocol {

struct CompletionAnswer {
  std::string id = {};                   // "cmpl-..."
  std::int64_t created = 0;              // seconds since 1970
  std::string model = {};                // as the client named it
  std::vector<std::string> echoes = {};  // one a prompt, or none
  std::uint32_t choices = 1;             // of all prompts, as many of each
  std::int32_t top_logprobs = -1;        // below 0: none at all
  bool include_usage = false;            // streams only
};

std::unique_ptr<AnswerWriter> make_completion_stream(CompletionAnswer answer);
std::unique_ptr<AnswerWriter> make_completion_collector(CompletionAnswer answer);

}  // namespace penstock::protocol
