// UcxWorker: the process's UCX context and worker, driven by the transport's loop.
//
// The worker's event descriptor wakes the loop; then it is progressed until it has nothing to do
// and armed again. Nothing here polls. Bytes arrive as active messages: a header that names the
// read, and the slice's bytes, which UCX fetches from the owner's memory (rendezvous) or sends
// along when they are few. They go through a bounce buffer of ours: UCX can't be stopped from
// writing to the memory that it was given, and callers take theirs back (port/transport.h).
//
// What UCX calls back is noted and told after progress, so receivers may do anything.
//
// Traps: endpoints that are told of their peer's death leave out shared memory unless
// UCX_MM_ERROR_HANDLING is on, which is set here; an endpoint without that hangs for ever. Whoever
// is asked by a peer's new endpoint owes it an answer, and UCX 1.13 aborts the process when a
// worker is destroyed that could not send one yet. So the two endpoints of a connection greet each
// other, none is closed before, and a worker with one that never was greeted is left to the
// process's end.
// Errors: kUnsupported with UCX's reason. Concurrency: the loop's thread, or before it runs.
// Source: UCX 1.13 ucp.h; shared facts on transports, section 1.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/transport/event_loop.h"
#include "io/transport/wire.h"

namespace penstock::transport {

class UcxWorker {
 public:
  // Told of the bytes that come with its token.
  using Arrived = std::function<void(std::uint64_t read, std::span<const std::byte> bytes)>;

  static Result<std::unique_ptr<UcxWorker>> open(EventLoop& loop);
  ~UcxWorker();

  // What peers make endpoints from. invite() gives it to one who may connect to it from then on,
  // until connect() answers him.
  const std::string& address() const { return address_; }
  const std::string& invite();
  // The endpoint of one side of the connection with this token; the peer makes another.
  enum class Side : std::uint8_t { kOwner, kReader };
  Result<ucp_ep_h> connect(const std::string& address, const Token& token, Side side);
  // Ends what is under way on the endpoint, without a word to the peer, once both sides have it.
  void disconnect(ucp_ep_h endpoint);

  void expect(const Token& token, Arrived arrived) { expected_[token] = std::move(arrived); }
  void forget(const Token& token) { expected_.erase(token); }
  // Sends bytes that stay as they are until `sent` is called, which is later and exactly once.
  void send(ucp_ep_h endpoint, const Token& token, std::uint64_t read,
            std::span<const std::byte> bytes, std::function<void(bool good)> sent);

 private:
  struct Header {
    Token token;
    std::uint64_t read = 0;
  };
  struct Sending {
    UcxWorker* worker = nullptr;
    Header header;
    std::function<void(bool)> sent;
  };
  struct Receiving {
    UcxWorker* worker = nullptr;
    Header header;
    std::vector<std::byte> bytes;
    void* descriptor = nullptr;  // of UCX, until it is received
    std::size_t length = 0;
    bool good = false;
  };

  // A connection whose sides have not greeted each other: the reader does it first.
  struct Greeting {
    Side side = Side::kOwner;
    ucp_ep_h endpoint = nullptr;
    bool closes = false;  // disconnected meanwhile
  };

  explicit UcxWorker(EventLoop& loop) : loop_(loop) {}
  bool turn();
  bool settled() const { return invited_ == 0 && greeting_.empty(); }
  void greet(const Token& token, ucp_ep_h endpoint);
  void sent_greeting(const Token& token);
  void greeted(const Token& token);
  void close(ucp_ep_h endpoint);
  void tell();
  void tell_greetings();
  void receive_waiting();
  static ucs_status_t on_message(void* self, const void* header, std::size_t header_length,
                                 void* data, std::size_t length, const ucp_am_recv_param_t* param);

  EventLoop& loop_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  EventLoop::WatchId watch_ = 0;
  std::map<Token, Arrived> expected_;
  std::size_t under_way_ = 0;  // requests that UCX holds
  std::size_t invited_ = 0;    // peers that may connect at any time
  std::map<Token, Greeting> greeting_;
  std::vector<Token> greetings_;                    // of peers, noted and not told yet
  std::vector<Token> answered_;                     // by us, as above
  std::size_t buffers_ = 0;                         // bounce buffers in use
  std::deque<std::unique_ptr<Receiving>> waiting_;  // for a bounce buffer
  std::vector<std::unique_ptr<Receiving>> received_;
  std::vector<std::pair<std::unique_ptr<Sending>, bool>> sent_;
  std::vector<std::vector<std::byte>> spare_;
};

}  // namespace penstock::transport
