#include "tests/faults/engine.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "tests/faults/driver.h"

namespace penstock::faults {
namespace {

constexpr std::array<const char*, kScopes> kScopeNames = {"tenant:a", "tenant:b", "deployment"};
constexpr std::size_t kOffersKept = 4096;

Mapping make_pool(std::uint64_t bytes, Descriptor& fd) {
  fd = Descriptor(::memfd_create("fault-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  require(fd.get() >= 0 && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0 &&
              ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0,
          "no memory for a pool");
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  require(base != MAP_FAILED, "cannot map a pool");
  return Mapping({static_cast<std::byte*>(base), bytes});
}

}  // namespace

// What was offered, until `done`.
struct Engine::Offer {
  Engine* engine = nullptr;
  std::vector<std::uint32_t> slots;
  std::atomic<int> done = 0;
  bool finished = false;  // with the engine's mutex

  static void call(void* context, std::uint32_t stored) {
    Offer& offer = *static_cast<Offer*>(context);
    require(++offer.done == 1, "`done` of a store was called twice");
    Engine& engine = *offer.engine;
    engine.totals_.stored_blocks += stored;
    // From here on the memory is ours.
    for (const std::uint32_t slot : offer.slots)
      for (std::uint32_t layer = 0; layer < kLayers; ++layer)
        std::ranges::fill(engine.slice(slot, layer), std::byte{0xdd});
    ++engine.totals_.done;
    engine.give_slots(offer.slots);
    const std::lock_guard lock(engine.mutex_);
    offer.finished = true;
    --engine.open_offers_;
    engine.given_.notify_all();
  }
};

template <typename Call>
auto Engine::timed(const char* name, std::chrono::microseconds own, Call call) const {
  const auto start = SteadyClock::now();
  auto result = call();
  const auto took =
      std::chrono::duration_cast<std::chrono::microseconds>(SteadyClock::now() - start);
  require(took <= own + options_.margin, "{} took {} ms, its own time-out is {} ms", name,
          took.count() / 1000, own.count() / 1000);
  const auto beyond = static_cast<std::uint64_t>(std::max<std::int64_t>((took - own).count(), 0));
  std::uint64_t longest = totals_.longest_us;
  while (beyond > longest && !totals_.longest_us.compare_exchange_weak(longest, beyond)) {
  }
  return result;
}

Engine::Engine(EngineOptions options, EngineTotals& totals)
    : options_(std::move(options)), totals_(totals), rng_(options_.seed) {
  Descriptor fd;
  const std::uint64_t bytes = std::uint64_t{kSlots} * block_bytes(options_.kind);
  pool_ = make_pool(bytes, fd);
  for (std::uint32_t slot = 0; slot < kSlots; ++slot)
    free_.push_back(slot);
  pkv_options connect{};
  connect.size = sizeof connect;
  connect.socket = options_.socket.c_str();
  connect.secret_file = options_.secret_file.c_str();
  connect.name = "fault engine";
  require(pkv_connect(&connect, &client_) == PKV_OK, "pkv_connect: {}", pkv_last_error());
  pkv_layout layout{};
  layout.size = sizeof layout;
  layout.block_tokens = kBlockTokens;
  layout.layers = kLayers;
  layout.slice_bytes = slice_bytes(options_.kind).data();
  std::array<std::uint8_t, kLayers> sliding{};
  for (std::uint32_t layer = 0; layer < kLayers; ++layer)
    sliding[layer] = slides(options_.kind, layer) ? 1 : 0;
  if (options_.kind == Kind::kSliding) {
    layout.is_window = sliding.data();
    layout.window_tokens = kWindowBlocks * kBlockTokens;
  }
  require(pkv_register_pool(client_, fd.get(), bytes, &layout, &pool_number_) == PKV_OK,
          "pkv_register_pool: {}", pkv_last_error());
  for (std::uint32_t scope = 0; scope < kScopes; ++scope) {
    pkv_root_fields fields{};
    fields.size = sizeof fields;
    fields.model = "fault model";
    fields.weights_digest = "weights";
    fields.engine_build = "engine 1";
    fields.kv_format = options_.kind == Kind::kPlain ? "plain" : "sliding";
    fields.lora = "";
    fields.scope = kScopeNames[scope];
    require(pkv_register_root(client_, pool_number_, &fields, &roots_[scope]) == PKV_OK,
            "pkv_register_root: {}", pkv_last_error());
  }
}

Engine::~Engine() {
  if (held_) pkv_release(held_->lease);
  timed("pkv_disconnect", {}, [&] {
    pkv_disconnect(client_);
    return 0;
  });
  for (const auto& offer : offers_)
    require(offer->done == 1, "`done` of a store was called {} times", offer->done.load());
  require(free_.size() == kSlots, "{} blocks of the pool were not given back",
          kSlots - free_.size());
}

bool Engine::wait_connected() const {
  return pkv_wait_connected(client_, 30'000'000) == PKV_OK;
}

std::span<std::byte> Engine::slice(std::uint32_t slot, std::uint32_t layer) const {
  const auto& bytes = slice_bytes(options_.kind);
  std::size_t at = std::size_t{slot} * block_bytes(options_.kind);
  for (std::uint32_t l = 0; l < layer; ++l)
    at += bytes[l];
  return pool_.memory().subspan(at, bytes[layer]);
}

std::vector<std::uint32_t> Engine::take_slots(std::uint32_t count) {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint32_t> taken;
  if (free_.size() < count) return taken;
  taken.assign(free_.end() - count, free_.end());
  free_.resize(free_.size() - count);
  return taken;
}

void Engine::give_slots(const std::vector<std::uint32_t>& slots) {
  const std::lock_guard lock(mutex_);
  free_.insert(free_.end(), slots.begin(), slots.end());
}

std::vector<BlockKey> Engine::keys(const Prompt& prompt) {
  const std::vector<std::uint32_t> tokens = prompt.tokens();
  std::vector<BlockKey> keys(prompt.blocks);
  const pkv_status status = timed("pkv_chain", {}, [&] {
    return pkv_chain(client_, roots_[prompt.scope], tokens.data(), tokens.size(), nullptr, 0,
                     reinterpret_cast<pkv_key*>(keys.data()));
  });
  require(status == PKV_OK, "pkv_chain: {}", pkv_last_error());
  return keys;
}

Engine::Lease Engine::acquire(const Prompt& prompt, std::uint64_t budget_us) {
  Lease lease;
  lease.keys = keys(prompt);
  lease.asked = std::make_unique<Asked>();
  const std::vector<std::uint32_t> tokens = prompt.tokens();
  pkv_request request{};
  request.size = sizeof request;
  request.root = roots_[prompt.scope];
  request.keys = reinterpret_cast<const pkv_key*>(lease.keys.data());
  request.key_count = lease.keys.size();
  request.tokens = tokens.data();
  request.request_id = "fault";
  request.tenant = kScopeNames[prompt.scope];
  request.ttl_class = rng_.below(4) == 0 ? "brief" : "agent";
  request.budget_us = budget_us;
  request.wake = [](void* context) {
    Asked& asked = *static_cast<Asked*>(context);
    const std::lock_guard lock(asked.mutex);
    ++asked.news;
    asked.changed.notify_all();
  };
  request.wake_context = lease.asked.get();
  ++totals_.acquires;
  const pkv_status status =
      timed("pkv_acquire", {}, [&] { return pkv_acquire(client_, &request, &lease.lease); });
  require(status == PKV_OK, "pkv_acquire: {}", pkv_last_error());
  lease.info.size = sizeof lease.info;
  const std::chrono::microseconds own(budget_us);
  const auto limit = SteadyClock::now() + own + options_.margin;
  timed("the fetch", own, [&] {
    for (;;) {
      require(pkv_progress(lease.lease, &lease.info) == PKV_OK, "pkv_progress");
      require(lease.info.usable_blocks <= lease.keys.size(), "more blocks than were asked for");
      if (lease.info.final != 0 || SteadyClock::now() > limit) return 0;
      std::unique_lock lock(lease.asked->mutex);
      lease.asked->changed.wait_for(lock, std::chrono::milliseconds(20));
    }
  });
  require(lease.info.final != 0, "a fetch with {} ms does not end", own.count() / 1000);
  if (static_cast<MissReason>(lease.info.missing) == MissReason::kNoDaemon) ++totals_.no_daemon;
  return lease;
}

void Engine::compare(const Lease& lease, const std::vector<std::uint32_t>& slots,
                     std::uint32_t layer, std::uint32_t from, std::uint32_t to) const {
  for (std::uint32_t i = from; i < to; ++i) {
    require(slice_is_right(lease.keys[i], layer, slice(slots[i], layer)),
            "WRONG BYTES: block {} of {}, layer {}, {} engine", i, to, layer,
            options_.kind == Kind::kPlain ? "plain" : "sliding");
  }
}

std::uint32_t Engine::load(Lease& lease, std::uint32_t count) {
  const std::vector<std::uint32_t> slots = take_slots(count);
  if (count == 0 || slots.empty()) return 0;
  std::vector<void*> places;
  for (const std::uint32_t slot : slots) {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      std::ranges::fill(slice(slot, layer), std::byte{0xee});
      places.push_back(slice(slot, layer).data());
    }
  }
  require(
      timed("pkv_load", {}, [&] { return pkv_load(lease.lease, count, places.data()); }) == PKV_OK,
      "pkv_load: {}", pkv_last_error());
  std::uint32_t valid = count;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    // What is granted lies in mapped memory: copying it does not depend on the daemon.
    constexpr std::uint64_t kTimeoutUs = 1'000'000;
    pkv_status status = PKV_TIMEOUT;
    const auto end = SteadyClock::now() + std::chrono::seconds(30);
    while (status == PKV_TIMEOUT) {
      status = timed("pkv_wait_layer", std::chrono::microseconds(kTimeoutUs),
                     [&] { return pkv_wait_layer(lease.lease, layer, kTimeoutUs, &valid); });
      require(SteadyClock::now() < end, "a layer is never there");
    }
    require(valid <= count, "more valid blocks than were loaded");
    require(status == PKV_OK || status == PKV_MISS, "pkv_wait_layer: {}", pkv_last_error());
    require((status == PKV_OK) == (valid == count), "{} of {} are valid, status {}", valid, count,
            static_cast<int>(status));
    // How far the windows count is known at the end only.
    if (!slides(options_.kind, layer)) compare(lease, slots, layer, 0, valid);
  }
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const std::uint32_t from =
        slides(options_.kind, layer) && valid > kWindowBlocks ? valid - kWindowBlocks : 0;
    compare(lease, slots, layer, from, valid);
  }
  if (valid < count) ++totals_.resumed_short;
  pkv_progress(lease.lease, &lease.info);
  // Nothing is copied into them after the release.
  timed("pkv_release", {}, [&] {
    pkv_release(lease.lease);
    return 0;
  });
  lease.lease = nullptr;
  give_slots(slots);
  return valid;
}

