#include "io/kv/client.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include <fmt/format.h>

#include "io/kv/client_state.h"
#include "io/kv/tier_clock.h"

namespace penstock::kv {
namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr std::size_t kChainCacheBytes = std::size_t{64} << 20;
constexpr std::size_t kLayersMax = 4096;
constexpr std::size_t kWindowBlocksMax = 4096;
constexpr std::size_t kStoreBlocksMax = std::size_t{1} << 16;
// What a daemon may take beyond a lease's budget before it counts as hung.
constexpr auto kBudgetSlack = std::chrono::milliseconds(200);
constexpr Duration kBudgetMax = std::chrono::hours(1);
constexpr std::size_t kMissedNameMax = 1024;  // bytes of a request's name that the daemon keeps

std::unexpected<Error> invalid(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

std::unexpected<Error> no_daemon() {
  return fail(ErrorCode::kUnavailable, "no KV daemon is connected");
}

Status check(const EngineLayout& layout) {
  const std::size_t layers = layout.layers();
  if (layout.block_tokens == 0 || layout.block_tokens > kvcache::kBlockTokensMax || layers == 0 ||
      layers > kLayersMax || (!layout.window.empty() && layout.window.size() != layers)) {
    return invalid("a layout needs 1 to 4096 layers and 1 to 4096 tokens a block");
  }
  for (const std::uint32_t bytes : layout.slice_bytes) {
    if (bytes == 0 || bytes > kSliceBytesMax) return invalid("a slice has 1 byte to 1 GiB");
  }
  const auto sliding = static_cast<std::size_t>(std::ranges::count(layout.window, true));
  if (sliding == layers) return invalid("at least one layer must keep its whole history");
  if ((sliding == 0) != (layout.window_tokens == 0) ||
      layout.window_tokens % layout.block_tokens != 0 ||
      layout.window_blocks() > kWindowBlocksMax ||
      sliding * layout.window_blocks() > kLayoutSlicesMax) {
    return invalid("window_tokens must be a multiple of block_tokens, and 0 without window layers");
  }
  return {};
}

std::uint64_t tenant_number(std::string_view tenant) {
  return tenant.empty() ? 0 : checksum64(tenant);
}

TtlClass class_number(const std::vector<TtlClassSpec>& classes, std::string_view name) {
  const auto it = std::ranges::find(classes, name, &TtlClassSpec::name);
  return it == classes.end() ? TtlClass{0} : static_cast<TtlClass>(it - classes.begin());
}

}  // namespace

KvLayoutSpec EngineLayout::spec() const {
  KvLayoutSpec out;
  out.block_tokens = block_tokens;
  out.window_tokens = window_tokens;
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    if (slides(layer)) {
      out.window_slices.insert(out.window_slices.end(), window_blocks(), slice_bytes[layer]);
    } else {
      out.history_slices.push_back(slice_bytes[layer]);
    }
  }
  return out;
}

KvClient::State::State(KvClientOptions o)
    : options(std::move(o)), hasher(options.secret), chains(kChainCacheBytes) {
  key_check = hasher.key_check();
  link_thread = std::thread([this] { run_link(); });
  load_thread = std::thread([this] { run_loads(); });
}

KvClient::State::~State() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
    for (const auto& [id, lease] : leases)
      if (lease->load) lease->load->cancelled = true;
    changed.notify_all();
  }
  link_event.wake();
  load_thread.join();
  link_thread.join();
}

Result<std::unique_ptr<KvClient>> KvClient::open(KvClientOptions options) {
  if (options.socket.empty()) return invalid("the KV daemon's socket is not told");
  TRY_STATUS(kvcache::self_test());
  return std::unique_ptr<KvClient>(new KvClient(std::make_unique<State>(std::move(options))));
}

KvClient::KvClient(std::unique_ptr<State> state) : state_(std::move(state)) {}
KvClient::~KvClient() = default;

bool KvClient::connected() const {
  const std::lock_guard lock(state_->mutex);
  return state_->up;
}

bool KvClient::wait_connected(Duration timeout) const {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, timeout, [&] { return state_->up; });
}

