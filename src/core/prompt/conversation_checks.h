// What every chat encoding asks of a conversation before it writes it, and the JSON in it in the
// models' spelling.
//
// Errors: kInvalidArgument naming the field of the request. Concurrency: pure.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"
#include "domain/conversation.h"

namespace penstock::prompt {

// There are messages, and an answer to be continued is the last one.
Status check_order(const Conversation& conversation);

// Tool `index` as {"type": "function", "function": {...}} in Python's spelling; `indent` as in
// python_style.
Result<std::string> tool_json(const Conversation& conversation, std::size_t index, int indent = 0);

// The arguments of a call in Python's spelling.
Result<std::string> call_arguments(const Message& message, std::size_t message_index,
                                   std::size_t call_index);

}  // namespace penstock::prompt
