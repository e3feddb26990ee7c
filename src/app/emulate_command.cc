// `penstock emulate DIALECT [SETTING=VALUE]...`: an engine's wire protocol without the engine.
#include <fmt/format.h>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "app/console.h"
#include "app/emulate_command.h"
#include "app/engine_prefixes.h"
#include "app/entropy.h"
#include "app/listen_address.h"
#include "app/ready.h"
#include "app/stop_signal.h"
#include "io/http/asio_clock.h"
#include "io/http/server.h"
#include "io/http/upstream.h"
#include "io/zmq/kv_event_publisher.h"
#include "service/emulate/emulator.h"

namespace penstock {
namespace {

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Starts to publish what the ranks hold, if that is wanted. The publishers outlive the emulator's
// last request.
Result<std::vector<std::unique_ptr<zmq::KvEventPublisher>>> publish_kv(
    emulate::Emulator& emulator) {
  std::vector<std::unique_ptr<zmq::KvEventPublisher>> publishers;
  const emulate::EmulatorOptions& options = emulator.options();
  if (options.kv_events.empty()) return publishers;
  std::string events;
  std::string replays;
  for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
    const auto at = endpoint_of_rank(options.kv_events, rank);
    const auto replay = endpoint_of_rank(options.kv_replay, rank);
    if (!at || !replay)
      return fail(ErrorCode::kInvalidArgument,
                  "kv-events: with several ranks give tcp://HOST:PORT, and each has the next port");
    TRY(auto publisher, zmq::KvEventPublisher::start(
                            {.events = *at, .replay = *replay, .topic = options.kv_topic}));
    const std::string_view comma = rank == 0 ? "" : ",";
    events += fmt::format(R"({}"{}")", comma, publisher->events_endpoint());
    replays += fmt::format(R"({}"{}")", comma, publisher->replay_endpoint());
    publishers.push_back(std::move(publisher));
  }
  std::vector<zmq::KvEventPublisher*> by_rank;
  for (const auto& publisher : publishers)
    by_rank.push_back(publisher.get());
  using Wire = zmq::KvEventPublisher::Wire;
  emulator.publish_with(
      [by_rank](std::size_t rank, std::string payload, bool lost) {
        by_rank[rank]->publish(std::move(payload), lost ? Wire::kLost : Wire::kSent);
      },
      fmt::format(R"({{"events":[{}],"replay":[{}]}})", events, replays));
  return publishers;
}

}  // namespace

Result<int> run_emulate(const Options& options) {
  if (options.words.empty())
    return fail(ErrorCode::kInvalidArgument,
                "say which engine: penstock emulate vllm, sglang or llamacpp");
  const auto kind = dialects::engine_kind(options.words[0]);
  if (!kind)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("\"{}\" is no engine that is emulated; there are vllm, sglang, llamacpp",
                    options.words[0]));
  emulate::EmulatorOptions wanted;
  wanted.kind = *kind;
  for (std::size_t i = 1; i < options.words.size(); ++i)
    TRY_STATUS(emulate::set_option(wanted, options.words[i]));

  block_stop_signals(options.ready_fd != 0);
  boost::asio::io_context io{1};
  http::AsioClock clock(io);
  wanted.hash_seed = draw_u64();
  wanted.engine_id = fmt::format("emulated-{:016x}", draw_u64());
  emulate::Emulator emulator(clock, std::move(wanted), unix_seconds,
                             [&clock](const std::string& url) {
                               http::UpstreamOptions upstream;
                               upstream.url = url;
                               auto made = http::HttpUpstream::make(clock, std::move(upstream));
                               return made ? std::unique_ptr<Upstream>(std::move(*made)) : nullptr;
                             });
  TRY(const auto publishers, publish_kv(emulator));
  http::ServerOptions server_options;
  server_options.address = options.host;
  server_options.port = static_cast<std::uint16_t>(options.port);
  TRY(const auto server, http::HttpServer::start(clock, std::move(server_options),
                                                 [&](std::unique_ptr<HttpExchange> exchange) {
                                                   return emulator.handle(std::move(exchange));
                                                 }));
  emulator.set_bootstrap_port(server->port());
  std::thread loop([&io] {
    const auto work = boost::asio::make_work_guard(io);
    io.run();
  });
  const Result<int> told = print_data(fmt::format("emulating {} on {}", options.words[0],
                                                  listen_url(options.host, server->port(), false)));
  if (told) wait_for_stop_signal();
  Gate gate;
  clock.post([&] {
    server->stop();
    server->cut();
    gate.start([](http::HttpServer& s, emulate::Emulator& e, http::AsioClock& t,
                  boost::asio::io_context& c) -> Task<void> {
      co_await s.drained();
      e.close();
      co_await Sleep(t, std::chrono::milliseconds(10));  // their last operations end
      c.stop();
    }(*server, emulator, clock, io));
  });
  loop.join();
  return told;
}

}  // namespace penstock
