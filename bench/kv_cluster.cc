// `penstock bench kv --tier cluster`: the cluster tier over the store that --cluster-store names,
// against that store without us: `rados bench` on the same pool, name space and object size, or
// plain files of that size on the same mount (a temporary folder when no store is named).
//
// Extents of 32 blocks of 62,464 bytes in 61 slices (2 MB) are written and read, sixteen at a time,
// through the whole tier: look-ups, copies, headers, manifests, and a checksum for each slice where
// it was copied to. Rates are of the blocks' bytes. Rounds of tier and baseline alternate, and
// medians are compared. Files are written to the device on both sides, and read from it: their
// pages are dropped before. What it wrote it removes; nothing else in the store is touched.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/rng.h"
#include "kv.h"
#include "port/block_store.h"
#include "service/kvd/cluster_tier.h"

namespace penstock::bench {
namespace {

using Watch = std::chrono::steady_clock;
using service::ClusterTier;
using service::ClusterTierOptions;

constexpr std::size_t kSlices = 61;
constexpr std::size_t kSliceBytes = 1024;
constexpr std::size_t kBlockBytes = kSlices * kSliceBytes;
constexpr std::uint32_t kExtentBlocks = 32;
constexpr std::size_t kExtentsPerChain = 64;
constexpr std::size_t kDepth = 16;
constexpr double kAim = 0.85;
constexpr double kMetadataShareMax = 0.01;
constexpr TimeSlice kAnySlice = ~TimeSlice{0} >> 1;
constexpr const char* kNameSpace = "penstock-bench";

double seconds_since(Watch::time_point start) {
  return std::chrono::duration<double>(Watch::now() - start).count();
}

TierNow tier_now() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  return {Instant(Watch::now().time_since_epoch()),
          UnixSeconds(std::chrono::duration_cast<std::chrono::seconds>(wall).count())};
}

Instant within(Duration time) {
  return tier_now().now + time;
}

ClusterTierOptions tier_options() {
  ClusterTierOptions options;
  options.classes = {{"default", std::chrono::hours(24)}};
  options.written = {true};
  // The rate is measured, not what an overloaded store does with deadlines.
  options.fetch_limit = options.write_limit = std::chrono::minutes(1);
  options.positive_life = std::chrono::minutes(10);
  options.puts_max = kDepth;
  return options;
}

KvLayoutSpec layout() {
  KvLayoutSpec layout;
  layout.block_tokens = 64;
  layout.history_slices.assign(kSlices, kSliceBytes);
  return layout;
}

// One chain's blocks and bytes. All blocks have the same bytes: only their names differ.
class Chain {
 public:
  explicit Chain(std::uint64_t seed) {
    Rng rng(seed);
    const auto key = [&] {
      BlockKey drawn;
      const std::uint64_t words[2] = {rng.next_u64(), rng.next_u64()};
      std::memcpy(drawn.bytes.data(), words, sizeof words);
      return drawn;
    };
    for (std::size_t at = 0; at < payload_.size(); at += 8) {
      const std::uint64_t word = rng.next_u64();
      std::memcpy(payload_.data() + at, &word, 8);
    }
    BlockInfo info;
    info.root = info.parent = key();
    for (std::size_t i = 0; i < kSlices; ++i)
      info.slices.push_back(
          {kSliceBytes, checksum64(std::span(payload_).subspan(i * kSliceBytes, kSliceBytes))});
    for (std::uint32_t depth = 0; depth < kExtentsPerChain * kExtentBlocks; ++depth) {
      info.depth = depth;
      info.name = {key(), KvGroup::kHistory};
      keys.push_back(info.name.key);
      blocks.push_back(info);
      info.parent = info.name.key;
    }
  }
  std::span<const BlockInfo> extent(std::size_t number) const {
    return std::span(blocks).subspan(number * kExtentBlocks, kExtentBlocks);
  }
  StoreName object(std::size_t number) const {
    return ClusterTier::extent_object(extent(number).back().name, kExtentBlocks);
  }
  std::vector<std::span<const std::byte>> payloads() const {
    return std::vector<std::span<const std::byte>>(kExtentBlocks, payload_);
  }

  std::vector<BlockInfo> blocks;
  std::vector<BlockKey> keys;

