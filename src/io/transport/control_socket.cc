#include "io/transport/control_socket.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "io/sockets/tcp_socket.h"

namespace penstock::transport {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr std::size_t kTurnBytes = std::size_t{512} << 10;  // read before others get their turn
constexpr std::size_t kKeptBytes = 4 * kReadBytes;          // of an input buffer that is empty
constexpr std::size_t kDescriptorsMax = 64;                 // that nobody took

}  // namespace

ControlSocket::ControlSocket(EventLoop& loop, Descriptor socket, Begin begin, Events events,
                             std::string input)
    : loop_(loop),
      socket_(std::move(socket)),
      connecting_(begin == Begin::kConnecting),
      events_(std::move(events)),
      input_(std::move(input)) {
  const std::uint32_t wanted = connecting_ ? EPOLLOUT : EPOLLIN;
  watch_ = loop_.watch(socket_.get(), wanted, [this](std::uint32_t happened) { handle(happened); });
}

ControlSocket::~ControlSocket() {
  drop();
}

void ControlSocket::push(std::string_view frame, int descriptor) {
  if (!is_open()) return;
  const bool first = output_.empty();
  output_.push(frame, descriptor);
  if (first && !connecting_) flush();
}

void ControlSocket::close(std::string_view goodbye) {
  if (!is_open()) return;
  if (!connecting_) {
    output_.push(frame(Kind::kGoodbye, goodbye.substr(0, kReasonBytesMax)));
    (void)output_.flush(socket_.get());
  }
  drop();
}

void ControlSocket::handle(std::uint32_t events) {
  if (connecting_) {
    if (const Status status = sockets::connected(socket_.get()); !status)
      return end("cannot connect: " + status.error().message);
    connecting_ = false;
    loop_.change(watch_, EPOLLIN);
    events_.connected();
    if (is_open()) flush();
    return;
  }
  if ((events & EPOLLOUT) != 0) flush();
  // What came before an end is read before it.
  if (is_open() && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read();
}

void ControlSocket::read() {
  for (std::size_t total = 0; is_open() && total < kTurnBytes;) {
    const std::size_t before = input_.size();
    input_.resize(before + kReadBytes);
    const auto got =
        sockets::receive(socket_.get(), input_.data() + before, kReadBytes, descriptors_);
    const std::size_t n = got && *got ? **got : 0;
    input_.resize(before + n);
    if (!got) return end(got.error().message);
    if (!*got) return;
    if (n == 0) return end("the peer has ended");
    if (descriptors_.size() > kDescriptorsMax) return end("it sent descriptors without end");
    total += n;
    take_frames();
    if (n < kReadBytes) return;
  }
}

void ControlSocket::take_frames() {
  while (is_open()) {
    const std::string_view rest = std::string_view(input_).substr(begin_);
    const auto head = decode_head(rest);
    if (!head) return end(head.error().message);
    if (!*head || rest.size() < kHeadBytes + (*head)->length) break;
    const std::string_view body = rest.substr(kHeadBytes, (*head)->length);
    if ((*head)->kind == Kind::kGoodbye) return end("the peer says: " + std::string(body));
    begin_ += kHeadBytes + body.size();
    if (const Status taken = events_.frame(**head, body); !taken && is_open())
      return end(taken.error().message);
  }
  input_.erase(0, std::exchange(begin_, 0));
  if (input_.empty() && input_.capacity() > kKeptBytes) input_.shrink_to_fit();
}

void ControlSocket::flush() {
  const auto done = output_.flush(socket_.get());
  if (!done) return end_later(done.error().message);
  loop_.change(watch_, *done ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

void ControlSocket::end(std::string why) {
  if (!is_open()) return;
  if (why.starts_with("it sent")) {
    close(why);
  } else {
    drop();
  }
  events_.ended(why);
}

// A socket that takes no more may still have something to read, such as why.
void ControlSocket::end_later(std::string why) {
  if (ending_ != 0) return;
  loop_.change(watch_, EPOLLIN);
  ending_ = loop_.call_at(Instant{}, [this, text = std::move(why)] {
    ending_ = 0;
    read();
    end(text);
  });
}

void ControlSocket::drop() {
  if (ending_ != 0) loop_.cancel(std::exchange(ending_, 0));
  if (!is_open()) return;
  loop_.unwatch(watch_);
  socket_ = Descriptor();
  output_.clear();
}

}  // namespace penstock::transport
