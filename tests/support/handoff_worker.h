// TestWorker: a worker process with one rank for the tests: a small KV pool whose blocks are used
// for something else the moment nobody holds them, and the handoff service on a FakeTransport.
//
// Whoever still reads a block that came back finds other bytes under another generation. One
// thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "service/handoff/handoff_service.h"
#include "tests/support/fake_transport.h"

namespace penstock::service {

inline constexpr std::uint32_t kTestLayers = 3;
inline constexpr std::uint32_t kTestBlockTokens = 4;
inline constexpr std::uint32_t kTestRowBytes = 12;
inline constexpr std::uint32_t kTestSliceBytes = kTestBlockTokens * kTestRowBytes;
inline constexpr std::uint32_t kTestBlockBytes = kTestLayers * kTestSliceBytes;

// What a byte of handoff `key` is: no two handoffs, blocks or layers look alike.
inline std::byte test_byte(std::uint64_t key, std::uint32_t index, std::size_t at) {
  std::uint64_t x =
      key * 0x9E3779B97F4A7C15U + index * 0xC2B2AE3D27D4EB4FU + at * 0x165667B19E3779F9U;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9U;
  return static_cast<std::byte>(x >> 32);
}

// Outlives the processes that map it, as a memfd does.
struct TestMemory {
  explicit TestMemory(std::uint32_t blocks)
      : bytes(std::size_t{blocks} * (8 + kTestBlockBytes)), count(blocks) {}
  std::vector<std::byte> bytes;
  std::uint32_t count;
};

class TestWorker {
 public:
  TestWorker(testing::FakeNetwork& network, std::string address, HandoffOptions options,
             std::uint32_t blocks = 32, std::string model = "nano")
      : memory(std::make_shared<TestMemory>(blocks)),
        transport(network, std::move(address)),
        references_(blocks),
        held_(blocks) {
    for (std::uint32_t block = blocks; block-- > 0;)
      free_.push_back(block);
    service = std::make_unique<HandoffService>(transport, options);
    RankMemory rank;
    rank.pool = {-1,           memory->bytes.data(), memory->bytes.size(),
                 blocks * 8UL, kTestBlockBytes,      blocks};
    rank.payloads = memory->bytes.data() + blocks * 8UL;
    rank.model = model;
    rank.layers = kTestLayers;
    rank.block_tokens = kTestBlockTokens;
    rank.slice_bytes = kTestSliceBytes;
    rank.kv_format = "test";
    port = &service->add_rank(rank, [this] { ++wakes; });
    service->start();
  }

  std::byte* payload(std::uint32_t block) {
    return memory->bytes.data() + memory->count * 8UL + std::size_t{block} * kTestBlockBytes;
  }
  std::uint64_t generation(std::uint32_t block) const {
    std::uint64_t word = 0;
    std::memcpy(&word, memory->bytes.data() + block * 8UL, 8);
    return word;
  }
  void bump(std::uint32_t block) {
    const std::uint64_t word = generation(block) + 1;
    std::memcpy(memory->bytes.data() + block * 8UL, &word, 8);
  }
  std::optional<std::uint32_t> allocate() {
    if (free_.empty()) return std::nullopt;
    const std::uint32_t block = free_.back();
    free_.pop_back();
    bump(block);
    references_[block] = 1;
    return block;
  }
  void release(std::uint32_t block) {
    ENSURE(references_[block] > 0);
    if (--references_[block] > 0) return;
    bump(block);
    std::memset(payload(block), static_cast<int>(0xD0 + generation(block) % 16), kTestBlockBytes);
    free_.push_back(block);
  }
  // Blocks [first, first + n) of handoff `key`, its engine's own; short when the pool is full.
  std::vector<std::uint32_t> compute(std::uint64_t key, std::uint32_t first, std::uint32_t n) {
    std::vector<std::uint32_t> blocks;
    while (blocks.size() < n) {
      const auto block = allocate();
      if (!block) break;
      const auto index = first + static_cast<std::uint32_t>(blocks.size());
      for (std::size_t at = 0; at < kTestBlockBytes; ++at)
        payload(*block)[at] = test_byte(key, index, at);
      blocks.push_back(*block);
    }
    return blocks;
  }
  // Hands the blocks to the service, which takes its own reference of each.
  void publish(HandoffId id, std::uint32_t first, std::span<const std::uint32_t> blocks,
               std::uint32_t tokens) {
    std::vector<HandoffBlock> given;
    for (const std::uint32_t block : blocks) {
      hold(block);
      given.push_back({block, generation(block)});
    }
    port->publish(id, first, given, tokens);
  }
  std::shared_ptr<Pull> pull(const HandoffRef& from, std::uint32_t tokens,
                             const std::vector<std::uint32_t>& to, std::string model = "nano") {
    for (const std::uint32_t block : to)
      hold(block);
    return port->pull(from, model, tokens, to);
  }
  void fill(const std::shared_ptr<Pull>& pull, const std::vector<std::uint32_t>& to) {
    for (const std::uint32_t block : to)
      hold(block);
    port->fill(pull, to);
  }
  // Takes back what the service holds no more; `last` sees each block that it holds no more at all.
  std::vector<std::uint32_t> collect(const std::function<void(std::uint32_t)>& last =
                                         [](std::uint32_t) {}) {
    std::vector<std::uint32_t> freed = port->take_freed();
    for (const std::uint32_t block : freed) {
      ENSURE(held_[block] > 0);
      if (--held_[block] == 0) last(block);
      release(block);
    }
    return freed;
  }
  // Are the first `tokens` rows of every layer those of handoff `key`?
  bool has(std::uint64_t key, std::uint32_t tokens, std::span<const std::uint32_t> blocks) {
    for (std::uint32_t i = 0; i < blocks.size(); ++i) {
      const std::uint32_t rows = std::min(kTestBlockTokens, tokens - i * kTestBlockTokens);
      for (std::uint32_t layer = 0; layer < kTestLayers; ++layer)
        for (std::size_t at = 0; at < std::size_t{rows} * kTestRowBytes; ++at) {
          const std::size_t place = layer * std::size_t{kTestSliceBytes} + at;
          if (payload(blocks[i])[place] != test_byte(key, i, place)) return false;
        }
    }
    return true;
  }
  std::uint32_t held(std::uint32_t block) const { return held_[block]; }
  std::uint32_t held() const {
    std::uint32_t sum = 0;
    for (const std::uint32_t count : held_)
      sum += count;
    return sum;
  }
  std::size_t free_blocks() const { return free_.size(); }

  std::shared_ptr<TestMemory> memory;
  testing::FakeTransport transport;
  std::unique_ptr<HandoffService> service;
  HandoffPort* port = nullptr;
  std::uint64_t wakes = 0;

 private:
  void hold(std::uint32_t block) {
    ++references_[block];
    ++held_[block];
  }
  std::vector<std::uint32_t> references_;
  std::vector<std::uint32_t> held_;  // by the service
  std::vector<std::uint32_t> free_;
};

}  // namespace penstock::service