 private:
  std::vector<std::byte> payload_ = std::vector<std::byte>(kBlockBytes);
};

// Polls until `done`; false when that takes ten minutes.
template <typename Done>
bool pump(ClusterTier& tier, Done&& done) {
  std::vector<TierRemoval> removals;
  const auto begin = Watch::now();
  while (!done()) {
    if (seconds_since(begin) > 600) return false;
    tier.poll(tier_now(), removals);
    if (done()) return true;
    const Duration wait = tier.next_deadline() - tier_now().now;
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(wait).count();
    pollfd ready{tier.event_fd(), POLLIN, 0};
    ::poll(&ready, 1, static_cast<int>(std::clamp<std::int64_t>(ms, 0, 10)));
  }
  return true;
}

template <typename Done>
bool pump(BlockStore& store, Done&& done) {
  const auto begin = Watch::now();
  while (!done()) {
    if (seconds_since(begin) > 600) return false;
    store.poll(tier_now().now);
    if (done()) return true;
    pollfd ready{store.event_fd(), POLLIN, 0};
    ::poll(&ready, 1, 10);
  }
  return true;
}

Status timed_out() {
  return fail(ErrorCode::kDeadlineExceeded, "the cluster store does not answer");
}

Status write_all(ClusterTier& tier, const std::vector<Chain>& chains) {
  std::size_t in_flight = 0;  // noted or being written; at most kDepth are being written
  MissReason failed = MissReason::kNone;
  for (const Chain& chain : chains) {
    const auto payloads = chain.payloads();
    const auto bytes = kvcache::extent_bytes(chain.extent(0));
    for (std::size_t i = 0; i < kExtentsPerChain; ++i) {
      if (!pump(tier, [&] { return tier.may_write(bytes); })) return timed_out();
      ++in_flight;
      tier.write_extent(chain.extent(i), payloads, [&](MissReason reason) {
        --in_flight;
        if (reason != MissReason::kNone) failed = reason;
      });
    }
  }
  if (!pump(tier, [&] { return in_flight == 0; })) return timed_out();
  if (failed == MissReason::kNone) return {};
  return fail(ErrorCode::kIo, fmt::format("an extent was not written ({}): {}", to_string(failed),
                                          tier.stats().state));
}

Status read_all(ClusterTier& tier, const std::vector<Chain>& chains) {
  std::vector<std::vector<std::byte>> places(kDepth,
                                             std::vector<std::byte>(kExtentBlocks * kBlockBytes));
  std::vector<std::size_t> free;
  std::vector<std::size_t> left(kDepth);
  for (std::size_t i = 0; i < kDepth; ++i)
    free.push_back(i);
  std::uint64_t read = 0;
  MissReason failed = MissReason::kNone;
  // The next prompt is looked up while this one is read: they come one after the other.
  std::size_t asked = 0, known = 0;
  const auto ask = [&] {
    if (asked == chains.size()) return;
    tier.look_up({chains[asked++].keys, {}, 0, layout()}, tier_now(), [&](MissReason) { ++known; });
  };
  ask();
  for (std::size_t at = 0; at < chains.size(); ++at) {
    const Chain& chain = chains[at];
    if (!pump(tier, [&] { return known > at; })) return timed_out();
    ask();
    for (std::size_t i = 0; i < kExtentsPerChain; ++i) {
      if (!pump(tier, [&] { return !free.empty(); })) return timed_out();
      const std::size_t slot = free.back();
      free.pop_back();
      left[slot] = kExtentBlocks;
      std::span<std::byte> to = places[slot];
      for (const BlockInfo& block : chain.extent(i)) {
        tier.read({block.name, to.first(kBlockBytes), [&, slot](MissReason why, const BlockInfo&) {
                     if (why != MissReason::kNone) failed = why;
                     ++read;
                     if (--left[slot] == 0) free.push_back(slot);
                   }});
        to = to.subspan(kBlockBytes);
      }
    }
  }
  if (!pump(tier, [&] { return free.size() == kDepth; })) return timed_out();
  if (failed == MissReason::kNone) return {};
  return fail(ErrorCode::kDataLoss,
              fmt::format("a block was not read back: {}", to_string(failed)));
}

// The store without us.
class Baseline {
 public:
  virtual ~Baseline() = default;
  virtual const char* name() const = 0;
  // MB/s; nullopt: it can't be had, see why().
  virtual std::optional<double> write(std::size_t object_bytes, std::size_t objects) = 0;
  virtual std::optional<double> read(std::size_t object_bytes, std::size_t objects) = 0;
  // Before the tier's reads: nothing of what was written is in this host's memory.
  virtual void forget() {}
  // What the tier wrote is where the baseline's bytes are.
  virtual void settle() {}
  const std::string& why() const { return why_; }

