#include "app/own_server.h"

#include <fmt/format.h>
#include <poll.h>

#include <array>
#include <chrono>
#include <csignal>
#include <thread>

#include "app/child_process.h"
#include "app/config_file.h"
#include "app/listen_address.h"
#include "app/ready.h"
#include "io/files/files.h"
#include "io/files/machine.h"

namespace penstock {

struct OwnServer::State {
  TemporaryDirectory folder;
  ChildProcess process;
  std::string url;
};

Result<OwnServer> OwnServer::start(const Options& given) {
  TRY(auto folder, TemporaryDirectory::make("penstock-serve"));
  Options options = given;
  options.host = "127.0.0.1";
  options.port = 0;
  options.tls_cert.clear();
  options.tls_key.clear();
  options.api_key_file.clear();
  options.data_dir = folder.path();
  options.worker_socket = folder.path() + "/run/worker-0.sock";
  options.kv_socket = folder.path() + "/run/kvd.sock";
  options.kv_secret_file = folder.path() + "/kv.secret";
  options.kv_dir = folder.path() + "/kv";
  options.kv_disk = "off";  // it is gone with the server
  options.access_log = folder.path() + "/access.log";
  options.log_level = "warning";
  const std::string config = folder.path() + "/serve.json";
  TRY_STATUS(write_file_atomically(config, effective_config(options), 0600));
  const std::array<std::string, 4> arguments = {executable_path(), "serve", "--config", config};
  TRY(auto process, ChildProcess::spawn(arguments));
  while (true) {
    pollfd wait{process.ready_fd(), POLLIN, 0};
    ::poll(&wait, 1, -1);
    const auto line = process.take_report();
    if (!line) continue;
    if (line->empty()) return fail(ErrorCode::kUnavailable, "the server ended before it was ready");
    TRY(const auto report, parse_ready_line(*line));
    auto url = listen_url(options.host, report.port, false);
    return OwnServer(
        std::make_unique<State>(State{std::move(folder), std::move(process), std::move(url)}));
  }
}

OwnServer::OwnServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
OwnServer::OwnServer(OwnServer&&) noexcept = default;
OwnServer& OwnServer::operator=(OwnServer&&) noexcept = default;

OwnServer::~OwnServer() {
  if (!state_) return;
  state_->process.signal(SIGTERM);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!state_->process.poll_exit() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

const std::string& OwnServer::url() const {
  return state_->url;
}

}  // namespace penstock
