// `penstock bench kv`, first tokens: what a hit is worth to who waits.
//
// An engine with a real checkpoint, a KV daemon with memory and disk beside it. A prompt of 3,010
// tokens is asked cold (a scope of its own each time), then from host memory, then, after the
// daemon was started anew, from its disk, then from the cluster store by a daemon with another
// disk: a host that never saw the prompt. Times run from submit to the first token; the middle of
// some.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <boost/json.hpp>

#include "base/rng.h"
#include "core/kvcache/key_chain.h"
#include "io/disk/disk_tier.h"
#include "io/embedded/embedded_engine.h"
#include "io/kv/kv_server.h"
#include "io/kv/kv_session.h"
#include "kv.h"
#include "port/block_store.h"
#include "service/kvd/cluster_tier.h"

namespace penstock::bench {
namespace {

using Steady = std::chrono::steady_clock;

constexpr std::size_t kPromptTokens = 3010;
constexpr double kHostAim = 20;
constexpr double kDiskAim = 10;
constexpr double kClusterAim = 5;

std::string scratch_folder() {
  std::string folder = (std::filesystem::temp_directory_path() / "penstock-bench-XXXXXX").string();
  return ::mkdtemp(folder.data()) == nullptr ? std::string() : folder;
}

// A KV daemon of this process over a folder, with the disk `disk_name` in it.
class Daemon {
 public:
  // `store` null: it has no cluster tier.
  static Result<std::unique_ptr<Daemon>> start(const std::string& folder,
                                               const std::string& disk_name,
                                               std::unique_ptr<BlockStore> store) {
    auto daemon = std::unique_ptr<Daemon>(new Daemon);
    disk::DiskTierOptions disk;
    disk.log.segments = 16;
    disk.log.classes = {{{"default", std::chrono::hours(24)}, true}};
    const auto wall = std::chrono::system_clock::now().time_since_epoch();
    const TierNow now{Instant(Steady::now().time_since_epoch()),
                      UnixSeconds(std::chrono::duration_cast<std::chrono::seconds>(wall).count())};
    TRY(daemon->disk_, disk::open_disk_tier(folder + "/" + disk_name, "", std::move(disk), now));
    kv::KvServerOptions options;
    options.socket = folder + "/kvd.sock";
    options.arena_bytes = std::uint64_t{256} << 20;
    options.daemon.epoch = static_cast<std::uint64_t>(wall.count());
    options.daemon.key_check = kvcache::KeyChain(std::array<std::uint8_t, 32>{}).key_check();
    options.daemon.classes = {{"default", std::chrono::hours(24)}};
    // A prompt of 47 blocks is the end of a chain: it is to be there when the bench asks.
    options.daemon.cluster_tail_delay = {};
    if (store) {
      service::ClusterTierOptions wanted;
      wanted.classes = options.daemon.classes;
      wanted.written = {true};
      daemon->store_ = std::move(store);
      daemon->cluster_ = std::make_unique<service::ClusterTier>(*daemon->store_, wanted);
    }
    TRY(daemon->server_, kv::KvServer::start(std::move(options), daemon->disk_.get(), nullptr,
                                             daemon->cluster_.get()));
    daemon->thread_ = std::thread([server = daemon->server_.get()] { server->run(); });
    return daemon;
  }
  ~Daemon() {
    if (!thread_.joinable()) return;
    server_->stop();
    thread_.join();
  }

 private:
  Daemon() = default;
  std::unique_ptr<BlockStore> store_;
  std::unique_ptr<service::ClusterTier> cluster_;
  std::unique_ptr<disk::DiskTier> disk_;
  std::unique_ptr<kv::KvServer> server_;
  std::thread thread_;
};

class Asker {
 public:
  explicit Asker(EmbeddedEngine& engine) : engine_(engine) {
    engine_.set_waker([this] {
      const std::lock_guard lock(mutex_);
      woken_ = true;
      news_.notify_one();
    });
  }
  ~Asker() {
    engine_.set_waker([] {});
  }