Engine::Found Engine::fetch(const Prompt& prompt, std::uint64_t budget_us) {
  Lease lease = acquire(prompt, budget_us);
  Found found;
  found.usable = lease.info.usable_blocks;
  found.disk_blocks = lease.info.disk_blocks;
  // A part of what is there, now and then; with windows a load ends at a resume point anyway.
  std::uint32_t count = found.usable;
  if (count > 1 && options_.kind == Kind::kPlain && rng_.below(8) == 0)
    count = 1 + static_cast<std::uint32_t>(rng_.below(count));
  if (count > 0) {
    found.valid = load(lease, count);
  }
  found.missing = static_cast<MissReason>(lease.info.missing);
  if (lease.lease != nullptr) {
    timed("pkv_release", {}, [&] {
      pkv_release(lease.lease);
      return 0;
    });
  }
  if (found.valid > 0) ++totals_.hits;
  totals_.hit_blocks += found.valid;
  totals_.disk_blocks += found.disk_blocks;
  return found;
}

bool Engine::store(const Prompt& prompt, std::uint32_t first, const char* ttl_class) {
  if (first >= prompt.blocks) return false;
  // A window is offered with all its blocks.
  if (options_.kind == Kind::kSliding && first > 0) --first;
  const std::uint32_t count = prompt.blocks - first;
  std::vector<std::uint32_t> slots = take_slots(count);
  if (slots.empty()) return false;
  const std::vector<BlockKey> chain = keys(prompt);
  std::vector<std::uint64_t> offsets;
  std::vector<std::uint32_t> windows;
  for (std::uint32_t i = 0; i < count; ++i) {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      const std::span<std::byte> memory = slice(slots[i], layer);
      fill_slice(chain[first + i], layer, memory);
      offsets.push_back(static_cast<std::uint64_t>(memory.data() - pool_.memory().data()));
    }
    const bool whole = first == 0 || i + 1 >= kWindowBlocks;
    if (options_.kind == Kind::kSliding && whole && (i + 1 == count || i % 3 == 1))
      windows.push_back(first + i);
  }
  Offer* offer = nullptr;
  {
    const std::lock_guard lock(mutex_);
    while (offers_.size() > kOffersKept && offers_.front()->finished)
      offers_.pop_front();
    offers_.push_back(std::make_unique<Offer>());
    offer = offers_.back().get();
    ++open_offers_;
  }
  offer->engine = this;
  offer->slots = slots;
  pkv_store_request request{};
  request.size = sizeof request;
  request.pool = pool_number_;
  request.root = roots_[prompt.scope];
  request.keys = reinterpret_cast<const pkv_key*>(chain.data());
  request.first = first;
  request.count = count;
  request.slice_offsets = offsets.data();
  request.window_depths = windows.data();
  request.window_count = static_cast<std::uint32_t>(windows.size());
  request.tenant = kScopeNames[prompt.scope];
  request.ttl_class = ttl_class;
  request.done = Offer::call;
  request.done_context = offer;
  const pkv_status status = timed("pkv_store", {}, [&] { return pkv_store(client_, &request); });
  require(status == PKV_OK || status == PKV_TIMEOUT || status == PKV_MISS, "pkv_store: {}",
          pkv_last_error());
  if (status == PKV_OK) {
    ++totals_.stores;
    return true;
  }
  give_slots(slots);
  const std::lock_guard lock(mutex_);
  --open_offers_;
  require(offers_.back()->done == 0, "`done` was called for a store that was refused");
  offers_.pop_back();
  return false;
}

