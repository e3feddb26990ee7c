// `penstock bench proxy`: what the gateway costs before an engine that speaks the OpenAI API
// itself.
//
// The engine is a mock that answers at once, or streams as fast as it can, one chunk a write. In
// the same rounds and on the same cores, nginx as a plain proxy with its default settings stands
// before the same mock. Both have one thread. nginx passes bytes; the gateway also finds the model,
// edits the body where it must, watches every event for usage and end, and keeps a record.
#include "bench.h"

#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "gateway_load.h"
#include "gateway_rig.h"
#include "io/files/descriptor.h"
#include "io/sockets/tcp_socket.h"

namespace penstock::bench {
namespace {

using namespace std::chrono_literals;
using Steady = std::chrono::steady_clock;

constexpr double kOfNginx = 0.6;
constexpr double kOfNginxLarge = 1.0;
constexpr double kAddedMaxUs = 100;
constexpr double kChunksMin = 100'000;
constexpr std::size_t kStreams = 64;
constexpr std::size_t kMegabyte = std::size_t{1} << 20;

constexpr std::string_view kChunk =
    R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"nano",)"
    R"("choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]})"
    "\n\n";
constexpr std::string_view kWhole =
    R"({"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"nano","choices":[{)"
    R"("index":0,"message":{"role":"assistant","content":"The quick brown fox jumps over the lazy )"
    R"(dog and on."},"finish_reason":"stop"}],"usage":{"prompt_tokens":200,"total_tokens":216,)"
    R"("completion_tokens":16}})";

std::string whole_answer(std::string_view body) {
  return fmt::format(
      "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{}",
      body.size(), body);
}

std::string http_chunk(std::string_view bytes) {
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

bool send_stream(int fd, std::uint32_t chunks) {
  if (!send_all(fd,
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: "
                "chunked\r\n\r\n"))
    return false;
  const std::string chunk = http_chunk(kChunk);
  for (std::uint32_t i = 0; i < chunks; ++i) {
    if (!send_all(fd, chunk)) return false;
  }
  return send_all(fd, http_chunk("data: [DONE]\n\n") + "0\r\n\r\n");
}

// One connection of the mock: requests are told apart by their first line and by "stream".
void serve_engine(int fd, std::uint32_t chunks) {
  const std::string models =
      whole_answer(R"({"object":"list","data":[{"id":"nano","max_model_len":1048576}]})");
  const std::string whole = whole_answer(kWhole);
  std::string bytes;
  std::vector<char> buffer(1 << 17);
  while (true) {
    const std::size_t size = message_size(bytes);
    const bool is_get = bytes.starts_with("GET ") && bytes.contains("\r\n\r\n");
    if (size == 0 && !is_get) {
      const ssize_t n = ::recv(fd, buffer.data(), buffer.size(), 0);
      if (n <= 0) return;
      bytes.append(buffer.data(), static_cast<std::size_t>(n));
      continue;
    }
    bool sent = false;
    if (is_get) {
      sent = send_all(fd, models);
      bytes.erase(0, bytes.find("\r\n\r\n") + 4);
    } else {
      const bool stream = std::string_view(bytes).substr(0, size).contains("\"stream\":true");
      sent = stream ? send_stream(fd, chunks) : send_all(fd, whole);
      bytes.erase(0, size);
    }
    if (!sent) return;
  }
}

// A thread for each connection; ends with its process.
Result<HttpMock> start_engine(std::uint32_t chunks) {
  TRY(const auto listening, listen_somewhere());
  const auto [listener, port] = listening;
  auto process = std::make_unique<Fork>([&](int report) {
    tell(report, "ready");
    while (true) {
      const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      std::thread([fd, chunks] {
        const Descriptor connection(fd);
        sockets::no_delay(fd);
        serve_engine(fd, chunks);
      }).detach();
    }
  });
  ::close(listener);
  if (process->line().empty())
    return fail(ErrorCode::kUnavailable, "the bench's engine did not start");
  return HttpMock{std::move(process), port};
}

Result<Child> start_gateway(const std::string& folder, std::uint16_t engine) {
  return Child::start({"gateway", "--port", "0", "--data-dir", folder, "--engine",
                       fmt::format("vllm=http://127.0.0.1:{}", engine), "--gateway-threads", "1",
                       "--access-log", folder + "/access.log", "--log-level", "error"});
}

struct Rate {
  double chunks = 0;  // a second
  double cpu_us = 0;  // of the server, for each
};
Result<Rate> stream_rate(const Server& server, std::uint32_t chunks, std::string_view request) {
  const double before = cpu_of(server.pid);
  const auto began = Steady::now();
  TRY(const StreamCount count, read_streams(server.port, kStreams, request, 5min));
  const double seconds = std::chrono::duration<double>(Steady::now() - began).count();
  if (count.ended != kStreams || count.events != kStreams * (std::uint64_t{chunks} + 1))
    return fail(ErrorCode::kDataLoss, fmt::format("{} of {} streams ended, with {} events",
                                                  count.ended, kStreams, count.events));
  const auto all = static_cast<double>(count.events);
  return Rate{all / seconds, (cpu_of(server.pid) - before) / all / 1e3};
}

Result<std::vector<Figure>> stream_figures(const Options& options, std::uint32_t chunks,
                                           const Server& gateway, const Server& nginx) {
  const std::string request = chat_post(small_body(true, 1));
  std::vector<double> ours;
  std::vector<double> theirs;
  for (int i = 0; i < (options.quick ? 2 : 5); ++i) {
    TRY(const Rate a, stream_rate(gateway, chunks, request));
    ours.push_back(a.chunks);
    fmt::print(stderr, "  {} streams: {:.0f} chunks/s ({:.1f} us of CPU each)", kStreams, a.chunks,
               a.cpu_us);
    if (nginx.port == 0) continue;
    TRY(const Rate b, stream_rate(nginx, chunks, request));
    theirs.push_back(b.chunks);
    fmt::print(stderr, ", nginx {:.0f} ({:.1f} us)\n", b.chunks, b.cpu_us);
  }
  std::vector<Figure> figures = {
      at_least(fmt::format("{} streams at once, client and engine on the same cores", kStreams),
               median_of(ours), "chunks/s", kChunksMin)};
  if (!theirs.empty())
    figures.push_back(more_is_better("the same streams", median_of(ours), "chunks/s",
                                     "nginx, plain proxy", median_of(theirs), kOfNginx));
  return figures;
}

Result<Figure> delay_figure(const Options& options, std::uint16_t gateway, std::uint16_t engine) {
  const std::string request = chat_post(small_body(false, kInstantTokens));
  TRY(auto through, HttpWire::open(gateway));
  TRY(auto direct, HttpWire::open(engine));
  std::vector<double> direct_us;
  std::vector<double> through_us;
  for (int i = 0; i < (options.quick ? 1000 : 5000); ++i) {
    TRY(const auto plain, direct.ask(request));
    TRY(const auto answer, through.ask(request));
    direct_us.push_back(micros(plain.whole));
    through_us.push_back(micros(answer.whole));
  }
  fmt::print(stderr, "  one at a time: direct {:.0f} us, gateway {:.0f} us\n", median_of(direct_us),
             median_of(through_us));
  return added_figure("added to a 1 KB request alone, p50", through_us, direct_us, 0.5,
                      kAddedMaxUs);
}

}  // namespace

