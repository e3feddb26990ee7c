// ExpertLink: asks the workers of a service what their experts got, and gives them maps.
//
// It has streams of its own to the workers, beside those of the gateway, and a loop that runs while
// one of its functions waits. Between calls nothing is read, so a link that is kept has to be
// waited on (wait()) instead of left alone: workers end streams that nobody reads.
//
// Errors: as StreamEngineClient::ask_experts, and kDeadlineExceeded when no answer came in time.
// Concurrency: one thread; `stop` may be set by another and ends any wait within 50 ms.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "app/options.h"
#include "base/result.h"
#include "base/units.h"
#include "domain/experts.h"

namespace penstock {

// A rank with routed experts.
struct RankExperts {
  WorkerId worker;
  std::string worker_name;
  Epoch epoch;  // of the worker's run
  std::uint32_t rank = 0;
  std::string model;
  ExpertReport report;
  // Pass by pass since the report's map came, as last heard; no layers: it has said nothing yet.
  ExpertUse use;
};

class ExpertLink {
 public:
  // Connects to NAME=ADDRESS of each worker. `stop` may be null.
  explicit ExpertLink(std::vector<Assignment> workers, const std::atomic<bool>* stop = nullptr);
  ~ExpertLink();
  ExpertLink(const ExpertLink&) = delete;
  ExpertLink& operator=(const ExpertLink&) = delete;

  // Lets time pass.
  void wait(Duration time);
  // Waits until all are connected; the names of those that are not when time is over.
  std::vector<std::string> connect(Duration limit);
  // What all connected ranks report, in the order of workers and ranks; those that don't answer in
  // time are left out.
  std::vector<RankExperts> ask(Duration limit);
  // Gives a rank a map; its report afterwards, or why it refused.
  Result<ExpertReport> push(WorkerId worker, std::uint32_t rank, const ExpertMap& map,
                            Duration limit);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Where the workers of the service are that runs in the data folder, or those given by --worker.
Result<std::vector<Assignment>> service_workers(const Options& options);

}  // namespace penstock
