// For tests of io/kv: a KV daemon on a thread of its own, and an engine's memory.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/kvcache/key_chain.h"
#include "io/files/files.h"
#include "io/kv/arena.h"
#include "io/kv/client.h"
#include "io/kv/kv_server.h"

namespace penstock::kv::testing {

inline std::array<std::uint8_t, 32> test_secret() {
  std::array<std::uint8_t, 32> secret{};
  for (std::size_t i = 0; i < secret.size(); ++i)
    secret[i] = static_cast<std::uint8_t>(i + 1);
  return secret;
}

// A daemon that can be stopped and started again on the same socket.
class TestDaemon {
 public:
  explicit TestDaemon(KvServerOptions options = {}, BlockTier* disk = nullptr,
                      BlockTier* peers = nullptr)
      : options_(std::move(options)), disk_(disk), peers_(peers) {
    if (options_.socket.empty()) {
      folder_.emplace_back(*TemporaryDirectory::make("penstock-kv"));
      options_.socket = folder_[0].path() + "/kvd.sock";
    }
    options_.daemon.key_check = kvcache::KeyChain(test_secret()).key_check();
    if (options_.daemon.classes.empty()) {
      options_.daemon.classes = {{"default", std::chrono::hours(24)},
                                 {"agent", std::chrono::hours(72)}};
    }
    start();
  }
  ~TestDaemon() { stop(); }
  TestDaemon(const TestDaemon&) = delete;
  TestDaemon& operator=(const TestDaemon&) = delete;

  void start() {
    ++options_.daemon.epoch;
    auto server = KvServer::start(options_, disk_, peers_);
    if (!server) throw std::runtime_error(server.error().message);
    server_ = std::move(*server);
    thread_ = std::thread([this] { server_->run(); });
  }
  void stop() {
    if (server_ == nullptr) return;
    server_->stop();
    thread_.join();
    server_.reset();
  }
  const std::string& socket() const { return options_.socket; }
  KvServer& server() { return *server_; }
  KvClientOptions client_options() const {
    KvClientOptions out;
    out.socket = options_.socket;
    out.secret = test_secret();
    out.name = "test";
    return out;
  }

 private:
  std::vector<TemporaryDirectory> folder_;
  KvServerOptions options_;
  BlockTier* disk_;
  BlockTier* peers_;
  std::unique_ptr<KvServer> server_;
  std::thread thread_;
};

// An engine's pool: blocks of layers * slice_bytes, one after the other.
class TestPool {
 public:
  TestPool(std::uint32_t blocks, EngineLayout layout, int seals = F_SEAL_SHRINK | F_SEAL_GROW)
      : layout_(std::move(layout)) {
    for (const std::uint32_t bytes : layout_.slice_bytes)
      block_bytes_ += bytes;
    bytes_ = blocks * block_bytes_;
    fd_ = Descriptor(::memfd_create("test-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (::ftruncate(fd_.get(), static_cast<off_t>(bytes_)) != 0) std::abort();
    if (::fcntl(fd_.get(), F_ADD_SEALS, seals) != 0) std::abort();
    void* base = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    if (base == MAP_FAILED) std::abort();
    mapping_ = Mapping({static_cast<std::byte*>(base), bytes_});
  }

  int fd() const { return fd_.get(); }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t block_bytes() const { return block_bytes_; }
  const EngineLayout& layout() const { return layout_; }
  std::span<std::byte> memory() const { return mapping_.memory(); }
  std::span<std::byte> block(std::uint32_t i) const {
    return memory().subspan(i * block_bytes_, block_bytes_);
  }
  std::uint64_t offset(std::uint32_t block, std::size_t layer) const {
    std::uint64_t at = block * block_bytes_;
    for (std::size_t l = 0; l < layer; ++l)
      at += layout_.slice_bytes[l];
    return at;
  }
  std::vector<std::uint64_t> offsets(std::uint32_t first, std::uint32_t count) const {
    std::vector<std::uint64_t> out;
    for (std::uint32_t i = first; i < first + count; ++i)
      for (std::size_t layer = 0; layer < layout_.layers(); ++layer)
        out.push_back(offset(i, layer));
    return out;
  }
  std::vector<void*> places(std::uint32_t first, std::uint32_t count) const {
    std::vector<void*> out;
    for (const std::uint64_t at : offsets(first, count))
      out.push_back(memory().data() + at);
    return out;
  }
  // Bytes that differ by block and place.
  void fill(std::uint32_t first, std::uint32_t count, std::uint64_t seed) const {
    for (std::uint32_t i = first; i < first + count; ++i) {
      std::uint64_t word = seed * 1'000'003 + i - first;
      for (std::size_t at = 0; at + 8 <= block_bytes_; at += 8) {
        word = word * 6364136223846793005ULL + 1442695040888963407ULL;
        std::memcpy(block(i).data() + at, &word, 8);
      }
    }
  }
  bool same(std::uint32_t a, std::uint32_t b, std::uint32_t count) const {
    return std::memcmp(block(a).data(), block(b).data(), count * block_bytes_) == 0;
  }

 private:
  EngineLayout layout_;
  std::uint64_t block_bytes_ = 0;
  std::uint64_t bytes_ = 0;
  Descriptor fd_;
  Mapping mapping_;
};

// Something that a callback makes true.
class Signal {
 public:
  void set(std::uint32_t value = 0) {
    const std::lock_guard lock(mutex_);
    ++count_;
    value_ = value;
    changed_.notify_all();
  }
  std::uint32_t wait(std::size_t count = 1) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count_ >= count; });
    return value_;
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  // Waits until `condition` holds; it is looked at after each set().
  template <typename Condition>
  void wait_until(Condition condition) {
    std::unique_lock lock(mutex_);
    while (!condition()) {
      const std::size_t seen = count_;
      changed_.wait(lock, [&] { return count_ > seen; });
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t count_ = 0;
  std::uint32_t value_ = 0;
};

}  // namespace penstock::kv::testing
