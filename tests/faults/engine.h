// An engine of the fault suite: a pool, a client of the C interface, and conversations without end.
//
// Each step asks for the blocks of a prompt, copies what is there into the pool, compares every
// byte with what its key says, computes (fills in) the rest and offers it. Memory is overwritten as
// soon as `done` gives it back, so that a daemon that still reads it stores wrong bytes. Every call
// is timed: one that takes longer than its own time-out and a margin fails the suite.
//
// Concurrency: one thread an engine, but `done` and `wake` come from the library's threads.
#pragma once

#include <penstock_kv.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "io/kv/arena.h"
#include "io/sockets/unix_socket.h"
#include "tests/faults/content.h"

namespace penstock::faults {

// Of all engines; for the driver to wait on.
struct EngineTotals {
  std::atomic<std::uint64_t> acquires = 0, no_daemon = 0, hits = 0, hit_blocks = 0, disk_blocks = 0,
                             stores = 0, done = 0, stored_blocks = 0, longest_us = 0,
                             resumed_short = 0;
};

struct EngineOptions {
  std::string socket;
  std::string secret_file;
  Kind kind = Kind::kPlain;
  std::uint64_t seed = 0;
  std::chrono::milliseconds margin{2000};
};

class Engine {
 public:
  Engine(EngineOptions options, EngineTotals& totals);
  // Gives everything back; fails the suite when a `done` was not called exactly once.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  pkv_client* client() { return client_; }
  bool wait_connected() const;

  // What one request found, and why it ended.
  struct Found {
    std::uint32_t usable = 0;
    std::uint32_t valid = 0;  // of them, after loading; all were compared
    std::uint32_t disk_blocks = 0;
    MissReason missing = MissReason::kNone;
  };
  Found fetch(const Prompt& prompt, std::uint64_t budget_us);
  // Offers blocks [first, prompt.blocks), and windows where they may be resumed; false: refused.
  bool store(const Prompt& prompt, std::uint32_t first, const char* ttl_class);
  void wait_stores();  // until nothing of it is being stored
  // fetch() and store() of a random prompt.
  void step();
  std::vector<BlockKey> keys(const Prompt& prompt);
  // Acquires and keeps the lease; returns how many blocks it holds.
  std::uint32_t hold(const Prompt& prompt);
  // Loads what hold() got, compares, and releases; returns the valid blocks.
  std::uint32_t load_held();

 private:
  struct Offer;
  struct Asked {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t news = 0;
  };
  struct Lease {
    pkv_lease* lease = nullptr;
    std::unique_ptr<Asked> asked;
    std::vector<BlockKey> keys;
    pkv_progress_info info{};
  };
  Lease acquire(const Prompt& prompt, std::uint64_t budget_us);
  std::uint32_t load(Lease& lease, std::uint32_t count);
  void compare(const Lease& lease, const std::vector<std::uint32_t>& slots, std::uint32_t layer,
               std::uint32_t from, std::uint32_t to) const;
  std::vector<std::uint32_t> take_slots(std::uint32_t count);
  void give_slots(const std::vector<std::uint32_t>& slots);
  std::span<std::byte> slice(std::uint32_t slot, std::uint32_t layer) const;
  template <typename Call>
  auto timed(const char* name, std::chrono::microseconds own, Call call) const;

  static constexpr std::uint32_t kSlots = 256;
  EngineOptions options_;
  EngineTotals& totals_;
  Rng rng_;
  Mapping pool_;
  pkv_client* client_ = nullptr;
  std::uint32_t pool_number_ = 0;
  std::array<std::uint32_t, kScopes> roots_{};
  std::mutex mutex_;
  std::condition_variable given_;
  std::vector<std::uint32_t> free_;
  std::deque<std::unique_ptr<Offer>> offers_;  // all, so that a second `done` is seen
  std::uint64_t open_offers_ = 0;
  std::optional<Lease> held_;
};

// Engines on threads of their own, which can be stopped for a while.
class Crowd {
 public:
  Crowd(const EngineOptions& options, std::uint32_t engines, EngineTotals& totals);
  ~Crowd();
  void pause();  // returns when no step is under way
  void resume();

 private:
  std::atomic<bool> stop_ = false, paused_ = false;
  std::atomic<std::uint32_t> resting_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace penstock::faults
