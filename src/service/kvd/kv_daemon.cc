#include "service/kvd/kv_daemon.h"

#include <algorithm>
#include <boost/json.hpp>
#include <deque>
#include <map>
#include <utility>
#include <variant>

#include "base/check.h"
#include "service/kvd/admin.h"
#include "service/kvd/cluster_writes.h"
#include "service/kvd/describe.h"
#include "service/kvd/fetches.h"

namespace penstock::service {
namespace {

// Limits of what a session may register.
constexpr std::size_t kPoolsMax = 16;
constexpr std::size_t kSlicesMax = 4096;
constexpr std::size_t kTextMax = 1024;
constexpr std::size_t kSuspectsMax = 1024;                    // copies waiting to be looked at
constexpr Duration kTierTick = std::chrono::seconds(1);       // expiry, reclaim
constexpr Duration kTierPoll = std::chrono::milliseconds(1);  // of a tier that can't call

bool is_sound(const KvLayoutSpec& layout) {
  if (layout.block_tokens == 0 || layout.history_slices.empty()) return false;
  for (const KvGroup group : {KvGroup::kHistory, KvGroup::kWindow}) {
    const auto& slices = layout.slices(group);
    if (slices.size() > kSlicesMax || std::ranges::find(slices, 0U) != slices.end()) return false;
    if (layout.bytes(group) > UINT32_MAX) return false;  // a tier's sizes are 32 bits
  }
  return layout.window_slices.empty() || layout.window_tokens % layout.block_tokens == 0;
}

// A tool asks about the daemon; it gets no blocks, and nothing it says changes what others get.
bool is_for_tools(const kv::ClientMessage& message) {
  return std::holds_alternative<kv::Hello>(message) || std::holds_alternative<kv::Admin>(message) ||
         std::holds_alternative<kv::Lookup>(message) || std::holds_alternative<kv::Alive>(message);
}

}  // namespace

struct KvDaemon::State {
  struct Session {
    kv::Hello hello;
    bool greeted = false;
    bool doomed = false;  // told to go; nothing it says counts any more
    bool silent = false;  // its pins are quarantined
    Instant heard;
    std::map<std::uint32_t, RegisteredPool> pools;
  };

  State(KvDaemonOptions given, KvMemory& memory, BlockTier* disk, BlockTier* peers,
        ClusterTier* shared)
      : options(std::move(given)),
        arena(memory.arena()),
        log(options.event_history_max),
        cluster(shared),
        holdings(arena, {disk, peers, shared}, log, statistics, options.history_max,
                 options.tenant_share_max),
        loads(holdings, statistics, load_model, options.loads_in_flight_max),
        writes(holdings, statistics),
        cluster_writes(holdings, writes, shared, options.cluster_tail_delay),
        leases(holdings, loads, writes, shared, cluster_writes, statistics, records, load_model),
        fetches(holdings, loads),
        stores(memory, holdings, writes, cluster_writes, statistics, options.stores_pending_max),
        feed(options.epoch, log,
             [this](SnapshotCursor& at, std::vector<kv::Event>& found) {
               return holdings.snapshot(at, found);
             }),
        admin({holdings, log, loads, writes, leases, stores, shared, cluster_writes, statistics,
               records, reuse, load_model, roots, options.classes, options.disk_failure, started}) {
  }

  // One overload per message; false: the session breaks the protocol and was sent away.
  void on(kv::SessionId id, Session& session, kv::Hello hello, TierNow now);
  void on(kv::SessionId id, Session& session, kv::RegisterPool pool, TierNow now);
  void on(kv::SessionId id, Session& session, kv::RegisterRoot root, TierNow now);
  void on(kv::SessionId id, Session& session, kv::Acquire request, TierNow now);
  void on(kv::SessionId id, Session& session, kv::Release release, TierNow now);
  void on(kv::SessionId id, Session& session, kv::Store request, TierNow now);
  void on(kv::SessionId id, Session& session, kv::Lookup request, TierNow now);
  void on(kv::SessionId id, Session& session, kv::Subscribe request, TierNow now);
  void on(kv::SessionId id, Session& session, kv::Admin request, TierNow now);
  void on(kv::SessionId id, Session& session, kv::Alive alive, TierNow now);
  void on(kv::SessionId id, Session& session, kv::Report report, TierNow now);
  void on(kv::SessionId id, Session& session, kv::Missed missed, TierNow now);