 protected:
  std::string why_;
};

// Files of a folder, by as many threads as the tier has operations under way.
class PlainFiles final : public Baseline {
 public:
  explicit PlainFiles(std::string folder) : root_(std::move(folder)), folder_(root_ + "/plain") {
    ::mkdir(folder_.c_str(), 0700);
  }
  const char* name() const override { return "plain files"; }
  std::optional<double> write(std::size_t bytes, std::size_t objects) override {
    std::vector<std::byte> content(bytes, std::byte{0x5A});
    return run(bytes, objects, true, [&](std::size_t i) {
      const int fd = ::open(path(i).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
      const bool done = fd >= 0 && ::write(fd, content.data(), bytes) == std::ssize(content);
      return fd >= 0 && ::close(fd) == 0 && done;
    });
  }
  std::optional<double> read(std::size_t bytes, std::size_t objects) override {
    forget();
    return run(bytes, objects, false, [&](std::size_t i) {
      thread_local std::vector<std::byte> to;
      to.resize(bytes);
      const int fd = ::open(path(i).c_str(), O_RDONLY | O_CLOEXEC);
      const bool done = fd >= 0 && ::read(fd, to.data(), bytes) == std::ssize(to);
      if (fd >= 0) ::close(fd);
      return done;
    });
  }
  void forget() override {
    settle();
    std::error_code ignored;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_, ignored)) {
      if (!entry.is_regular_file(ignored)) continue;
      const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0) continue;
      ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      ::close(fd);
    }
  }
  void settle() override {
    const int fd = ::open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    ::syncfs(fd);
    ::close(fd);
  }

 private:
  std::string path(std::size_t i) const { return fmt::format("{}/{}", folder_, i); }

  template <typename One>
  std::optional<double> run(std::size_t bytes, std::size_t objects, bool to_device, One&& one) {
    std::atomic<std::size_t> next = 0;
    std::atomic<bool> failed = false;
    const auto begin = Watch::now();
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < kDepth; ++i)
      threads.emplace_back([&] {
        for (std::size_t at = next++; at < objects; at = next++)
          if (!one(at)) failed = true;
      });
    threads.clear();  // joins them
    if (to_device) settle();
    if (failed) {
      why_ = "a plain file could not be written and read in the folder";
      return std::nullopt;
    }
    return static_cast<double>(bytes * objects) / seconds_since(begin) / 1e6;
  }

  std::string root_;
  std::string folder_;
};

class RadosBench final : public Baseline {
 public:
  RadosBench(std::vector<std::string> arguments, bool quick)
      : arguments_(std::move(arguments)), seconds_(quick ? 3 : 5) {}
  ~RadosBench() override { call({"cleanup", "--run-name", kNameSpace}); }
  const char* name() const override { return "rados bench"; }
  std::optional<double> write(std::size_t bytes, std::size_t) override {
    return rate(
        {"bench", std::to_string(seconds_), "write", "-b", std::to_string(bytes), "--no-cleanup"});
  }
  std::optional<double> read(std::size_t, std::size_t) override {
    return rate({"bench", std::to_string(seconds_), "seq"});
  }

 private:
  std::optional<double> rate(std::vector<std::string> words) {
    words.insert(words.end(), {"-t", std::to_string(kDepth), "--run-name", kNameSpace});
    const std::optional<std::string> text = call(words);
    constexpr std::string_view kLine = "Bandwidth (MB/sec):";
    const std::size_t at = text ? text->find(kLine) : std::string::npos;
    const double mib =
        at == std::string::npos ? 0 : std::strtod(text->c_str() + at + kLine.size(), nullptr);
    if (mib > 0) return mib * (1 << 20) / 1e6;
    why_ = "the rados command (package ceph-common) is not there, or `rados bench` failed";
    return std::nullopt;
  }
  std::optional<std::string> call(const std::vector<std::string>& words) {
    std::vector<std::string> all = arguments_;
    all.insert(all.end(), words.begin(), words.end());
    std::string line = "rados";
    for (const std::string& word : all) {
      line += " '";
      for (const char c : word)
        line += c == '\'' ? std::string("'\\''") : std::string(1, c);
      line += "'";
    }
    FILE* pipe = ::popen((line + " 2>/dev/null").c_str(), "r");
    if (pipe == nullptr) return std::nullopt;
    std::string text;
    char part[4096];
    for (std::size_t got = 0; (got = std::fread(part, 1, sizeof part, pipe)) > 0;)
      text.append(part, got);
    if (::pclose(pipe) != 0) return std::nullopt;
    return text;
  }

