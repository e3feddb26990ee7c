#include "app/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "app/option_table.h"
#include "app/suggest.h"
#include "app/text_layout.h"

namespace penstock {
namespace {

constexpr std::size_t kWidth = 100;

std::string flag_label(const OptionInfo& row) {
  return fmt::format("--{}{}{}", row.flag, row.shape.empty() ? "" : " ", row.shape);
}

// "[8080]", or nothing for an empty default or a switch.
std::string default_note(const OptionInfo& row) {
  if (row.fallback.empty() || row.fallback == "false") return {};
  return fmt::format(" [{}]", row.fallback);
}

std::string sentence(std::string_view summary) {
  return fmt::format("{}.", summary);
}

std::string flags_of_key(const OptionInfo& row) {
  std::vector<std::string_view> names;
  for (const auto& command : command_table()) {
    if (contains(row.in, command.id)) names.push_back(command.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// Keys in the table's order, without flag-only rows.
std::vector<const OptionInfo*> keyed_rows() {
  std::vector<const OptionInfo*> rows;
  for (const auto& row : option_table()) {
    if (!row.key.empty()) rows.push_back(&row);
  }
  return rows;
}

std::string indented(std::string_view lines) {
  std::string out;
  while (!lines.empty()) {
    const auto end = std::min(lines.find('\n'), lines.size());
    out += fmt::format("  {}\n", lines.substr(0, end));
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return out;
}

std::string usage_line(const CommandInfo& command) {
  return fmt::format("penstock {}{}{} [FLAGS]", command.name, command.words.empty() ? "" : " ",
                     command.words);
}

}  // namespace

std::string overview_text() {
  std::string out =
      "Penstock serves language models over HTTP with the OpenAI API.\n\n"
      "First steps:\n"
      "  penstock doctor          # is this machine ready?\n"
      "  penstock serve           # start; prints the address\n"
      "  penstock chat            # talk to it, in another terminal\n";
  std::vector<std::string_view> groups;
  for (const auto& command : command_table()) {
    if (std::ranges::find(groups, command.group) == groups.end()) groups.push_back(command.group);
  }
  for (const auto group : groups) {
    out += fmt::format("\n{}:\n", group);
    for (const auto& command : command_table()) {
      if (command.group == group) out += fmt::format("  {:<9} {}\n", command.name, command.summary);
    }
  }
  out +=
      "\n`penstock COMMAND --help` shows a command's flags and examples; `penstock --version` the\n"
      "version. Data goes to standard output, logs to standard error.\n";
  return out;
}

std::string command_help(const CommandInfo& command) {
  std::string out =
      fmt::format("{}.\n\nUsage: {}\n\n{}\n\nExamples:\n{}\nFlags:\n", command.summary,
                  usage_line(command), wrap(command.detail, kWidth, 0), indented(command.examples));
  const auto rows = flags_of(command.id);
  std::size_t widest = std::string_view("--help").size();
  for (const auto* row : rows)
    widest = std::max(widest, flag_label(*row).size());
  for (const auto* row : rows) {
    const auto text = std::string(row->summary) + default_note(*row);
    out += fmt::format("  {:<{}}  {}\n", flag_label(*row), widest, wrap(text, kWidth, widest + 4));
  }
  out += fmt::format("  {:<{}}  Show this help\n", "--help", widest);
  out += "\nIn a value, sizes are written 64KiB or 8GiB and times 500ms, 30s or 10min.\n";
  return out;
}

std::string list_keys() {
  std::vector<std::vector<std::string>> rows;
  for (const auto* row : keyed_rows())
    rows.push_back({std::string(row->key), std::string(row->summary) + default_note(*row)});
  return table(rows);
}

Result<std::string> explain_key(std::string_view name, const Options& options) {
  const OptionInfo* row = find_key(name);
  if (row == nullptr) {
    const auto flag = name.starts_with("--") ? name.substr(2) : name;
    const auto rows = keyed_rows();
    const auto found = std::ranges::find(rows, flag, &OptionInfo::flag);
    if (found != rows.end()) row = *found;
  }
  if (row == nullptr) {
    std::vector<std::string_view> known;
    for (const auto* each : keyed_rows())
      known.push_back(each->key);
    return fail(ErrorCode::kNotFound,
                fmt::format("no configuration key \"{}\"{} `penstock config explain` lists all.",
                            name, nearest(name, known).empty() ? "." : did_you_mean(name, known)),
                std::string(name));
  }
  std::string out = fmt::format("{}\n  {}\n", row->key, sentence(row->summary));
  if (!row->detail.empty()) out += fmt::format("  {}\n", wrap(row->detail, kWidth, 2));
  std::vector<std::vector<std::string>> facts;
  const auto fact = [&](std::string_view what, std::string value) {
    facts.push_back({"", std::string(what), std::move(value)});
  };
  fact("type", type_name(*row));
  if (const auto range = range_text(*row); !range.empty()) fact("range", range);
  fact("default", row->fallback.empty() ? "none" : std::string(row->fallback));
  const auto now = option_text(options, *row);
  fact("now", now.empty() ? "none" : now);
  fact("flag", fmt::format("{} of {}", flag_label(*row), flags_of_key(*row)));
  return out + table(facts);
}

namespace {

std::string escaped_cell(std::string_view text) {
  std::string out;
  for (const char c : text)
    out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

constexpr std::string_view kGenerated =
    "This page is generated from the tables in `src/app/option_rows.cc` and\n"
    "`src/app/command_table.cc`; a test checks that it is fresh and `UPDATE=1` rewrites it.\n";

}  // namespace

std::string cli_markdown() {
  std::string out = fmt::format("# Command line\n\n{}\n", kGenerated);
  out +=
      "Data goes to standard output, logs and progress to standard error. Exit codes: 0 success,\n"
      "1 a check failed (`doctor`, `eval`), 64 bad usage or configuration, 69 unavailable, 73 "
      "conflict,\n"
      "74 input or output failed, 77 not allowed, 130 stopped by a second signal.\n";
  for (const auto& command : command_table()) {
    out += fmt::format("\n## penstock {}\n\n{}.\n\n    {}\n\n{}\n\n```sh\n{}```\n\n", command.name,
                       command.summary, usage_line(command), wrap(command.detail, kWidth, 0),
                       command.examples);
    out += "| flag | default | meaning |\n|---|---|---|\n";
    for (const auto* row : flags_of(command.id)) {
      out += fmt::format("| `{}` | {} | {}{}{} |\n", escaped_cell(flag_label(*row)),
                         row->fallback.empty() ? "" : fmt::format("`{}`", row->fallback),
                         sentence(row->summary), row->detail.empty() ? "" : " ",
                         escaped_cell(row->detail));
    }
  }
  return out;
}

std::string config_markdown() {
  std::string out = fmt::format("# Configuration\n\n{}\n", kGenerated);
  out +=
      "One YAML file, given with `--config FILE` or in the environment variable `PENSTOCK_CONFIG`. "
      "Flags\n"
      "override it. Unknown keys are errors. Relative paths start at the file's folder and `~/` is "
      "the\n"
      "home. `penstock config show` prints the effective configuration, `penstock config explain "
      "KEY`\n"
      "describes a key.\n\n"
      "| key | type | default | flag | meaning |\n|---|---|---|---|---|\n";
  for (const auto* row : keyed_rows()) {
    const auto range = range_text(*row);
    out += fmt::format("| `{}` | {}{}{} | {} | `--{}` | {}{}{} |\n", row->key, type_name(*row),
                       range.empty() ? "" : ", ", range,
                       row->fallback.empty() ? "" : fmt::format("`{}`", row->fallback), row->flag,
                       sentence(row->summary), row->detail.empty() ? "" : " ",
                       escaped_cell(row->detail));
  }
  out +=
      "\n## Example\n\n```yaml\nlisten:\n  port: 8443\n  host: 0.0.0.0\n  tls_cert: cert.pem\n"
      "  tls_key: key.pem\n  api_keys: keys.txt\nmodels:\n  nano: models/nano\naliases:\n"
      "  gpt-4o-mini: nano\nengine:\n  kv_memory: 2GiB\nlimits:\n  request_time: 5min\nlog:\n"
      "  format: json\n```\n";
  return out;
}

}  // namespace penstock
