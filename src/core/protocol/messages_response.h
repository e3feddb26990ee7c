// Anthropic Messages answers: a stream of named events, or one whole message.
//
// Content is a row of blocks (thinking, text, tool_use): a delta of another kind ends the block
// that is open and begins the next, so blocks never overlap and their index only rises.
//
//   message_start                     content empty, usage of the prompt
//   content_block_start, _delta*, _stop   thinking has its signature_delta before the stop
//   message_delta                     stop_reason, stop_sequence, usage of everything
//   message_stop
//
// Invariants: as AnswerWriter; exactly one message_start; each tool_use has its id and name once,
// and what its pieces join to is a JSON object as far as the model's output is (a call without
// arguments is {}); a text that comes while a call's arguments do is a bug of the caller (ENSURE).
// A signature says nothing about the text: it is the message's id, there because clients want
// one. One choice. Units: input_tokens excludes cached ones, which are cache_read_input_tokens;
// nothing is charged for writing a cache, so cache_creation_input_tokens is 0. Concurrency: one
// request each. Source: facts/api.md 3.4 and 5.5.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/protocol/answer_writer.h"

namespace penstock::protocol {

struct MessagesAnswer {
  std::string id = {};          // "msg_..."
  std::string model = {};       // as the client named it
  std::string request_id = {};  // for errors in mid-stream
};

std::unique_ptr<AnswerWriter> make_messages_stream(MessagesAnswer answer);
std::unique_ptr<AnswerWriter> make_messages_collector(MessagesAnswer answer);

// The answer of count_tokens.
std::string messages_token_count(std::uint64_t tokens);

}  // namespace penstock::protocol