Result<std::uint32_t> KvClient::register_pool(int fd, std::uint64_t bytes, EngineLayout layout) {
  TRY_STATUS(check(layout));
  // What the daemon would refuse is refused here.
  if (Result<Mapping> mapped = map_to_read(fd, bytes); !mapped) {
    return std::unexpected(std::move(mapped).error());
  }
  ClientPool pool;
  pool.fd = Descriptor(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (pool.fd.get() < 0) {
    return fail(ErrorCode::kIo,
                fmt::format("cannot keep the pool's memory: {}", std::strerror(errno)));
  }
  pool.bytes = bytes;
  pool.spec = layout.spec();
  std::uint64_t begins[2] = {};
  std::uint32_t numbers[2] = {};
  for (std::size_t layer = 0; layer < layout.layers(); ++layer) {
    const std::size_t group = layout.slides(layer) ? 1 : 0;
    const std::uint32_t slices = layout.slides(layer) ? layout.window_blocks() : 1;
    pool.slice_begins.push_back(begins[group]);
    pool.slice_numbers.push_back(numbers[group]);
    begins[group] += std::uint64_t{slices} * layout.slice_bytes[layer];
    numbers[group] += slices;
  }
  pool.layout = std::move(layout);
  const std::lock_guard lock(state_->mutex);
  const auto number = static_cast<std::uint32_t>(state_->pools.size());
  state_->pools.push_back(std::move(pool));
  if (state_->up) state_->send_registration(number);
  return number;
}

Result<std::uint32_t> KvClient::register_root(std::uint32_t pool, kvcache::KvRootFields fields,
                                              std::string_view model) {
  State& s = *state_;
  ClientRoot root;
  {
    const std::lock_guard lock(s.mutex);
    if (pool >= s.pools.size()) return invalid("a pool that is not registered");
    fields.block_tokens = s.pools[pool].layout.block_tokens;
  }
  {
    const std::lock_guard lock(s.chains_mutex);
    TRY(root.key, s.hasher.root(fields));
  }
  root.pool = pool;
  root.scope = fields.scope;
  root.build = fmt::format("{} weights {} engine {} format {}{}{}", model, fields.weights_digest,
                           fields.engine_build, fields.kv_format,
                           fields.lora.empty() ? "" : " lora ", fields.lora);
  const std::lock_guard lock(s.mutex);
  s.roots.push_back(std::move(root));
  if (s.up) s.send_registration(s.roots.back());
  return static_cast<std::uint32_t>(s.roots.size() - 1);
}

const EngineLayout* KvClient::pool_layout(std::uint32_t pool) const {
  const std::lock_guard lock(state_->mutex);
  return pool < state_->pools.size() ? &state_->pools[pool].layout : nullptr;
}

const EngineLayout* KvClient::root_layout(std::uint32_t root) const {
  const std::lock_guard lock(state_->mutex);
  if (root >= state_->roots.size()) return nullptr;
  return &state_->pools[state_->roots[root].pool].layout;
}

const EngineLayout& KvClient::layout(const KvLease& lease) {
  return lease.pool->layout;
}

Result<std::vector<BlockKey>> KvClient::chain(std::uint32_t root, std::span<const TokenId> tokens,
                                              std::span<const kvcache::KvMedia> media) {
  State& s = *state_;
  BlockKey key;
  std::uint32_t block_tokens = 0;
  {
    const std::lock_guard lock(s.mutex);
    if (root >= s.roots.size()) return invalid("a root that is not registered");
    key = s.roots[root].key;
    block_tokens = s.pools[s.roots[root].pool].layout.block_tokens;
  }
  const std::lock_guard lock(s.chains_mutex);
  return s.chains.chain(s.hasher, key, block_tokens, tokens, media);
}

std::uint64_t KvClient::State::content_tag(std::span<const TokenId> first_block) {
  if (first_block.empty()) return 0;
  const std::lock_guard lock(chains_mutex);
  return hasher.content_tag(first_block);
}

Result<KvLease*> KvClient::acquire(KvRequest request) {
  State& s = *state_;
  const std::uint64_t tag = s.content_tag(request.first_block);
  const std::lock_guard lock(s.mutex);
  if (request.root >= s.roots.size()) return invalid("a root that is not registered");
  const ClientRoot& root = s.roots[request.root];
  auto lease = std::make_unique<KvLease>();
  lease->id = s.next_lease++;
  lease->pool = &s.pools[root.pool];
  lease->keys.assign(request.keys.begin(), request.keys.end());
  lease->wake = std::move(request.wake);
  lease->asked = {
      request.request.substr(0, kMissedNameMax),       root.key, tenant_number(request.tenant),
      static_cast<std::uint32_t>(request.keys.size()), {},       tier_now().wall};
  const Duration budget = std::clamp(request.budget, Duration(0), kBudgetMax);
  lease->deadline = SteadyClock::now() + budget + kBudgetSlack;
  Acquire message{lease->id,
                  root.key,
                  lease->keys,
                  {},
                  tag,
                  std::move(request.request),
                  class_number(s.classes, request.ttl_class),
                  tenant_number(request.tenant),
                  budget,
                  request.prefill};
  if (lease->pool->layout.window_tokens > 0) {
    for (std::uint32_t depth = 0; depth < lease->keys.size(); ++depth)
      message.windows.push_back(depth);
  }
  if (s.up && s.send(message)) {
    lease->connection = s.connection;
    lease->arena = s.arena;
    // The link's thread looks at deadlines as long as there are leases.
    if (s.leases.empty()) s.link_event.wake();
  } else {
    s.went_without(*lease);
  }
  KvLease* out = lease.get();
  s.leases.emplace(out->id, std::move(lease));
  return out;
}

KvProgress KvClient::progress(KvLease& lease) const {
  const std::lock_guard lock(state_->mutex);
  KvProgress out;
  out.history_blocks = static_cast<std::uint32_t>(lease.history.size());
  out.usable_blocks = lease.usable_blocks(out.history_blocks);
  out.final = lease.final;
  out.missing = lease.missing;
  for (std::uint32_t i = 0; i < out.usable_blocks; ++i) {
    const KvTier from = lease.history[i].from;
    ++(from == KvTier::kHost   ? out.host_blocks
       : from == KvTier::kDisk ? out.disk_blocks
                               : out.peer_blocks);
  }
  return out;
}

std::uint32_t KvLease::usable_blocks(std::uint32_t limit) const {
  if (pool->layout.window_tokens == 0) return limit;
  const auto after = windows.lower_bound(limit);
  return after == windows.begin() ? 0 : std::prev(after)->first + 1;
}

Status KvClient::load(KvLease& lease, std::uint32_t count, std::span<void* const> slices) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  if (lease.load) return invalid("a lease is loaded once");
  if (count > lease.usable_blocks(static_cast<std::uint32_t>(lease.history.size()))) {
    return invalid("more blocks than are usable");
  }
  if (slices.size() != std::size_t{count} * lease.pool->layout.layers()) {
    return invalid("places for other than count * layers slices");
  }
  lease.load = std::make_unique<Load>();
  Load& load = *lease.load;
  load.slices.assign(slices.begin(), slices.end());
  load.history.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i)
    load.history.push_back(&lease.history[i]);
  for (const auto& [depth, block] : lease.windows)
    if (depth < count) load.windows.emplace(depth, &block);
  s.loads.push_back(&lease);
  s.changed.notify_all();
  return {};
}

