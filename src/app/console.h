// What commands print: data to stdout, everything for people to stderr.
//
// Errors: print_data fails with kIo when stdout cannot take it (a full disk); a closed pipe ends
// the process by SIGPIPE as usual. Concurrency: one thread.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "base/result.h"

namespace penstock {

// Writes all of it to stdout and flushes; a newline is added when the last one is missing. The
// value is exit code 0, so that `return print_data(x)` ends a command.
Result<int> print_data(std::string_view text);

// A JSON text with two spaces of indentation per level; the text itself when it is not JSON.
std::string pretty_json(std::string_view json);

bool is_terminal(std::FILE* stream);
// Columns of the terminal on stderr, 80 when unknown.
std::size_t terminal_width();

// "penstock: message" on stderr, with the field and what to do where known; returns the exit code.
int print_error(const Error& error);

// A bar on stderr: drawn only when stderr is a terminal, erased at the end.
class ProgressBar {
 public:
  ProgressBar(std::string what, std::size_t total);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void update(std::size_t done);

 private:
  std::string what_;
  std::size_t total_;
  std::size_t drawn_percent_ = 101;
  bool visible_;
};

}  // namespace penstock
