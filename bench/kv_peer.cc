// `penstock bench kv`, other hosts: a daemon in another process serves blocks over TCP loopback to
// the tier that asks peers in this one.
//
// A get ends when the blocks lie in their places and each slice was verified against its checksum.
// One batch at a time: the next is asked for when the last has arrived. Baseline: another process
// sends as much memory over one TCP stream, in sends of a block's size, and this one receives it
// into as much memory; nothing is asked for and nothing is verified. Batches and streams take turns
// in short pieces, the best of which count, so that other load on the machine does not decide.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <span>
#include <thread>

#include <fmt/format.h>

#include "core/kvcache/key_chain.h"
#include "fork.h"
#include "io/files/files.h"
#include "io/kv/arena.h"
#include "io/kv/client.h"
#include "io/kv/kv_server.h"
#include "io/kv/peer_tier.h"
#include "io/kv/tier_clock.h"
#include "io/sockets/tcp_socket.h"
#include "kv.h"

namespace penstock::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kChainBytes = std::uint64_t{128} << 20;  // out of any cache
constexpr std::uint32_t kSlices = 16;
constexpr std::uint32_t kLarge = 1 << 20;
constexpr std::uint32_t kSmall = 64 << 10;
constexpr double kLargeAim = 0.85;
constexpr double kSmallAim = 0.6;
constexpr double kSingleMicrosecondsMax = 70;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::array<std::uint8_t, 32> secret() {
  return kv::KvClientOptions().secret;
}

kvcache::KvRootFields root_fields(std::uint32_t block_bytes) {
  return {"w", fmt::format("blocks of {}", block_bytes), "f", "", "deployment", 64};
}

// A chain that fills kChainBytes.
std::vector<BlockInfo> chain(std::uint32_t block_bytes) {
  std::vector<BlockInfo> blocks(kChainBytes / block_bytes);
  const BlockKey root = *kvcache::KeyChain(secret()).root(root_fields(block_bytes));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::uint64_t words[2] = {checksum64(fmt::format("{} {}", block_bytes, i)), i};
    std::memcpy(blocks[i].name.key.bytes.data(), words, sizeof words);
    blocks[i].parent = i == 0 ? root : blocks[i - 1].name.key;
    blocks[i].root = root;
    blocks[i].depth = static_cast<std::uint32_t>(i);
  }
  return blocks;
}

// Memory that has been touched.
struct Memory {
  Descriptor fd;
  Mapping mapping;
  std::span<std::byte> bytes() const { return mapping.memory(); }
};

