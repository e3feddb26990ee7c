#include "io/sockets/unix_socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"

namespace penstock::sockets {
namespace {

constexpr int kBacklog = 128;
constexpr std::size_t kPartBytes = std::size_t{1} << 20;  // a new part begins after this many

std::unexpected<Error> system_error(std::string_view what, std::string_view where) {
  return fail(ErrorCode::kIo, fmt::format("{} {}: {}", what, where, std::strerror(errno)));
}

}  // namespace

Result<sockaddr_un> unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the socket path \"{}\" must have 1 to {} bytes; use a shorter folder",
                            path, sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

namespace {

Descriptor new_socket() {
  return Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK;
}

}  // namespace

Result<Descriptor> listen_at(const std::string& path) {
  TRY(const sockaddr_un at, unix_address(path));
  if (connect_to(path)) {
    return fail(ErrorCode::kConflict,
                fmt::format("another process listens on {}; stop it or use another path", path));
  }
  struct stat there{};
  if (::lstat(path.c_str(), &there) == 0 && S_ISSOCK(there.st_mode)) ::unlink(path.c_str());
  Descriptor fd = new_socket();
  // The mode is set before listen(): nobody can have connected.
  if (fd.get() < 0 || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      ::chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return system_error("cannot listen on", path);
  }
  return fd;
}

Result<Descriptor> connect_to(const std::string& path) {
  TRY(const sockaddr_un to, unix_address(path));
  Descriptor fd = new_socket();
  if (fd.get() < 0 || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
    if (would_block())
      return fail(ErrorCode::kOverloaded, fmt::format("too many connect to {} now", path));
    return system_error("cannot connect to", path);
  }
  return fd;
}

Result<std::optional<std::size_t>> receive(int socket, char* to, std::size_t room,
                                           std::vector<Descriptor>& descriptors) {
  iovec part{to, room};
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsMax * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n = 0;
  do {
    n = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0) {
    if (would_block()) return std::nullopt;
    return system_error("cannot read from", "the peer");
  }
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; at + sizeof(int) <= head->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + at, sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  return static_cast<std::size_t>(n);
}

WakeEvent::WakeEvent() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  ENSURE(fd_.get() >= 0);
}

void WakeEvent::wake() const {
  const std::uint64_t one = 1;
  // It fails only when the counter is full, and then the event is set.
  (void)!::write(fd_.get(), &one, sizeof one);
}

void WakeEvent::clear() const {
  std::uint64_t count = 0;
  (void)!::read(fd_.get(), &count, sizeof count);
}

void SendQueue::push(std::string_view bytes, int descriptor) {
  if (parts_.empty() || descriptor >= 0 || parts_.back().bytes.size() > kPartBytes) {
    parts_.push_back({{}, 0, descriptor});
  }
  parts_.back().bytes += bytes;
  bytes_ += bytes.size();
}

Result<bool> SendQueue::flush(int socket) {
  while (!parts_.empty()) {
    Part& part = parts_.front();
    iovec rest{part.bytes.data() + part.sent, part.bytes.size() - part.sent};
    msghdr message{};
    message.msg_iov = &rest;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (part.descriptor >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(head), &part.descriptor, sizeof(int));
    }
    const ssize_t n = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (would_block()) return false;
      return system_error("cannot write to", "the peer");
    }
    part.descriptor = -1;
    part.sent += static_cast<std::size_t>(n);
    bytes_ -= static_cast<std::size_t>(n);
    sent_ += static_cast<std::size_t>(n);
    if (part.sent == part.bytes.size()) parts_.pop_front();
  }
  return true;
}

void SendQueue::clear() {
  parts_.clear();
  bytes_ = 0;
}

}  // namespace penstock::sockets