  std::vector<std::string> arguments_;
  int seconds_;
};

struct Rates {
  std::vector<double> tier, baseline;
};

Figure figure(const char* name, const Rates& rates, const Baseline& baseline) {
  if (rates.baseline.empty()) return skipped(name, "MB/s", baseline.name(), kAim, baseline.why());
  return more_is_better(name, median(rates.tier), "MB/s", baseline.name(), median(rates.baseline),
                        kAim);
}

// All that stands in the store's manifests, page by page. The pages end when the store fails.
Status for_each_page(
    BlockStore& store,
    const std::function<void(const ManifestId&, const std::vector<StoreName>&)>& visit) {
  std::vector<ManifestId> manifests;
  MissReason failed = MissReason::kNone;
  bool answered = false;
  store.list_manifests(within(std::chrono::minutes(1)),
                       [&](MissReason reason, std::vector<ManifestId> ids) {
                         answered = true;
                         failed = reason;
                         manifests = std::move(ids);
                       });
  if (!pump(store, [&] { return answered; })) return timed_out();
  for (const ManifestId& id : manifests) {
    ManifestPage page;
    do {
      answered = false;
      store.read_manifest(id, page.next, 1000, within(std::chrono::minutes(1)),
                          [&](MissReason reason, ManifestPage got) {
                            answered = true;
                            failed = reason;
                            page = std::move(got);
                          });
      if (!pump(store, [&] { return answered; })) return timed_out();
      if (failed == MissReason::kNone) visit(id, page.names);
    } while (failed == MissReason::kNone && !page.next.empty());
  }
  if (failed == MissReason::kNone) return {};
  return fail(ErrorCode::kIo,
              fmt::format("the store's manifests can't be read: {}", to_string(failed)));
}

// What the store holds beside the blocks' bytes, as it says itself.
Status measure_metadata(BlockStore& store, const std::vector<Chain>& chains,
                        std::vector<Figure>& figures) {
  std::uint64_t objects = 0, bytes = 0, blocks = 0, lines = 0;
  std::size_t under_way = 0;
  for (const Chain& chain : chains) {
    std::vector<StoreName> names;
    for (std::size_t i = 0; i < kExtentsPerChain; ++i)
      names.push_back(chain.object(i));
    blocks += chain.blocks.size();
    ++under_way;
    store.look_up({names, within(std::chrono::minutes(1)),
                   [&](MissReason, const std::vector<StoreFound>& found) {
                     --under_way;
                     for (const StoreFound& object : found) {
                       objects += object.bytes > 0 ? 1 : 0;
                       bytes += object.bytes;
                     }
                   }});
  }
  if (!pump(store, [&] { return under_way == 0; })) return timed_out();
  if (objects != chains.size() * kExtentsPerChain)
    return fail(ErrorCode::kIo, "the store does not tell what it holds");
  TRY_STATUS(for_each_page(store, [&](const ManifestId&, const std::vector<StoreName>& names) {
    for (const StoreName& name : names)
      lines += name.name.size() + 3;  // "e NAME\n"
  }));
  const auto per_block = [&](std::uint64_t of) {
    return static_cast<double>(of) / static_cast<double>(blocks);
  };
  figures.push_back(at_most("cluster objects a block", per_block(objects), "objects/block",
                            1.0 / kvcache::kExtentBlocksMin));
  figures.push_back(at_most("cluster metadata a block of 62,464 bytes",
                            per_block(bytes + lines) - kBlockBytes, "B/block",
                            kBlockBytes * kMetadataShareMax));
  return {};
}

