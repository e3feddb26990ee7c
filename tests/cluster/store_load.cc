// store_load: extents written to a store and read back at a given rate, every byte checked.
//
//   store_load write --conf CEPH_CONF --extents N [--first N] [--bytes B] [--depth D]
//   store_load read  --conf CEPH_CONF --extents N [--bytes B] [--depth D] [--rate MIB_S]
//                    [--seconds S] [--new-rate N]
//   common: --user client.NAME --keyring FILE --name-space NS --deadline-ms M (500)
//
// Extent i's bytes are a function of i. `read` reads the extents in turn until S seconds are over,
// and writes N new ones a second beside it when asked. Every 100 ms a line of JSON goes to stdout:
// {"t": monotonic seconds, "hits", "bytes", "wrong", "misses": {reason: n}, "put", "not_put":
// {reason: n}, "late_ms": most that an answer came after its deadline, "stranded", "state"}, counts
// of that interval. SIGTERM ends it early. Exit status 1: a wrong byte, or an answer later than its
// deadline by a second.
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <boost/json.hpp>

#include "base/hash.h"
#include "io/rados/rados_store.h"

namespace penstock {
namespace {

using Seconds = std::chrono::duration<double>;

struct LoadOptions {
  rados::RadosStoreOptions store;
  bool reading = false;
  std::uint64_t extents = 64;
  std::uint64_t first = 0;
  std::size_t bytes = 4U << 20;
  std::size_t depth = 16;
  double rate = 0;  // MiB a second; 0: as fast as it goes
  double seconds = 10;
  double new_rate = 0;  // extents a second
  Duration deadline = std::chrono::milliseconds(500);
};

Instant now() {
  return Instant(
      std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

// Eight bytes at a time from a multiplicative sequence: any extent, block or shard in another's
// place changes the checksum.
void fill(std::span<std::byte> bytes, std::uint64_t extent) {
  std::uint64_t value = extent * 0x9E3779B97F4A7C15U + 1;
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    value = value * 6364136223846793005U + 1442695040888963407U;
    std::memcpy(bytes.data() + i, &value, 8);
  }
}

volatile std::sig_atomic_t told_to_end = 0;

std::string name_of(std::uint64_t extent) {
  return fmt::format("load-{}", extent);
}

class Load {
 public:
  Load(BlockStore& store, const LoadOptions& options) : store_(store), options_(options) {
    std::vector<std::byte> scratch(options.bytes);
    const std::span<std::byte> bytes(scratch);
    for (std::uint64_t i = 0; options.reading && i < options.extents; ++i) {
      fill(bytes, i);
      sums_.push_back(checksum64(bytes));
    }
  }

  int run() {
    const Instant begin = now();
    Instant report_at = begin;
    double allowance = 0, new_allowance = 0;
    Instant last = begin;
    bool more = true;
    while (more || in_flight_ > 0) {
      const Instant at = now();
      const double passed = Seconds(at - last).count();
      last = at;
      const double extents_s = options_.rate * (1 << 20) / static_cast<double>(options_.bytes);
      // What could not be started in time is not made up for: the rate is a limit.
      allowance = std::min(allowance + passed * extents_s, 4.0);
      new_allowance = std::min(new_allowance + passed * options_.new_rate, 4.0);
      more = options_.reading ? Seconds(at - begin).count() < options_.seconds
                              : next_ < options_.extents;
      more = more && told_to_end == 0;
      while (more && may_start() && (options_.rate == 0 || allowance >= 1)) {
        allowance -= 1;
        options_.reading ? read() : write(options_.first + next_++);
        more = options_.reading || next_ < options_.extents;
      }
      if (more && new_allowance >= 1 && may_start()) {
        new_allowance -= 1;
        write(options_.extents + new_++);
      }
      pollfd event{store_.event_fd(), POLLIN, 0};
      (void)::poll(&event, 1, 2);
      store_.poll(now());
      if (now() >= report_at) {
        report();
        report_at = now() + std::chrono::milliseconds(100);
      }
    }
    report();
    const double seconds = Seconds(now() - begin).count();
    fmt::print(stderr, "{} extents, {:.1f} MiB/s, {} wrong, at most {:.0f} ms late\n", done_,
               static_cast<double>(done_ * options_.bytes) / seconds / (1 << 20), all_wrong_,
               worst_late_ms_);
    return all_wrong_ > 0 || worst_late_ms_ > 1000 ? 1 : 0;
  }

 private:
  static constexpr std::uint64_t kSlowMax = 8;

  using Counts = std::map<std::string, std::uint64_t>;

  // Reads that an OSD could not serve in time wait there, cancelled or not, and are served before
  // newer ones when it can again: so a store that answers nothing is only probed, as by the tier.
  bool may_start() const { return in_flight_ < (slow_in_a_row_ < kSlowMax ? options_.depth : 1); }
  // The store may hold the buffer of an operation that was given up; such a one is not reused yet.
  StoreBuffer take_buffer() {
    ++in_flight_;
    for (const auto& owner : buffers_)
      if (owner.use_count() == 1) return {owner, {owner.get(), options_.bytes}};
    buffers_.push_back(std::make_shared_for_overwrite<std::byte[]>(options_.bytes));
    return {buffers_.back(), {buffers_.back().get(), options_.bytes}};
  }
  void note_late(Instant deadline) {
    const double late = Seconds(now() - deadline).count() * 1000;
    late_ms_ = std::max(late_ms_, late);
    worst_late_ms_ = std::max(worst_late_ms_, late);
  }

  void read() {
    const std::uint64_t extent = next_++ % options_.extents;
    const StoreBuffer to = take_buffer();
    const Instant deadline = now() + options_.deadline;
    store_.get({{StorePool::kExtents, name_of(extent)},
                0,
                to,
                deadline,
                [this, extent, to, deadline](MissReason reason, std::size_t bytes) {
                  note_late(deadline);
                  if (reason == MissReason::kNone &&
                      checksum64(to.bytes.first(bytes)) != sums_[extent]) {
                    ++wrong_;
                    ++all_wrong_;
                  } else if (reason == MissReason::kNone) {
                    ++hits_;
                    slow_in_a_row_ = 0;
                    ++done_;
                  } else {
                    ++misses_[std::string(to_string(reason))];
                    ++slow_in_a_row_;
                  }
                  --in_flight_;
                }});
  }

  void write(std::uint64_t extent) {
    const StoreBuffer from = take_buffer();
    fill(from.bytes, extent);
    const Instant deadline = now() + options_.deadline;
    store_.put({{StorePool::kExtents, name_of(extent)},
                from,
                1,
                deadline,
                [this, from, deadline](MissReason reason) {
                  note_late(deadline);
                  if (reason == MissReason::kNone) {
                    ++put_;
                    if (!options_.reading) ++done_;
                  } else {
                    ++not_put_[std::string(to_string(reason))];
                  }
                  --in_flight_;
                }});
  }

  void report() {
    const auto object = [](const Counts& counts) {
      boost::json::object all;
      for (const auto& [reason, count] : counts)
        all[reason] = count;
      return all;
    };
    const StoreStats stats = store_.stats();
    const boost::json::object line{
        {"t", Seconds(now().time_since_epoch()).count()},
        {"hits", hits_},
        {"bytes", hits_ * options_.bytes},
        {"wrong", wrong_},
        {"misses", object(misses_)},
        {"put", put_},
        {"not_put", object(not_put_)},
        {"late_ms", late_ms_},
        {"stranded", stats.stranded_bytes},
        {"state", stats.state},
    };
    fmt::print("{}\n", boost::json::serialize(line));
    std::fflush(stdout);
    hits_ = wrong_ = put_ = 0;
    late_ms_ = 0;
    misses_.clear();
    not_put_.clear();
  }

  BlockStore& store_;
  const LoadOptions& options_;
  std::deque<std::shared_ptr<std::byte[]>> buffers_;  // free when nobody else has them
  std::vector<std::uint64_t> sums_;                   // by extent
  std::uint64_t next_ = 0, new_ = 0, in_flight_ = 0, slow_in_a_row_ = 0;
  std::uint64_t hits_ = 0, wrong_ = 0, put_ = 0, done_ = 0, all_wrong_ = 0;
  Counts misses_, not_put_;
  double late_ms_ = 0, worst_late_ms_ = 0;
};

bool parse(int argc, char** argv, LoadOptions& options) {
  if (argc < 2 || argc % 2 != 0) return false;
  const std::string what = argv[1];
  if (what != "read" && what != "write") return false;
  options.reading = what == "read";
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    const std::string value = argv[i + 1];
    const double number = std::strtod(value.c_str(), nullptr);
    const auto whole = static_cast<std::uint64_t>(number);
    if (key == "--conf")
      options.store.conf = value;
    else if (key == "--user")
      options.store.user = value;
    else if (key == "--keyring")
      options.store.keyring = value;
    else if (key == "--name-space")
      options.store.name_space = value;
    else if (key == "--extents")
      options.extents = whole;
    else if (key == "--first")
      options.first = whole;
    else if (key == "--bytes")
      options.bytes = whole;
    else if (key == "--depth")
      options.depth = whole;
    else if (key == "--rate")
      options.rate = number;
    else if (key == "--seconds")
      options.seconds = number;
    else if (key == "--new-rate")
      options.new_rate = number;
    else if (key == "--deadline-ms")
      options.deadline = std::chrono::milliseconds(whole);
    else
      return false;
  }
  return options.extents > 0 && options.bytes >= 8 && options.depth > 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  using namespace penstock;  // NOLINT
  LoadOptions options;
  (void)std::signal(SIGTERM, [](int) { told_to_end = 1; });
  if (!parse(argc, argv, options)) {
    fmt::print(stderr, "usage: store_load write|read --conf CEPH_CONF [...]; see store_load.cc\n");
    return 64;
  }
  auto store = rados::open_rados_store(options.store);
  if (!store) {
    fmt::print(stderr, "store_load: {}\n", store.error().message);
    return 69;
  }
  const Instant until = now() + std::chrono::seconds(30);
  while ((*store)->stats().state != "ok") {
    if (now() > until) {
      fmt::print(stderr, "store_load: {}\n", (*store)->stats().state);
      return 69;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return Load(**store, options).run();
}
