// A conversation in the terminal: its history, and the commands that change it.
//
// Errors: run_slash_command says what is wrong with a command; nothing changes then. Concurrency: a
// value.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock {

struct ChatSession {
  struct Message {
    std::string role;
    std::string content;
  };
  std::string model;
  std::string system;
  double temperature = 1;
  std::uint32_t max_tokens = 0;
  std::vector<Message> history;  // without the system prompt

  boost::json::array messages() const;
  // The request for the history as it is, without the streaming flags.
  boost::json::object request() const;
};

struct SlashResult {
  bool quit = false;
  std::string say;  // for the person
};

bool is_slash_command(std::string_view line);
// Runs /help /reset /system /model /save /quit; `models` are those the server lists.
Result<SlashResult> run_slash_command(std::string_view line, ChatSession& session,
                                      const std::vector<std::string>& models);

// Text of a model made safe for a terminal: control characters but newline and tab are dropped, so
// an answer cannot move the cursor or set the title.
std::string terminal_text(std::string_view text);

}  // namespace penstock
