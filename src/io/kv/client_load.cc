// Swap-in: granted blocks from the arena into the engine's memory, layer by layer, verified.
#include "io/kv/client_state.h"

namespace penstock::kv {
namespace {

std::uint32_t resume_at(const Load& load, std::uint32_t limit, bool windows) {
  if (!windows) return limit;
  const auto after = load.windows.lower_bound(limit);
  return after == load.windows.begin() ? 0 : std::prev(after)->first + 1;
}

}  // namespace

void KvClient::State::run_loads() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return stopping || !loads.empty(); });
    if (stopping) return;
    KvLease& lease = *loads.front();
    loads.pop_front();
    lock.unlock();
    copy(lease);
    lock.lock();
    lease.load->active = false;
    counters.blocks_loaded += lease.load->valid;
    changed.notify_all();
  }
}

void KvClient::State::copy(KvLease& lease) {
  Load& load = *lease.load;
  const EngineLayout& layout = lease.pool->layout;
  const auto layers = static_cast<std::uint32_t>(layout.layers());
  std::uint32_t valid = settle(lease, static_cast<std::uint32_t>(load.history.size()), 0);
  for (std::uint32_t layer = 0; layer < layers && valid > 0; ++layer) {
    if (layout.slides(layer)) {
      if (!copy_window(lease, layer, valid)) valid = settle(lease, valid, layer + 1);
    } else {
      for (std::uint32_t block = 0; block < valid; ++block) {
        if (load.cancelled) return;
        if (!copy_history(lease, layer, block)) valid = settle(lease, block, layer);
      }
    }
    if (load.cancelled) return;
    if (valid > 0) publish(lease, layer + 1, valid);
  }
  if (valid == 0) publish(lease, layers, 0);
}

bool KvClient::State::copy_history(KvLease& lease, std::uint32_t layer, std::uint32_t block) {
  const Load& load = *lease.load;
  const ClientPool& pool = *lease.pool;
  const PinnedBlock& pinned = *load.history[block];
  const std::uint64_t from = pinned.offset + pool.slice_begins[layer];
  const std::uint64_t sum =
      copier.copy(static_cast<std::byte*>(load.slices[block * pool.layout.layers() + layer]),
                  lease.arena->memory().subspan(from, pool.layout.slice_bytes[layer]));
  if (sum == pinned.checksums[pool.slice_numbers[layer]]) return true;
  report(lease, {lease.keys[block], KvGroup::kHistory});
  return false;
}

// Puts the state of a sliding layer at `resume` in place; on failure its window is forgotten.
bool KvClient::State::copy_window(KvLease& lease, std::uint32_t layer, std::uint32_t resume) {
  Load& load = *lease.load;
  const ClientPool& pool = *lease.pool;
  const PinnedBlock& pinned = *load.windows.at(resume - 1);
  const std::uint32_t blocks = pool.layout.window_blocks();
  const std::uint32_t bytes = pool.layout.slice_bytes[layer];
  for (std::uint32_t i = 0; i < blocks; ++i) {
    if (resume + i < blocks || load.cancelled) continue;  // before the start of the chain
    const std::uint32_t block = resume + i - blocks;
    const std::uint64_t from = pinned.offset + pool.slice_begins[layer] + std::uint64_t{i} * bytes;
    const std::uint64_t sum =
        copier.copy(static_cast<std::byte*>(load.slices[block * pool.layout.layers() + layer]),
                    lease.arena->memory().subspan(from, bytes));
    if (sum == pinned.checksums[pool.slice_numbers[layer] + i]) continue;
    load.windows.erase(resume - 1);
    report(lease, {lease.keys[resume - 1], KvGroup::kWindow});
    return false;
  }
  return true;
}

// The largest point up to `limit` where the engine can go on, with the windows of the first
// `layers` layers there in place: those that were copied before belong to another point.
std::uint32_t KvClient::State::settle(KvLease& lease, std::uint32_t limit, std::uint32_t layers) {
  const EngineLayout& layout = lease.pool->layout;
  for (;;) {
    limit = resume_at(*lease.load, limit, layout.window_tokens > 0);
    bool placed = true;
    for (std::uint32_t layer = 0; layer < layers && placed && limit > 0; ++layer) {
      if (layout.slides(layer)) placed = copy_window(lease, layer, limit);
    }
    if (placed) return limit;
  }
}

void KvClient::State::report(KvLease& lease, BlockName name) {
  const std::lock_guard lock(mutex);
  ++counters.blocks_corrupt;
  const bool same_daemon = up && lease.connection == connection;
  lease.missing = same_daemon ? MissReason::kCorrupt : MissReason::kNoDaemon;
  if (same_daemon) (void)send(Report{lease.id, name});
}

void KvClient::State::publish(KvLease& lease, std::uint32_t layers_done, std::uint32_t valid) {
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex);
    for (std::uint32_t layer = lease.load->layers_done; layer < layers_done; ++layer) {
      if (!lease.pool->layout.slides(layer)) {
        counters.bytes_loaded += std::uint64_t{valid} * lease.pool->layout.slice_bytes[layer];
      }
    }
    lease.load->layers_done = layers_done;
    lease.load->valid = valid;
    wake = wake_of(lease);
    changed.notify_all();
  }
  if (wake) wake();
}

}  // namespace penstock::kv
