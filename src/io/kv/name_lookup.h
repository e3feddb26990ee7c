// NameLookup: names of hosts to addresses, without waiting for whoever knows them.
//
// A thread, begun with the first question, asks the resolver, which may block for as long as the
// system's does. Answers are taken by the owner, whose event is woken.
//
// Invariants: each ask() is answered once, unless the object goes first; that never waits for the
// resolver. Errors: the resolver's, in the answer. Concurrency: one thread uses the object; the
// resolver is called on another, and may outlive the object.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/sockets/tcp_socket.h"
#include "io/sockets/unix_socket.h"

namespace penstock::kv {

class NameLookup {
 public:
  using Resolver = std::function<Result<sockets::TcpAddress>(const std::string& host_port)>;
  struct Answer {
    std::size_t number = 0;
    Result<sockets::TcpAddress> address;
  };

  explicit NameLookup(Resolver resolver);
  ~NameLookup();
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;

  // `number` is repeated by the answer.
  void ask(std::size_t number, const std::string& host_port);
  // Readable when there are answers; take() makes it unreadable.
  int event_fd() const;
  std::vector<Answer> take();

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's, too
};

}  // namespace penstock::kv
