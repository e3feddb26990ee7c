#include "io/embedded/kv_connector.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "engine/config.h"

namespace penstock {
namespace {

using engine::BlockId;
using engine::kBlockTokens;

constexpr std::uint64_t kCopyTimeoutUs = 5'000'000;  // of one layer, memory to memory

Status failed(std::string_view what) {
  return fail(ErrorCode::kIo, fmt::format("{}: {}", what, pkv_last_error()));
}

const char* text_or_null(const std::string& text) {
  return text.empty() ? nullptr : text.c_str();
}

// A granted prefix on its way into the pool.
class LeaseLoad final : public engine::PrefixLoad {
 public:
  LeaseLoad(std::shared_ptr<KvFetch> fetch, engine::KvPool& pool, std::uint32_t blocks,
            CacheUse& counters)
      : fetch_(std::move(fetch)), pool_(pool), blocks_(blocks), counters_(counters) {}

  std::uint32_t blocks() const override { return blocks_; }

  void start(std::span<const BlockId> to) override {
    const std::uint32_t layers = pool_.layout().layers;
    std::vector<void*> slices;
    slices.reserve(std::size_t{blocks_} * layers);
    for (const BlockId block : to.first(blocks_)) {
      for (std::uint32_t layer = 0; layer < layers; ++layer)
        slices.push_back(pool_.slice(block, layer));
    }
    if (pkv_load(fetch_->lease(), blocks_, slices.data()) != PKV_OK) right_ = 0;
  }
  bool ready(std::uint32_t layer) override {
    std::uint32_t valid = 0;
    return right_ == 0 || pkv_wait_layer(fetch_->lease(), layer, 0, &valid) != PKV_TIMEOUT;
  }
  std::uint32_t wait_layer(std::uint32_t layer) override {
    std::uint32_t valid = 0;
    if (right_ == 0) return 0;
    if (pkv_wait_layer(fetch_->lease(), layer, kCopyTimeoutUs, &valid) == PKV_TIMEOUT) valid = 0;
    right_ = std::min(right_, valid);
    if (layer == 0) {
      ++counters_.loads;
      if (pool_.layout().layers > 1 && !ready(1)) ++counters_.loads_overlapped;
    }
    return right_;
  }
  void stop() override { fetch_ = nullptr; }

