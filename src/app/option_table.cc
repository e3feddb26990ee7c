#include "app/option_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/values.h"
#include "base/check.h"

namespace penstock {
namespace {

using O = Options;

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};

std::unexpected<Error> out_of_range(const OptionInfo& row, std::string_view text) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("must be {}, not {}", range_text(row), text));
}

Status check_range(const OptionInfo& row, double value, std::string_view text) {
  if (row.minimum == 0 && row.maximum == 0) return {};
  if (value >= row.minimum && value <= row.maximum) return {};
  return out_of_range(row, text);
}

std::vector<std::string_view> split_choices(std::string_view choices) {
  std::vector<std::string_view> out;
  while (!choices.empty()) {
    const auto bar = std::min(choices.find('|'), choices.size());
    out.push_back(choices.substr(0, bar));
    choices.remove_prefix(std::min(bar + 1, choices.size()));
  }
  return out;
}

Status check_choice(const OptionInfo& row, std::string_view text) {
  const auto choices = split_choices(row.choices);
  if (choices.empty() || std::ranges::find(choices, text) != choices.end()) return {};
  // Other engines are planned; saying which work today beats "invalid value".
  if (choices.size() == 1)
    return fail(ErrorCode::kUnsupported,
                fmt::format("this version supports only \"{}\", not \"{}\"", choices[0], text));
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("must be {}, not \"{}\"", fmt::join(choices, " or "), text));
}

Status store(Options& options, const OptionInfo& row, std::string_view text) {
  const bool automatic = row.fallback == "auto" && text == "auto";
  return std::visit(Overloaded{
                        [&](std::string O::* field) -> Status {
                          if (!automatic && text.find('\0') != std::string_view::npos)
                            return fail(ErrorCode::kInvalidArgument, "must not hold a zero byte");
                          if (!text.empty() && !automatic) TRY_STATUS(check_choice(row, text));
                          options.*field = automatic ? std::string() : std::string(text);
                          return {};
                        },
                        [&](std::uint32_t O::* field) -> Status {
                          if (automatic) return options.*field = 0, Status{};
                          TRY(const auto value, parse_count(text));
                          TRY_STATUS(check_range(row, static_cast<double>(value), text));
                          options.*field = static_cast<std::uint32_t>(value);
                          return {};
                        },
                        [&](double O::* field) -> Status {
                          TRY(const auto value, parse_number(text));
                          TRY_STATUS(check_range(row, value, text));
                          options.*field = value;
                          return {};
                        },
                        [&](Bytes O::* field) -> Status {
                          if (automatic) return options.*field = Bytes(0), Status{};
                          TRY(const auto value, parse_bytes(text));
                          TRY_STATUS(check_range(row, static_cast<double>(value.value), text));
                          options.*field = value;
                          return {};
                        },
                        [&](Duration O::* field) -> Status {
                          if (automatic) return options.*field = Duration(-1), Status{};
                          TRY(const auto value, parse_duration(text));
                          TRY_STATUS(check_range(row, static_cast<double>(value.count()), text));
                          options.*field = value;
                          return {};
                        },
                        [&](bool O::* field) -> Status {
                          TRY(options.*field, parse_switch(text));
                          return {};
                        },
                        [&](std::vector<Assignment> O::* field) -> Status {
                          if (automatic || text.empty()) return (options.*field).clear(), Status{};
                          TRY(auto value, parse_assignment(text));
                          if (find_assignment(options.*field, value.name) != nullptr)
                            return fail(ErrorCode::kInvalidArgument,
                                        fmt::format("\"{}\" is given twice", value.name));
                          (options.*field).push_back(std::move(value));
                          return {};
                        },
                    },
                    row.field);
}

std::string amount_text(const OptionInfo& row, double amount) {
  const auto whole = static_cast<std::int64_t>(amount);
  if (std::holds_alternative<Bytes O::*>(row.field)) return format_bytes(Bytes(whole));
  if (std::holds_alternative<Duration O::*>(row.field)) return format_duration(Duration(whole));
  return fmt::format("{}", amount);
}

}  // namespace

const OptionInfo* find_flag(Command command, std::string_view flag) {
  for (const auto& row : option_table()) {
    if (row.flag == flag && contains(row.in, command)) return &row;
  }
  return nullptr;
}

const OptionInfo* find_key(std::string_view key) {
  const auto found = std::ranges::find(option_table(), key, &OptionInfo::key);
  return key.empty() || found == option_table().end() ? nullptr : &*found;
}

std::vector<const OptionInfo*> flags_of(Command command) {
  std::vector<const OptionInfo*> rows;
  for (const auto& row : option_table()) {
    if (contains(row.in, command)) rows.push_back(&row);
  }
  return rows;
}

Status set_option(Options& options, const OptionInfo& row, std::string_view text) {
  return store(options, row, text);
}

Options default_options() {
  Options options;
  for (const auto& row : option_table())
    ENSURE(set_option(options, row, row.fallback));
  return options;
}

std::string option_text(const Options& options, const OptionInfo& row) {
  return std::visit(
      Overloaded{
          [&](std::string O::* field) { return options.*field; },
          [&](std::uint32_t O::* field) { return std::to_string(options.*field); },
          [&](double O::* field) { return fmt::format("{}", options.*field); },
          [&](Bytes O::* field) { return format_bytes(options.*field); },
          [&](Duration O::* field) { return format_duration(options.*field); },
          [&](bool O::* field) { return std::string(options.*field ? "true" : "false"); },
          [&](std::vector<Assignment> O::* field) {
            std::string text;
            for (const auto& each : options.*field)
              text += fmt::format("{}{}={}", text.empty() ? "" : " ", each.name, each.value);
            return text;
          },
      },
      row.field);
}

boost::json::value option_json(const Options& options, const OptionInfo& row) {
  if (const auto* field = std::get_if<std::uint32_t O::*>(&row.field)) return options.**field;
  if (const auto* field = std::get_if<double O::*>(&row.field)) return options.**field;
  if (const auto* field = std::get_if<bool O::*>(&row.field)) return options.**field;
  if (const auto* field = std::get_if<std::vector<Assignment> O::*>(&row.field)) {
    boost::json::object map;
    for (const auto& each : options.**field)
      map[each.name] = each.value;
    return map;
  }
  return boost::json::value(option_text(options, row));
}

std::string type_name(const OptionInfo& row) {
  if (!row.choices.empty())
    return fmt::format("one of {}", fmt::join(split_choices(row.choices), ", "));
  const bool path = row.form == OptionForm::kPath;
  return std::visit(Overloaded{
                        [&](std::string O::*) { return path ? "path" : "text"; },
                        [](std::uint32_t O::*) { return "number"; },
                        [](double O::*) { return "number"; },
                        [](Bytes O::*) { return "size"; },
                        [](Duration O::*) { return "time"; },
                        [](bool O::*) { return "true or false"; },
                        [&](std::vector<Assignment> O::*) {
                          return path ? "map from names to paths" : "map from names to names";
                        },
                    },
                    row.field);
}

std::string range_text(const OptionInfo& row) {
  if (row.minimum == 0 && row.maximum == 0) return {};
  return fmt::format("{} to {}", amount_text(row, row.minimum), amount_text(row, row.maximum));
}

}  // namespace penstock
