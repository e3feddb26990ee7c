// Texts made from the command and option tables: --help, `config explain`, docs/cli.md,
// docs/config.md. Concurrency: pure.
#pragma once

#include <string>

#include "app/command_table.h"
#include "app/options.h"
#include "base/result.h"

namespace penstock {

// `penstock` alone: what it is, the commands, first steps.
std::string overview_text();
// `penstock COMMAND --help`.
std::string command_help(const CommandInfo& command);
// `penstock config explain`: every key with its summary.
std::string list_keys();
// `penstock config explain KEY`: one key or flag in full, with its effective value. Fails with
// kNotFound and the nearest key.
Result<std::string> explain_key(std::string_view name, const Options& options);

// docs/cli.md and docs/config.md.
std::string cli_markdown();
std::string config_markdown();

}  // namespace penstock
