#include "gateway_rig.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "core/prompt/tokenizer.h"
#include "io/control/engine_server.h"

namespace penstock::bench {
namespace {

using namespace std::chrono_literals;
using Steady = std::chrono::steady_clock;

class InstantEngine final : public service::WorkerEngine {
 public:
  InstantEngine(const std::string& model_dir, std::vector<TokenId> text) : text_(std::move(text)) {
    description_.name = "nano";
    description_.checkpoint_dir = model_dir;
    description_.context_length = 1U << 20;
    description_.vocab_size = 2048;
  }
  const ModelDescription& description() const override { return description_; }
  Status submit(EngineRequest request) override {
    const std::uint32_t tokens = request.sampling.max_tokens;
    (tokens <= kInstantTokens ? instant_ : paced_)[request.id] = {tokens, 0};
    return {};
  }
  void cancel(RequestId request) override {
    instant_.erase(request);
    paced_.erase(request);
  }
  bool has_work() const override { return !instant_.empty() || !paced_.empty(); }
  void step(std::vector<EngineOutput>& outputs) override {
    ++step_;
    for (auto& [id, answer] : instant_)
      outputs.push_back(go_on(id, answer, answer.tokens));
    instant_.clear();
    if (paced_.empty() || !outputs.empty()) return;
    next_ = std::max(next_ + kTokenInterval, Steady::now());
    std::this_thread::sleep_until(next_);
    for (auto& [id, answer] : paced_)
      outputs.push_back(go_on(id, answer, 1));
    std::erase_if(paced_, [](const auto& each) { return each.second.sent == each.second.tokens; });
  }
  EngineLoad load() const override {
    EngineLoad load;
    load.step = step_;
    load.running = static_cast<std::uint32_t>(instant_.size() + paced_.size());
    load.kv_tokens_total = Tokens(std::int64_t{1} << 40);
    return load;
  }

 private:
  struct Answer {
    std::uint32_t tokens = 0;  // all of it
    std::uint32_t sent = 0;
  };
  EngineOutput go_on(RequestId id, Answer& answer, std::uint32_t count) {
    EngineOutput output;
    output.request = id;
    output.index = answer.sent;
    for (; count > 0; --count)
      output.tokens.push_back({text_[answer.sent++ % text_.size()], 0.0F, {}});
    if (answer.sent == answer.tokens) output.finish = FinishReason::kLength;
    return output;
  }

