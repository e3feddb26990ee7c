// What the gateway's bench stands on: an engine that answers at once, an HTTP server that answers
// at once, nginx and wrk when they are installed, and a raw HTTP client.
//
// Everything listens on loopback and ends with its object. Errors: a reason; a program that is not
// installed is an empty path. Concurrency: one thread, and no other when a process is started.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fork.h"
#include "io/files/descriptor.h"
#include "pd_rig.h"

namespace penstock::bench {

// Answers of up to so many tokens come at once; of longer ones, a token each 20 ms.
constexpr std::uint32_t kInstantTokens = 16;
constexpr auto kTokenInterval = std::chrono::milliseconds(20);

// Plays the worker in a process of its own, behind that socket.
std::unique_ptr<Fork> start_instant_worker(const std::string& socket, const std::string& model_dir,
                                           std::vector<TokenId> text);

// Tokens of a sentence, in the checkpoint's vocabulary.
Result<std::vector<TokenId>> sentence_tokens(const std::string& model_dir);

// A process that answers each request on its port with the body, whatever was asked.
struct HttpMock {
  std::unique_ptr<Fork> process;
  std::uint16_t port = 0;
};
Result<HttpMock> start_http_mock(std::string_view body);

// A listening socket on a free port of loopback.
Result<std::pair<int, std::uint16_t>> listen_somewhere();
// How long the message at the front of `bytes` is, by its Content-Length or last chunk; 0: not all
// of it is there.
std::size_t message_size(std::string_view bytes);

// The port in what a child reported when it was ready.
Result<std::uint16_t> port_of(std::string_view report);

// Nanoseconds that all threads of the process have computed: what a busy machine changes little.
double cpu_of(pid_t pid);

// Of an installed program; empty when there is none.
std::string find_program(const std::string& name);

// nginx as a plain proxy in front of `behind`, one process; its files are in `folder`.
Result<HttpMock> start_nginx(const std::string& program, const std::string& folder,
                             std::uint16_t behind);

// What wrk sends: `body` with all its kMark replaced by a number. Every `fresh_every`th request has
// a number never used before, the others one of eight.
struct LoadOptions {
  std::string body;
  std::uint32_t fresh_every = 1;
  std::uint32_t connections = 1;
  std::chrono::seconds time{1};
};
constexpr std::string_view kMark = "@@@@@@@@";
// Answers per second. Fails when one is not 200 or a connection breaks.
Result<double> run_wrk(const std::string& program, const std::string& folder, std::uint16_t port,
                       const LoadOptions& options);

// `body` as a POST to the chat endpoint.
std::string chat_post(std::string_view body);

// A connection of a client.
class HttpWire {
 public:
  static Result<HttpWire> open(std::uint16_t port);

  struct Answer {
    std::chrono::nanoseconds first{};  // from sending to the first bytes
    std::chrono::nanoseconds whole{};
    std::string text;  // head and body as they came
  };
  // Sends the request and reads the whole answer, which has to be 200.
  Result<Answer> ask(std::string_view request);
  Status send(std::string_view bytes);
  int fd() const { return fd_.get(); }
  // Segments with data that have come, as TCP counts them.
  std::uint64_t segments_in() const;

 private:
  explicit HttpWire(int fd) : fd_(fd) {}
  Descriptor fd_;
};

}  // namespace penstock::bench
