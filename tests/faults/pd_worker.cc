// A worker as `penstock worker`, but with a transport that breaks to a plan (faulty_transport.h)
// and with limits of the handoff that the product does not let anybody set.
//
// usage: pd_worker --name NAME --role prefill|decode --data-dir DIR --model DIR --faults FILE
//            [--transport ADDRESS] [--cache on|off] [--seed N] [--ready-fd N] [--LIMIT N]...
// LIMIT: one of the names in limits() below; milliseconds where it is a time.
//
// Errors: as `penstock worker`; an unknown argument ends it with a line on stderr.
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "app/entropy.h"
#include "app/pools.h"
#include "app/ready.h"
#include "app/stop_signal.h"
#include "io/control/engine_server.h"
#include "io/embedded/embedded_engine.h"
#include "io/telemetry/log.h"
#include "io/transport/transport_options.h"
#include "service/handoff/handoff_service.h"
#include "tests/faults/faulty_transport.h"

namespace penstock::faults {
namespace {

using Arguments = std::map<std::string, std::string>;

std::string take(Arguments& arguments, const std::string& name, std::string otherwise = {}) {
  const auto node = arguments.extract(name);
  return node ? node.mapped() : std::move(otherwise);
}

std::uint64_t take_number(Arguments& arguments, const std::string& name, std::uint64_t otherwise) {
  return std::strtoull(take(arguments, name, fmt::to_string(otherwise)).c_str(), nullptr, 10);
}

service::HandoffOptions limits(Arguments& arguments, Epoch epoch) {
  service::HandoffOptions options;
  options.epoch = epoch;
  const std::pair<const char*, Duration*> times[] = {
      {"lease", &options.owner.lease},      {"unclaimed", &options.owner.unclaimed},
      {"parked", &options.owner.parked},    {"quarantine", &options.owner.quarantine},
      {"connect", &options.reader.connect}, {"attach", &options.reader.attach},
      {"read", &options.reader.read},       {"whole", &options.reader.whole},
      {"silent", &options.reader.silent},   {"alive", &options.owner.heartbeat}};
  for (const auto& [name, value] : times) {
    const auto usual = std::chrono::duration_cast<std::chrono::milliseconds>(*value).count();
    *value =
        std::chrono::milliseconds(take_number(arguments, name, static_cast<std::uint64_t>(usual)));
  }
  options.owner.handoffs_max = take_number(arguments, "handoffs", options.owner.handoffs_max);
  options.pulls_max = take_number(arguments, "pulls", options.pulls_max);
  options.reader.reads_max = take_number(arguments, "reads", options.reader.reads_max);
  return options;
}

service::RankMemory rank_memory(engine::Engine& engine) {
  engine::KvPool& pool = engine.pool();
  const engine::KvLayout& layout = pool.layout();
  std::byte* const payloads = pool.payload(engine::BlockId{0}).data();
  service::RankMemory memory;
  memory.pool = {pool.fd(),
                 payloads - pool.payload_offset(),
                 pool.mapped_bytes(),
                 pool.payload_offset(),
                 layout.block_bytes(),
                 pool.blocks()};
  memory.payloads = payloads;
  memory.model = engine.description().name;
  memory.layers = layout.layers;
  memory.block_tokens = engine::kBlockTokens;
  memory.slice_bytes = layout.slice_bytes();
  memory.kv_format = engine.description().kv.kv_format;
  return memory;
}

Result<std::unique_ptr<EmbeddedEngine>> open_engine(Arguments& arguments, const std::string& name,
                                                    const std::string& data_dir) {
  engine::EngineOptions wanted;
  wanted.checkpoint_dir = take(arguments, "model");
  wanted.model_name = "nano";
  wanted.threads = 1;
  wanted.kv_bytes = Bytes(std::int64_t{96} << 20);
  TRY(auto opened, engine::Engine::open(wanted));
  auto engine = std::make_unique<EmbeddedEngine>(std::move(opened));
  if (take(arguments, "cache", "off") == "on") {
    KvConnectorOptions kv;
    kv.socket = data_dir + "/run/kvd.sock";
    kv.secret_file = data_dir + "/kv.secret";
    kv.name = name + "/nano/0";
    TRY_STATUS(engine->connect(kv));
  }
  return engine;
}

HandoffUse use_of(const service::HandoffCounters& now) {
  HandoffUse use;
  use.open = now.owner.open;
  use.blocks_held = now.owner.blocks_held;
  use.pulls_running = now.pulls_running;
  use.released = now.owner.released;
  use.expired = now.owner.expired;
  use.withdrawn = now.owner.withdrawn;
  use.pulls_done = now.pulls_done;
  for (const std::uint64_t failed : now.pulls_failed)
    use.pulls_failed += failed;
  use.bytes_pulled = now.bytes_pulled;
  use.slices_corrupt = now.slices_corrupt;
  for (std::size_t i = 0; i < handoff::edges().size(); ++i)
    use.edges.push_back(now.hits.of(i));
  return use;
}

Result<int> serve(Arguments arguments, std::uint32_t ready_fd) {
  const std::string data_dir = take(arguments, "data-dir");
  control::EngineServerOptions server_options;
  server_options.name = take(arguments, "name");
  server_options.listen = fmt::format("unix:{}/run/{}.sock", data_dir, server_options.name);
  server_options.engine = "embedded, with faults";
  server_options.epoch = Epoch(draw_u64());
  TRY(server_options.role, parse_role(take(arguments, "role")));
  TRY(auto engine, open_engine(arguments, server_options.name, data_dir));

  transport::TransportOptions wanted;
  wanted.listen = take(arguments, "transport");
  TRY(auto inner, transport::open_transport(std::move(wanted)));
  const std::uint64_t seed = take_number(arguments, "seed", 0);
  FaultyTransport transport(std::move(inner), FaultPlan(take(arguments, "faults"), seed));
  auto handoffs =
      std::make_unique<service::HandoffService>(transport, limits(arguments, server_options.epoch));
  if (!arguments.empty())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--{} is no argument", arguments.begin()->first));
  EmbeddedEngine* const embedded = engine.get();
  embedded->hand_off(handoffs->add_rank(rank_memory(embedded->engine()),
                                        [embedded] { embedded->on_handoff_news(); }),
                     [](std::string_view why) { log_warning("a pull failed: {}", why); });
  handoffs->start();
  server_options.transport = transport.address();
  server_options.handoffs = [&] { return use_of(handoffs->counters()); };

  std::vector<std::unique_ptr<service::WorkerEngine>> engines;
  engines.push_back(std::move(engine));
  TRY(const auto server,
      control::EngineServer::start(std::move(server_options), std::move(engines)));
  report_ready(ready_fd, {});
  wait_for_stop_signal();
  std::atomic<bool> empty{false};
  server->drain([&empty] { empty = true; });
  wait_until([&empty] { return empty.load(); }, std::chrono::seconds(20));
  server->stop();
  embedded->detach_handoff();
  std::atomic<bool> gone{false};
  transport.clock().post([&] {
    handoffs.reset();
    gone = true;
    gone.notify_one();
  });
  gone.wait(false);
  return 0;
}

}  // namespace
}  // namespace penstock::faults

int main(int count, char** words) {
  using namespace penstock;
  std::map<std::string, std::string> arguments;
  for (int i = 1; i + 1 < count; i += 2)
    arguments[std::string(words[i]).substr(2)] = words[i + 1];
  const auto ready_fd = static_cast<std::uint32_t>(faults::take_number(arguments, "ready-fd", 0));
  block_stop_signals(ready_fd != 0);
  const auto done = faults::serve(std::move(arguments), ready_fd);
  if (done) return *done;
  fmt::print(stderr, "pd_worker: {}\n", to_string(done.error()));
  return 1;
}
