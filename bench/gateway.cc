// `penstock bench gateway`: what the gateway costs in front of a worker that answers at once.
//
// The native path: HTTP and JSON in, the prompt's tokens, placement, frames to a worker process and
// back, text, JSON and HTTP out. Beside it, in the same rounds and on the same cores, nginx as a
// plain proxy before a server that answers each request with the same bytes at once. Both have one
// thread. An agent's body of 115 KB comes again in 19 of 20 requests; the 20th is new in every
// message. Bodies of 1 KB are all new.
//
// A worker that speaks the OpenAI API itself has a path of its own, with figures of its own beside
// these, once the gateway has one.
#include "bench.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <thread>

#include <fmt/format.h>

#include "gateway_rig.h"
#include "io/files/descriptor.h"

namespace penstock::bench {
namespace {

using namespace std::chrono_literals;
using Steady = std::chrono::steady_clock;

constexpr double kOfNginx = 0.5;
constexpr double kAddedMaxUs = 100;
constexpr double kAddedFirstMaxUs = 300;
constexpr double kIdleMaxMb = 30;
constexpr double kIdleGrowthMax = 1.05;
constexpr std::size_t kSmallBytes = 1 << 10;
constexpr std::size_t kLargeBytes = 115 << 10;
constexpr std::uint32_t kStreams = 512;

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

std::string small_body(bool stream, std::uint32_t max_tokens) {
  const std::string start =
      fmt::format(R"({{"model":"nano","stream":{},"max_tokens":{},"messages":[{{"role":"user",)"
                  R"("content":")",
                  stream, max_tokens);
  return start + filler(kSmallBytes - start.size() - 20, 1) + "\"}]}";
}

// As coding agents send it: a long system message, tools, and turns.
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

double micros(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

struct Server {
  pid_t pid = 0;
  std::uint16_t port = 0;
};

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

Result<Figure> load_figure(std::string name, const std::string& wrk, const std::string& folder,
                           const Server& gateway, const Server& nginx, const LoadOptions& load,
                           int rounds) {
  std::vector<double> ours;
  std::vector<double> theirs;
  for (int i = 0; i < rounds; ++i) {
    TRY(const Loaded a, loaded(wrk, folder, gateway, load));
    TRY(const Loaded b, loaded(wrk, folder, nginx, load));
    ours.push_back(a.rate);
    theirs.push_back(b.rate);
    fmt::print(stderr, "  {}: {:.0f}/s ({:.0f} us of CPU each), nginx {:.0f}/s ({:.0f} us)\n", name,
               a.rate, a.cpu_us, b.rate, b.cpu_us);
  }
  return more_is_better(std::move(name), median_of(ours), "/s", "nginx, plain proxy",
                        median_of(theirs), kOfNginx);
}

// Streams, read and counted.
struct StreamCount {
  std::uint64_t events = 0;
  std::uint64_t text = 0;  // bytes of content, as JSON has them
  std::uint64_t segments = 0;
  std::uint64_t ended = 0;  // with the last chunk
};

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

// `count` streams at once, each to its end.
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

double resident_mb(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmRSS:")) return std::strtod(line.c_str() + 6, nullptr) / 1024;
  return 0;
}

Result<Child> start_gateway(const Options& options, const std::string& folder,
                            const std::string& socket) {
  return Child::start({"gateway", "--port", "0", "--data-dir", folder, "--model",
                       "nano=" + options.model_dir, "--worker", "instant=unix:" + socket,
                       "--kv-cache", "off", "--gateway-threads", "1", "--access-log",
                       folder + "/access.log", "--log-level", "error"});
}

// A gateway that nobody has asked anything.
Result<std::vector<Figure>> idle_figures(const Options& options, pid_t pid) {
  const Duration watch = options.quick ? 3s : 60s;
  std::this_thread::sleep_for(1s);
  const double before = resident_mb(pid);
  std::this_thread::sleep_for(watch);
  const double after = resident_mb(pid);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(watch).count();
  return std::vector<Figure>{
      at_most("idle gateway, resident memory", after, "MB", kIdleMaxMb),
      at_most(fmt::format("idle gateway, memory after {} s by before", seconds), after / before,
              "x", kIdleGrowthMax)};
}

Result<std::vector<Figure>> load_figures(const Options& options, const std::string& folder,
                                         const Server& gateway, std::uint16_t mock) {
  const std::string small_name = "1 KB chat, 64 connections, native worker";
  const std::string large_name = "115 KB agent body, 95 % seen before, 32 connections";
  const std::string wrk = find_program("wrk");
  const std::string nginx = find_program("nginx");
  if (wrk.empty() || nginx.empty()) {
    const std::string why = "needs the programs nginx and wrk: apt-get install nginx-light wrk";
    return std::vector<Figure>{skipped(small_name, "/s", "nginx, plain proxy", kOfNginx, why),
                               skipped(large_name, "/s", "nginx, plain proxy", kOfNginx, why)};
  }
  TRY(const HttpMock proxy, start_nginx(nginx, folder, mock));
  const Server plain{proxy.process->pid(), proxy.port};
  const int rounds = options.quick ? 2 : 5;
  const auto time = options.quick ? 2s : 4s;
  std::vector<Figure> figures;
  TRY(Figure small, load_figure(small_name, wrk, folder, gateway, plain,
                                {small_body(false, kInstantTokens), 1, 64, time}, rounds));
  TRY(Figure large,
      load_figure(large_name, wrk, folder, gateway, plain, {large_body(), 20, 32, time}, rounds));
  figures.push_back(std::move(small));
  figures.push_back(std::move(large));
  return figures;
}

Result<std::vector<Figure>> delay_figures(const Options& options, std::uint16_t gateway,
                                          std::uint16_t mock) {
  const std::string whole = chat_post(small_body(false, kInstantTokens));
  const std::string streamed = chat_post(small_body(true, kInstantTokens));
  TRY(auto through, HttpWire::open(gateway));
  TRY(auto direct, HttpWire::open(mock));
  std::vector<double> direct_us;
  std::vector<double> whole_us;
  std::vector<double> first_us;
  double late = 0;  // first events about as late as a delayed acknowledgement makes them
  const int count = options.quick ? 1000 : 5000;
  for (int i = 0; i < count; ++i) {
    TRY(const auto plain, direct.ask(whole));
    TRY(const auto answer, through.ask(whole));
    TRY(const auto stream, through.ask(streamed));
    direct_us.push_back(micros(plain.whole));
    whole_us.push_back(micros(answer.whole));
    first_us.push_back(micros(stream.first));
    late += stream.first > 36ms && stream.first < 46ms ? 1 : 0;
  }
  const auto added = [&](std::string name, const std::vector<double>& times, double q,
                         double limit) {
    const double direct_time = quantile_of(direct_us, q);
    const double more = quantile_of(times, q) - direct_time;
    if (more > 0) return at_most(std::move(name), more, "us", limit);
    return skipped(
        std::move(name), "us", "limit", 1,
        fmt::format("the machine is too busy: asked directly it took {:.0f} us", direct_time));
  };
  fmt::print(stderr,
             "  one at a time: direct {:.0f} us, gateway {:.0f} us; first event p50 {:.0f}\n",
             median_of(direct_us), median_of(whole_us), median_of(first_us));
  return std::vector<Figure>{
      added("added to a 1 KB request alone, native worker, p50", whole_us, 0.5, kAddedMaxUs),
      added("added to its first token, p99", first_us, 0.99, kAddedFirstMaxUs),
      at_least("first events not at 40 ms", 1 - late / count, "of all", 0.99)};
}

Result<std::vector<Figure>> stream_figures(const Options& options, std::uint16_t gateway) {
  const std::uint32_t tokens = options.quick ? 100 : 500;
  const std::string request = chat_post(small_body(true, tokens));
  const Duration limit = kTokenInterval * tokens + 20s;
  // One stream alone says how many events there are.
  TRY(const StreamCount alone, read_streams(gateway, 1, request, limit));
  if (alone.ended != 1 || alone.events < tokens)
    return fail(ErrorCode::kDataLoss, "one stream alone does not bring an event for each token");
  TRY(const StreamCount all, read_streams(gateway, kStreams, request, limit));
  fmt::print(stderr, "  {} of {} streams ended, {} events in {} segments\n", all.ended, kStreams,
             all.events, all.segments);
  return std::vector<Figure>{
      at_least("512 streams, a token each 20 ms: text delivered",
               static_cast<double>(all.text) / static_cast<double>(kStreams * alone.text), "of all",
               1),
      at_least("512 streams, a token each 20 ms: events of their own",
               static_cast<double>(all.events) / static_cast<double>(kStreams * alone.events),
               "of all", 1),
      at_most("segments for an event",
              static_cast<double>(alone.segments) / static_cast<double>(alone.events), "", 1)};
}

}  // namespace

Result<std::vector<Figure>> run_gateway(const Options& options) {
  TRY(const auto folder, ScratchFolder::make());
  const std::string socket = folder->path() + "/run/instant.sock";
  TRY(auto text, sentence_tokens(options.model_dir));
  const auto worker = start_instant_worker(socket, options.model_dir, std::move(text));
  if (worker->line().empty())
    return fail(ErrorCode::kUnavailable, "the bench's worker did not start");
  TRY(const Child gateway, start_gateway(options, folder->path(), socket));
  TRY(const std::uint16_t port, port_of(gateway.report()));
  TRY(const auto idle, idle_figures(options, gateway.pid()));

  TRY(auto wire, HttpWire::open(port));
  TRY(const auto answer, wire.ask(chat_post(small_body(false, kInstantTokens))));
  const std::size_t body = answer.text.find("\r\n\r\n") + 4;
  TRY(const HttpMock mock, start_http_mock(std::string_view(answer.text).substr(body)));

  std::vector<Figure> figures;
  TRY(const auto load, load_figures(options, folder->path(), {gateway.pid(), port}, mock.port));
  TRY(const auto delay, delay_figures(options, port, mock.port));
  TRY(const auto streams, stream_figures(options, port));
  for (const auto* const part : {&load, &delay, &streams, &idle})
    figures.insert(figures.end(), part->begin(), part->end());
  return figures;
}

}  // namespace penstock::bench