 private:
  std::shared_ptr<KvFetch> fetch_;
  engine::KvPool& pool_;
  std::uint32_t blocks_;
  CacheUse& counters_;
  std::uint32_t right_ = ~0U;
};

}  // namespace

bool KvFetch::final() const {
  pkv_progress_info info{};
  info.size = sizeof info;
  return pkv_progress(lease_, &info) != PKV_OK || info.final != 0;
}

std::uint32_t KvFetch::usable_blocks() const {
  pkv_progress_info info{};
  info.size = sizeof info;
  return pkv_progress(lease_, &info) == PKV_OK ? info.usable_blocks : 0;
}

Result<std::unique_ptr<KvConnector>> KvConnector::open(KvConnectorOptions options,
                                                       engine::Engine& engine,
                                                       std::function<void()> wake) {
  std::unique_ptr<KvConnector> connector(
      new KvConnector(std::move(options), engine, std::move(wake)));
  TRY_STATUS(connector->set_up());
  engine.set_block_sink(connector.get());
  return connector;
}

KvConnector::~KvConnector() {
  engine_.set_block_sink(nullptr);
  if (client_ != nullptr) pkv_disconnect(client_);  // answers every offer
  tend();
}

Status KvConnector::set_up() {
  ENSURE(pkv_version() == PKV_VERSION);
  pkv_options options{};
  options.size = sizeof options;
  options.socket = options_.socket.c_str();
  options.secret_file = options_.secret_file.c_str();
  options.name = options_.name.c_str();
  options.log = [](void* context, int level, const char* text) {
    const auto& log = static_cast<KvConnector*>(context)->options_.log;
    if (log) log(level, text);
  };
  options.log_context = this;
  if (pkv_connect(&options, &client_) != PKV_OK) return failed("connecting to the KV cache");

  const engine::KvPool& pool = engine_.pool();
  const engine::KvLayout& layout = pool.layout();
  const std::vector<std::uint32_t> slice_bytes(layout.layers,
                                               static_cast<std::uint32_t>(layout.slice_bytes()));
  std::vector<std::uint8_t> is_window;
  for (const std::uint32_t window : engine_.config().window)
    is_window.push_back(window > 0 ? 1 : 0);
  pkv_layout wanted{};
  wanted.size = sizeof wanted;
  wanted.block_tokens = kBlockTokens;
  wanted.layers = layout.layers;
  wanted.slice_bytes = slice_bytes.data();
  wanted.is_window = is_window.data();
  wanted.window_tokens = engine_.description().kv.window_tokens;
  if (pkv_register_pool(client_, pool.fd(), pool.mapped_bytes(), &wanted, &pool_) != PKV_OK) {
    return failed("registering the engine's memory with the KV cache");
  }
  return {};
}

const std::uint32_t* KvConnector::root(const std::string& scope) {
  const auto known = roots_.find(scope);
  if (known != roots_.end()) return &known->second;
  if (roots_.size() >= kScopesMax) {
    ++counters_.scopes_refused;
    return nullptr;
  }
  const KvIdentity& identity = engine_.description().kv;
  pkv_root_fields fields{};
  fields.size = sizeof fields;
  fields.model = engine_.description().name.c_str();
  fields.weights_digest = identity.weights_digest.c_str();
  fields.engine_build = identity.engine_build.c_str();
  fields.kv_format = identity.kv_format.c_str();
  fields.lora = "";
  fields.scope = scope.c_str();
  std::uint32_t number = 0;
  if (pkv_register_root(client_, pool_, &fields, &number) != PKV_OK) return nullptr;
  return &roots_.emplace(scope, number).first->second;
}

std::vector<pkv_key> KvConnector::keys(std::uint32_t root, std::span<const TokenId> tokens,
                                       std::size_t blocks) {
  std::vector<pkv_key> keys(blocks);
  const pkv_status status =
      pkv_chain(client_, root, tokens.data(), blocks * kBlockTokens, nullptr, 0, keys.data());
  if (status != PKV_OK) keys.clear();
  return keys;
}

std::shared_ptr<KvFetch> KvConnector::fetch(const EngineRequest& request,
                                            const PrefillCoefficients& measured) {
  if (request.cache.scope.empty()) return nullptr;
  // A request that is placed again goes on after what it has emitted; most have emitted nothing.
  std::vector<TokenId> both;
  std::span<const TokenId> tokens = *request.prompt;
  if (!request.emitted.empty()) {
    both.reserve(tokens.size() + request.emitted.size());
    both.assign(tokens.begin(), tokens.end());
    both.insert(both.end(), request.emitted.begin(), request.emitted.end());
    tokens = both;
  }
  const std::size_t blocks = (tokens.size() - 1) / kBlockTokens;
  if (blocks * kBlockTokens < options_.hit_tokens_min || blocks == 0) return nullptr;
  const std::uint32_t* const number = root(request.cache.scope);
  if (number == nullptr) return nullptr;
  const std::vector<pkv_key> chain = keys(*number, tokens, blocks);
  if (chain.empty()) return nullptr;
  const Duration budget =
      options_.budget_base +
      options_.budget_per_1k_tokens * static_cast<std::int64_t>(blocks * kBlockTokens) / 1024;
  pkv_request wanted{};
  wanted.size = sizeof wanted;
  wanted.root = *number;
  wanted.keys = chain.data();
  wanted.key_count = chain.size();
  wanted.tokens = tokens.data();
  wanted.request_id = text_or_null(request.cache.request);
  wanted.tenant = text_or_null(request.cache.tenant);
  wanted.ttl_class = text_or_null(request.cache.ttl_class);
  wanted.budget_us = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(budget).count());
  const PrefillCoefficients cost = options_.weighs_loads ? measured : PrefillCoefficients{};
  wanted.prefill_base = cost.base;
  wanted.prefill_token = cost.per_token;
  wanted.prefill_pair = cost.per_pair;
  wanted.wake = &KvConnector::on_news;
  wanted.wake_context = this;
  pkv_lease* lease = nullptr;
  if (pkv_acquire(client_, &wanted, &lease) != PKV_OK) return nullptr;
  return std::make_shared<KvFetch>(lease);
}

std::shared_ptr<engine::PrefixLoad> KvConnector::prefix(std::shared_ptr<KvFetch> fetch) {
  const std::uint32_t blocks = fetch->usable_blocks();
  if (blocks == 0 || blocks * kBlockTokens < options_.hit_tokens_min) return nullptr;
  counters_.hit_tokens += std::uint64_t{blocks} * kBlockTokens;
  return std::make_shared<LeaseLoad>(std::move(fetch), engine_.pool(), blocks, counters_);
}

