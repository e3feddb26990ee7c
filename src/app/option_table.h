// The option table: every flag and configuration key, once.
//
// A row binds a field of Options to its flag, its key in the configuration file, its default, its
// limits and its description. The parser, the file loader, --help, `config explain`, docs/cli.md
// and docs/config.md all read these rows; nothing else knows a flag's name.
//
// Invariants: flags are unique within a command; keys are unique; every default parses.
// Errors: set_option() fails with kInvalidArgument saying what is expected; field = key or flag.
// Concurrency: the table is constant.
// Source: style.md, "Command line and console".
#pragma once

#include <boost/json/value.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "app/command_table.h"
#include "app/options.h"
#include "base/result.h"

namespace penstock {

using OptionField = std::variant<std::string Options::*, std::uint32_t Options::*,
                                 double Options::*, Bytes Options::*, Duration Options::*,
                                 bool Options::*, std::vector<Assignment> Options::*>;

enum class OptionForm : std::uint8_t {
  kPlain,
  kPath,   // made absolute: flags from the working folder, file values from the file's folder
  kWords,  // several words of text, parted by spaces; the flag is repeatable
};

struct OptionInfo {
  std::string_view flag;  // without the dashes
  std::string_view key;   // path in the file, "listen.port"; empty = flag only
  OptionField field;
  Commands in;                // commands that take the flag
  std::string_view shape;     // value in help: "N", "DIR"
  std::string_view fallback;  // default as text; "auto" = from the machine or what is run (0,
                              // empty, or for times negative, until resolved)
  double minimum;             // numbers, bytes and nanoseconds; 0, 0 = no limits
  double maximum;
  std::string_view choices;  // "bf16|f32"; empty = any
  OptionForm form;
  std::string_view summary;  // one line, no full stop
  std::string_view detail;   // further sentences, may be empty
};

std::span<const OptionInfo> option_table();

// The row of a flag for one command, or of a key; nullptr when there is none.
const OptionInfo* find_flag(Command command, std::string_view flag);
const OptionInfo* find_key(std::string_view key);

// The flags a command takes, in the table's order.
std::vector<const OptionInfo*> flags_of(Command command);

// Parses and stores one value; an Assignment is appended.
Status set_option(Options& options, const OptionInfo& row, std::string_view text);
// All fields at their defaults; automatic ones 0 or empty.
Options default_options();

// The value as it is written in a file or on the command line; assignments joined with spaces.
std::string option_text(const Options& options, const OptionInfo& row);
// For configuration files: text, numbers, booleans, or an object for assignments.
boost::json::value option_json(const Options& options, const OptionInfo& row);

// "number", "size", "time", "text", "true or false", "NAME: VALUE map", "path", "one of a, b".
std::string type_name(const OptionInfo& row);
// "1 to 4096", "at least 1MiB", or empty.
std::string range_text(const OptionInfo& row);

}  // namespace penstock
