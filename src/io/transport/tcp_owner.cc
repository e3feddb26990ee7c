#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "io/transport/hub.h"
#include "io/transport/tcp_path.h"

namespace penstock::transport {
namespace {

constexpr std::size_t kReadBytes = std::size_t{16} << 10;
constexpr std::size_t kBatchBytes = std::size_t{256} << 10;  // of payloads sent with one call
constexpr std::size_t kSendBytes = std::size_t{1} << 20;     // of one payload sent with one call
constexpr std::size_t kTurnBytes = std::size_t{2} << 20;     // sent before others get their turn
constexpr std::size_t kPartsMax = 64;                        // of one call

std::unexpected<Error> out_of_place() {
  return fail(ErrorCode::kInvalidArgument, "it sent a frame out of place");
}

// One stream: what the reader asked for on it, and the answers that are under way.
class Stream {
 public:
  Stream(Connection& connection, Descriptor socket)
      : connection_(connection), socket_(std::move(socket)) {
    sockets::no_delay(socket_.get());
    watch_ = connection_.hub().loop().watch(socket_.get(), EPOLLIN,
                                            [this](std::uint32_t events) { handle(events); });
  }
  ~Stream() { shut(); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void shut() {
    if (socket_.get() < 0) return;
    connection_.hub().loop().unwatch(watch_);
    socket_ = Descriptor();
  }

 private:
  // What is handed to the kernel: frames, and then a slice's bytes.
  struct Part {
    std::string frames;
    std::span<const std::byte> payload;
    ReadRequest request;  // with a payload
    std::size_t bytes() const { return frames.size() + payload.size(); }
  };

  bool is_open() const { return socket_.get() >= 0; }

  void handle(std::uint32_t events) {
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read();
    if (is_open()) send();
  }

  void read() {
    char bytes[kReadBytes];
    const ssize_t n = ::recv(socket_.get(), bytes, sizeof bytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (n < 0) return connection_.fail_with(std::strerror(errno));
    if (n == 0) return connection_.fail_with("the peer has ended one of its connections");
    input_.append(bytes, static_cast<std::size_t>(n));
    std::string_view rest = input_;
    while (is_open()) {
      const auto head = decode_head(rest);
      if (!head) return connection_.fail_with(head.error().message);
      if (!*head || rest.size() < kHeadBytes + (*head)->length) break;
      const Status taken = take((*head)->kind, rest.substr(kHeadBytes, (*head)->length));
      if (!taken) return connection_.fail_with(taken.error().message);
      rest.remove_prefix(kHeadBytes + (*head)->length);
    }
    input_.erase(0, input_.size() - rest.size());
    // Frames of readers are short; this one can't become one of them.
    if (input_.size() > kReadBytes) connection_.fail_with("it sent a frame out of place");
  }

  Status take(Kind kind, std::string_view body) {
    if (kind == Kind::kRead) {
      TRY(const ReadRequest request, decode_read(body));
      if (asked_.size() >= kReadsMax)
        return fail(ErrorCode::kOverloaded, "it sent more reads than a connection may have");
      asked_.push_back(request);
      return {};
    }
    if (kind != Kind::kCancel) return out_of_place();
    TRY(const std::uint64_t id, decode_cancel(body));
    const auto at = std::ranges::find(asked_, id, &ReadRequest::id);
    if (at == asked_.end()) return {};  // begun, or done
    asked_.erase(at);
    verdicts_ += encode(Verdict{id, ReadEnd::kRefused});
    return {};
  }

  // Small answers travel together. A verdict never waits behind a long payload that could have
  // been begun after it: a batch ends once it is long.
  void fill() {
    if (!verdicts_.empty()) {
      const auto at = outgoing_.begin() + (sent_ > 0 ? 1 : 0);
      outgoing_.insert(at, Part{std::exchange(verdicts_, {}), {}, {}});
    }
    std::size_t batch = 0;
    for (const Part& part : outgoing_)
      batch += part.bytes();
    while (!asked_.empty() && (batch == 0 || batch + asked_.front().slice.length <= kBatchBytes) &&
           outgoing_.size() < kPartsMax / 2) {
      const ReadRequest request = asked_.front();
      asked_.pop_front();
      const Hub::Look look = connection_.hub().look(connection_.peer(), request.slice);
      if (!is_open()) return;
      if (look.end != ReadEnd::kDone) {
        outgoing_.push_back({encode(Verdict{request.id, look.end}), {}, {}});
      } else {
        outgoing_.push_back(
            {encode(BytesHead{request.id, request.slice.length}), look.bytes, request});
      }
      batch += outgoing_.back().bytes();
    }
  }

  void send() {
    std::size_t total = 0;
    bool full = false;
    while (!full && total < kTurnBytes) {
      fill();
      if (!is_open()) return;
      if (outgoing_.empty()) break;
      const ssize_t n = send_once();
      if (n < 0 && errno == EINTR) continue;
      full = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
      if (n < 0 && !full) return connection_.fail_with(std::strerror(errno));
      if (n < 0) break;
      total += static_cast<std::size_t>(n);
      advance(static_cast<std::size_t>(n));
      if (!is_open()) return;
    }
    const bool waits = !outgoing_.empty() || !asked_.empty() || !verdicts_.empty();
    connection_.hub().loop().change(watch_, waits ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }

  ssize_t send_once() {
    std::array<iovec, kPartsMax> parts;
    std::size_t count = 0;
    std::size_t skip = sent_;
    const auto add = [&](const void* data, std::size_t bytes) {
      const std::size_t skipped = std::min(skip, bytes);
      skip -= skipped;
      if (skipped == bytes) return;
      parts[count++] = {const_cast<char*>(static_cast<const char*>(data)) + skipped,
                        std::min(bytes - skipped, kSendBytes)};
    };
    for (const Part& part : outgoing_) {
      if (count + 2 > kPartsMax) break;
      add(part.frames.data(), part.frames.size());
      add(part.payload.data(), part.payload.size());
      // Only a whole payload may be followed by something.
      if (part.payload.size() > kSendBytes) break;
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void advance(std::size_t bytes) {
    sent_ += bytes;
    while (!outgoing_.empty() && sent_ >= outgoing_.front().bytes()) {
      const Part& part = outgoing_.front();
      sent_ -= part.bytes();
      // All of it is with the kernel: the second look.
      if (part.request.id != 0) {
        verdicts_ +=
            encode(Verdict{part.request.id, connection_.hub().look_again(part.request.slice)});
      }
      outgoing_.pop_front();
    }
  }

  Connection& connection_;
  Descriptor socket_;
  EventLoop::WatchId watch_ = 0;
  std::string input_;
  std::deque<ReadRequest> asked_;
  std::deque<Part> outgoing_;
  std::size_t sent_ = 0;  // of outgoing_'s first
  std::string verdicts_;  // not in outgoing_ yet
};

class Owner final : public DataPath {
 public:
  Owner(Connection& connection, Drivers& drivers) : connection_(connection), drivers_(drivers) {}

  Result<Welcome> greeted(const Hello& hello) override {
    if (hello.streams == 0) return out_of_place();
    Welcome welcome;
    welcome.streams = wanted_ = std::min(hello.streams, connection_.hub().limits().tcp_streams);
    welcome.token = token_ = random_token();
    drivers_.expect(token_, [this](Descriptor socket) { join(std::move(socket)); });
    return welcome;
  }
  void published(std::uint32_t) override {}
  Status frame(Kind, std::string_view) override { return out_of_place(); }
  void shut() override {
    if (wanted_ > 0) drivers_.forget(token_);
    for (const auto& stream : streams_)
      stream->shut();
  }

  Hello hello() override { return {}; }
  Status welcomed(const Welcome&) override { return out_of_place(); }
  void start_read(std::uint64_t, const RemoteSlice&, std::byte*) override { ENSURE(false); }
  void abandon(std::uint64_t) override {}

 private:
  void join(Descriptor socket) {
    if (streams_.size() == wanted_) return;  // one too many: it is closed
    streams_.push_back(std::make_unique<Stream>(connection_, std::move(socket)));
  }

  Connection& connection_;
  Drivers& drivers_;
  Token token_{};
  std::uint8_t wanted_ = 0;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace

std::unique_ptr<DataPath> tcp_owner(Connection& connection, Drivers& drivers) {
  return std::make_unique<Owner>(connection, drivers);
}

}  // namespace penstock::transport
