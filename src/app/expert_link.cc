#include "app/expert_link.h"

#include <fmt/format.h>
#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/json/parse.hpp>
#include <chrono>

#include "app/entropy.h"
#include "app/pools.h"
#include "io/control/engine_client.h"
#include "io/files/files.h"
#include "io/http/asio_clock.h"

namespace penstock {
namespace {

constexpr auto kTurn = std::chrono::milliseconds(50);
constexpr Duration kBeatMax = std::chrono::seconds(1);  // heartbeats come five times a second
constexpr Bytes kConfigMax{1 << 20};

control::EngineClientOptions client_options(const std::vector<Assignment>& workers) {
  control::EngineClientOptions options;
  for (const Assignment& worker : workers)
    options.workers.push_back(worker.value);
  options.gateway_epoch = Epoch(draw_u64());
  return options;
}

}  // namespace

struct ExpertLink::State {
  State(std::vector<Assignment> names, const std::atomic<bool>* stopping)
      : workers(std::move(names)), stop(stopping), client(clock, clock, client_options(workers)) {}

  // Runs the loop until `done`, `limit` or `stop`; whether it is done.
  template <typename Done>
  bool run(Duration limit, Done done) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!done()) {
      const auto now = std::chrono::steady_clock::now();
      if (now >= end || (stop != nullptr && stop->load())) return false;
      io.run_one_for(std::min<std::chrono::steady_clock::duration>(end - now, kTurn));
    }
    return true;
  }

  const std::vector<Assignment> workers;
  const std::atomic<bool>* const stop;
  boost::asio::io_context io{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
  http::AsioClock clock{io};
  control::StreamEngineClient client;
};

ExpertLink::ExpertLink(std::vector<Assignment> workers, const std::atomic<bool>* stop)
    : state_(std::make_unique<State>(std::move(workers), stop)) {}
ExpertLink::~ExpertLink() = default;

void ExpertLink::wait(Duration time) {
  state_->run(time, [] { return false; });
}

std::vector<std::string> ExpertLink::connect(Duration limit) {
  const auto views = [&] { return state_->client.workers(); };
  state_->run(limit, [&] { return std::ranges::all_of(views(), &WorkerView::connected); });
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < state_->workers.size(); ++i) {
    if (!views()[i].connected) missing.push_back(state_->workers[i].name);
  }
  return missing;
}

std::vector<RankExperts> ExpertLink::ask(Duration limit) {
  // Answers that come too late find it here still.
  struct Asked {
    std::vector<RankExperts> ranks;
    std::vector<bool> answered;
    std::size_t open = 0;
  };
  const auto asked = std::make_shared<Asked>();
  for (const WorkerView& worker : state_->client.workers()) {
    if (!worker.connected) continue;
    for (std::uint32_t rank = 0; rank < worker.loads.size(); ++rank) {
      const std::size_t at = asked->ranks.size();
      asked->ranks.push_back({worker.description.id,
                              state_->workers[worker.description.id.value - 1].name,
                              worker.description.epoch,
                              rank,
                              worker.description.models[worker.loads[rank].model].name,
                              {},
                              {}});
      asked->answered.push_back(false);
      const Status sent = state_->client.ask_experts(
          worker.description.id, rank, nullptr, [asked, at](Result<ExpertReport> report) {
            --asked->open;
            asked->answered[at] = report.has_value();
            if (report) asked->ranks[at].report = std::move(*report);
          });
      if (sent) ++asked->open;
    }
  }
  state_->run(limit, [&] { return asked->open == 0; });
  std::vector<RankExperts> out;
  for (std::size_t i = 0; i < asked->ranks.size(); ++i) {
    if (asked->answered[i] && asked->ranks[i].report.layers > 0) out.push_back(asked->ranks[i]);
  }
  // What passes came to is said by heartbeats only: of the same map, or it is not heard in time.
  state_->run(std::min(limit, kBeatMax), [&] {
    return std::ranges::all_of(out, [&](RankExperts& rank) {
      const auto workers = state_->client.workers();
      const auto worker = std::ranges::find(workers, rank.worker,
                                            [](const WorkerView& v) { return v.description.id; });
      if (worker == workers.end() || worker->description.epoch != rank.epoch ||
          rank.rank >= worker->experts.size() ||
          worker->experts[rank.rank].map_version != rank.report.map.version)
        return false;
      rank.use = worker->experts[rank.rank];
      return true;
    });
  });
  return out;
}

Result<ExpertReport> ExpertLink::push(WorkerId worker, std::uint32_t rank, const ExpertMap& map,
                                      Duration limit) {
  const auto answer = std::make_shared<std::optional<Result<ExpertReport>>>();
  TRY_STATUS(state_->client.ask_experts(
      worker, rank, &map, [answer](Result<ExpertReport> report) { *answer = std::move(report); }));
  if (!state_->run(limit, [&] { return answer->has_value(); }))
    return fail(ErrorCode::kDeadlineExceeded, "the rank did not answer in time");
  return std::move(**answer);
}

Result<std::vector<Assignment>> service_workers(const Options& options) {
  if (!options.workers.empty()) return options.workers;
  Options served = options;
  const std::string path = options.data_dir + "/run/config.json";
  auto text = read_file(path, kConfigMax);
  if (!text) {
    return std::unexpected(std::move(text).error().within(
        fmt::format("no service was started in {}; give its --data-dir, or --worker NAME=ADDRESS",
                    options.data_dir)));
  }
  boost::system::error_code error;
  const boost::json::value config = boost::json::parse(*text, error);
  const auto* const pools =
      error || !config.is_object() ? nullptr : config.get_object().if_contains("pools");
  if (pools == nullptr || !pools->is_string())
    return fail(ErrorCode::kDataLoss, fmt::format("{} does not say which pools there are", path));
  served.pools = std::string_view(pools->get_string());
  return gateway_workers(served);
}

}  // namespace penstock
