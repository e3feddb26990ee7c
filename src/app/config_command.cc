// `penstock config`: show, explain, docs.
#include <fmt/format.h>

#include <array>
#include <cstdio>

#include "app/commands.h"
#include "app/config_file.h"
#include "app/console.h"
#include "app/help.h"
#include "app/suggest.h"
#include "io/telemetry/metrics.h"

namespace penstock {
namespace {

Result<int> print_docs(std::string_view page) {
  if (page == "cli") return print_data(cli_markdown());
  if (page == "config") return print_data(config_markdown());
  if (page == "metrics") return print_data(metrics_markdown());
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("config docs: expected cli, config or metrics, got \"{}\"", page));
}

}  // namespace

Result<int> run_config(const Options& options) {
  constexpr std::array<std::string_view, 3> kActions = {"show", "explain", "docs"};
  const std::string action = options.words.empty() ? "" : options.words[0];
  const std::string argument = options.words.size() < 2 ? "" : options.words[1];
  if (action == "show" && argument.empty())
    return print_data(pretty_json(effective_config(options)));
  if (action == "explain" && argument.empty()) return print_data(list_keys());
  if (action == "explain") {
    TRY(const auto text, explain_key(argument, options));
    return print_data(text);
  }
  if (action == "docs") return print_docs(argument);
  if (action.empty()) return print_data(command_help(*find_command("config")));
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("config: unknown action \"{}\"{} See `penstock config --help`.", action,
                  nearest(action, kActions).empty() ? "." : did_you_mean(action, kActions)));
}

}  // namespace penstock
