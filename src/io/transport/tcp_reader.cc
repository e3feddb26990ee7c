#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/hashed_copy.h"
#include "io/transport/hub.h"
#include "io/transport/tcp_path.h"

namespace penstock::transport {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{256} << 10;  // received and hashed at once
constexpr std::size_t kTurnBytes = std::size_t{1} << 20;     // before others get their turn
constexpr std::size_t kSideBytes = 4096;
constexpr std::size_t kScratchBytes = std::size_t{64} << 10;

std::unexpected<Error> bad(std::string_view what) {
  return fail(ErrorCode::kDataLoss, fmt::format("it sent {}", what));
}

// One stream: what was asked for on it, and the answer that is arriving.
class Stream {
 public:
  Stream(Connection& connection, Descriptor socket, const Token& token,
         std::function<void()> connected)
      : connection_(connection), connected_(std::move(connected)), socket_(std::move(socket)) {
    output_.push(encode(Join{token}));
    watch_ =
        loop().watch(socket_.get(), EPOLLOUT, [this](std::uint32_t events) { handle(events); });
  }
  ~Stream() { shut(); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void shut() {
    if (flush_ != 0) loop().cancel(std::exchange(flush_, 0));
    if (!is_open()) return;
    loop().unwatch(watch_);
    socket_ = Descriptor();
  }

  void start(std::uint64_t id, const RemoteSlice& slice, std::byte* into) {
    asked_.emplace(id, Asked{into, slice.length, slice.checksum});
    waiting_bytes_ += slice.length;
    push(encode(ReadRequest{id, slice}));
  }

  // False when the read is not of this stream.
  bool abandon(std::uint64_t id) {
    const auto at = asked_.find(id);
    if (at == asked_.end()) return false;
    if (at->second.into == nullptr) return true;
    at->second.into = nullptr;
    push(encode_cancel(id));
    return true;
  }

  std::uint64_t waiting_bytes() const { return waiting_bytes_; }

 private:
  struct Asked {
    std::byte* into = nullptr;  // null: nobody wants it any more
    std::uint32_t length = 0;
    std::uint64_t checksum = 0;  // asked for
    std::uint64_t arrived = 0;   // checksum of the bytes that came
    bool whole = false;
  };

  EventLoop& loop() const { return connection_.hub().loop(); }
  bool is_open() const { return socket_.get() >= 0; }

  // What is asked for in one turn leaves together.
  void push(std::string_view frame) {
    output_.push(frame);
    if (flush_ != 0) return;
    flush_ = loop().call_at(Instant{}, [this] {
      flush_ = 0;
      if (!connecting_) flush();
    });
  }

  void flush() {
    const auto done = output_.flush(socket_.get());
    if (!done) return connection_.fail_with(done.error().message);
    loop().change(watch_, *done ? EPOLLIN : EPOLLIN | EPOLLOUT);
  }

  void handle(std::uint32_t events) {
    if (connecting_) {
      if (const Status status = sockets::connected(socket_.get()); !status)
        return connection_.fail_with("cannot connect: " + status.error().message);
      connecting_ = false;
      sockets::no_delay(socket_.get());
      flush();
      if (is_open()) connected_();
      return;
    }
    if ((events & EPOLLOUT) != 0) flush();
    if (is_open() && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) receive();
  }

  void receive() {
    for (std::size_t total = 0; is_open() && total < kTurnBytes;) {
      const std::size_t wanted = std::min(payload_left_, kPieceBytes);
      std::array<iovec, 2> parts;
      std::size_t count = 0;
      std::byte* const to = destination();
      if (wanted > 0) parts[count++] = {to, to == scratch_.data() ? scratch(wanted) : wanted};
      const std::size_t room = wanted > 0 ? parts[0].iov_len : 0;
      if (room == payload_left_)
        parts[count++] = {side_.data() + side_size_, kSideBytes - side_size_};
      msghdr message{};
      message.msg_iov = parts.data();
      message.msg_iovlen = count;
      const ssize_t n = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (n < 0) return connection_.fail_with(std::strerror(errno));
      if (n == 0) return connection_.fail_with("the peer has ended one of its connections");
      const auto got = static_cast<std::size_t>(n);
      total += got;
      const std::size_t payload = std::min(got, room);
      if (payload > 0) arrived(to, payload);
      side_size_ += got - payload;
      if (const Status taken = take_frames(); !taken)
        return connection_.fail_with(taken.error().message);
      // Less than there was room for: nothing more is there.
      if (got < room) return;
    }
  }

  std::byte* destination() {
    if (payload_left_ == 0) return nullptr;
    // An abandoned read's bytes are received all the same, to nowhere.
    if (payload_of_->into != nullptr) return payload_of_->into + payload_at_;
    if (scratch_.empty()) scratch_.resize(kScratchBytes);
    return scratch_.data();
  }
  static std::size_t scratch(std::size_t wanted) { return std::min(wanted, kScratchBytes); }

  void arrived(const std::byte* bytes, std::size_t count) {
    copy_.arrived(bytes, count);
    payload_at_ += count;
    payload_left_ -= count;
    if (payload_left_ > 0) return;
    payload_of_->arrived = copy_.checksum();
    payload_of_->whole = true;
  }

  Status take_frames() {
    std::size_t at = 0;
    while (is_open() && at < side_size_) {
      const std::string_view rest(side_.data() + at, side_size_ - at);
      if (payload_left_ > 0) {
        const std::size_t bytes = std::min(payload_left_, rest.size());
        std::byte* const to = payload_of_->into;
        if (to != nullptr) std::memcpy(to + payload_at_, rest.data(), bytes);
        arrived(reinterpret_cast<const std::byte*>(rest.data()), bytes);
        at += bytes;
        continue;
      }
      TRY(const auto head, decode_head(rest));
      if (!head) break;
      if (head->kind != Kind::kBytes && head->kind != Kind::kVerdict)
        return bad("a frame out of place");
      if (rest.size() < kHeadBytes + head->length) break;
      at += kHeadBytes + head->length;
      const std::string_view body = rest.substr(kHeadBytes, head->length);
      TRY_STATUS(head->kind == Kind::kBytes ? begin_bytes(body) : take_verdict(body));
    }
    std::memmove(side_.data(), side_.data() + at, side_size_ - at);
    side_size_ -= at;
    return {};
  }

  Status begin_bytes(std::string_view body) {
    TRY(const BytesHead head, decode_bytes(body));
    const auto at = asked_.find(head.id);
    if (at == asked_.end() || at->second.length != head.length || at->second.whole)
      return bad("bytes that nobody asked for");
    payload_of_ = &at->second;
    payload_at_ = 0;
    payload_left_ = head.length;
    copy_.begin();
    return {};
  }

  Status take_verdict(std::string_view body) {
    TRY(const Verdict verdict, decode_verdict(body));
    const auto at = asked_.find(verdict.id);
    if (at == asked_.end() || (verdict.end == ReadEnd::kDone && !at->second.whole))
      return bad("a verdict on nothing");
    const Asked asked = at->second;
    asked_.erase(at);
    waiting_bytes_ -= asked.length;
    if (asked.into == nullptr) return {};
    const bool right = asked.arrived == asked.checksum;
    connection_.hub().read_ended(
        verdict.id, verdict.end == ReadEnd::kDone && !right ? ReadEnd::kCorrupt : verdict.end);
    return {};
  }

  Connection& connection_;
  std::function<void()> connected_;
  Descriptor socket_;
  bool connecting_ = true;
  EventLoop::WatchId watch_ = 0;
  Clock::TimerId flush_ = 0;
  sockets::SendQueue output_;
  std::unordered_map<std::uint64_t, Asked> asked_;
  std::uint64_t waiting_bytes_ = 0;
  Asked* payload_of_ = nullptr;  // with payload_left_ > 0
  std::size_t payload_at_ = 0;
  std::size_t payload_left_ = 0;
  std::size_t side_size_ = 0;
  std::array<char, kSideBytes> side_;
  std::vector<std::byte> scratch_;
  HashedCopy copy_;
};

class Reader final : public DataPath {
 public:
  Reader(Connection& connection, const sockets::TcpAddress& address)
      : connection_(connection), address_(address) {}

