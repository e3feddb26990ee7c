// `penstock bench gateway`: what the gateway costs in front of a worker that answers at once.
//
// The native path: HTTP and JSON in, the prompt's tokens, placement, frames to a worker process and
// back, text, JSON and HTTP out. Beside it, in the same rounds and on the same cores, nginx as a
// plain proxy before a server that answers each request with the same bytes at once. Both have one
// thread. An agent's body of 115 KB comes again in 19 of 20 requests; the 20th is new in every
// message. Bodies of 1 KB are all new.
//
// An engine that speaks the OpenAI API itself has a path of its own: `penstock bench proxy`.
#include "bench.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include <fmt/format.h>

#include "gateway_idle.h"
#include "gateway_load.h"
#include "gateway_rig.h"

namespace penstock::bench {
namespace {

using namespace std::chrono_literals;
using Steady = std::chrono::steady_clock;

constexpr double kOfNginx = 0.5;
constexpr double kAddedMaxUs = 100;
constexpr double kAddedFirstMaxUs = 300;
constexpr double kIdleMaxMb = 30;
constexpr double kIdleGrowthMax = 1.05;
constexpr std::uint32_t kStreams = 512;

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
Result<std::vector<Figure>> idle_figures(pid_t pid, Duration watch) {
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
  LoadRound round{small_name, wrk, folder, gateway, plain, rounds, kOfNginx};
  TRY(Figure small, load_figure(round, {small_body(false, kInstantTokens), 1, 64, time}));
  round.name = large_name;
  TRY(Figure large, load_figure(round, {large_body(), 20, 32, time}));
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
  fmt::print(stderr,
             "  one at a time: direct {:.0f} us, gateway {:.0f} us; first event p50 {:.0f}\n",
             median_of(direct_us), median_of(whole_us), median_of(first_us));
  return std::vector<Figure>{
      added_figure("added to a 1 KB request alone, native worker, p50", whole_us, direct_us, 0.5,
                   kAddedMaxUs),
      added_figure("added to its first token, p99", first_us, direct_us, 0.99, kAddedFirstMaxUs),
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

Result<std::vector<Figure>> run_gateway_idle(const Options& options) {
  TRY(const auto folder, ScratchFolder::make());
  const std::string socket = folder->path() + "/run/instant.sock";
  const auto worker = start_instant_worker(socket, options.model_dir, {});
  if (worker->line().empty())
    return fail(ErrorCode::kUnavailable, "the bench's worker did not start");
  TRY(const Child gateway, start_gateway(options, folder->path(), socket));
  return idle_figures(gateway.pid(), options.quick ? 3s : 600s);
}

Result<std::vector<Figure>> run_gateway(const Options& options) {
  TRY(const auto folder, ScratchFolder::make());
  const std::string socket = folder->path() + "/run/instant.sock";
  TRY(auto text, sentence_tokens(options.model_dir));
  const auto worker = start_instant_worker(socket, options.model_dir, std::move(text));
  if (worker->line().empty())
    return fail(ErrorCode::kUnavailable, "the bench's worker did not start");
  TRY(const Child gateway, start_gateway(options, folder->path(), socket));
  TRY(const std::uint16_t port, port_of(gateway.report()));
  TRY(const auto idle, idle_figures(gateway.pid(), options.quick ? 3s : 60s));

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
