// `penstock bench kv`, host memory: a daemon in another process, an engine's client in this one.
//
// Get: leases of 64 blocks of 1 MiB, as an engine would use them (acquire, copy to the pool and
// verify, release), over 512 MiB, against memcpy of as many blocks from other shared memory to the
// same pool. Look-ups: frames of 32 names from this process, with a few under way at once, as
// clients that serve several requests have; half of the names are held. Match: 2,048 keys, all
// held, and their answer, one at a time; the 99th percentile is wall time, so other load on the
// machine shows in it. Behind its memory the daemon has 10 M names in the disk's index (without a
// disk: look-ups read nothing else).
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "base/rng.h"
#include "core/kvcache/disk_index.h"
#include "core/kvcache/key_chain.h"
#include "fork.h"
#include "io/files/files.h"
#include "io/kv/arena.h"
#include "io/kv/client.h"
#include "io/kv/kv_codec.h"
#include "io/kv/kv_server.h"
#include "io/sockets/unix_socket.h"
#include "kv.h"

namespace penstock::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kBlockTokens = 64;
constexpr std::uint32_t kLayers = 16;
constexpr std::uint32_t kSliceBytes = 65536;
constexpr std::uint64_t kBlockBytes = std::uint64_t{kLayers} * kSliceBytes;
constexpr std::uint32_t kBlocks = 512;  // stored; out of any cache
constexpr std::uint32_t kLeaseBlocks = 64;
constexpr std::uint64_t kIndexBlocks = 10'000'000;
constexpr std::size_t kLookupNames = 32;
constexpr std::size_t kLookupFrames = 16384;  // different ones, so that no cache has their slots
constexpr std::size_t kMatchFrames = 256;
constexpr std::size_t kLookupsUnderWay = 8;
constexpr std::size_t kMatchKeys = 2048;
constexpr double kGetAim = 0.8;
constexpr double kLookupsMin = 1e6;
constexpr double kMatchMillisecondsMax = 1;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

BlockName indexed_name(std::uint64_t number) {
  const std::uint64_t words[2] = {checksum64(std::as_bytes(std::span(&number, 1))), ~number};
  BlockName name;
  std::memcpy(name.key.bytes.data(), words, sizeof words);
  return name;
}

// The disk's index without the disk.
class IndexOnly final : public BlockTier {
 public:
  IndexOnly() {
    index_.reserve(kIndexBlocks);
    for (std::uint64_t i = 0; i < kIndexBlocks; ++i) {
      const kvcache::DiskPlace place{static_cast<std::uint32_t>(i / 1000),
                                     static_cast<std::uint32_t>(i % 1000)};
      index_.insert(kvcache::DiskSlot(indexed_name(i), place, 4096, 1));
    }
  }
  bool contains(const BlockName& name) const override { return index_.find(name) != nullptr; }
  void prefetch(const BlockName& name) const override { index_.prefetch(name); }
  std::optional<std::uint32_t> size_of(const BlockName&) const override { return std::nullopt; }
  void read(TierRead read) override { read.done(MissReason::kTierOff, {}); }
  void write(TierWrite write) override { write.done(MissReason::kNotAdmitted); }
  void touch(std::span<const BlockName>, TtlClass, TierNow) override {}
  void remove(const BlockName&, MissReason) override {}
  void poll(TierNow, std::vector<TierRemoval>&) override {}
  int event_fd() const override { return -1; }
  void for_each(const std::function<bool(const BlockName&, std::uint32_t)>&) const override {}
  TierStats stats() const override { return {}; }

 private:
  kvcache::DiskIndex index_;
};

// In a process of its own: the daemon.
void serve(const std::string& socket, int report) {
  kv::KvServerOptions options;
  options.socket = socket;
  options.arena_bytes = (kBlocks + 8) * kBlockBytes;
  options.daemon.epoch = 1;
  options.daemon.key_check = kvcache::KeyChain(kv::KvClientOptions().secret).key_check();
  options.daemon.classes = {{"default", std::chrono::hours(24)}};
  IndexOnly index;
  const auto server = kv::KvServer::start(options, &index);
  if (!server) return;
  tell(report, socket);
  (*server)->run();
}