  ModelDescription description_;
  std::vector<TokenId> text_;
  std::map<RequestId, Answer> instant_;
  std::map<RequestId, Answer> paced_;
  std::uint64_t step_ = 0;
  Steady::time_point next_{};
};

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Level-triggered, one buffer a connection; ends with its process.
void serve_mock(int listener, const std::string& answer) {
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.fd = listener;
  ::epoll_ctl(set, EPOLL_CTL_ADD, listener, &wanted);
  std::unordered_map<int, std::string> received;
  std::array<epoll_event, 128> ready{};
  std::array<char, 1 << 16> buffer{};
  while (true) {
    const int count = ::epoll_wait(set, ready.data(), static_cast<int>(ready.size()), -1);
    for (int i = 0; i < count; ++i) {
      const int fd = ready[static_cast<std::size_t>(i)].data.fd;
      if (fd == listener) {
        wanted.data.fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (wanted.data.fd >= 0) ::epoll_ctl(set, EPOLL_CTL_ADD, wanted.data.fd, &wanted);
        continue;
      }
      const ssize_t n = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (n <= 0) {
        received.erase(fd);
        ::close(fd);
        continue;
      }
      std::string& bytes = received[fd];
      bytes.append(buffer.data(), static_cast<std::size_t>(n));
      while (const std::size_t size = message_size(bytes)) {
        bytes.erase(0, size);
        (void)!::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
      }
    }
  }
}

// Waits until somebody listens there.
bool wait_for_port(std::uint16_t port) {
  const auto end = Steady::now() + 10s;
  while (Steady::now() < end) {
    if (HttpWire::open(port)) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

Result<std::string> output_of(const std::string& command) {
  FILE* const pipe = ::popen(command.c_str(), "re");
  if (pipe == nullptr) return fail(ErrorCode::kIo, "the bench can't start a program");
  std::string output;
  std::array<char, 4096> buffer{};
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    output.append(buffer.data(), n);
  if (::pclose(pipe) != 0)
    return fail(ErrorCode::kUnavailable, fmt::format("{} failed: {}", command, output));
  return output;
}

}  // namespace

Result<std::pair<int, std::uint16_t>> listen_somewhere() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (fd < 0 || ::bind(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(fd, 1024) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    if (fd >= 0) ::close(fd);
    return fail(ErrorCode::kIo, "the bench can't listen on loopback");
  }
  return std::pair(fd, ntohs(address.sin_port));
}

std::size_t message_size(std::string_view bytes) {
  const std::size_t head = bytes.find("\r\n\r\n");
  if (head == std::string_view::npos) return 0;
  const std::string_view fields = bytes.substr(0, head + 2);
  for (const std::string_view name : {"\r\ncontent-length: ", "\r\nContent-Length: "}) {
    const std::size_t at = fields.find(name);
    if (at == std::string_view::npos) continue;
    std::size_t length = 0;
    std::from_chars(fields.data() + at + name.size(), fields.data() + fields.size(), length);
    return bytes.size() >= head + 4 + length ? head + 4 + length : 0;
  }
  constexpr std::string_view kLastChunk = "\r\n0\r\n\r\n";
  return bytes.ends_with(kLastChunk) ? bytes.size() : 0;
}

std::unique_ptr<Fork> start_instant_worker(const std::string& socket, const std::string& model_dir,
                                           std::vector<TokenId> text) {
  return std::make_unique<Fork>([&](int report) {
    control::EngineServerOptions options;
    options.listen = "unix:" + socket;
    options.name = "instant";
    std::vector<std::unique_ptr<service::WorkerEngine>> engines;
    engines.push_back(std::make_unique<InstantEngine>(model_dir, std::move(text)));
    const auto server = control::EngineServer::start(std::move(options), std::move(engines));
    if (!server) return;
    tell(report, socket);
    while (true)
      ::pause();
  });
}

Result<std::vector<TokenId>> sentence_tokens(const std::string& model_dir) {
  std::ifstream file(model_dir + "/tokenizer.json");
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  TRY(const auto tokenizer, Tokenizer::from_json(json));
  std::vector<TokenId> text;
  TRY_STATUS(tokenizer->encode("The quick brown fox jumps over the lazy dog and on. ", text));
  return text;
}

Result<HttpMock> start_http_mock(std::string_view body) {
  TRY(const auto listening, listen_somewhere());
  const auto [listener, port] = listening;
  const std::string answer = fmt::format(
      "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{}",
      body.size(), body);
  auto process = std::make_unique<Fork>([&](int report) {
    tell(report, "ready");
    serve_mock(listener, answer);
  });
  ::close(listener);
  if (process->line().empty())
    return fail(ErrorCode::kUnavailable, "the bench's server did not start");
  return HttpMock{std::move(process), port};
}

Result<std::uint16_t> port_of(std::string_view report) {
  constexpr std::string_view kKey = "\"port\":";
  const std::size_t at = report.find(kKey);
  std::uint16_t port = 0;
  if (at != std::string_view::npos)
    std::from_chars(report.data() + at + kKey.size(), report.data() + report.size(), port);
  if (port == 0) return fail(ErrorCode::kInternal, "the gateway of the bench told no port");
  return port;
}

std::string find_program(const std::string& name) {
  const char* const path = ::getenv("PATH");
  std::string folders = path != nullptr ? path : "";
  folders += ":/usr/sbin:/usr/local/sbin";  // where nginx is, and not every user's PATH goes
  for (std::size_t at = 0; at < folders.size();) {
    const std::size_t end = std::min(folders.find(':', at), folders.size());
    std::string program = folders.substr(at, end - at) + "/" + name;
    if (::access(program.c_str(), X_OK) == 0) return program;
    at = end + 1;
  }
  return {};
}

double cpu_of(pid_t pid) {
  double sum = 0;
  std::error_code gone;
  for (const auto& task :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), gone)) {
    std::ifstream file(task.path() / "schedstat");
    double ran = 0;
    if (file >> ran) sum += ran;
  }
  return sum;
}

Result<HttpMock> start_nginx(const std::string& program, const std::string& folder,
                             std::uint16_t behind) {
  TRY(const auto free, listen_somewhere());
  ::close(free.first);
  const std::string config = folder + "/nginx.conf";
  std::ofstream(config) << fmt::format(
      R"(daemon off; master_process off; pid {0}/nginx.pid; error_log {0}/nginx.log warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000;
  client_body_buffer_size 256k; client_max_body_size 64m;
  client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/fastcgi;
  uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;
  upstream behind {{ server 127.0.0.1:{2}; keepalive 128; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{1};
    location / {{ proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
)",
      folder, free.second, behind);
  auto process = std::make_unique<Fork>([&](int report) {
    tell(report, "started");
    const std::string errors = folder + "/nginx.log";
    ::execl(program.c_str(), "nginx", "-p", folder.c_str(), "-e", errors.c_str(), "-c",
            config.c_str(), static_cast<char*>(nullptr));
  });
  if (process->line().empty() || !wait_for_port(free.second)) {
    std::ifstream log(folder + "/nginx.log");
    const std::string why{std::istreambuf_iterator<char>(log), {}};
    return fail(ErrorCode::kUnavailable, fmt::format("nginx did not start: {}", why));
  }
  return HttpMock{std::move(process), free.second};
}

Result<double> run_wrk(const std::string& program, const std::string& folder, std::uint16_t port,
                       const LoadOptions& options) {
  static std::uint32_t run = 0;  // so that what is fresh was not in a run before
  const std::string body = folder + "/wrk.body";
  const std::string script = folder + "/wrk.lua";
  std::ofstream(body) << options.body;
  std::ofstream(script) << fmt::format(
      R"(local every, run, n, fresh, seen = {}, {}, 0, nil, {{}}
function init(args)
  local file = io.open("{}", "rb")
  local body = file:read("*a")
  file:close()
  fresh = wrk.format("POST", "/v1/chat/completions", {{["Content-Type"] = "application/json"}}, body)
  for i = 1, 8 do seen[i] = fresh:gsub("{}", string.format("seen%04d", i)) end
end
function request()
  n = n + 1
  if n % every ~= 0 then return seen[n % 8 + 1] end
  return (fresh:gsub("{}", string.format("%02x%06x", run, n)))
end
)",
      options.fresh_every, ++run, body, kMark, kMark);
  TRY(const std::string output,
      output_of(fmt::format("{} -t1 -c{} -d{}s -s {} http://127.0.0.1:{} 2>&1", program,
                            options.connections, options.time.count(), script, port)));
  constexpr std::string_view kRate = "Requests/sec:";
  const std::size_t at = output.find(kRate);
  if (at == std::string::npos || output.contains("Non-2xx") || output.contains("Socket errors"))
    return fail(ErrorCode::kDataLoss, fmt::format("not every request was answered: {}", output));
  return std::strtod(output.c_str() + at + kRate.size(), nullptr);
}

std::string chat_post(std::string_view body) {
  return fmt::format(
      "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
      "content-length: {}\r\n\r\n{}",
      body.size(), body);
}

Result<HttpWire> HttpWire::open(std::uint16_t port) {
  HttpWire wire(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in to = loopback(port);
  if (wire.fd() < 0 || ::connect(wire.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
    return fail(ErrorCode::kIo, "the bench can't reach its server");
  return wire;
}

Status HttpWire::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return fail(ErrorCode::kIo, "the server of the bench closed a connection");
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

Result<HttpWire::Answer> HttpWire::ask(std::string_view request) {
  Answer answer;
  std::array<char, 1 << 14> buffer{};
  const auto began = Steady::now();
  TRY_STATUS(send(request));
  while (message_size(answer.text) == 0) {
    const ssize_t n = ::recv(fd(), buffer.data(), buffer.size(), 0);
    if (n <= 0) return fail(ErrorCode::kIo, "the server of the bench closed a connection");
    if (answer.text.empty()) answer.first = Steady::now() - began;
    answer.text.append(buffer.data(), static_cast<std::size_t>(n));
  }
  answer.whole = Steady::now() - began;
  if (!answer.text.starts_with("HTTP/1.1 200"))
    return fail(ErrorCode::kDataLoss, "the bench's server refuses: " + answer.text);
  return answer;
}

std::uint64_t HttpWire::segments_in() const {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? info.tcpi_data_segs_in : 0;
}

}  // namespace penstock::bench
