#include "io/kv/kv_index_feed.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "core/kvcache/resume_point.h"
#include "io/kv/kv_session.h"

namespace penstock::kv {
namespace {

using Steady = std::chrono::steady_clock;

constexpr Duration kConnectTimeout = std::chrono::seconds(5);
constexpr Duration kStatEvery = std::chrono::seconds(1);
constexpr auto kReconnectPause = std::chrono::milliseconds(200);

}  // namespace

KvIndexFeed::KvIndexFeed(KvIndexFeedOptions options) : options_(std::move(options)) {
  for (std::size_t i = 0; i < options_.sockets.size(); ++i)
    daemons_.push_back(std::make_unique<Daemon>());
  for (std::size_t i = 0; i < daemons_.size(); ++i)
    daemons_[i]->thread = std::thread([this, i] { follow(i); });
}

KvIndexFeed::~KvIndexFeed() {
  {
    const std::lock_guard lock(stop_mutex_);
    stopping_ = true;
  }
  stop_news_.notify_all();
  for (const auto& daemon : daemons_) {
    {
      const std::lock_guard lock(daemon->mutex);
      if (daemon->session != nullptr) daemon->session->stop();
    }
    daemon->thread.join();
  }
}

bool KvIndexFeed::pause() {
  std::unique_lock lock(stop_mutex_);
  return !stop_news_.wait_for(lock, kReconnectPause, [&] { return stopping_; });
}

void KvIndexFeed::follow(std::size_t number) {
  Daemon& daemon = *daemons_[number];
  const kvcache::KvHostId host(number + 1);
  const BlockKey check = kvcache::KeyChain(options_.secret).key_check();
  do {
    auto session = KvSession::connect(options_.sockets[number], "gateway", options_.name, check,
                                      kConnectTimeout);
    if (!session) continue;
    {
      const std::lock_guard lock(daemon.mutex);
      daemon.session = session->get();
    }
    ++connected_;
    feed(**session, daemon, host);
    --connected_;
    {
      const std::lock_guard lock(daemon.mutex);
      daemon.session = nullptr;
      daemon.stat.clear();
    }
    const std::unique_lock lock(mutex_);
    index_.forget(host);
  } while (pause());
}

void KvIndexFeed::feed(KvSession& session, Daemon& daemon, kvcache::KvHostId host) {
  const auto subscribe = [&] {
    std::unique_lock lock(mutex_);
    const Subscribe wanted = index_.subscribe(host);
    lock.unlock();
    return session.send(wanted);
  };
  const auto take = [&](DaemonMessage& message) -> Status {
    if (auto* const answer = std::get_if<AdminAnswer>(&message)) {
      const std::lock_guard lock(daemon.mutex);
      daemon.stat = std::move(answer->json);
    }
    const auto* const events = std::get_if<Events>(&message);
    if (events == nullptr) return {};
    std::unique_lock lock(mutex_);
    const bool again = index_.apply(host, *events) == kvcache::PrefixIndex::Feed::kResubscribe;
    lock.unlock();
    return again ? subscribe() : Status();
  };
  Status status = subscribe();
  std::uint64_t questions = 0;
  auto ask_at = Steady::now();
  while (status) {
    if (Steady::now() >= ask_at) {
      ask_at += kStatEvery;
      status = session.send(Admin{++questions, "stat", "{}"});
      continue;
    }
    auto message = session.receive(std::max<Duration>(ask_at - Steady::now(), Duration::zero()));
    if (!message) {
      status = std::unexpected(std::move(message).error());
    } else if (*message) {
      status = take(**message);
    }
  }
  if (status.error().code != ErrorCode::kCancelled && options_.log)
    options_.log(status.error().message);
}

std::string KvIndexFeed::stat() const {
  if (daemons_.empty()) return {};
  const std::lock_guard lock(daemons_[0]->mutex);
  return daemons_[0]->stat;
}

kvcache::KvMatch KvIndexFeed::match(std::span<const BlockKey> keys) const {
  const std::shared_lock lock(mutex_);
  return index_.match(keys);
}

void KvIndexFeed::prefetch(std::span<const BlockKey> keys) const {
  // Not waited for: an event being applied is worth more than the hint.
  const std::shared_lock lock(mutex_, std::try_to_lock);
  if (lock) index_.prefetch(keys);
}

std::size_t KvIndexFeed::blocks() const {
  const std::shared_lock lock(mutex_);
  return index_.blocks();
}

ShardKvIndex::ShardKvIndex(const KvIndexFeed& feed, std::size_t cache_bytes_max)
    : feed_(feed), hasher_(feed.options().secret), chains_(cache_bytes_max) {}

KvIndexMatch ShardKvIndex::match(const KvIdentity& identity, const CacheHints& hints,
                                 std::span<const TokenId> prompt) {
  KvIndexMatch best;
  if (identity.block_tokens == 0 || hints.scope.empty()) return best;
  const auto root = hasher_.root({.weights_digest = identity.weights_digest,
                                  .engine_build = identity.engine_build,
                                  .kv_format = identity.kv_format,
                                  .lora = {},
                                  .scope = hints.scope,
                                  .block_tokens = identity.block_tokens});
  if (!root) return best;
  const auto keys = chains_.chain(hasher_, *root, identity.block_tokens, prompt, {},
                                  [&](std::span<const BlockKey> fresh) { feed_.prefetch(fresh); });
  const auto layers =
      identity.window_tokens > 0 ? kvcache::WindowLayers::kSome : kvcache::WindowLayers::kNone;
  const std::uint32_t most =
      kvcache::blocks_before_last_token(prompt.size(), identity.block_tokens);
  const auto tokens = [&](std::uint32_t blocks) {
    return Tokens(std::int64_t{blocks} * identity.block_tokens);
  };
  for (const kvcache::HostMatch& host : feed_.match(keys).hosts) {
    const Tokens resumable =
        tokens(kvcache::resume_point(host.history, host.windows, layers, most));
    if (resumable <= best.resumable) continue;
    best.resumable = resumable;
    best.host = tokens(host.fastest[static_cast<std::size_t>(KvTier::kHost)]);
    best.disk = tokens(host.fastest[static_cast<std::size_t>(KvTier::kDisk)]);
    best.cluster = tokens(host.fastest[static_cast<std::size_t>(KvTier::kCluster)]);
  }
  return best;
}

}  // namespace penstock::kv
