// The table of subcommands: feeds the parser, help and docs/cli.md. A command that does not work
// yet is not in it. Concurrency: constant.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace penstock {

enum class Command : std::uint8_t {
  kServe,
  kChat,
  kDoctor,
  kEval,
  kBench,
  kConfig,
  kGateway,
  kWorker,
  kKvd,
  kKv,
  kExperts,
  kProfile,
  kExplain,
  kSimulate,
  kPlan,
  kEmulate,
};

// A set of commands, for the rows of the option table.
using Commands = std::uint32_t;
template <typename... C>
constexpr Commands commands(C... each) {
  return ((Commands{1} << static_cast<unsigned>(each)) | ... | Commands{0});
}
constexpr bool contains(Commands set, Command command) {
  return (set & commands(command)) != 0;
}

struct CommandInfo {
  Command id;
  std::string_view name;
  std::string_view group;  // heading in the overview
  std::string_view words;  // arguments that are not flags, as in the usage line
  std::size_t words_max;
  std::string_view summary;
  std::string_view detail;
  std::string_view examples;  // lines "command   # what it does"
};

std::span<const CommandInfo> command_table();
// nullptr when there is none of that name.
const CommandInfo* find_command(std::string_view name);

}  // namespace penstock