Result<Memory> make_memory() {
  Memory memory{Descriptor(::memfd_create("bench", MFD_CLOEXEC | MFD_ALLOW_SEALING)), {}};
  void* base = MAP_FAILED;
  if (::ftruncate(memory.fd.get(), static_cast<off_t>(kChainBytes)) == 0 &&
      ::fcntl(memory.fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0) {
    base = ::mmap(nullptr, kChainBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd.get(), 0);
  }
  if (base == MAP_FAILED) return fail(ErrorCode::kIo, "no shared memory for the bench");
  memory.mapping = Mapping({static_cast<std::byte*>(base), kChainBytes});
  for (std::size_t at = 0; at < kChainBytes; at += 8) {
    const std::uint64_t word = at * 0x9e3779b97f4a7c15;
    std::memcpy(memory.bytes().data() + at, &word, 8);
  }
  return memory;
}

Status store(kv::KvClient& client, const Memory& memory, std::uint32_t block_bytes) {
  TRY(const std::uint32_t pool,
      client.register_pool(
          memory.fd.get(), kChainBytes,
          {64, std::vector<std::uint32_t>(kSlices, block_bytes / kSlices), {}, 0}));
  TRY(const std::uint32_t root, client.register_root(pool, root_fields(block_bytes), "m"));
  if (!client.wait_connected(std::chrono::seconds(60)))
    return fail(ErrorCode::kUnavailable, "the bench's KV daemon did not start");
  std::vector<BlockKey> keys;
  for (const BlockInfo& block : chain(block_bytes))
    keys.push_back(block.name.key);
  std::vector<std::uint64_t> offsets;
  for (std::uint64_t at = 0; at < kChainBytes; at += block_bytes / kSlices)
    offsets.push_back(at);
  std::atomic<int> kept = -1;
  const auto count = static_cast<std::uint32_t>(keys.size());
  TRY_STATUS(
      client.store({pool, root, keys, 0, count, offsets, {}, {}, "", "", [&](std::uint32_t n) {
                      kept = static_cast<int>(n);
                      kept.notify_all();
                    }}));
  kept.wait(-1);
  if (kept != static_cast<int>(count)) return fail(ErrorCode::kInternal, "blocks were not kept");
  return {};
}

// In a process of its own: a daemon that holds both chains.
void serve(const std::string& socket, int report) {
  kv::KvServerOptions options;
  options.socket = socket;
  options.arena_bytes = 2 * kChainBytes + (std::uint64_t{64} << 20);
  options.daemon.epoch = 1;
  options.daemon.key_check = kvcache::KeyChain(secret()).key_check();
  options.daemon.classes = {{"default", std::chrono::hours(24)}};
  options.peer_server.emplace();
  options.peer_server->listen = "127.0.0.1:0";
  options.peer_server->secret = secret();
  const auto server = kv::KvServer::start(options, nullptr);
  if (!server) return;
  std::thread loop([&] { (*server)->run(); });
  {
    const auto memory = make_memory();
    kv::KvClientOptions client_options;
    client_options.socket = socket;
    client_options.name = "bench";
    const auto client = kv::KvClient::open(std::move(client_options));
    if (!memory || !client || !store(**client, *memory, kLarge) ||
        !store(**client, *memory, kSmall))
      ::_exit(1);
  }
  tell(report, fmt::format("127.0.0.1:{}", (*server)->peer_port()));
  loop.join();
}

// In a process of its own: each connection asks with 8 bytes for that many bytes in sends of as
// many as the next 8 say.
void send_raw(int report) {
  const auto address = sockets::resolve("127.0.0.1:0");
  const auto listener = sockets::listen_on(*address);
  const auto memory = make_memory();
  if (!listener || !memory) return;
  tell(report, fmt::format("127.0.0.1:{}", sockets::port_of(*listener)));
  pollfd ready{listener->get(), POLLIN, 0};
  ::poll(&ready, 1, -1);
  const Descriptor socket(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  sockets::no_delay(socket.get());
  std::uint64_t wanted[2];
  while (::recv(socket.get(), wanted, sizeof wanted, MSG_WAITALL) == sizeof wanted) {
    for (std::uint64_t at = 0; at < wanted[0]; at += wanted[1])
      if (::send(socket.get(), memory->bytes().data() + at % kChainBytes, wanted[1],
                 MSG_NOSIGNAL) != static_cast<ssize_t>(wanted[1]))
        return;
  }
}

class Raw {
 public:
  static Result<Raw> open(const std::string& address) {
    TRY(const sockets::TcpAddress to, sockets::resolve(address));
    TRY(Descriptor socket, sockets::start_connecting(to));
    pollfd ready{socket.get(), POLLOUT, 0};
    ::poll(&ready, 1, 10'000);
    ::fcntl(socket.get(), F_SETFL, 0);  // blocking
    return Raw(std::move(socket));
  }
  double bytes_per_second(std::span<std::byte> to, std::uint64_t bytes,
                          std::uint64_t send_bytes) const {
    const auto begin = Clock::now();
    const std::uint64_t wanted[2] = {bytes, send_bytes};
    (void)!::send(socket_.get(), wanted, sizeof wanted, MSG_NOSIGNAL);
    for (std::uint64_t at = 0; at < bytes;) {
      const std::uint64_t room = std::min(bytes - at, std::uint64_t{1} << 20);
      const ssize_t n = ::recv(socket_.get(), to.data() + at, room, 0);
      if (n <= 0) return 0;
      at += static_cast<std::uint64_t>(n);
    }
    return static_cast<double>(bytes) / seconds_since(begin);
  }

 private:
  explicit Raw(Descriptor socket) : socket_(std::move(socket)) {}
  Descriptor socket_;
};

class Asker {
 public:
  Asker(kv::PeerTier& tier, std::span<std::byte> to) : tier_(tier), to_(to) {}

  // Until all blocks are known of.
  Status wait_for(std::span<const BlockInfo> blocks) {
    const auto begin = Clock::now();
    while (
        !std::ranges::all_of(blocks, [&](const BlockInfo& b) { return tier_.contains(b.name); })) {
      if (seconds_since(begin) > 300)
        return fail(ErrorCode::kUnavailable, "the bench's KV daemon does not answer");
      turn();
    }
    return {};
  }
  Status get(std::span<const BlockInfo> blocks, std::uint32_t block_bytes) {
    std::size_t left = blocks.size();
    bool good = true;
    for (const BlockInfo& block : blocks) {
      tier_.read({block.name, to_.subspan(std::uint64_t{block.depth} * block_bytes, block_bytes),
                  [&](MissReason reason, const BlockInfo&) {
                    good &= reason == MissReason::kNone;
                    --left;
                  },
                  block});
    }
    tier_.poll(kv::tier_now(), removals_);
    while (left > 0)
      turn();
    return good ? Status() : fail(ErrorCode::kDataLoss, "a block did not arrive");
  }

 private:
  void turn() {
    pollfd ready{tier_.event_fd(), POLLIN, 0};
    ::poll(&ready, 1, 1000);
    tier_.poll(kv::tier_now(), removals_);
  }
  kv::PeerTier& tier_;
  std::span<std::byte> to_;
  std::vector<TierRemoval> removals_;
};

struct Speeds {
  double get = 0;
  double raw = 0;
};

// Pieces of `piece` blocks in batches of `batch`, and as many bytes raw.
Result<Speeds> measure(Asker& asker, const Raw& raw, std::span<std::byte> to,
                       std::span<const BlockInfo> blocks, std::uint32_t block_bytes,
                       std::size_t batch, int rounds) {
  const std::size_t piece = (std::size_t{32} << 20) / block_bytes;
  Speeds best;
  for (int round = 0; round < rounds; ++round) {
    const auto part =
        blocks.subspan(static_cast<std::size_t>(round) * piece % blocks.size(), piece);
    const auto begin = Clock::now();
    for (std::size_t at = 0; at < piece; at += batch)
      TRY_STATUS(asker.get(part.subspan(at, batch), block_bytes));
    best.get = std::max(best.get, static_cast<double>(piece) * block_bytes / seconds_since(begin));
    best.raw = std::max(best.raw,
                        raw.bytes_per_second(to.subspan(part[0].depth * std::uint64_t{block_bytes}),
                                             piece * block_bytes, block_bytes));
  }
  return best;
}

}  // namespace

Result<std::vector<Figure>> kv_peer_figures(const Options& options) {
  TRY(const TemporaryDirectory folder, TemporaryDirectory::make("penstock-bench-kv-peer"));
  const Fork daemon([&](int report) { serve(folder.path() + "/kvd.sock", report); });
  const Fork sender([](int report) { send_raw(report); });
  if (daemon.line().empty() || sender.line().empty())
    return fail(ErrorCode::kUnavailable, "a process of the bench did not start");
  TRY(const Memory memory, make_memory());
  TRY(const Raw raw, Raw::open(sender.line()));
  kv::PeerTierOptions tier_options;
  tier_options.peers = {daemon.line()};
  tier_options.secret = secret();
  tier_options.name = "bench";
  TRY(const auto tier, kv::PeerTier::open(std::move(tier_options), kv::tier_now()));
  Asker asker(*tier, memory.bytes());
  const std::vector<BlockInfo> large = chain(kLarge);
  const std::vector<BlockInfo> small = chain(kSmall);
  TRY_STATUS(asker.wait_for(large));
  TRY_STATUS(asker.wait_for(small));

  const int rounds = options.quick ? 40 : 200;
  TRY(const Speeds by_8, measure(asker, raw, memory.bytes(), large, kLarge, 8, rounds));
  TRY(const Speeds by_32, measure(asker, raw, memory.bytes(), small, kSmall, 32, rounds));
  std::vector<double> times;
  for (std::size_t i = 0; i < (options.quick ? 2000U : 20'000U); ++i) {
    const auto begin = Clock::now();
    TRY_STATUS(asker.get(std::span(small).subspan(i % small.size(), 1), kSmall));
    times.push_back(seconds_since(begin) * 1e6);
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  return std::vector<Figure>{
      more_is_better("remote get of 1 MiB by 8, verified", by_8.get / 1e9, "GB/s",
                     "one raw TCP stream", by_8.raw / 1e9, kLargeAim),
      more_is_better("remote get of 64 KiB by 32, verified", by_32.get / 1e9, "GB/s",
                     "one raw TCP stream", by_32.raw / 1e9, kSmallAim),
      at_most("remote get of 64 KiB alone, verified, p50", *middle, "us", kSingleMicrosecondsMax)};
}

}  // namespace penstock::bench
