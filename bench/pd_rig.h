// What the benches of prefill/decode separation stand on: worker and gateway processes of this very
// program, and gateway shards in this process that place requests on them.
//
// A Child is `penstock ...` with --ready-fd, killed when it goes out of scope or this process ends.
// A Shard is what a thread of the gateway process has for the engines: streams to some workers, a
// ledger, and EngineRun for each request; no HTTP, no text.
//
// Errors: a child's own reason. Concurrency: the thread that runs the clock.
#pragma once

#include <sys/types.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "io/control/engine_client.h"
#include "pd_clock.h"
#include "service/gateway/engine_run.h"

namespace penstock::bench {

class Child {
 public:
  // Starts this program with the arguments and waits until it is ready.
  static Result<Child> start(std::vector<std::string> arguments);
  ~Child();
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;

  pid_t pid() const { return pid_; }
  // The line that it reported, see app/ready.h.
  const std::string& report() const { return report_; }

 private:
  Child(pid_t pid, std::string report) : pid_(pid), report_(std::move(report)) {}
  pid_t pid_ = 0;
  std::string report_;
};

// A temporary folder, removed with what is in it.
class ScratchFolder {
 public:
  static Result<std::unique_ptr<ScratchFolder>> make();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// One request on its way.
struct Ask {
  TokenIds prompt;
  std::uint32_t max_tokens = 0;
  std::optional<WorkerId> on;  // the whole request there; none: as the gateway places it
  // Called as outputs with tokens arrive: their number. False: nothing more is wanted.
  std::function<bool(std::size_t tokens)> on_tokens;
};

class Shard {
 public:
  // `workers` are addresses; waits for their streams.
  static Result<std::unique_ptr<Shard>> open(ShardClock& clock, std::vector<std::string> workers);
  ~Shard();
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  gateway::GatewayContext& context() { return context_; }
  control::StreamEngineClient& client() { return client_; }
  // Runs the request to its end; errors stay in error().
  void start(Ask ask) { gate_.start(run(std::move(ask))); }
  std::size_t running() const { return gate_.running(); }
  // Of the first request that failed.
  const std::optional<Error>& error() const { return error_; }
  // Waits for all requests.
  Status finish(Duration limit);

 private:
  class NoPool final : public ComputePool {
   public:
    bool submit(std::function<void()>) override { return false; }
  };
  class NoObserver final : public RequestObserver {
   public:
    void request_started() override {}
    void request_finished(const RequestRecord&) override {}
  };

  Shard(ShardClock& clock, control::EngineClientOptions options);
  Task<void> run(Ask ask);
  Task<Status> serve(Ask ask);
  Task<Status> follow(gateway::EngineRun& run, Ask ask);

  ShardClock& clock_;
  control::StreamEngineClient client_;
  NoPool pool_;
  NoObserver observer_;
  gateway::ModelCatalog catalog_;
  gateway::PromptEncoder encoder_;
  gateway::GatewayContext context_;
  std::string model_;
  std::optional<Error> error_;
  std::set<gateway::EngineRun*> runs_;
  Gate gate_;
};

// `count` random ids of a vocabulary, drawn anew each time: nothing of them is cached anywhere.
TokenIds random_prompt(Rng& rng, std::size_t count, std::uint32_t vocabulary);

double median_of(std::vector<double> values);
// The value that a part `q` of them doesn't exceed.
double quantile_of(std::vector<double> values, double q);

}  // namespace penstock::bench
