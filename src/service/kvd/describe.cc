#include "service/kvd/describe.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>

namespace penstock::service {
namespace {

namespace json = boost::json;

constexpr std::size_t kSlotsPerPage = 65'536;  // looked at in one turn
constexpr std::string_view kDigits = "0123456789abcdef";

std::string hex(std::uint64_t value) {
  std::string digits(16, '0');
  for (std::size_t i = digits.size(); i-- > 0; value >>= 4)
    digits[i] = kDigits[value & 0xF];
  return digits;
}

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// The reasons that have occurred.
json::object counts(const ReasonCounts& by_reason) {
  json::object object;
  for (std::size_t i = 0; i < kMissReasons; ++i)
    if (by_reason[i] > 0) object[to_string(static_cast<MissReason>(i))] = by_reason[i];
  return object;
}

// Adds them to an object of their tier.
void add_removals(const Removals& removals, json::object& object) {
  object["removals"] = counts(removals.by_reason);
  object["mean_idle_seconds_when_evicted"] =
      removals.evicted == 0 ? 0.0
                            : seconds(removals.idle_sum) / static_cast<double>(removals.evicted);
  object["max_idle_seconds_when_evicted"] = seconds(removals.idle_max);
}

json::object host_stat(const Inside& inside, const SessionNumbers& sessions, Instant now) {
  const kvcache::HostUsage usage = inside.holdings.host().usage();
  const kvcache::HostAges ages = inside.holdings.host().ages(now);
  json::object object{

      {"blocks", usage.blocks},
      {"bytes", usage.bytes},
      {"arena_bytes", usage.arena_bytes},
      {"free_bytes", usage.free_bytes},
      {"filling_blocks", usage.filling},
      {"retiring_blocks", usage.retiring},
      {"pinned_blocks", usage.pinned},
      {"quarantined_bytes", sessions.quarantined_bytes},
      {"corrupt_bytes", usage.corrupt_bytes},
      {"look_ups", inside.holdings.host().look_ups()},
      {"oldest_idle_seconds", seconds(ages.oldest)},
      {"median_idle_seconds", seconds(ages.median)}};
  add_removals(inside.statistics.host_removals, object);
  return object;
}

json::array disk_classes(const Inside& inside, const TierStats& stats) {
  json::array classes;
  for (std::size_t i = 0; i < std::min(stats.classes.size(), inside.classes.size()); ++i) {
    classes.push_back({{"class", inside.classes[i].name},
                       {"blocks", stats.classes[i].blocks},
                       {"bytes", stats.classes[i].bytes},
                       {"segments", stats.classes[i].segments}});
  }
  return classes;
}

json::value disk_stat(const Inside& inside) {
  const BlockTier* disk = inside.holdings.disk();
  if (disk == nullptr) {
    if (inside.disk_failure.empty()) return nullptr;
    return json::object{{"in_service", false}, {"state", inside.disk_failure}};
  }
  const TierStats stats = disk->stats();
  ReasonCounts removals;
  std::ranges::copy(stats.removals, removals.begin());
  return json::object{{"in_service", stats.in_service},
                      {"state", stats.state},
                      {"blocks", stats.blocks},
                      {"bytes", stats.bytes_used},
                      {"bytes_total", stats.bytes_total},
                      {"index_bytes", stats.index_bytes},
                      {"reads", stats.reads},
                      {"read_bytes", stats.read_bytes},
                      {"writes", stats.writes},
                      {"write_bytes", stats.write_bytes},
                      {"corrupt", stats.corrupt},
                      {"io_errors", stats.io_errors},
                      {"reinserted", stats.reinserted},
                      {"oldest_idle_seconds", seconds(stats.idle_oldest)},
                      {"median_idle_seconds", seconds(stats.idle_median)},
                      {"classes", disk_classes(inside, stats)},
                      {"removals", counts(removals)}};
}

json::value peer_stat(const Inside& inside) {
  const BlockTier* peers = inside.holdings.peers();
  if (peers == nullptr) return nullptr;
  const TierStats stats = peers->stats();
  return json::object{{"in_service", stats.in_service}, {"state", stats.state},
                      {"blocks", stats.blocks},         {"index_bytes", stats.index_bytes},
                      {"reads", stats.reads},           {"read_bytes", stats.read_bytes},
                      {"corrupt", stats.corrupt},       {"io_errors", stats.io_errors}};
}

json::object cluster_gc(const Inside& inside) {
  const ClusterGcNumbers gc = inside.cluster->gc_numbers();
  return {{"runs", gc.runs},   {"manifests", gc.manifests}, {"swept", gc.swept},
          {"names", gc.names}, {"removed", gc.removed},     {"removed_bytes", gc.removed_bytes},
          {"kept", gc.kept},   {"failures", gc.failures}};
}

json::object cluster_spill(const Inside& inside) {
  const ClusterSpill& spill = inside.cluster_writes.spill();
  return {{"waiting", spill.items()},
          {"bytes", spill.bytes()},
          {"added", spill.numbers().added},
          {"written", spill.numbers().written},
          {"lost", spill.numbers().lost}};
}

json::value cluster_stat(const Inside& inside) {
  if (inside.cluster == nullptr) return nullptr;
  const TierStats stats = inside.cluster->stats();
  const ClusterStats cluster = inside.cluster->cluster_stats();
  const ClusterWriteNumbers& writes = inside.cluster_writes.numbers();
  return json::object{
      {"in_service", stats.in_service},
      {"state", stats.state},
      {"known_blocks", stats.blocks},
      {"index_bytes", stats.index_bytes},
      {"look_ups", cluster.look_ups},
      {"look_ups_slow", cluster.look_ups_slow},
      {"reads", stats.reads},
      {"read_bytes", stats.read_bytes},
      {"extents_read", cluster.extents_read},
      {"singles_read", cluster.singles_read},
      {"writes", stats.writes},
      {"write_bytes", stats.write_bytes},
      {"extents_written", cluster.extents_written},
      {"singles_written", cluster.singles_written},
      {"written_blocks", writes.blocks},
      {"written_block_bytes", writes.bytes},
      {"writes_queued", inside.cluster_writes.queued()},
      {"writes_dropped", writes.dropped},
      {"writes_gone", writes.gone},
      {"writes_lost", writes.gone + writes.dropped + inside.cluster_writes.spill().numbers().lost},
      {"writes_ended", counts(writes.ended)},
      {"spill", cluster_spill(inside)},
      {"spill_bytes", inside.cluster_writes.spill().bytes()},
      {"touches", cluster.touches},
      {"told_blocks", cluster.told_blocks},
      {"bytes", cluster.use.bytes_used},
      {"bytes_total", cluster.use.bytes_total},
      {"objects", cluster.use.objects},
      {"target_bytes", inside.cluster->bytes_max()},
      {"gc", cluster_gc(inside)},
      {"buffer_bytes", cluster.buffer_bytes},
      {"breaker_openings", cluster.breaker_openings},
      {"corrupt", stats.corrupt},
      {"io_errors", stats.io_errors}};
}

// What came and went since the start, and what is held now; on disk that may be older.
json::array tenant_stat(const Inside& inside) {
  struct Row {
    TenantUse use;
    std::uint64_t disk_blocks = 0, disk_bytes = 0;
  };
  KvStatistics::ByTenant<Row> all;
  for (const auto& [who, use] : inside.statistics.tenants)
    all[who].use = use;
  if (const BlockTier* disk = inside.holdings.disk()) {
    for (const TierTenantUse& held : disk->stats().tenants) {
      Row& row = KvStatistics::row(all, held.ttl_class, held.tenant);
      row.disk_blocks += held.blocks;
      row.disk_bytes += held.bytes;
    }
  }
  json::array rows;
  for (const auto& [who, its] : all) {
    const TenantUse& use = its.use;
    const auto& [ttl_class, tenant] = who;
    const bool is_known = ttl_class < inside.classes.size();
    json::object row{
        {"class", is_known ? inside.classes[ttl_class].name : std::to_string(ttl_class)},
        {"tenant", hex(tenant)},
        {"host_blocks", use.host_blocks},
        {"host_bytes", use.host_bytes},
        {"disk_blocks", its.disk_blocks},
        {"disk_bytes", its.disk_bytes},
        {"written_blocks", use.written_blocks},
        {"written_bytes", use.written_bytes},
        {"stored_blocks", use.stored_blocks},
        {"hit_blocks_host", use.hits.host},
        {"hit_blocks_disk", use.hits.disk},
        {"hit_blocks_peer", use.hits.peer},
        {"hit_blocks_cluster", use.hits.cluster},
        {"hit_tokens", use.hit_tokens},
        {"miss_blocks", use.miss_blocks}};
    add_removals(use.host_removals, row);
    row["disk_removals"] = counts(use.disk_removals);
    rows.push_back(std::move(row));
  }
  return rows;
}

// What an LRU cache of other sizes than the arena's would have served of the recent blocks.
json::object capacity_stat(const Inside& inside) {
  const kvcache::HostUsage usage = inside.holdings.host().usage();
  json::array curve;
  if (usage.blocks > 0) {
    const std::uint64_t block_bytes = std::max<std::uint64_t>(usage.bytes / usage.blocks, 1);
    for (const double scale : {0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0}) {
      const auto bytes = static_cast<std::uint64_t>(static_cast<double>(usage.arena_bytes) * scale);
      curve.push_back({{"bytes", bytes}, {"hit_rate", inside.reuse.hit_rate(bytes / block_bytes)}});
    }
  }
  return {{"hit_rate_by_bytes", std::move(curve)},
          {"hit_rate_max", inside.reuse.hit_rate_max()},
          {"distinct_blocks", inside.reuse.distinct_blocks()}};
}

// The disk's index has names and sizes: no roots, no classes.
json::value disk_held(const Inside& inside) {
  const BlockTier* disk = inside.holdings.disk();
  if (disk == nullptr) return nullptr;
  const TierStats stats = disk->stats();
  return json::object{{"blocks", stats.blocks},
                      {"bytes", stats.bytes_used},
                      {"classes", disk_classes(inside, stats)}};
}

// Of the whole store, and what this host has told of it.
json::value cluster_held(const Inside& inside) {
  if (inside.cluster == nullptr) return nullptr;
  const ClusterStats stats = inside.cluster->cluster_stats();
  return json::object{{"known_blocks", stats.told_blocks},
                      {"objects", stats.use.objects},
                      {"bytes", stats.use.bytes_used},
                      {"bytes_total", stats.use.bytes_total}};
}

void name_root(const Inside& inside, const BlockKey& root, json::object& object) {
  object["root"] = service::hex(root);
  const auto known = inside.roots.find(root);
  if (known == inside.roots.end()) return;
  object["scope"] = known->second.scope;
  object["build"] = known->second.build;
}

// One run of blocks with the same fate.
struct Fate {
  std::optional<KvTier> tier;
  MissReason reason = MissReason::kNone;
  std::optional<UnixSeconds> when;
  std::optional<BlockKey> other_root;
  bool operator==(const Fate&) const = default;
};

std::vector<Fate> fates(const Inside& inside, const AcquireRecord& record) {
  std::vector<Fate> all;
  for (const KvTier tier : record.served)
    all.push_back({tier, {}, {}, {}});
  // Only a chain of which nothing was served can be somebody else's.
  const auto explained = inside.holdings.history().explain(
      record.root, record.missed, record.served.empty() ? record.content_tag : 0,
      [&](const BlockName& name) {
        return inside.holdings.find_sealed(name).has_value() || inside.holdings.on_disk(name);
      });
  for (const kvcache::MissHistory::Explained& why : explained) {
    Fate fate{{}, why.reason, why.when, why.other_root};
    const bool is_first = all.size() == record.served.size();
    // The first was missed for the reason that was found then, unless that was "unknown".
    if (is_first && record.missing != MissReason::kNeverStored) {
      fate = {{}, record.missing, {}, {}};
    } else if (fate.reason == MissReason::kNone) {
      fate.reason = is_first ? MissReason::kNeverStored : MissReason::kParentGone;
    }
    all.push_back(fate);
  }
  return all;
}

json::object describe(const Inside& inside, const AcquireRecord& record) {
  json::object object;
  object["request"] = record.request;
  object["at"] = record.at.value;
  name_root(inside, record.root, object);
  object["tenant"] = hex(record.tenant);
  object["blocks_asked"] = record.asked;
  object["blocks_served"] = record.served.size();
  object["ended_by"] = to_string(record.missing);
  object["windows"] = json::value_from(record.windows);
  object["took_ms"] = 1e3 * seconds(record.took);
  if (record.decision) {
    const kvcache::LoadDecision& decision = *record.decision;
    object["predicted"] = {{"hit_tokens", decision.hit.value},
                           {"load_bytes", decision.bytes},
                           {"load_ms", 1e3 * seconds(decision.load)},
                           {"prefill_after_ms", 1e3 * seconds(decision.prefill_after)},
                           {"prefill_without_ms", 1e3 * seconds(decision.prefill_without)}};
  }
  json::array runs;
  const std::vector<Fate> all = fates(inside, record);
  for (std::size_t first = 0, next = 0; first < all.size(); first = next) {
    while (next < all.size() && all[next] == all[first])
      ++next;
    const Fate& fate = all[first];
    json::object run{{"first_block", first}, {"blocks", next - first}};
    if (fate.tier) {
      run["served_from"] = to_string(*fate.tier);
    } else {
      run["missed"] = to_string(fate.reason);
    }
    if (fate.when) run["since"] = fate.when->value;
    if (fate.other_root) {
      json::object other;
      name_root(inside, *fate.other_root, other);
      run["stored_under"] = std::move(other);
    }
    runs.push_back(std::move(run));
  }
  if (record.missing == MissReason::kNoDaemon) {  // of no block is it known which it was
    runs.push_back({{"first_block", record.served.size()},
                    {"blocks", record.asked - record.served.size()},
                    {"missed", to_string(MissReason::kNoDaemon)}});
  }
  object["runs"] = std::move(runs);
  return object;
}

}  // namespace

std::string hex(const BlockKey& key) {
  std::string digits;
  for (const std::uint8_t byte : key.bytes) {
    digits += kDigits[byte >> 4];
    digits += kDigits[byte & 0xF];
  }
  return digits;
}

std::optional<BlockKey> parse_key(std::string_view digits) {
  BlockKey key;
  if (digits.size() != key.bytes.size() * 2) return std::nullopt;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const std::size_t digit = kDigits.find(digits[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    key.bytes[i / 2] = static_cast<std::uint8_t>(key.bytes[i / 2] << 4 | digit);
  }
  return key;
}

json::object describe_stat(const Inside& inside, const SessionNumbers& sessions, TierNow now) {
  const KvStatistics& statistics = inside.statistics;
  return {
      {"host", host_stat(inside, sessions, now.now)},
      {"disk", disk_stat(inside)},
      {"peers", peer_stat(inside)},
      {"cluster", cluster_stat(inside)},
      {"acquires", json::object{{"count", statistics.acquires},
                                {"open_leases", inside.leases.open()},
                                {"open_keys", inside.leases.keys_open()},
                                {"ended_leases", statistics.leases_ended},
                                {"refused_over_limit", statistics.acquires_over_limit},
                                {"hit_blocks_host", statistics.hits.host},
                                {"hit_blocks_disk", statistics.hits.disk},
                                {"hit_blocks_peer", statistics.hits.peer},
                                {"hit_blocks_cluster", statistics.hits.cluster},
                                {"hit_windows", statistics.hit_windows},
                                {"hit_tokens", statistics.hit_tokens},
                                {"prefix_ended_by", counts(statistics.misses)}}},
      {"loads",
       json::object{
           {"started", statistics.loads},
           {"in_flight", inside.loads.in_flight()},
           {"bytes", statistics.load_bytes},
           {"disk_bytes_per_second", inside.load_model.bytes_per_second(KvTier::kDisk, now.now)},
           {"peer_bytes_per_second", inside.load_model.bytes_per_second(KvTier::kPeer, now.now)},
           {"cluster_bytes_per_second",
            inside.load_model.bytes_per_second(KvTier::kCluster, now.now)},
           {"decided", inside.load_model.loads()},
           {"slower_than_recompute", inside.load_model.loads_slower_than_recompute()},
           {"ended", counts(statistics.loads_ended)}}},
      {"stores", json::object{{"blocks", statistics.stored_blocks},
                              {"bytes", statistics.stored_bytes},
                              {"already_there", statistics.stored_already},
                              {"pending", inside.stores.pending()},
                              {"refused", counts(statistics.stores_refused)},
                              {"refused_other_layout", statistics.stores_other_layout},
                              {"dropped", statistics.stores_dropped}}},
      {"writes", json::object{{"queued", inside.writes.queued()},
                              {"in_flight", inside.writes.in_flight()},
                              {"ended", counts(statistics.writes_ended)},
                              {"dropped", statistics.writes_dropped}}},
      {"disk_removals_told", counts(statistics.disk_removals)},
      {"history", json::object{{"names", inside.holdings.history().names()},
                               {"look_ups", inside.holdings.history().look_ups()}}},
      {"roots",
       json::object{{"named", inside.roots.size()}, {"replaced", statistics.roots_replaced}}},
      {"reports", json::object{{"count", statistics.reports},
                               {"by_peers", statistics.reports_by_peers},
                               {"confirmed", statistics.reports_confirmed}}},
      {"sessions", json::object{{"open", sessions.sessions},
                                {"subscribers", sessions.subscribers},
                                {"silent", sessions.silent},
                                {"quarantined", statistics.sessions_quarantined},
                                {"killed", statistics.sessions_killed},
                                {"refused", statistics.sessions_refused}}},
      {"events", json::object{{"next", inside.log.next()}, {"oldest", inside.log.first()}}},
      {"capacity", capacity_stat(inside)},
      {"tenants", tenant_stat(inside)}};
}

json::object describe_roots(const Inside& inside, const std::optional<BlockKey>& after,
                            std::size_t limit, Details details) {
  const auto& held = inside.holdings.host().roots();
  std::map<BlockKey, kvcache::HostRoot> page;  // the first of both, one more than are shown
  const auto add = [&](const auto& from, auto what) {
    auto root = after ? from.upper_bound(*after) : from.begin();
    for (std::size_t count = 0; count <= limit && root != from.end(); ++count, ++root)
      page.emplace(root->first, what(root->second));
  };
  add(held, [](const kvcache::HostRoot& root) { return root; });
  add(inside.roots, [](const KnownRoot&) { return kvcache::HostRoot{}; });
  json::array rows;
  json::value next;
  for (auto root = page.begin(); root != page.end(); ++root) {
    if (rows.size() == limit) {
      next = rows.back().at("root");
      break;
    }
    json::object row;
    name_root(inside, root->first, row);
    row["host_blocks"] = root->second.blocks;
    row["host_bytes"] = root->second.bytes;
    const auto known = inside.roots.find(root->first);
    if (details == Details::kAll && known != inside.roots.end()) {
      const KvLayoutSpec& layout = known->second.layout;
      row["layout"] = {{"block_tokens", layout.block_tokens},
                       {"window_tokens", layout.window_tokens},
                       {"history_slices", json::value_from(layout.history_slices)},
                       {"window_slices", json::value_from(layout.window_slices)}};
    }
    rows.push_back(std::move(row));
  }
  return {{"roots", std::move(rows)},
          {"next", std::move(next)},
          {"disk", disk_held(inside)},
          {"cluster", cluster_held(inside)}};
}

json::object describe_blocks(const Inside& inside, const BlockKey& root, std::size_t first,
                             std::size_t limit, Details details, Instant now) {
  const HostTier& host = inside.holdings.host();
  json::array rows;
  json::value next;
  for (std::size_t slot = first; slot < host.slots(); ++slot) {
    if (slot - first == kSlotsPerPage) {  // the page may be short, or empty
      next = slot;
      break;
    }
    const auto block = host.sealed_in_slot(slot);
    if (!block || host.at(*block).info.root != root) continue;
    if (rows.size() == limit) {
      next = slot;
      break;
    }
    const HostEntry& entry = host.at(*block);
    rows.push_back({{"key", hex(entry.info.name.key)},
                    {"group", entry.info.name.group == KvGroup::kHistory ? "history" : "window"},
                    {"depth", entry.info.depth},
                    {"bytes", entry.bytes},
                    {"pins", entry.pins},
                    {"children", entry.children},
                    {"on_disk", inside.holdings.on_disk(entry.info.name)},
                    {"idle_seconds", seconds(now - entry.used_at)}});
    if (details == Details::kAll) {
      json::object& row = rows.back().get_object();
      row["parent"] = hex(entry.info.parent);
      row["class"] = entry.info.ttl_class;
      row["tenant"] = hex(entry.info.tenant);
    }
  }
  return {{"blocks", std::move(rows)}, {"next", std::move(next)}};
}

json::array describe_acquires(const Inside& inside, const std::string& request) {
  json::array acquires;
  for (const AcquireRecord* record : inside.records.find(request))
    acquires.push_back(describe(inside, *record));
  return acquires;
}

}  // namespace penstock::service
