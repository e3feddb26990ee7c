#include "io/http/websocket.h"

#include <utility>

#include "io/http/connection.h"

namespace penstock::http {
namespace {

constexpr std::uint16_t kPolicy = 1008;
constexpr std::uint16_t kTryAgainLater = 1013;

}  // namespace

Socket::Socket(Connection& connection, Exchange& exchange)
    : connection_(connection),
      exchange_(exchange),
      reader_(connection.core().options.limits.body_bytes_max),
      messages_(connection.core().clock, kQueueCapacity) {
  if (connection.core().stopping || exchange.disconnected_) messages_.close();
}

Socket::~Socket() {
  if (connection_.socket_ == this) connection_.socket_ = nullptr;
}

bool Socket::count_held(std::size_t coming) {
  return share_.resize(connection_.core(), reader_.held() + queued_bytes_ + taken_bytes_ + coming);
}

void Socket::take(std::string_view bytes) {
  if (!count_held(bytes.size())) {
    ++connection_.core().counters.bodies_over_memory;
    end({kTryAgainLater, "the server's memory for messages is in use"});
    return;
  }
  const auto connection = connection_.shared_from_this();
  std::vector<FrameEvent> events;
  const auto read = reader_.feed(bytes, events);
  for (FrameEvent& event : events) {
    switch (event.kind) {
      case Opcode::kText: {
        queued_bytes_ += event.payload.size();
        const bool taken = messages_.push(std::move(event.payload));
        if (connection->socket_ != this) return;
        if (!taken && !messages_.closed()) {
          end({kPolicy, "too many messages wait"});
          return;
        }
        break;
      }
      case Opcode::kPing:
        connection_.send_control(frame_head(Opcode::kPong, event.payload.size()) + event.payload);
        break;
      case Opcode::kClose:
        end({event.code, {}});
        return;
      default:
        break;
    }
  }
  if (!read) {
    ++connection_.core().counters.malformed;
    end(read.error());
  }
}

void Socket::end(const CloseReason& reason) {
  connection_.end_socket(close_frame(reason));
}

void Socket::end_messages(bool drop_queued) {
  if (drop_queued) messages_.items().clear();
  messages_.close();
}

Task<Result<std::optional<std::string>>> Socket::receive(Instant until) {
  taken_bytes_ = 0;
  receiving_ = true;
  std::optional<std::string> message = co_await messages_.pop(until);
  receiving_ = false;
  if (message) {
    taken_bytes_ = message->size();
    queued_bytes_ -= std::min(queued_bytes_, message->size());
    count_held(0);
    connection_.read_on();
    co_return message;
  }
  count_held(0);
  if (!messages_.closed()) co_return std::nullopt;
  if (exchange_.disconnected_) co_return std::unexpected(exchange_.failure_);
  co_return fail(ErrorCode::kUnavailable, "this server is shutting down");
}

Task<Status> Socket::send(std::string message) {
  auto head = frame_head(Opcode::kText, message.size());
  co_return co_await exchange_.send(std::move(head), std::move(message), Connection::After::kMore);
}

void Socket::close(std::uint16_t code, std::string reason) {
  if (connection_.exchange_ == &exchange_) end({code, std::move(reason)});
}

}  // namespace penstock::http