  // Seconds to the first token of a prompt, and how much of it was cached.
  Result<std::pair<double, std::uint32_t>> ask(const TokenIds& prompt, const std::string& scope) {
    EngineRequest request;
    request.id = RequestId(++last_id_);
    request.prompt = prompt;
    request.sampling.max_tokens = 1;
    request.sampling.seed = 1;
    request.cache = {scope, "bench", "", ""};
    const auto began = Steady::now();
    TRY_STATUS(engine_.submit(std::move(request)));
    std::vector<EngineOutput> outputs;
    while (outputs.empty())
      TRY_STATUS(turn(outputs));
    const double seconds = std::chrono::duration<double>(Steady::now() - began).count();
    const std::uint32_t cached = outputs[0].cached_tokens;
    // Until the cache has taken what was computed.
    while (engine_.load().kv_tokens_used > Tokens(0))
      TRY_STATUS(turn(outputs));
    return std::pair(seconds, cached);
  }

 private:
  Status turn(std::vector<EngineOutput>& outputs) {
    std::unique_lock lock(mutex_);
    if (!engine_.has_work() &&
        !news_.wait_for(lock, std::chrono::seconds(60), [&] { return woken_; })) {
      return fail(ErrorCode::kDeadlineExceeded, "the engine waits for the KV cache for a minute");
    }
    woken_ = false;
    lock.unlock();
    engine_.step(outputs);
    return {};
  }