void Engine::wait_stores() {
  std::unique_lock lock(mutex_);
  const bool all =
      given_.wait_for(lock, std::chrono::seconds(30), [&] { return open_offers_ == 0; });
  require(all, "a store is never done");
}

void Engine::step() {
  // Few prompts are asked for often, many now and then.
  const double skewed = rng_.uniform() * rng_.uniform() * rng_.uniform();
  const Prompt prompt{
      static_cast<std::uint32_t>(rng_.below(kScopes)), static_cast<std::uint32_t>(rng_.below(4)),
      static_cast<std::uint32_t>(skewed * 64), 2 + static_cast<std::uint32_t>(rng_.below(22))};
  const Found found = fetch(prompt, 1000 * (1 + rng_.below(150)));
  if (found.missing == MissReason::kNoDaemon) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::array<const char*, 3> classes = {"agent", "brief", nullptr};
  if (found.valid < prompt.blocks) store(prompt, found.valid, classes[rng_.below(3)]);
  if (rng_.below(8) != 0) return;
  const std::vector<BlockKey> chain = keys(prompt);
  std::vector<std::uint8_t> tiers(chain.size());
  constexpr std::uint64_t kTimeoutUs = 50'000;
  const pkv_status status = timed("pkv_match", std::chrono::microseconds(kTimeoutUs), [&] {
    return pkv_match(client_, reinterpret_cast<const pkv_key*>(chain.data()), chain.size(),
                     kTimeoutUs, tiers.data());
  });
  require(status == PKV_OK || status == PKV_MISS || status == PKV_TIMEOUT, "pkv_match: {}",
          pkv_last_error());
}

