#include "io/telemetry/access_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <system_error>
#include <thread>

namespace penstock {
namespace {

constexpr std::size_t kTextMax = 256;

// JSON string, cut at kTextMax bytes on a character's border; null when empty.
std::string text_or_null(std::string_view text) {
  if (text.empty()) return "null";
  if (text.size() > kTextMax) {
    std::size_t cut = kTextMax;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U)
      --cut;
    text = text.substr(0, cut);
  }
  return boost::json::serialize(boost::json::string(text));
}

std::string milliseconds_or_null(const std::optional<Duration>& duration) {
  if (!duration) return "null";
  return fmt::format("{:.3f}", std::chrono::duration<double, std::milli>(*duration).count());
}

std::string timestamp(std::int64_t unix_milliseconds) {
  const std::time_t seconds = unix_milliseconds / 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900,
                     utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                     unix_milliseconds % 1000);
}

Result<int> open_for_append(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0640);
  if (fd >= 0) return fd;
  return fail(ErrorCode::kIo, fmt::format("cannot open the access log {}: {}", path,
                                          std::generic_category().message(errno)));
}

// False when the rest could not be written.
bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {  // a terminal that someone made non-blocking
      pollfd wait{fd, POLLOUT, 0};
      if (::poll(&wait, 1, 1000) <= 0) return false;
    } else if (n < 0 && errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string format_access_line(const RequestRecord& record, std::int64_t unix_milliseconds) {
  return fmt::format(
      R"({{"ts":"{}","request_id":{},"peer":{},"key":{},"method":{},"route":{},"model":{},"alias":{},)"
      R"("stream":{},"status":{},"outcome":{},"prompt_tokens":{},"cached_tokens":{},)"
      R"("expected_cached_tokens":{},)"
      R"("completion_tokens":{},"queue_ms":{},"ttft_ms":{},"total_ms":{},"moves":{},"placement":{}}})",
      timestamp(unix_milliseconds), text_or_null(record.request_id), text_or_null(record.peer),
      text_or_null(record.key_name), text_or_null(record.method), text_or_null(record.route),
      text_or_null(record.model), text_or_null(record.alias), record.stream, record.status,
      text_or_null(record.outcome), record.usage.prompt_tokens, record.usage.cached_tokens,
      record.expected_cached_tokens, record.usage.completion_tokens,
      milliseconds_or_null(record.queue), milliseconds_or_null(record.time_to_first_token),
      milliseconds_or_null(record.total), record.moves, text_or_null(record.placement));
}

struct AccessLog::State {
  Options options;
  int fd = STDERR_FILENO;
  std::mutex mutex;
  std::condition_variable changed;
  std::string buffer;          // whole lines
  std::uint64_t buffered = 0;  // lines in it
  std::uint64_t dropped = 0;
  bool writing = false;
  bool stopping = false;
  std::thread writer;

  void run() {
    std::unique_lock lock(mutex);
    std::string taken;
    while (true) {
      changed.wait(lock, [this] { return stopping || !buffer.empty(); });
      if (buffer.empty()) return;
      taken.clear();
      taken.swap(buffer);
      const auto lines = std::exchange(buffered, 0);
      writing = true;
      lock.unlock();
      const bool written = write_all(fd, taken);
      lock.lock();
      writing = false;
      if (!written) dropped += lines;
      changed.notify_all();
    }
  }
};

AccessLog::AccessLog(std::unique_ptr<State> state) : state_(std::move(state)) {
  state_->writer = std::thread([s = state_.get()] { s->run(); });
}

Result<std::unique_ptr<AccessLog>> AccessLog::open(Options options) {
  auto state = std::make_unique<State>();
  if (!options.path.empty()) {
    TRY(state->fd, open_for_append(options.path));
  }
  state->options = std::move(options);
  return std::unique_ptr<AccessLog>(new AccessLog(std::move(state)));
}

AccessLog::~AccessLog() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  state_->writer.join();
  if (state_->fd != STDERR_FILENO) ::close(state_->fd);
}

void AccessLog::write(const RequestRecord& record) {
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  std::string line = format_access_line(record, now.count());
  line += '\n';
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->buffer.size() + line.size() >
        static_cast<std::size_t>(state_->options.buffer_max.value)) {
      ++state_->dropped;
      return;
    }
    state_->buffer += line;
    ++state_->buffered;
  }
  state_->changed.notify_all();
}

std::uint64_t AccessLog::dropped() const {
  const std::lock_guard lock(state_->mutex);
  return state_->dropped;
}

Status AccessLog::reopen() {
  if (state_->options.path.empty()) return {};
  TRY(const int fresh, open_for_append(state_->options.path));
  // The number stays the same, so the writer needs no lock: its next write goes to the new file.
  const int moved = ::dup3(fresh, state_->fd, O_CLOEXEC);
  const int error = errno;
  ::close(fresh);
  if (moved >= 0) return {};
  return fail(ErrorCode::kIo,
              fmt::format("cannot switch the access log to {}: {}", state_->options.path,
                          std::generic_category().message(error)));
}

void AccessLog::flush() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->buffer.empty() && !state_->writing; });
}

}  // namespace penstock
