#include "io/telemetry/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <memory>

namespace penstock {
namespace {

struct Sink {
  std::shared_ptr<spdlog::logger> logger;
  LogFormat format;
};

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

Sink make_sink(const LogOptions& options) {
  auto logger = std::make_shared<spdlog::logger>(
      "penstock", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(spdlog_level(options.level));
  // '%' starts a pattern flag; process names are ours, but a doubled one keeps that from mattering.
  std::string process;
  for (const char c : options.process)
    process += c == '%' ? std::string("%%") : std::string(1, c);
  const std::string pattern =
      options.format == LogFormat::kJson
          ? fmt::format(
                R"({{"ts":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","process":"{}","message":%v}})",
                process)
          : fmt::format("%Y-%m-%dT%H:%M:%S.%eZ %^%-7l%$ {:<7} %v", process);
  logger->set_pattern(pattern, spdlog::pattern_time_type::utc);
  return {std::move(logger), options.format};
}

// The process's one log. Set up before threads start; spdlog's sink locks.
Sink& sink() {
  static Sink current = make_sink({.process = "penstock"});
  return current;
}

// Control characters would let a peer's text forge lines or drive a terminal.
std::string printable(std::string_view message) {
  std::string out;
  out.reserve(message.size());
  for (const char c : message) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

}  // namespace

void set_up_log(const LogOptions& options) {
  sink() = make_sink(options);
}

Result<LogLevel> parse_log_level(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("log level must be debug, info, warning or error, not \"{}\"", name));
}

Result<LogFormat> parse_log_format(std::string_view name) {
  if (name == "text") return LogFormat::kText;
  if (name == "json") return LogFormat::kJson;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("log format must be text or json, not \"{}\"", name));
}

bool log_enabled(LogLevel level) {
  return sink().logger->should_log(spdlog_level(level));
}

void log_line(LogLevel level, std::string_view message) {
  const Sink& to = sink();
  to.logger->log(spdlog_level(level), to.format == LogFormat::kJson
                                          ? boost::json::serialize(boost::json::string(message))
                                          : printable(message));
}

}  // namespace penstock