  void dismiss(kv::SessionId id, Session& session, std::string reason, bool kill = false);
  void check_silence(TierNow now);
  std::uint64_t quarantined_bytes() const;
  SessionNumbers session_numbers() const;
  // What is known of a root that is being used; null: nothing.
  const KnownRoot* use_root(const BlockKey& root);
  // Ends a turn: what has become of it is sent and handed to the disk.
  void end_turn(TierNow now);

  KvDaemonOptions options;
  std::span<std::byte> arena;
  KvStatistics statistics;
  EventLog log;
  ClusterTier* cluster;
  Holdings holdings;
  kvcache::LoadModel load_model{{}};
  Loads loads;
  WriteThrough writes;
  ClusterWrites cluster_writes;
  AcquireRecords records;
  kvcache::ReuseDistance reuse;
  Leases leases;
  Fetches fetches;
  Stores stores;
  EventFeed feed;
  std::map<BlockKey, KnownRoot> roots;
  std::uint64_t last_root_use = 0;
  Admin admin;
  Outbox outbox;
  std::map<kv::SessionId, Session> sessions;
  std::deque<HostBlock> suspects;
  Instant polled;
  UnixSeconds started;
  TierNow turn;  // when the last one was
};

KvDaemon::KvDaemon(KvDaemonOptions options, KvMemory& memory, BlockTier* disk, BlockTier* peers,
                   ClusterTier* cluster)
    : state_(std::make_unique<State>(std::move(options), memory, disk, peers, cluster)) {}

KvDaemon::~KvDaemon() = default;

void KvDaemon::open(kv::SessionId session, TierNow now) {
  State& s = *state_;
  State::Session& opened = s.sessions[session];
  opened.heard = now.now;
  if (s.started == UnixSeconds()) s.started = now.wall;
  if (s.sessions.size() > s.options.sessions_max) {
    ++s.statistics.sessions_refused;
    s.dismiss(session, opened, "too many connections to this KV daemon; close some and try again");
  }
}

void KvDaemon::close(kv::SessionId session, TierNow now) {
  State& s = *state_;
  s.leases.close(session);
  s.fetches.close(session);
  s.stores.close(session);
  s.admin.close(session);
  s.feed.drop(session);
  s.sessions.erase(session);
  s.outbox.forget(session);
  s.end_turn(now);
}

void KvDaemon::handle(kv::SessionId session, kv::ClientMessage message, TierNow now) {
  State& s = *state_;
  const auto found = s.sessions.find(session);
  if (found == s.sessions.end() || found->second.doomed) return;
  found->second.heard = now.now;
  found->second.silent = false;
  if (!found->second.greeted && !std::holds_alternative<kv::Hello>(message)) {
    s.dismiss(session, found->second, "the first message must be Hello");
    return;
  }
  if (found->second.hello.role == "tool" && !is_for_tools(message)) {
    s.dismiss(session, found->second, "a session of role tool may only ask Admin and Lookup");
    return;
  }
  std::visit([&](auto& value) { s.on(session, found->second, std::move(value), now); }, message);
  s.end_turn(now);
}

bool KvDaemon::has_work() const {
  const State& s = *state_;
  return s.stores.has_work() || s.feed.has_work() || s.admin.has_work() || s.loads.unsubmitted() ||
         !s.suspects.empty() || s.cluster_writes.has_work(s.turn.now);
}

void KvDaemon::work(TierNow now) {
  State& s = *state_;
  s.loads.submit();
  if (!s.suspects.empty()) {
    const HostBlock suspect = s.suspects.front();
    s.suspects.pop_front();
    if (s.holdings.host().valid(suspect) && s.holdings.host().sealed(suspect) &&
        !s.holdings.check_copy(suspect, now))
      ++s.statistics.reports_confirmed;
  }
  s.stores.work(now, s.outbox);
  s.feed.work(s.outbox);
  s.admin.work(now, s.outbox);
  s.cluster_writes.work(now);
  s.end_turn(now);
}

void KvDaemon::poll(TierNow now) {
  State& s = *state_;
  s.loads.submit();
  s.polled = now.now;
  if (BlockTier* disk = s.holdings.disk()) {
    std::vector<TierRemoval> removals;
    disk->poll(now, removals);
    s.writes.finish();
    for (const TierRemoval& removal : removals)
      s.holdings.removed_from_disk(removal, now);
  }
  if (BlockTier* peers = s.holdings.peers()) {
    std::vector<TierRemoval> removals;  // told by the peers, when they tell what they hold
    peers->poll(now, removals);
  }
  if (s.cluster != nullptr) {
    std::vector<TierRemoval> removals;  // what is there is asked when it is wanted
    s.cluster->poll(now, removals);
    for (const ClusterKnown::News& news : s.cluster->take_news())
      s.holdings.in_cluster(news.name, news.is_there);
    s.feed.set_tiers_off(s.cluster->in_service() ? 0 : 1U << std::to_underlying(KvTier::kCluster));
    s.leases.looked_up(now);
  }
  const std::vector<LoadEnded> loaded = s.loads.finish(now);
  s.leases.loaded(loaded, now);
  s.fetches.loaded(loaded);
  s.fetches.expire(now);
  s.check_silence(now);
  s.end_turn(now);
}

std::optional<Instant> KvDaemon::next_deadline() const {
  const State& s = *state_;
  std::optional<Instant> next = s.leases.next_deadline();
  const auto consider = [&](Instant candidate) {
    next = std::min(next.value_or(candidate), candidate);
  };
  for (const auto& [id, session] : s.sessions)
    if (!session.silent && !session.doomed && s.leases.open(id) > 0)
      consider(session.heard + s.options.silence_max);
  if (const auto fetched = s.fetches.next_deadline()) consider(*fetched);
  const bool is_busy =
      s.loads.in_flight() > 0 || s.writes.in_flight() > 0 || s.admin.in_flight() > 0;
  for (const KvTier below : {KvTier::kDisk, KvTier::kPeer}) {
    const BlockTier* tier = const_cast<State&>(s).holdings.tier(below);
    if (tier != nullptr)
      consider(s.polled + (tier->event_fd() < 0 && is_busy ? kTierPoll : kTierTick));
  }
  if (s.cluster != nullptr) consider(s.cluster->next_deadline());
  return next;
}

std::vector<KvOutgoing> KvDaemon::take_outbox() {
  return state_->outbox.take();
}

void KvDaemon::set_congested(kv::SessionId session, bool congested) {
  state_->feed.set_congested(session, congested);
}

void KvDaemon::fetch(kv::SessionId session, const Fetch& fetch, TierNow now) {
  State& s = *state_;
  const auto found = s.sessions.find(session);
  if (found == s.sessions.end() || found->second.doomed) return;
  ENSURE(found->second.greeted);
  found->second.heard = now.now;
  s.fetches.start(session, fetch, now);
  s.end_turn(now);
}

void KvDaemon::unpin(kv::SessionId session, std::uint64_t number) {
  state_->fetches.unpin(session, number);
}

std::vector<Fetched> KvDaemon::take_fetched() {
  return state_->fetches.take();
}

void KvDaemon::suspect(const BlockName& name, TierNow now) {
  State& s = *state_;
  ++s.statistics.reports;
  ++s.statistics.reports_by_peers;
  const auto block = s.holdings.find_sealed(name);
  if (block && s.suspects.size() < kSuspectsMax) s.suspects.push_back(*block);
  s.end_turn(now);
}

std::optional<std::uint32_t> KvDaemon::bytes_of(const BlockName& name) const {
  State& s = *state_;
  if (const auto block = s.holdings.find_sealed(name))
    return static_cast<std::uint32_t>(s.holdings.host().at(*block).bytes);
  return s.holdings.on_disk(name) ? s.holdings.disk()->size_of(name) : std::nullopt;
}

void KvDaemon::hurry() {
  state_->cluster_writes.hurry();
}

bool KvDaemon::settled() const {
  const bool is_in_cluster =
      state_->cluster_writes.settled() || !state_->cluster_writes.may_go_on();
  return state_->writes.settled() && is_in_cluster && !state_->stores.has_work();
}

std::string KvDaemon::stat_json() const {
  const State& s = *state_;
  return boost::json::serialize(describe_stat(s.admin.inside(), s.session_numbers(), s.turn));
}

void KvDaemon::State::on(kv::SessionId id, Session& session, kv::Hello hello, TierNow) {
  if (session.greeted) return dismiss(id, session, "a second Hello");
  if (hello.protocol_version != kv::kKvProtocolVersion)
    return dismiss(id, session,
                   "this KV daemon speaks protocol version " +
                       std::to_string(kv::kKvProtocolVersion) + ", not " +
                       std::to_string(hello.protocol_version) +
                       "; use the same build on both sides");
  // A tool asks about the daemon, not for blocks; it may know no secret.
  if (hello.role != "tool" && hello.key_check != options.key_check)
    return dismiss(id, session,
                   "its deployment secret differs from this KV daemon's, so that no block would "
                   "ever be found; give both the same kv secret file");
  session.greeted = true;
  session.hello = std::move(hello);
  const bool with_arena = session.hello.role != "tool";
  outbox.send({id,
               kv::Welcome{kv::kKvProtocolVersion, options.epoch, arena.size(), options.classes},
               false, with_arena, false});
}

void KvDaemon::State::on(kv::SessionId id, Session& session, kv::RegisterPool pool, TierNow) {
  if (!is_sound(pool.layout)) return dismiss(id, session, "the layout of its pool is not sound");
  if (session.pools.contains(pool.pool) || session.pools.size() >= kPoolsMax)
    return dismiss(id, session, "a pool number was used twice, or too many pools");
  session.pools.emplace(pool.pool, RegisteredPool{pool.bytes, std::move(pool.layout)});
}

void KvDaemon::State::on(kv::SessionId id, Session& session, kv::RegisterRoot root, TierNow) {
  if (!is_sound(root.layout)) return dismiss(id, session, "the layout of a root is not sound");
  const auto known = roots.find(root.root);
  if (known != roots.end() && known->second.layout != root.layout)
    return dismiss(id, session, "a root is registered with two layouts: its key omits the layout");
  if (known != roots.end()) {
    use_root(root.root);
    return;
  }
  if (roots.size() >= std::max<std::size_t>(options.roots_max, 1)) {
    roots.erase(
        std::ranges::min_element(roots, {}, [](const auto& entry) { return entry.second.used; }));
    ++statistics.roots_replaced;
  }
  root.scope.resize(std::min(root.scope.size(), kTextMax));
  root.build.resize(std::min(root.build.size(), kTextMax));
  holdings.history().describe(root.root, root.scope, root.build);
  roots.emplace(root.root, KnownRoot{std::move(root.scope), std::move(root.build),
                                     std::move(root.layout), ++last_root_use});
}

const KnownRoot* KvDaemon::State::use_root(const BlockKey& root) {
  const auto known = roots.find(root);
  if (known == roots.end()) return nullptr;
  known->second.used = ++last_root_use;
  return &known->second;
}

void KvDaemon::State::on(kv::SessionId id, Session& session, kv::Acquire request, TierNow now) {
  if (leases.contains(id, request.lease))
    return dismiss(id, session, "a lease number was used while it was open");
  if (request.keys.size() > options.acquire_keys_max)
    return dismiss(id, session, "more keys in one acquire than this KV daemon allows");
  if (!std::ranges::is_sorted(request.windows))
    return dismiss(id, session, "window depths of an acquire are not in order");
  const bool too_many_keys =
      leases.keys_open() + request.keys.size() > options.acquire_keys_open_max;
  if (leases.open(id) >= options.leases_max || too_many_keys) {
    ++statistics.acquires_over_limit;
    kv::Granted refusal;
    refusal.lease = request.lease;
    refusal.final = true;
    refusal.missing = MissReason::kTooSlow;
    outbox.send(id, std::move(refusal));
    ++at(statistics.misses, MissReason::kTooSlow);
    return;
  }
  request.request.resize(std::min(request.request.size(), kTextMax));
  const KnownRoot* root = use_root(request.root);
  for (const BlockKey& key : request.keys)
    reuse.reference(key);
  leases.acquire(id, std::move(request), root ? root->layout : KvLayoutSpec{}, now);
}

void KvDaemon::State::on(kv::SessionId id, Session&, kv::Release release, TierNow now) {
  leases.release(id, release.lease, now, outbox);
}

void KvDaemon::State::on(kv::SessionId id, Session& session, kv::Store request, TierNow) {
  const auto pool = session.pools.find(request.pool);
  const KnownRoot* root = use_root(request.root);
  stores.add(id, std::move(request), pool == session.pools.end() ? nullptr : &pool->second,
             root ? &root->layout : nullptr, outbox);
}

void KvDaemon::State::on(kv::SessionId id, Session& session, kv::Lookup request, TierNow) {
  if (request.names.size() > options.acquire_keys_max)
    return dismiss(id, session, "more names in one lookup than this KV daemon allows");
  kv::LookupAnswer answer{request.number, {}};
  answer.tiers.reserve(request.names.size());
  for (std::size_t i = 0; i < request.names.size(); ++i) {
    if (i + Holdings::kPrefetchAhead < request.names.size())
      holdings.prefetch(request.names[i + Holdings::kPrefetchAhead]);
    const BlockName& name = request.names[i];
    unsigned tiers = holdings.find_sealed(name) ? 1U << static_cast<unsigned>(KvTier::kHost) : 0U;
    if (const auto below = holdings.below(name)) tiers |= 1U << static_cast<unsigned>(*below);
    answer.tiers.push_back(static_cast<std::uint8_t>(tiers));
  }
  outbox.send(id, std::move(answer));
}

void KvDaemon::State::on(kv::SessionId id, Session&, kv::Subscribe request, TierNow) {
  feed.subscribe(id, request);
}

void KvDaemon::State::on(kv::SessionId id, Session&, kv::Admin request, TierNow now) {
  admin.handle(id, request, session_numbers(), now, outbox);
}

void KvDaemon::State::on(kv::SessionId, Session&, kv::Alive, TierNow) {}

void KvDaemon::State::on(kv::SessionId id, Session&, kv::Report report, TierNow) {
  ++statistics.reports;
  const auto block = leases.holds(id, report.lease, report.name);
  if (block && suspects.size() < kSuspectsMax) suspects.push_back(*block);
}

void KvDaemon::State::on(kv::SessionId, Session&, kv::Missed missed, TierNow) {
  for (kv::MissedRequest& request : missed.requests) {
    AcquireRecord record;
    record.request = std::move(request.request);
    record.request.resize(std::min(record.request.size(), kTextMax));
    record.root = request.root;
    record.tenant = request.tenant;
    record.at = request.at;
    record.asked = std::min<std::size_t>(request.blocks, options.acquire_keys_max);
    record.served = std::move(request.served);
    record.served.resize(std::min(record.served.size(), record.asked));
    record.missing = MissReason::kNoDaemon;
    records.add(std::move(record));
    ++at(statistics.misses, MissReason::kNoDaemon);
  }
}

void KvDaemon::State::dismiss(kv::SessionId id, Session& session, std::string reason, bool kill) {
  session.doomed = true;
  outbox.send({id, kv::Goodbye{std::move(reason)}, true, false, kill});
}

void KvDaemon::State::check_silence(TierNow now) {
  for (auto& [id, session] : sessions) {
    if (session.doomed || session.silent || leases.open(id) == 0) continue;
    if (now.now - session.heard < options.silence_max) continue;
    session.silent = true;
    ++statistics.sessions_quarantined;
    leases.end_waiting(id, now, outbox);
    const double share =
        static_cast<double>(quarantined_bytes()) / static_cast<double>(arena.size());
    if (share <= options.quarantine_share_max) continue;
    ++statistics.sessions_killed;
    dismiss(id, session,
            "it was silent while it held leases, and silent sessions hold too much of the arena",
            true);
  }
}

std::uint64_t KvDaemon::State::quarantined_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, session] : sessions)
    if (session.silent) bytes += leases.pinned_bytes(id);
  return bytes;
}

SessionNumbers KvDaemon::State::session_numbers() const {
  const auto silent =
      std::ranges::count_if(sessions, [](const auto& entry) { return entry.second.silent; });
  return {sessions.size(), feed.subscribers(), static_cast<std::size_t>(silent),
          quarantined_bytes()};
}

void KvDaemon::State::end_turn(TierNow now) {
  turn = now;
  leases.flush(now, outbox);
  writes.start();
  admin.finish(outbox);
  if (!holdings.take_evicted()) loads.submit();
  feed.flush(outbox);
}

}  // namespace penstock::service