Status wait_connected(BlockStore& store) {
  const auto begin = Watch::now();
  while (store.stats().state != "ok") {
    if (seconds_since(begin) > 30) return fail(ErrorCode::kUnavailable, store.stats().state);
    store.poll(tier_now().now);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {};
}

Status measure(const std::string& text, Baseline& baseline, const Options& options,
               std::vector<Figure>& figures) {
  TRY(const auto store, options.open_store(text));
  TRY_STATUS(wait_connected(*store));
  const std::size_t objects = (options.quick ? 2U : 4U) * kExtentsPerChain;
  const double megabytes = static_cast<double>(objects * kExtentBlocks * kBlockBytes) / 1e6;
  Rates write;
  Rates read;
  for (int round = 0; round < (options.quick ? 1 : 3); ++round) {
    std::vector<Chain> chains;
    for (std::size_t i = 0; i < objects / kExtentsPerChain; ++i)
      chains.emplace_back(static_cast<std::uint64_t>(tier_now().now.time_since_epoch().count()));
    const std::size_t object_bytes = kvcache::extent_bytes(chains[0].extent(0));
    ClusterTier writer(*store, tier_options());
    const auto plain_write = baseline.write(object_bytes, objects);
    if (plain_write) write.baseline.push_back(*plain_write);
    auto begin = Watch::now();
    Status done = write_all(writer, chains);
    baseline.settle();
    write.tier.push_back(megabytes / seconds_since(begin));
    if (const auto rate = plain_write ? baseline.read(object_bytes, objects) : std::nullopt)
      read.baseline.push_back(*rate);
    baseline.forget();
    ClusterTier reader(*store, tier_options());  // another host's, that knows nothing
    begin = Watch::now();
    if (done) done = read_all(reader, chains);
    read.tier.push_back(megabytes / seconds_since(begin));
    if (done && round == 0) done = measure_metadata(*store, chains, figures);
    clear_store(*store);
    TRY_STATUS(done);
  }
  figures.insert(figures.begin(), {figure("cluster write 2 MB extents", write, baseline),
                                   figure("cluster read 2 MB extents, verified", read, baseline)});
  return {};
}

}  // namespace

Result<std::unique_ptr<BenchStore>> BenchStore::make(const Options& options) {
  auto made = std::unique_ptr<BenchStore>(new BenchStore);
  const std::string& given = options.cluster_store;
  if (given.starts_with("rados:")) {
    made->text_ = given + ",namespace=" + kNameSpace;
    return made;
  }
  const std::size_t colon = given.find(':');
  std::string parent = std::filesystem::temp_directory_path().string();
  if (colon != std::string::npos) {
    parent = given.substr(colon + 1);
    ::mkdir(parent.c_str(), 0700);  // as the store would
  }
  std::string folder = parent + "/penstock-benchXXXXXX";
  if (::mkdtemp(folder.data()) == nullptr)
    return fail(ErrorCode::kIo,
                fmt::format("no folder can be made in {}: {}", parent, std::strerror(errno)));
  made->folder_ = folder;
  made->text_ =
      (colon == std::string::npos ? "posix" : given.substr(0, colon)) + ":" + folder + "/store";
  return made;
}

void clear_store(BlockStore& store) {
  std::vector<ManifestId> manifests;
  std::vector<StoreName> names;
  const Status listed =
      for_each_page(store, [&](const ManifestId& id, const std::vector<StoreName>& page) {
        if (manifests.empty() || manifests.back() != id) manifests.push_back(id);
        names.insert(names.end(), page.begin(), page.end());
      });
  if (!listed) return;
  std::size_t under_way = 0;
  for (const StoreName& name : names) {
    ++under_way;
    store.remove(name, kAnySlice, within(std::chrono::minutes(1)),
                 [&](MissReason, bool, std::uint64_t) { --under_way; });
    (void)pump(store, [&] { return under_way < kDepth; });
  }
  for (const ManifestId& id : manifests) {
    ++under_way;
    store.drop_manifest(id, within(std::chrono::minutes(1)), [&](MissReason) { --under_way; });
  }
  (void)pump(store, [&] { return under_way == 0; });
}

BenchStore::~BenchStore() {
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

Result<std::vector<Figure>> kv_cluster_figures(const Options& options) {
  TRY(const auto store, BenchStore::make(options));
  std::vector<Figure> figures;
  if (store->folder().empty()) {
    TRY(auto words, options.rados_arguments(store->text()));
    RadosBench baseline(std::move(words), options.quick);
    TRY_STATUS(measure(store->text(), baseline, options, figures));
  } else {
    PlainFiles baseline(store->folder());
    TRY_STATUS(measure(store->text(), baseline, options, figures));
  }
  return figures;
}

}  // namespace penstock::bench