std::uint32_t Engine::hold(const Prompt& prompt) {
  held_ = acquire(prompt, 5'000'000);
  return held_->info.usable_blocks;
}

std::uint32_t Engine::load_held() {
  const std::uint32_t valid = load(*held_, held_->info.usable_blocks);
  held_.reset();
  return valid;
}

Crowd::Crowd(const EngineOptions& options, std::uint32_t engines, EngineTotals& totals) {
  for (std::uint32_t i = 0; i < engines; ++i) {
    EngineOptions own = options;
    own.kind = i % 2 == 0 ? Kind::kPlain : Kind::kSliding;
    own.seed = options.seed * 64 + i;
    threads_.emplace_back([this, own, &totals] {
      Engine engine(own, totals);
      while (!stop_) {
        if (paused_) {
          engine.wait_stores();
          ++resting_;
          while (paused_ && !stop_)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          --resting_;
          continue;
        }
        engine.step();
      }
    });
  }
}

Crowd::~Crowd() {
  stop_ = true;
  for (std::thread& thread : threads_)
    thread.join();
}

void Crowd::pause() {
  paused_ = true;
  wait_until("the engines to rest", [&] { return resting_ == threads_.size(); });
}

void Crowd::resume() {
  paused_ = false;
  wait_until("the engines to go on", [&] { return resting_ == 0; });
}

}  // namespace penstock::faults
