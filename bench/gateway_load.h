// What the benches of the gateway send, and how they measure it beside nginx.
//
// Errors: a reason, when an answer is not 200 or a connection breaks.
// Concurrency: one thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench.h"
#include "gateway_rig.h"

namespace penstock::bench {

// A chat request of 1 KB, and one of 115 KB as coding agents send it: a long system message, tools,
// and turns. Their texts hold kMark.
std::string small_body(bool stream, std::uint32_t max_tokens);
std::string large_body();
// A chat request of so many bytes.
std::string body_of(std::size_t bytes);

double micros(std::chrono::nanoseconds time);

struct Server {
  pid_t pid = 0;
  std::uint16_t port = 0;
};

// Answers per second of both under wrk, in turns; the medians of the rounds.
struct LoadRound {
  std::string name;
  std::string wrk;
  std::string folder;
  Server gateway;
  Server nginx;
  int rounds = 1;
  double aim = 0;  // of the ratio
};
Result<Figure> load_figure(const LoadRound& round, const LoadOptions& load);

// The quantile q of `times` beyond that of `direct`, both in microseconds. On a machine so busy
// that noise is larger than the difference there is no figure.
Figure added_figure(std::string name, const std::vector<double>& times,
                    const std::vector<double>& direct, double q, double limit);

// Streams, read and counted.
struct StreamCount {
  std::uint64_t events = 0;
  std::uint64_t text = 0;  // bytes of content, as JSON has them
  std::uint64_t segments = 0;
  std::uint64_t ended = 0;  // with the last chunk
};
// `count` streams at once, each to its end.
Result<StreamCount> read_streams(std::uint16_t port, std::size_t count, std::string_view request,
                                 Duration limit);

}  // namespace penstock::bench