struct Pool {
  Descriptor fd;
  Mapping mapping;
};

Result<Pool> make_pool(std::uint64_t bytes) {
  Pool pool{Descriptor(::memfd_create("bench-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING)), {}};
  void* base = MAP_FAILED;
  if (::ftruncate(pool.fd.get(), static_cast<off_t>(bytes)) == 0 &&
      ::fcntl(pool.fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0) {
    base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pool.fd.get(), 0);
  }
  if (base == MAP_FAILED) return fail(ErrorCode::kIo, "no shared memory for the bench's pool");
  pool.mapping = Mapping({static_cast<std::byte*>(base), bytes});
  return pool;
}

std::vector<BlockKey> names(std::size_t count, std::uint64_t seed) {
  std::vector<BlockKey> keys(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t words[2] = {checksum64(fmt::format("{} {}", seed, i)), i};
    std::memcpy(keys[i].bytes.data(), words, sizeof words);
  }
  return keys;
}

class HostBench {
 public:
  static constexpr auto kWait = std::chrono::minutes(5);  // other load on the machine

  HostBench(kv::KvClient& client, Pool& pool, std::uint32_t pool_number, std::uint32_t root)
      : client_(client), pool_(pool), pool_number_(pool_number), root_(root) {}

  // Fills blocks [0, kLeaseBlocks) and offers them once for each lease, as other chains.
  Status store() {
    const std::span<std::byte> memory = pool_.mapping.memory();
    for (std::size_t at = 0; at < memory.size(); at += 8) {
      const std::uint64_t word = at * 0x9e3779b97f4a7c15;
      std::memcpy(memory.data() + at, &word, 8);
    }
    for (std::uint32_t lease = 0; lease < kBlocks / kLeaseBlocks; ++lease) {
      chains_.push_back(names(kLeaseBlocks, lease));
      std::vector<std::uint64_t> offsets;
      for (std::uint64_t i = 0; i < std::uint64_t{kLeaseBlocks} * kLayers; ++i)
        offsets.push_back(lease * kLeaseBlocks * kBlockBytes + i * kSliceBytes);
      std::atomic<int> kept = -1;
      TRY_STATUS(client_.store({pool_number_,
                                root_,
                                chains_.back(),
                                0,
                                kLeaseBlocks,
                                offsets,
                                {},
                                {},
                                "",
                                "",
                                [&](std::uint32_t n) {
                                  kept = static_cast<int>(n);
                                  kept.notify_all();
                                }}));
      kept.wait(-1);
      if (kept != kLeaseBlocks) return fail(ErrorCode::kInternal, "blocks were not kept");
    }
    return {};
  }

  std::size_t leases() const { return chains_.size(); }

  // Bytes a second of one lease, from acquire to release.
  Result<double> get(std::uint32_t number) {
    const std::vector<void*> to = places(number);
    const auto begin = Clock::now();
    std::atomic<int> news = 0;
    kv::KvRequest request;
    request.root = root_;
    request.keys = chains_[number];
    request.budget = kWait;
    request.wake = [&] {
      ++news;
      news.notify_all();
    };
    TRY(kv::KvLease * lease, client_.acquire(std::move(request)));
    for (int seen = 0; !client_.progress(*lease).final; seen = news)
      news.wait(seen);
    Status loaded = client_.load(*lease, kLeaseBlocks, to);
    for (std::uint32_t layer = 0; loaded && layer < kLayers; ++layer) {
      const auto result = client_.wait_layer(*lease, layer, kWait);
      if (!result || !result->ready || result->valid != kLeaseBlocks) {
        loaded = fail(ErrorCode::kDataLoss, "a block was not loaded");
      }
    }
    client_.release(lease);
    TRY_STATUS(loaded);
    return static_cast<double>(kLeaseBlocks * kBlockBytes) / seconds_since(begin);
  }

  // The same blocks by memcpy.
  double copy(std::uint32_t number, std::span<const std::byte> from) {
    const auto begin = Clock::now();
    for (std::uint64_t block = number * kLeaseBlocks; block < (number + 1) * kLeaseBlocks;
         ++block) {
      std::memcpy(pool_.mapping.memory().data() + block * kBlockBytes,
                  from.data() + block * kBlockBytes, kBlockBytes);
    }
    return static_cast<double>(kLeaseBlocks * kBlockBytes) / seconds_since(begin);
  }

 private:
  std::vector<void*> places(std::uint32_t lease) const {
    std::vector<void*> out;
    for (std::uint64_t i = 0; i < std::uint64_t{kLeaseBlocks} * kLayers; ++i)
      out.push_back(pool_.mapping.memory().data() + lease * kLeaseBlocks * kBlockBytes +
                    i * kSliceBytes);
    return out;
  }

  kv::KvClient& client_;
  Pool& pool_;
  std::uint32_t pool_number_;
  std::uint32_t root_;
  std::vector<std::vector<BlockKey>> chains_;
};

// A session of its own for look-ups: frames are made before, answers are decoded.
class Asker {
 public:
  static Result<Asker> open(const std::string& socket) {
    TRY(Descriptor fd, sockets::connect_to(socket));
    Asker asker(std::move(fd));
    kv::Hello hello;
    hello.protocol_version = kv::kKvProtocolVersion;
    hello.role = "tool";
    std::string frame;
    TRY_STATUS(kv::append_frame(hello, frame));
    TRY_STATUS(asker.send(frame));
    TRY_STATUS(asker.answer());
    return asker;
  }
  Status send(std::string_view frame) {
    output_.push(frame);
    for (;;) {
      TRY(const bool sent, output_.flush(socket_.get()));
      if (sent) return {};
      wait(POLLOUT);
    }
  }
  // Waits for one message.
  Status answer() {
    for (;;) {
      TRY(const auto frame, input_.next());
      if (frame)
        return kv::decode_daemon(*frame).has_value()
                   ? Status()
                   : fail(ErrorCode::kDataLoss, "an answer that is no message");
      TRY(const auto got,
          sockets::receive(socket_.get(), input_.reserve(65536), 65536, descriptors_));
      if (!got) {
        wait(POLLIN);
      } else if (*got == 0) {
        return fail(ErrorCode::kUnavailable, "the KV daemon ended the session");
      } else {
        input_.commit(*got);
      }
    }
  }

 private:
  explicit Asker(Descriptor fd) : socket_(std::move(fd)) {}
  void wait(short events) const {
    pollfd ready{socket_.get(), events, 0};
    ::poll(&ready, 1, 1000);
  }
  Descriptor socket_;
  sockets::SendQueue output_;
  kv::FrameBuffer input_;
  std::vector<Descriptor> descriptors_;
};

// Frames of `count` names each; a `held` share of them is in the index.
std::vector<std::string> lookup_frames(std::size_t frames, std::size_t count, double held) {
  std::vector<std::string> out(frames);
  Rng rng(count);
  for (std::string& frame : out) {
    kv::Lookup message{1, {}};
    const auto range = static_cast<std::uint64_t>(static_cast<double>(kIndexBlocks) / held);
    for (std::size_t i = 0; i < count; ++i)
      message.names.push_back(indexed_name(rng.below(range)));
    (void)kv::append_frame(message, frame);
  }
  return out;
}

Result<double> lookups_per_second(Asker& asker, std::size_t rounds) {
  constexpr std::size_t kBurst = kLookupsUnderWay / 2;
  const std::vector<std::string> frames_made = lookup_frames(kLookupFrames, kLookupNames, 0.5);
  std::vector<std::string> bursts(kLookupFrames / kBurst);
  for (std::size_t i = 0; i < kLookupFrames; ++i)
    bursts[i / kBurst] += frames_made[i];
  const auto begin = Clock::now();
  TRY_STATUS(asker.send(bursts[0]));
  for (std::size_t round = 0; round < rounds; ++round) {
    TRY_STATUS(asker.send(bursts[(round + 1) % bursts.size()]));
    for (std::size_t i = 0; i < kLookupsUnderWay / 2; ++i)
      TRY_STATUS(asker.answer());
  }
  for (std::size_t i = 0; i < kLookupsUnderWay / 2; ++i)
    TRY_STATUS(asker.answer());
  const std::size_t frames = (rounds + 1) * kLookupsUnderWay / 2;
  return static_cast<double>(frames * kLookupNames) / seconds_since(begin);
}

struct MatchTimes {
  double middle = 0;  // milliseconds
  double p99 = 0;
};

Result<MatchTimes> match_times(Asker& asker, std::size_t rounds) {
  const std::vector<std::string> frames = lookup_frames(kMatchFrames, kMatchKeys, 1);
  std::vector<double> times;
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto begin = Clock::now();
    TRY_STATUS(asker.send(frames[round % frames.size()]));
    TRY_STATUS(asker.answer());
    times.push_back(seconds_since(begin) * 1e3);
  }
  std::ranges::sort(times);
  return MatchTimes{times[times.size() / 2], times[times.size() * 99 / 100]};
}

}  // namespace

Result<std::vector<Figure>> kv_host_figures(const Options& options) {
  TRY(const TemporaryDirectory folder, TemporaryDirectory::make("penstock-bench-kv"));
  const std::string socket = folder.path() + "/kvd.sock";
  const Fork daemon([&](int report) { serve(socket, report); });  // before this process has threads
  kv::KvClientOptions client_options;
  client_options.socket = socket;
  client_options.name = "bench";
  client_options.backoff_max = std::chrono::milliseconds(50);
  TRY(Pool pool, make_pool(kBlocks * kBlockBytes));
  TRY(const auto source, make_pool(kBlocks * kBlockBytes));
  TRY(const auto client, kv::KvClient::open(std::move(client_options)));
  TRY(const std::uint32_t pool_number,
      client->register_pool(
          pool.fd.get(), pool.mapping.memory().size(),
          {kBlockTokens, std::vector<std::uint32_t>(kLayers, kSliceBytes), {}, 0}));
  TRY(const std::uint32_t root,
      client->register_root(pool_number, {"w", "e", "f", "", "deployment", kBlockTokens}, "m"));
  if (!client->wait_connected(HostBench::kWait)) {
    return fail(ErrorCode::kUnavailable, "the bench's KV daemon did not start");
  }
  HostBench bench(*client, pool, pool_number, root);
  TRY_STATUS(bench.store());
  std::memset(source.mapping.memory().data(), 1, source.mapping.memory().size());

  // Turn by turn and in short pieces, the best of which count, so that other load on the machine
  // does not decide.
  double get = 0;
  double copy = 0;
  for (int round = 0; round < (options.quick ? 5 : 20); ++round) {
    for (std::uint32_t lease = 0; lease < bench.leases(); ++lease) {
      TRY(const double speed, bench.get(lease));
      get = std::max(get, speed);
      copy = std::max(copy, bench.copy(lease, source.mapping.memory()));
    }
  }
  TRY(Asker asker, Asker::open(socket));
  const std::size_t rounds = options.quick ? 20'000 : 100'000;
  TRY(const double lookups, lookups_per_second(asker, rounds));
  TRY(const MatchTimes match, match_times(asker, options.quick ? 1000 : 10'000));
  return std::vector<Figure>{
      more_is_better("host tier get of 1 MiB, verified", get / 1e9, "GB/s", "memcpy", copy / 1e9,
                     kGetAim),
      at_least("look-ups from another process, by 32, 10 M blocks", lookups, "1/s", kLookupsMin),
      at_most("match of 2,048 keys over the socket, 10 M blocks, p50", match.middle, "ms",
              kMatchMillisecondsMax),
      at_most("the same, p99", match.p99, "ms", kMatchMillisecondsMax)};
}

}  // namespace penstock::bench