Result<std::vector<Figure>> run_proxy(const Options& options) {
  TRY(const auto folder, ScratchFolder::make());
  const std::uint32_t chunks = options.quick ? 500 : 4000;
  TRY(const HttpMock engine, start_engine(chunks));
  TRY(const Child child, start_gateway(folder->path(), engine.port));
  TRY(const std::uint16_t port, port_of(child.report()));
  const Server gateway{child.pid(), port};

  const std::string wrk = find_program("wrk");
  const std::string program = find_program("nginx");
  Server plain;
  HttpMock proxy;
  if (!program.empty()) {
    TRY(proxy, start_nginx(program, folder->path(), engine.port));
    plain = {proxy.process->pid(), proxy.port};
  }
  std::vector<Figure> figures;
  TRY(figures, stream_figures(options, chunks, gateway, plain));
  TRY(Figure added, delay_figure(options, port, engine.port));
  figures.push_back(std::move(added));

  const auto time = options.quick ? 2s : 4s;
  struct Row {
    std::string name;
    LoadOptions load;
    double aim;
  };
  const std::vector<Row> rows = {
      {"1 KB chat, 64 connections", {small_body(false, kInstantTokens), 1, 64, time}, kOfNginx},
      {"115 KB agent body, 32 connections", {large_body(), 20, 32, time}, kOfNginxLarge},
      {"1 MiB body, 8 connections", {body_of(kMegabyte), 20, 8, time}, kOfNginxLarge}};
  for (const Row& row : rows) {
    if (wrk.empty() || program.empty()) {
      figures.push_back(
          skipped(row.name, "/s", "nginx, plain proxy", row.aim,
                  "needs the programs nginx and wrk: apt-get install nginx-light wrk"));
      continue;
    }
    TRY(Figure figure,
        load_figure({row.name, wrk, folder->path(), gateway, plain, options.quick ? 2 : 5, row.aim},
                    row.load));
    figures.push_back(std::move(figure));
  }
  return figures;
}

}  // namespace penstock::bench
