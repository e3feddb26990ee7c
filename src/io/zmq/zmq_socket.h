// ZmqContext and ZmqSocket: libzmq's C interface with owners and without surprises.
//
// Sockets never linger, bound the size of a message and how many wait. Names of
// endpoints are checked before libzmq sees them.
//
// Errors: as Result; a message of other than the wanted number of frames is read whole and its
// frames told. Concurrency: the context from any thread, a socket from one.
// Source: zmq_socket(7), zmq_setsockopt(3), zmq_socket_monitor(3).
#pragma once

#include <zmq.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace penstock::zmq {

// "tcp://host:port" or "ipc://path", to connect to.
Status check_endpoint(std::string_view endpoint);

class ZmqSocket {
 public:
  ZmqSocket() = default;
  ~ZmqSocket() { close(); }
  ZmqSocket(ZmqSocket&& other) noexcept : socket_(std::exchange(other.socket_, nullptr)) {}
  ZmqSocket& operator=(ZmqSocket&& other) noexcept {
    std::swap(socket_, other.socket_);
    return *this;
  }

  // SUB to all topics that begin with `topic`.
  static Result<ZmqSocket> subscriber(void* context, std::string_view topic);
  static Result<ZmqSocket> dealer(void* context);
  static Result<ZmqSocket> publisher(void* context);
  static Result<ZmqSocket> router(void* context);
  // Tells when `of` gets a connection: one message each.
  static Result<ZmqSocket> monitor(void* context, const ZmqSocket& of, const std::string& name);

  explicit operator bool() const { return socket_ != nullptr; }
  void* get() const { return socket_; }
  void close();

  Status connect(const std::string& endpoint);
  // Where it listens now: for a port of * the one that the system chose.
  Result<std::string> bind(const std::string& endpoint);
  Status send(std::initializer_list<std::string_view> frames);
  // A message's frames, if one is there.
  bool receive(std::vector<std::string>& frames);

 private:
  explicit ZmqSocket(void* socket) : socket_(socket) {}
  static Result<ZmqSocket> make(void* context, int type);

  void* socket_ = nullptr;
};

class ZmqContext {
 public:
  ZmqContext() : context_(zmq_ctx_new()) {}
  ~ZmqContext() { zmq_ctx_term(context_); }  // sockets are closed by then
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* get() const { return context_; }

 private:
  void* context_;
};

}  // namespace penstock::zmq