  EmbeddedEngine& engine_;
  std::mutex mutex_;
  std::condition_variable news_;
  bool woken_ = false;
  std::uint64_t last_id_ = 0;
};

double middle(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

Result<std::string> ask_daemon(const std::string& folder, const char* command) {
  TRY(const auto session,
      kv::KvSession::connect(folder + "/kvd.sock", "tool", "bench",
                             kvcache::KeyChain(std::array<std::uint8_t, 32>{}).key_check(),
                             std::chrono::seconds(10)));
  return session->admin(command, "{}", std::chrono::minutes(1));
}

Status flush(const std::string& folder) {
  TRY(const std::string done, ask_daemon(folder, "flush"));
  return {};
}

// Until `good` is true of what the daemon's stat says of the cluster.
Status wait_cluster(const std::string& folder,
                    const std::function<bool(const boost::json::object&)>& good) {
  std::string last;
  for (int turns = 0; turns < 600; ++turns) {
    TRY(const std::string stat, ask_daemon(folder, "stat"));
    boost::system::error_code error;
    const boost::json::value parsed = boost::json::parse(stat, error);
    const boost::json::value* const cluster =
        !error && parsed.is_object() ? parsed.get_object().if_contains("cluster") : nullptr;
    if (cluster != nullptr && cluster->is_object()) {
      if (good(cluster->get_object())) return {};
      last = boost::json::serialize(*cluster);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return fail(ErrorCode::kUnavailable, "the cluster store is not ready within a minute: " + last);
}

bool is_connected(const boost::json::object& cluster) {
  return cluster.at("state") == "ok" && cluster.at("in_service") == true;
}

Result<std::vector<Figure>> measure(const Options& options, const std::string& folder) {
  std::ofstream(folder + "/kv.secret") << std::string(64, '0') << "\n";
  std::filesystem::permissions(folder + "/kv.secret", std::filesystem::perms(0600));
  TRY(const auto shared, BenchStore::make(options));
  TRY(auto store, options.open_store(shared->text()));
  TRY(auto daemon, Daemon::start(folder, "kv", std::move(store)));
  TRY_STATUS(wait_cluster(folder, is_connected));
  engine::EngineOptions wanted;
  wanted.checkpoint_dir = options.model_dir;
  TRY(auto opened, engine::Engine::open(wanted));
  EmbeddedEngine engine(std::move(opened));
  KvConnectorOptions kv;
  kv.socket = folder + "/kvd.sock";
  kv.secret_file = folder + "/kv.secret";
  kv.name = "bench";
  kv.budget_base = std::chrono::seconds(10);
  TRY_STATUS(engine.connect(std::move(kv)));
  if (!engine.wait_connected(std::chrono::seconds(30))) {
    return fail(ErrorCode::kUnavailable, "the engine does not find the KV daemon");
  }
  Asker asker(engine);

  Rng rng(7);
  const auto prompt = [&] {
    std::vector<TokenId> tokens(kPromptTokens);
    for (TokenId& token : tokens)
      token = static_cast<TokenId>(rng.below(engine.description().vocab_size));
    return std::make_shared<const std::vector<TokenId>>(std::move(tokens));
  };
  std::vector<TokenIds> prompts;
  std::vector<double> cold;
  std::vector<double> host;
  std::vector<double> disk;
  std::vector<double> cluster;
  const bool only_cluster = options.kv_tier == "cluster";
  const auto take = [&](std::vector<double>& times, const TokenIds& tokens, bool hit) -> Status {
    TRY(const auto answer, asker.ask(tokens, "bench"));
    const std::uint32_t expected = hit ? kPromptTokens / 64 * 64 : 0;
    if (answer.second != expected) {
      return fail(ErrorCode::kInternal, fmt::format("{} tokens came from the cache, expected {}",
                                                    answer.second, expected));
    }
    times.push_back(answer.first);
    return {};
  };
  const int rounds = options.quick ? 3 : 7;
  std::vector<double> warm_up;
  TRY_STATUS(take(warm_up, prompt(), false));
  for (int i = 0; i < rounds; ++i) {
    prompts.push_back(prompt());
    TRY_STATUS(take(cold, prompts.back(), false));
    for (int again = 0; again < (only_cluster ? 0 : 3); ++again)
      TRY_STATUS(take(host, prompts.back(), true));
  }
  TRY_STATUS(flush(folder));
  const std::size_t blocks = (prompts.size() + 1) * (kPromptTokens / 64);  // the warm-up's, too
  TRY_STATUS(wait_cluster(folder, [&](const boost::json::object& stat) {
    return stat.at("written_blocks").to_number<std::size_t>() >= blocks &&
           stat.at("writes_queued") == 0;
  }));
  const auto restart = [&](const char* disk_name, std::unique_ptr<BlockStore> with) -> Status {
    daemon.reset();
    const bool has_cluster = with != nullptr;
    TRY(daemon, Daemon::start(folder, disk_name, std::move(with)));
    TRY_STATUS(flush(folder));  // it answers
    if (has_cluster) TRY_STATUS(wait_cluster(folder, is_connected));
    if (engine.wait_connected(std::chrono::seconds(30))) return {};
    return fail(ErrorCode::kUnavailable, "the engine does not find the KV daemon again");
  };
  if (!only_cluster) {
    TRY_STATUS(restart("kv", nullptr));
    for (const TokenIds& tokens : prompts)
      TRY_STATUS(take(disk, tokens, true));
  }
  TRY(store, options.open_store(shared->text()));
  TRY_STATUS(restart("other", std::move(store)));
  for (const TokenIds& tokens : prompts)
    TRY_STATUS(take(cluster, tokens, true));
  daemon.reset();
  TRY(store, options.open_store(shared->text()));
  clear_store(*store);
  const double seconds = middle(cold);
  const auto figure = [&](const char* name, double value, double aim) {
    Figure f;
    f.name = name;
    f.value = value * 1e3;
    f.unit = "ms";
    f.baseline_name = "cold prefill";
    f.baseline = seconds * 1e3;
    f.ratio = seconds / value;
    f.aim = aim;
    return f;
  };
  std::vector<Figure> figures;
  if (!only_cluster) {
    figures.push_back(
        figure("first token, 3,008 of 3,010 tokens hit in host memory", middle(host), kHostAim));
    figures.push_back(
        figure("first token, 3,008 of 3,010 tokens hit on disk", middle(disk), kDiskAim));
  }
  figures.push_back(figure("first token, 3,008 of 3,010 tokens hit in the cluster store",
                           middle(cluster), kClusterAim));
  return figures;
}

}  // namespace

Result<std::vector<Figure>> kv_first_token_figures(const Options& options) {
  const std::string folder = scratch_folder();
  if (folder.empty()) return fail(ErrorCode::kIo, "no temporary folder can be made");
  auto figures = measure(options, folder);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return figures;
}

}  // namespace penstock::bench