Result<KvLayerResult> KvClient::wait_layer(KvLease& lease, std::uint32_t layer,
                                           Duration timeout) const {
  std::unique_lock lock(state_->mutex);
  if (!lease.load || layer >= lease.pool->layout.layers()) {
    return invalid("a layer that is not being loaded");
  }
  const bool ready =
      state_->changed.wait_for(lock, timeout, [&] { return lease.load->layers_done > layer; });
  return KvLayerResult{ready, lease.load->valid,
                       static_cast<std::uint32_t>(lease.load->history.size())};
}

void KvClient::release(KvLease* lease) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (lease->load) {
    lease->load->cancelled = true;
    if (std::erase(s.loads, lease) > 0) lease->load->active = false;
  }
  // The lease can't become final, nor its callbacks begin, once it is out of the table.
  const auto node = s.leases.extract(lease->id);
  s.changed.wait(lock,
                 [&] { return lease->callbacks == 0 && (!lease->load || !lease->load->active); });
  if (s.up && lease->connection == s.connection) (void)s.send(Release{lease->id});
}

Status KvClient::store(const KvStore& store) {
  State& s = *state_;
  const std::uint64_t tag = s.content_tag(store.first_block);
  const std::lock_guard lock(s.mutex);
  if (store.root >= s.roots.size() || store.pool >= s.pools.size() ||
      s.roots[store.root].pool != store.pool) {
    return invalid("a root that is not registered for the pool");
  }
  const ClientPool& pool = s.pools[store.pool];
  const EngineLayout& layout = pool.layout;
  const std::size_t layers = layout.layers();
  const std::uint64_t end = std::uint64_t{store.first} + store.count;
  if (store.count == 0 || end > store.keys.size() || store.count > kStoreBlocksMax ||
      store.slice_offsets.size() != store.count * layers) {
    return invalid("offered blocks need keys from depth 0 and count * layers places");
  }
  for (std::size_t i = 0; i < store.slice_offsets.size(); ++i) {
    const std::uint32_t bytes = layout.slice_bytes[i % layers];
    if (bytes > pool.bytes || store.slice_offsets[i] > pool.bytes - bytes) {
      return invalid("a place outside of the pool");
    }
  }
  const auto place = [&](std::uint64_t depth, std::size_t layer) {
    return store.slice_offsets[(depth - store.first) * layers + layer];
  };
  const BlockKey& root = s.roots[store.root].key;
  Store message{s.next_number++,
                store.pool,
                root,
                class_number(s.classes, store.ttl_class),
                tenant_number(store.tenant),
                tag,
                {}};
  State::PendingStore pending;
  const auto add = [&](KvGroup group, std::uint32_t depth) -> StoreBlock& {
    pending.history.push_back(group == KvGroup::kHistory);
    pending.bytes += pool.spec.bytes(group);
    return message.blocks.emplace_back(StoreBlock{
        {store.keys[depth], group}, depth == 0 ? root : store.keys[depth - 1], depth, {}});
  };
  for (std::uint32_t depth = store.first; depth < end; ++depth) {
    StoreBlock& block = add(KvGroup::kHistory, depth);
    for (std::size_t layer = 0; layer < layers; ++layer)
      if (!layout.slides(layer)) block.slices.push_back(place(depth, layer));
  }
  for (const std::uint32_t depth : store.window_depths) {
    // Before the start of the chain there is nothing: those slices repeat block 0 and are ignored.
    const std::uint32_t blocks = layout.window_blocks();
    const std::uint32_t begin = depth + 1 >= blocks ? depth + 1 - blocks : 0;
    if (blocks == 0 || depth >= end || begin < store.first) {
      return invalid("a window that is not within the blocks offered");
    }
    StoreBlock& block = add(KvGroup::kWindow, depth);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      for (std::uint32_t i = 0; layout.slides(layer) && i < blocks; ++i) {
        const std::uint32_t at = depth + 1 + i >= blocks ? depth + 1 + i - blocks : 0;
        block.slices.push_back(place(at, layer));
      }
    }
  }
  if (!s.up) return no_daemon();
  if (s.store_bytes > 0 && s.store_bytes + pending.bytes > s.options.store_bytes_max) {
    ++s.counters.stores_refused;
    return fail(ErrorCode::kOverloaded, "too many bytes are being stored");
  }
  TRY_STATUS(s.send(message));
  // The link's thread looks at how long a store takes as long as there is one.
  if (s.stores.empty()) s.link_event.wake();
  s.store_bytes += pending.bytes;
  pending.done = store.done ? store.done : [](std::uint32_t) {};
  s.stores.emplace(message.number, std::move(pending));
  return {};
}

Result<std::vector<std::uint8_t>> KvClient::match(std::span<const BlockKey> keys,
                                                  Duration timeout) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (!s.up) return no_daemon();
  Lookup message{s.next_number++, {}};
  message.names.reserve(keys.size());
  for (const BlockKey& key : keys)
    message.names.push_back({key, KvGroup::kHistory});
  State::PendingLookup pending;
  TRY_STATUS(s.send(message));
  s.lookups.emplace(message.number, &pending);
  const bool over = s.changed.wait_for(
      lock, timeout, [&] { return pending.answered || !s.lookups.contains(message.number); });
  s.lookups.erase(message.number);
  if (!over) return fail(ErrorCode::kDeadlineExceeded, "the KV daemon has not answered yet");
  if (!pending.answered || pending.tiers.size() != keys.size()) return no_daemon();
  return std::move(pending.tiers);
}

KvClientCounters KvClient::counters() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counters;
}

}  // namespace penstock::kv
