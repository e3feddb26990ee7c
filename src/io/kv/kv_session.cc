#include "io/kv/kv_session.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <variant>

#include <fmt/format.h>

namespace penstock::kv {
namespace {

using Steady = std::chrono::steady_clock;

std::unexpected<Error> no_daemon(const std::string& socket, std::string_view why) {
  return fail(ErrorCode::kUnavailable,
              fmt::format("no KV daemon answers at {} ({}); is `penstock serve` running with this "
                          "--data-dir?",
                          socket, why));
}

}  // namespace

Result<std::unique_ptr<KvSession>> KvSession::connect(const std::string& socket, std::string role,
                                                      std::string name, const BlockKey& key_check,
                                                      Duration timeout) {
  auto connected = sockets::connect_to(socket);
  if (!connected) return no_daemon(socket, connected.error().message);
  std::unique_ptr<KvSession> session(new KvSession);
  session->socket_ = std::move(*connected);
  TRY_STATUS(session->send(Hello{.protocol_version = kKvProtocolVersion,
                                 .role = std::move(role),
                                 .name = std::move(name),
                                 .process_id = ::getpid(),
                                 .key_check = key_check}));
  TRY(auto message, session->receive(timeout));
  if (!message) return no_daemon(socket, "it does not answer");
  auto* const welcome = std::get_if<Welcome>(&*message);
  if (welcome == nullptr) return no_daemon(socket, "it does not speak this protocol");
  session->welcome_ = std::move(*welcome);
  return session;
}

Status KvSession::wait_for(short events, Duration timeout) {
  pollfd fds[2] = {{socket_.get(), events, 0}, {wake_.fd(), POLLIN, 0}};
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  const int ready = ::poll(fds, 2, static_cast<int>(std::min<std::int64_t>(ms, 1 << 30)));
  if (stopped_.load()) return fail(ErrorCode::kCancelled, "stopped");
  if (ready == 0)
    return fail(ErrorCode::kDeadlineExceeded, "the KV daemon does not answer in time");
  return {};
}

Result<Mapping> KvSession::map_arena() const {
  if (descriptors_.empty()) {
    return fail(ErrorCode::kUnavailable, "the KV daemon gave no arena");
  }
  return map_to_read(descriptors_.front().get(), welcome_.arena_bytes);
}

Status KvSession::send(const ClientMessage& message, int descriptor) {
  std::string frame;
  TRY_STATUS(append_frame(message, frame));
  sockets::SendQueue queue;
  queue.push(frame, descriptor);
  while (true) {
    TRY(const bool sent, queue.flush(socket_.get()));
    if (sent) return {};
    TRY_STATUS(wait_for(POLLOUT, std::chrono::seconds(10)));
  }
}

Result<std::optional<DaemonMessage>> KvSession::receive(Duration timeout) {
  const auto until = Steady::now() + timeout;
  while (true) {
    TRY(const auto frame, frames_.next());
    if (frame) {
      TRY(DaemonMessage message, decode_daemon(*frame));
      if (const auto* goodbye = std::get_if<Goodbye>(&message)) {
        return fail(ErrorCode::kUnavailable, "the KV daemon ended the session: " + goodbye->reason);
      }
      return message;
    }
    constexpr std::size_t kRoom = 1 << 16;
    TRY(const auto got,
        sockets::receive(socket_.get(), frames_.reserve(kRoom), kRoom, descriptors_));
    if (got) frames_.commit(*got);
    if (got && *got == 0) return fail(ErrorCode::kUnavailable, "the KV daemon is gone");
    if (got) continue;
    const auto left = until - Steady::now();
    if (left <= Duration::zero()) return std::nullopt;
    if (Status waited = wait_for(POLLIN, left); !waited) {
      if (waited.error().code == ErrorCode::kDeadlineExceeded) return std::nullopt;
      return std::unexpected(std::move(waited).error());
    }
  }
}

Result<std::string> KvSession::admin(std::string command, std::string arguments, Duration timeout,
                                     const std::function<void(std::string_view)>& progress) {
  const std::uint64_t number = ++last_number_;
  TRY_STATUS(send(Admin{number, command, std::move(arguments)}));
  const auto until = Steady::now() + timeout;
  while (true) {
    TRY(auto message, receive(until - Steady::now()));
    if (!message) {
      return fail(ErrorCode::kDeadlineExceeded,
                  fmt::format("the KV daemon did not finish `{}` in time", command));
    }
    auto* const answer = std::get_if<AdminAnswer>(&*message);
    if (answer == nullptr || answer->number != number) continue;
    if (answer->error) return std::unexpected(std::move(*answer->error));
    if (answer->final) return std::move(answer->json);
    if (progress) progress(answer->json);
  }
}

void KvSession::stop() {
  stopped_ = true;
  wake_.wake();
}

}  // namespace penstock::kv
