#include "app/ready.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cerrno>
#include <optional>

namespace penstock {
namespace {

namespace json = boost::json;

enum class Told : std::uint8_t { kNothing, kReady, kFailure };
// The descriptor's number may belong to something else after the first report.
std::atomic<Told> told{Told::kNothing};

void send_line(std::uint32_t fd, Told what, std::string line) {
  auto nothing = Told::kNothing;
  if (fd == 0 || !told.compare_exchange_strong(nothing, what)) return;
  line += '\n';
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t n = ::write(static_cast<int>(fd), rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
  ::close(static_cast<int>(fd));
}

std::optional<ErrorCode> code_named(std::string_view name) {
  for (auto i = 0; i <= static_cast<int>(ErrorCode::kInternal); ++i) {
    if (error_info(static_cast<ErrorCode>(i)).name == name) return static_cast<ErrorCode>(i);
  }
  return std::nullopt;
}

std::string text_of(const json::object& object, std::string_view key) {
  const auto* const value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->as_string()) : std::string();
}

}  // namespace

std::string ready_line(const ReadyReport& report) {
  json::array facts;
  for (const auto& fact : report.facts)
    facts.push_back(json::array{fact.what, fact.value});
  return json::serialize(
      json::object{{"ready", true}, {"port", report.port}, {"facts", std::move(facts)}});
}

std::string failure_line(const Error& error) {
  return json::serialize(json::object{{"ready", false},
                                      {"code", error_info(error.code).name},
                                      {"message", error.message},
                                      {"field", error.field}});
}

void report_ready(std::uint32_t fd, const ReadyReport& report) {
  send_line(fd, Told::kReady, ready_line(report));
}

void report_failure(std::uint32_t fd, const Error& error) {
  send_line(fd, Told::kFailure, failure_line(error));
}

bool failure_was_reported() {
  return told == Told::kFailure;
}

Result<ReadyReport> parse_ready_line(std::string_view line) {
  const auto malformed = [&] {
    return fail(ErrorCode::kDataLoss,
                fmt::format("not a readiness report: {}", line.substr(0, 200)));
  };
  boost::system::error_code error;
  const json::value value = json::parse(line, error);
  const auto* const object = error ? nullptr : value.if_object();
  const auto* const ready = object == nullptr ? nullptr : object->if_contains("ready");
  if (ready == nullptr || !ready->is_bool()) return malformed();
  if (!ready->as_bool())
    return fail(code_named(text_of(*object, "code")).value_or(ErrorCode::kInternal),
                text_of(*object, "message"), text_of(*object, "field"));
  ReadyReport report;
  const auto* const port = object->if_contains("port");
  if (port == nullptr) return malformed();
  const auto number = port->to_number<std::uint16_t>(error);
  const auto* const facts = object->if_contains("facts");
  if (error || facts == nullptr || !facts->is_array()) return malformed();
  report.port = number;
  for (const auto& fact : facts->as_array()) {
    const auto* const pair = fact.if_array();
    if (pair == nullptr || pair->size() != 2 || !pair->at(0).is_string() ||
        !pair->at(1).is_string())
      return malformed();
    report.facts.push_back(
        {std::string(pair->at(0).as_string()), std::string(pair->at(1).as_string())});
  }
  return report;
}

}  // namespace penstock
