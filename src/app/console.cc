#include "app/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cerrno>
#include <system_error>

namespace penstock {
namespace {

namespace json = boost::json;

void print_value(std::string& out, const json::value& value, std::size_t indent) {
  const std::string inner(indent + 2, ' ');
  const std::string outer(indent, ' ');
  if (const auto* object = value.if_object(); object != nullptr && !object->empty()) {
    std::string_view separator = "{\n";
    for (const auto& [key, member] : *object) {
      out += fmt::format("{}{}{}: ", std::exchange(separator, ",\n"), inner,
                         json::serialize(json::string(key)));
      print_value(out, member, indent + 2);
    }
    out += fmt::format("\n{}}}", outer);
  } else if (const auto* array = value.if_array(); array != nullptr && !array->empty()) {
    std::string_view separator = "[\n";
    for (const auto& member : *array) {
      out += fmt::format("{}{}", std::exchange(separator, ",\n"), inner);
      print_value(out, member, indent + 2);
    }
    out += fmt::format("\n{}]", outer);
  } else {
    out += json::serialize(value);
  }
}

}  // namespace

Result<int> print_data(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
                       (text.ends_with('\n') || std::fputc('\n', stdout) != EOF) &&
                       std::fflush(stdout) == 0;
  if (written) return 0;
  return fail(ErrorCode::kIo, fmt::format("cannot write to standard output: {}",
                                          std::generic_category().message(errno)));
}

std::string pretty_json(std::string_view text) {
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  if (error) return std::string(text);
  std::string out;
  print_value(out, value, 0);
  return out;
}

bool is_terminal(std::FILE* stream) {
  return ::isatty(::fileno(stream)) == 1;
}

std::size_t terminal_width() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20) return size.ws_col;
  return 80;
}

int print_error(const Error& error) {
  fmt::print(stderr, "penstock: {}\n", error.message);
  return error_info(error.code).exit_code;
}

ProgressBar::ProgressBar(std::string what, std::size_t total)
    : what_(std::move(what)), total_(total), visible_(is_terminal(stderr) && total > 0) {
  update(0);
}

ProgressBar::~ProgressBar() {
  if (visible_) fmt::print(stderr, "\r\x1b[K");
}

void ProgressBar::update(std::size_t done) {
  if (!visible_) return;
  const std::size_t percent = done * 100 / total_;
  if (percent == drawn_percent_) return;
  drawn_percent_ = percent;
  const std::size_t room = terminal_width() - std::min(terminal_width(), what_.size() + 20);
  const std::size_t width = std::min<std::size_t>(room, 40);
  const std::size_t full = width * percent / 100;
  fmt::print(stderr, "\r\x1b[K{} [{}{}] {}/{}", what_, std::string(full, '#'),
             std::string(width - full, '.'), done, total_);
}

}  // namespace penstock