  Hello hello() override { return {Driver::kTcp, connection_.hub().limits().tcp_streams, {}}; }

  Status welcomed(const Welcome& welcome) override {
    if (welcome.streams == 0 || welcome.streams > connection_.hub().limits().tcp_streams)
      return bad("a malformed greeting");
    for (std::uint8_t i = 0; i < welcome.streams; ++i) {
      TRY(Descriptor socket, sockets::start_connecting(address_));
      streams_.push_back(std::make_unique<Stream>(connection_, std::move(socket), welcome.token,
                                                  [this] { connected(); }));
    }
    return {};
  }

  void start_read(std::uint64_t read, const RemoteSlice& slice, std::byte* into) override {
    const auto least = std::ranges::min_element(
        streams_, {}, [](const auto& stream) { return stream->waiting_bytes(); });
    (*least)->start(read, slice, into);
  }

  void abandon(std::uint64_t read) override {
    for (const auto& stream : streams_)
      if (stream->abandon(read)) return;
  }

  void shut() override {
    for (const auto& stream : streams_)
      stream->shut();
  }

  Status frame(Kind, std::string_view) override { return bad("a frame out of place"); }
  Result<Welcome> greeted(const Hello&) override { return bad("a frame out of place"); }
  void published(std::uint32_t) override {}

 private:
  void connected() {
    if (++connected_ == streams_.size()) connection_.ready();
  }

  Connection& connection_;
  sockets::TcpAddress address_;
  std::size_t connected_ = 0;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace

std::unique_ptr<DataPath> tcp_reader(Connection& connection, const sockets::TcpAddress& address) {
  return std::make_unique<Reader>(connection, address);
}

}  // namespace penstock::transport
