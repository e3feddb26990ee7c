#include "gateway_load.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <vector>

#include <fmt/format.h>

#include "base/rng.h"
#include "io/files/descriptor.h"

namespace penstock::bench {
namespace {

using Steady = std::chrono::steady_clock;

constexpr std::size_t kSmallBytes = 1 << 10;
constexpr std::size_t kLargeBytes = 115 << 10;

// Prose and code as JSON holds them, `bytes` long, other for each `seed`.
std::string filler(std::size_t bytes, std::uint64_t seed) {
  static constexpr std::array<std::string_view, 16> kPieces = {
      "the worker ",       "reads a file ",         "and returns ",
      "its length\\n",     "  if (count ",          "== 0) {\\n",
      "    return ",       "\\\"value\\\"",         "; // checked ",
      "\\n  }\\n",         "every request ",        "of the client ",
      "is placed ",        "on the rank that has ", "most room left. ",
      "const auto next = "};
  Rng rng(seed);
  std::string text(kMark);
  text += ' ';
  while (text.size() < bytes)
    text += kPieces[rng.below(kPieces.size())];
  return text;
}

struct Loaded {
  double rate = 0;    // answers per second
  double cpu_us = 0;  // of the server, for each
};
Result<Loaded> loaded(const std::string& wrk, const std::string& folder, const Server& server,
                      const LoadOptions& load) {
  const double before = cpu_of(server.pid);
  TRY(const double rate, run_wrk(wrk, folder, server.port, load));
  const double answers = rate * static_cast<double>(load.time.count());
  return Loaded{rate, (cpu_of(server.pid) - before) / answers / 1e3};
}

// Bytes of the answer's text in an event.
std::size_t content_size(std::string_view event) {
  constexpr std::string_view kKey = "\"content\":\"";
  const std::size_t at = event.find(kKey);
  if (at == std::string_view::npos) return 0;
  const std::size_t begin = at + kKey.size();
  return event.find('"', begin) - begin;  // the bench's text has no quotes
}

// One of the streams: events are counted when they are whole.
class CountedStream {
 public:
  explicit CountedStream(HttpWire wire) : wire_(std::move(wire)) {}
  const HttpWire& wire() const { return wire_; }
  bool ended() const { return ended_; }
  void take(std::string_view bytes, StreamCount& count) {
    pending_ += bytes;
    std::string_view left = pending_;
    // An event ends with an empty line; nothing else in a stream has two newlines in a row.
    for (std::size_t at = left.find("\n\n"); at != left.npos; at = left.find("\n\n")) {
      ++count.events;
      count.text += content_size(left.substr(0, at));
      left.remove_prefix(at + 2);
    }
    pending_.erase(0, pending_.size() - left.size());
    ended_ = pending_.ends_with("\r\n0\r\n\r\n");
    count.ended += ended_ ? 1 : 0;
  }

 private:
  HttpWire wire_;
  std::string pending_;
  bool ended_ = false;
};

}  // namespace

std::string small_body(bool stream, std::uint32_t max_tokens) {
  const std::string start =
      fmt::format(R"({{"model":"nano","stream":{},"max_tokens":{},"messages":[{{"role":"user",)"
                  R"("content":")",
                  stream, max_tokens);
  return start + filler(kSmallBytes - start.size() - 20, 1) + "\"}]}";
}

std::string large_body() {
  std::string body = fmt::format(
      R"({{"model":"nano","max_tokens":{},"messages":[{{"role":"system","content":"{}"}})",
      kInstantTokens, filler(24 << 10, 2));
  for (std::uint64_t turn = 0; body.size() < kLargeBytes - (14 << 10); ++turn) {
    body +=
        fmt::format(R"(,{{"role":"user","content":"{}"}},{{"role":"assistant","content":"{}"}})",
                    filler(3 << 10, 100 + turn), filler(1 << 10, 200 + turn));
  }
  body += R"(,{"role":"user","content":"go on"}],"tools":[)";
  for (std::uint64_t tool = 0; body.size() < kLargeBytes; ++tool) {
    body +=
        fmt::format(R"({}{{"type":"function","function":{{"name":"tool_{}","description":"{}",)"
                    R"("parameters":{{"type":"object","properties":{{"path":{{"type":"string"}},)"
                    R"("limit":{{"type":"integer"}}}},"required":["path"]}}}}}})",
                    tool == 0 ? "" : ",", tool, filler(900, 300 + tool));
  }
  return body + "]}";
}

std::string body_of(std::size_t bytes) {
  return R"({"model":"nano","messages":[{"role":"user","content":")" + filler(bytes, 3) + "\"}]}";
}

double micros(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

Result<Figure> load_figure(const LoadRound& round, const LoadOptions& load) {
  std::vector<double> ours;
  std::vector<double> theirs;
  for (int i = 0; i < round.rounds; ++i) {
    TRY(const Loaded a, loaded(round.wrk, round.folder, round.gateway, load));
    TRY(const Loaded b, loaded(round.wrk, round.folder, round.nginx, load));
    ours.push_back(a.rate);
    theirs.push_back(b.rate);
    fmt::print(stderr, "  {}: {:.0f}/s ({:.0f} us of CPU each), nginx {:.0f}/s ({:.0f} us)\n",
               round.name, a.rate, a.cpu_us, b.rate, b.cpu_us);
  }
  return more_is_better(round.name, median_of(ours), "/s", "nginx, plain proxy", median_of(theirs),
                        round.aim);
}

Figure added_figure(std::string name, const std::vector<double>& times,
                    const std::vector<double>& direct, double q, double limit) {
  const double direct_time = quantile_of(direct, q);
  const double more = quantile_of(times, q) - direct_time;
  if (more > 0) return at_most(std::move(name), more, "us", limit);
  return skipped(
      std::move(name), "us", "limit", 1,
      fmt::format("the machine is too busy: asked directly it took {:.0f} us", direct_time));
}

Result<StreamCount> read_streams(std::uint16_t port, std::size_t count, std::string_view request,
                                 Duration limit) {
  std::vector<CountedStream> streams;
  const Descriptor set(::epoll_create1(EPOLL_CLOEXEC));
  for (std::size_t i = 0; i < count; ++i) {
    TRY(auto wire, HttpWire::open(port));
    epoll_event wanted{};
    wanted.events = EPOLLIN;
    wanted.data.u64 = i;
    ::epoll_ctl(set.get(), EPOLL_CTL_ADD, wire.fd(), &wanted);
    TRY_STATUS(wire.send(request));
    streams.emplace_back(std::move(wire));
  }
  StreamCount counted;
  std::array<epoll_event, 128> ready{};
  std::array<char, 1 << 14> buffer{};
  const auto end = Steady::now() + limit;
  while (counted.ended < count && Steady::now() < end) {
    const int n = ::epoll_wait(set.get(), ready.data(), static_cast<int>(ready.size()), 100);
    for (int i = 0; i < n; ++i) {
      CountedStream& stream = streams[ready[static_cast<std::size_t>(i)].data.u64];
      const ssize_t got = ::recv(stream.wire().fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got <= 0) return fail(ErrorCode::kIo, "the gateway ended a stream of the bench");
      stream.take({buffer.data(), static_cast<std::size_t>(got)}, counted);
    }
  }
  for (const CountedStream& stream : streams)
    counted.segments += stream.wire().segments_in();
  return counted;
}

}  // namespace penstock::bench
