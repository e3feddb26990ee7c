// The command line: from arguments to checked Options.
//
// Defaults, then the configuration file (--config or $PENSTOCK_CONFIG), then the flags; then
// automatic values are resolved from the environment and the whole is checked. CLI11 splits the
// arguments; which flags exist comes from the option table.
//
// Errors: kInvalidArgument naming the flag, the file's line or the contradiction, and what to do;
// kUnsupported for a value that this version cannot serve.
// Concurrency: pure but for reading the configuration file.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "app/command_table.h"
#include "app/environment.h"
#include "app/options.h"
#include "base/result.h"

namespace penstock {

struct CommandLine {
  const CommandInfo* command = nullptr;  // null: `penstock` or `penstock help`
  bool help = false;
  bool version = false;
  Options options;  // only when neither help nor version is asked for
};

// `arguments` are those after the program's name.
Result<CommandLine> parse_command_line(std::vector<std::string> arguments,
                                       const Environment& environment);

// Replaces automatic values; called by parse_command_line.
void resolve_automatic(Options& options, const Environment& environment);

// Checks what rows alone cannot: combinations of options for a command.
Status check_options(const Options& options, Command command);

// Whether `host` names only this machine: 127.0.0.0/8, ::1 or localhost.
bool is_loopback(std::string_view host);

}  // namespace penstock