std::vector<std::uint32_t> KvConnector::window_depths(const engine::ComputedBlocks& c) const {
  std::vector<std::uint32_t> depths;
  const std::uint32_t window = engine_.description().kv.window_tokens;
  if (window == 0) return depths;
  const auto end = static_cast<std::uint32_t>(c.blocks.size());
  for (std::uint32_t depth = c.first_new; depth < end; ++depth) {
    const bool at_end = depth + 1 == end && (c.prompt_end || c.answer_end);
    const bool is_regular = (depth + 1) * kBlockTokens % kWindowEvery == 0;
    // Near the start the window reaches back over less than its length.
    if ((at_end || is_regular) && (depth + 1) * kBlockTokens >= window) depths.push_back(depth);
  }
  // An answer that ends where the last offer ended still gets its sidecar.
  if (c.answer_end && c.first_new == end && end * kBlockTokens >= window) depths.push_back(end - 1);
  return depths;
}

bool KvConnector::computed(const engine::ComputedBlocks& c) {
  const CacheHints& hints = c.request->cache;
  if (hints.scope.empty()) return true;
  const auto end = static_cast<std::uint32_t>(c.blocks.size());
  const std::vector<std::uint32_t> windows = window_depths(c);
  if (c.first_new == end && windows.empty()) return true;
  std::uint32_t first = std::min(c.first_new, end - 1);
  const std::uint32_t reach = engine_.description().kv.window_tokens / kBlockTokens;
  if (!windows.empty()) first = std::min(first, windows.front() + 1 - reach);

  engine::KvPool& pool = engine_.pool();
  if (held_ + (end - first) > pool.blocks() / 4) {
    ++counters_.offers_dropped;
    return false;
  }
  const std::uint32_t* const number = root(hints.scope);
  if (number == nullptr) return true;
  const std::vector<pkv_key> chain = keys(*number, c.tokens, end);
  if (chain.empty()) return true;

  auto offer = std::make_unique<Offer>();
  offer->connector = this;
  std::vector<std::uint64_t> offsets;
  for (std::uint32_t depth = first; depth < end; ++depth) {
    const BlockId block = c.blocks[depth];
    offer->blocks.push_back(block);
    for (std::uint32_t layer = 0; layer < pool.layout().layers; ++layer) {
      offsets.push_back(pool.payload_offset() + block.value * pool.layout().block_bytes() +
                        layer * pool.layout().slice_bytes());
    }
  }
  pkv_store_request store{};
  store.size = sizeof store;
  store.pool = pool_;
  store.root = *number;
  store.keys = chain.data();
  store.first = first;
  store.count = end - first;
  store.slice_offsets = offsets.data();
  store.window_depths = windows.data();
  store.window_count = static_cast<std::uint32_t>(windows.size());
  store.tokens = c.tokens.data();
  store.tenant = text_or_null(hints.tenant);
  store.ttl_class = text_or_null(hints.ttl_class);
  store.done = &KvConnector::on_stored;
  store.done_context = offer.get();
  for (const BlockId block : offer->blocks)
    pool.retain(block);
  held_ += offer->blocks.size();
  ++counters_.offers;
  if (pkv_store(client_, &store) == PKV_OK) {
    static_cast<void>(offer.release());  // on_stored has it
    return true;
  }
  ++counters_.offers_dropped;
  give_back(offer->blocks);
  return false;
}

bool KvConnector::wait_connected(Duration timeout) const {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(timeout).count();
  return pkv_wait_connected(client_, static_cast<std::uint64_t>(us)) == PKV_OK;
}

void KvConnector::give_back(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks)
    engine_.pool().release(block);
  held_ -= blocks.size();
}

void KvConnector::tend() {
  news_.store(false, std::memory_order_release);
  std::vector<Offer*> stored;
  {
    const std::lock_guard lock(mutex_);
    stored.swap(stored_);
  }
  for (Offer* offer : stored) {
    give_back(offer->blocks);
    delete offer;
  }
}

void KvConnector::news() {
  news_.store(true, std::memory_order_release);
  wake_();
}

void KvConnector::on_news(void* context) {
  static_cast<KvConnector*>(context)->news();
}

void KvConnector::on_stored(void* context, std::uint32_t) {
  auto* const offer = static_cast<Offer*>(context);
  KvConnector& connector = *offer->connector;
  {
    const std::lock_guard lock(connector.mutex_);
    connector.stored_.push_back(offer);
  }
  connector.news();
}

}  // namespace penstock
