// Log lines to stderr, as text for people or as JSON for collectors.
//
// set_up_log() once at start, then log_info(...) and friends from any thread; before set-up, lines
// of level info and above go to stderr as text. A line is one write(2), so processes that share a
// terminal do not mix their lines.
// JSON: {"ts":"2026-01-02T03:04:05.678Z","level":"info","process":"gateway","message":"..."}
//
// Never log content of requests or answers, nor keys.
// Errors: none; a full or closed stderr loses lines. Concurrency: any thread.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace penstock {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };
enum class LogFormat : std::uint8_t { kText, kJson };

struct LogOptions {
  std::string process;  // "serve", "gateway", "worker": a column of every line
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
};

void set_up_log(const LogOptions& options);
// "debug", "info", "warning", "error".
Result<LogLevel> parse_log_level(std::string_view name);
Result<LogFormat> parse_log_format(std::string_view name);

bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view message);

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kDebug))
    log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kInfo))
    log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kWarning))
    log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kError))
    log_line(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace penstock
