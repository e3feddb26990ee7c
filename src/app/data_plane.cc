#include "app/data_plane.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <mutex>
#include <utility>
#include <variant>

#include "app/pools.h"
#include "app/suggest.h"
#include "app/values.h"
#include "io/telemetry/log.h"
#include "io/transport/transport_options.h"

namespace penstock {
namespace {

// A limit by its name in docs/protocol/handoff.md.
struct Limit {
  std::string_view name;
  std::variant<Duration*, std::size_t*, std::uint32_t*> value;
};

std::vector<Limit> limits_of(service::HandoffOptions& options) {
  auto& owner = options.owner;
  auto& reader = options.reader;
  return {{"owner.unclaimed", &owner.unclaimed},
          {"owner.quarantine", &owner.quarantine},
          {"owner.quarantine_lost", &owner.quarantine_lost},
          {"owner.parked", &owner.parked},
          {"owner.heartbeat", &owner.heartbeat},
          {"owner.remembered", &owner.remembered},
          {"owner.handoffs_max", &owner.handoffs_max},
          {"owner.blocks_held_percent_max", &owner.blocks_held_percent_max},
          {"owner.parts_in_flight_max", &owner.parts_in_flight_max},
          {"owner.parked_max", &owner.parked_max},
          {"reader.connect", &reader.connect},
          {"reader.attach", &reader.attach},
          {"reader.read", &reader.read},
          {"reader.whole", &reader.whole},
          {"reader.silent", &reader.silent},
          {"reader.reconnects_max", &reader.reconnects_max},
          {"reader.reads_max", &reader.reads_max},
          {"pulls_max", &options.pulls_max},
          {"link_reads_max", &options.link_reads_max},
          {"link_idle", &options.link_idle}};
}

Status set_limit(const Limit& limit, const std::string& text) {
  if (Duration* const* time = std::get_if<Duration*>(&limit.value)) {
    TRY(**time, parse_duration(text));
    return {};
  }
  TRY(const std::int64_t count, parse_count(text));
  if (count < (limit.name == "reader.reconnects_max" ? 0 : 1) || count > 1'000'000)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected a number from 1 to 1000000, got {}", count));
  if (std::size_t* const* size = std::get_if<std::size_t*>(&limit.value))
    **size = static_cast<std::size_t>(count);
  else
    *std::get<std::uint32_t*>(limit.value) = static_cast<std::uint32_t>(count);
  return {};
}

// What both sides rely on; the other side's process is taken to have the same limits.
Status check_together(const service::HandoffOptions& options) {
  const auto wrong = [](std::string_view what) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("--handoff-limit: {}", what));
  };
  if (options.reader.silent < 2 * options.owner.heartbeat)
    return wrong("reader.silent must be at least two times owner.heartbeat");
  if (options.reader.attach <= options.owner.parked)
    return wrong("reader.attach must be longer than owner.parked");
  if (options.owner.blocks_held_percent_max > 100)
    return wrong("owner.blocks_held_percent_max must be at most 100");
  return {};
}

service::RankMemory rank_memory(engine::Engine& engine) {
  engine::KvPool& pool = engine.pool();
  const engine::KvLayout& layout = pool.layout();
  const ModelDescription& model = engine.description();
  std::byte* const payloads = pool.payload(engine::BlockId{0}).data();
  service::RankMemory memory;
  memory.pool = {pool.fd(),
                 payloads - pool.payload_offset(),
                 pool.mapped_bytes(),
                 pool.payload_offset(),
                 layout.block_bytes(),
                 pool.blocks()};
  memory.payloads = payloads;
  memory.model = model.name;
  memory.layers = layout.layers;
  memory.block_tokens = engine::kBlockTokens;
  memory.slice_bytes = layout.slice_bytes();
  memory.kv_format = fmt::format("{}; {}; weights {}", model.kv.kv_format, model.kv.engine_build,
                                 model.kv.weights_digest);
  return memory;
}

// A line a second at most: one dead worker fails every pull from it.
void log_failed_pull(std::string_view why) {
  static std::mutex mutex;
  static std::chrono::steady_clock::time_point next;
  static std::uint64_t unsaid = 0;
  const std::lock_guard lock(mutex);
  const auto now = std::chrono::steady_clock::now();
  if (now < next) {
    ++unsaid;
    return;
  }
  next = now + std::chrono::seconds(1);
  const auto others = std::exchange(unsaid, 0);
  log_warning("a pull failed, its prompt is computed: {}{}", why,
              others == 0 ? "" : fmt::format(" ({} more before it)", others));
}

}  // namespace

Result<service::HandoffOptions> handoff_options(const Options& options) {
  service::HandoffOptions handoff;
  handoff.owner.lease = options.handoff_lease;
  const auto limits = limits_of(handoff);
  std::vector<std::string_view> names;
  for (const Limit& limit : limits)
    names.push_back(limit.name);
  for (const Assignment& given : options.handoff_limits) {
    const auto found = std::ranges::find(limits, given.name, &Limit::name);
    if (found == limits.end())
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--handoff-limit: \"{}\" is no limit{}; there are {}", given.name,
                              did_you_mean(given.name, names), fmt::join(names, ", ")),
                  "handoff_limits");
    if (auto set = set_limit(*found, given.value); !set)
      return std::unexpected(std::move(set).error().within("--handoff-limit " + given.name));
  }
  TRY_STATUS(check_together(handoff));
  return handoff;
}

Result<std::unique_ptr<DataPlane>> DataPlane::open(const Options& options, Epoch epoch,
                                                   std::vector<EmbeddedEngine*> engines,
                                                   const WrapTransport& wrap) {
  TRY(service::HandoffOptions handoff, handoff_options(options));
  handoff.epoch = epoch;
  auto plane = std::unique_ptr<DataPlane>(new DataPlane);
  transport::TransportOptions wanted;
  wanted.listen = transport_address(options);
  TRY(plane->transport_, transport::open_transport(std::move(wanted)));
  if (wrap) plane->transport_ = wrap(std::move(plane->transport_));
  plane->handoffs_.emplace(*plane->transport_, handoff);
  plane->engines_ = std::move(engines);
  for (EmbeddedEngine* const engine : plane->engines_) {
    engine->hand_off(plane->handoffs_->add_rank(rank_memory(engine->engine()),
                                                [engine] { engine->on_handoff_news(); }),
                     log_failed_pull);
  }
  plane->handoffs_->start();
  return plane;
}

DataPlane::~DataPlane() {
  if (!handoffs_) return;  // the transport could not be opened
  const auto ended = std::make_shared<std::promise<void>>();
  transport_->clock().post([this, ended] {
    handoffs_.reset();
    ended->set_value();
  });
  ended->get_future().wait();
}

void DataPlane::detach_engines() {
  for (EmbeddedEngine* const engine : engines_)
    engine->detach_handoff();
}

bool DataPlane::idle() const {
  const service::HandoffCounters now = handoffs_->counters();
  return now.owner.open == 0 && now.pulls_running == 0;
}

HandoffUse DataPlane::use() const {
  const service::HandoffCounters now = handoffs_->counters();
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

}  // namespace penstock
