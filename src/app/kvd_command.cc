// penstock kvd: the KV cache of one host: an arena in memory, segments on disk, a socket for
// workers and gateways.
#include <fmt/format.h>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "app/cluster_store.h"
#include "app/commands.h"
#include "app/entropy.h"
#include "app/ready.h"
#include "app/stop_signal.h"
#include "app/values.h"
#include "core/kvcache/key_chain.h"
#include "io/disk/disk_tier.h"
#include "io/files/files.h"
#include "io/files/kv_secret.h"
#include "io/kv/kv_server.h"
#include "io/kv/peer_tier.h"
#include "io/kv/tier_clock.h"
#include "io/telemetry/log.h"

namespace penstock {
namespace {

std::vector<TtlClassSpec> ttl_classes(const Options& options) {
  std::vector<TtlClassSpec> classes;
  for (const Assignment& c : options.kv_classes) {
    // The command line has checked them.
    const Duration ttl = parse_duration(c.value).value();
    classes.push_back({c.name, std::chrono::duration_cast<std::chrono::seconds>(ttl)});
  }
  return classes;
}

// The disk tier, or null: a cache without its disk still serves.
std::unique_ptr<disk::DiskTier> open_disk(const Options& options,
                                          const std::vector<TtlClassSpec>& classes,
                                          std::string& failure) {
  if (options.kv_disk != "on") return nullptr;
  disk::DiskTierOptions wanted;
  for (const TtlClassSpec& c : classes) {
    // What agents send comes again within minutes: no second use is waited for.
    wanted.log.classes.push_back({c, c.name == "agent"});
  }
  wanted.log.segments = static_cast<std::uint32_t>(
      options.kv_disk_size.value / (kvcache::kSegmentUnitsMax * kvcache::kUnitBytes));
  wanted.log.tenant_share_max = options.kv_tenant_share;
  wanted.io_time_max = options.kv_disk_time_max;
  wanted.notice = [](disk::DiskNotice level, const std::string& text) {
    if (level == disk::DiskNotice::kInfo) log_info("KV disk: {}", text);
    if (level == disk::DiskNotice::kWarning) log_warning("KV disk: {}", text);
    if (level == disk::DiskNotice::kAlarm) log_error("KV disk: {}", text);
  };
  auto opened = disk::open_disk_tier(options.kv_dir, options.kv_encryption_key_file,
                                     std::move(wanted), kv::tier_now());
  if (opened) return std::move(*opened);
  failure = opened.error().message;
  log_error("KV disk: {}; going on with host memory only", failure);
  return nullptr;
}

// The daemons of other hosts, or null.
Result<std::unique_ptr<kv::PeerTier>> open_peers(const Options& options, const KvSecret& secret) {
  if (options.kv_peers.empty()) return nullptr;
  kv::PeerTierOptions wanted;
  for (const Assignment& peer : options.kv_peers)
    wanted.peers.push_back(peer.value);
  wanted.secret = secret;
  wanted.name = options.kv_listen.empty() ? "a host that serves none" : options.kv_listen;
  wanted.log = [](std::string_view text) { log_warning("{}", text); };
  auto opened = kv::PeerTier::open(std::move(wanted), kv::tier_now());
  if (!opened) return fail(opened.error().code, opened.error().message, "kv.peers");
  return opened;
}

// What the one who starts it is told: "64 MiB of host memory, 1 GiB of disk in /data/kv (12
// blocks found)".
std::string describe_tiers(const Options& options, const disk::DiskTier* disk,
                           const std::string& disk_failure, bool huge_pages) {
  std::string text = fmt::format("{} of host memory{}", describe_bytes(options.kv_host_memory),
                                 huge_pages ? " in huge pages" : "");
  if (disk != nullptr) {
    text += fmt::format(", {} of disk in {} ({} blocks found)",
                        describe_bytes(options.kv_disk_size), options.kv_dir, disk->stats().blocks);
  } else {
    text += disk_failure.empty() ? ", no disk" : ", no disk: " + disk_failure;
  }
  return text;
}

Result<int> serve_kv(const Options& options) {
  TRY_STATUS(kvcache::self_test());
  TRY(const auto secret, read_or_create_kv_secret(options.kv_secret_file, draw_secret()));
  kv::KvServerOptions server_options;
  server_options.socket = options.kv_socket;
  server_options.arena_bytes = static_cast<std::uint64_t>(options.kv_host_memory.value);
  server_options.daemon.epoch = draw_u64();
  server_options.daemon.key_check = kvcache::KeyChain(secret).key_check();
  server_options.daemon.tenant_share_max = options.kv_tenant_share;
  server_options.daemon.classes = ttl_classes(options);
  if (!options.kv_encryption_key_file.empty()) {
    // A key that is not there would silently mean a cache without its disk.
    TRY_STATUS(read_secret_file(options.kv_encryption_key_file, Bytes(4096)));
  }
  std::string disk_failure;
  auto disk = open_disk(options, server_options.daemon.classes, disk_failure);
  server_options.daemon.disk_failure = disk_failure;
  server_options.log = [](std::string_view text) { log_info("{}", text); };
  if (!options.kv_listen.empty()) {
    server_options.peer_server.emplace();
    server_options.peer_server->listen = options.kv_listen;
    server_options.peer_server->secret = secret;
    server_options.peer_server->log = server_options.log;
  }
  TRY(const auto peers, open_peers(options, secret));
  std::unique_ptr<BlockStore> store;
  std::unique_ptr<service::ClusterTier> cluster;
  if (!options.cluster_store.empty()) {
    TRY(store, open_cluster_store(options.cluster_store));
    service::ClusterTierOptions wanted = cluster_tier_options(options);
    wanted.gc_owner = fmt::format("kvd-{:016x}", draw_u64());
    cluster = std::make_unique<service::ClusterTier>(*store, std::move(wanted));
    log_info("KV cluster store {}", options.cluster_store);
  }
  TRY(const auto server,
      kv::KvServer::start(std::move(server_options), disk.get(), peers.get(), cluster.get()));
  std::thread loop([&] { server->run(); });
  log_info("KV cache at {}", options.kv_socket);
  if (server->peer_port() != 0)
    log_info("KV cache for other hosts at {}, port {}", options.kv_listen, server->peer_port());
  report_ready(
      options.ready_fd,
      {0, {{"KV cache", describe_tiers(options, disk.get(), disk_failure, server->huge_pages())}}});
  wait_for_stop_signal();
  server->stop();
  loop.join();
  disk.reset();  // waits for the device, while the arena it reads into and writes from is there
  return 0;
}

}  // namespace

Result<int> run_kvd(const Options& options) {
  block_stop_signals(options.ready_fd != 0);
  auto done = serve_kv(options);
  if (!done) report_failure(options.ready_fd, done.error());
  return done;
}

}  // namespace penstock
