// `penstock bench transfer`: KV read from a pool of another process, over each driver.
//
// A read ends when its bytes lie in their place and match their checksum; so many are under way at
// once that 8 MiB are (two at 16 MiB each). Baselines: memcpy of the same slices out of the same
// memory, by one thread; and another process that sends as much over as many TCP connections as the
// driver uses, one thread a side, in sends of a slice's size, with nothing asked for and nothing
// verified. Each round moves 32 MiB by each in turn, another part of memory than the last time, and
// takes a few milliseconds; figures are medians of the rounds, so that other load on the machine
// does not decide. Shared memory and memcpy are work of one thread that never waits, so its
// processor time is what counts there; over sockets it is the time that passes.
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "bench.h"
#include "fork.h"
#include "io/files/files.h"
#include "io/sockets/tcp_socket.h"
#include "io/transport/testing/sample_pool.h"
#include "io/transport/transport_options.h"
#include "port/transport.h"

namespace penstock::bench {
namespace {

using Steady = std::chrono::steady_clock;

constexpr std::uint32_t kBlocks = 8;
constexpr std::uint32_t kBlockBytes = 16 << 20;
constexpr std::size_t kPoolBytes = std::size_t{kBlocks} * kBlockBytes;  // out of any cache
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kReceiveBytes = std::size_t{1} << 20;  // of a raw receive
constexpr std::size_t kRoundBytes = std::size_t{32} << 20;
constexpr std::uint32_t kSizes[] = {64 << 10, 1 << 20, 16 << 20};
constexpr double kAim = 0.8;
constexpr Duration kDeadline = std::chrono::seconds(60);

double seconds_since(Steady::time_point begin) {
  return std::chrono::duration<double>(Steady::now() - begin).count();
}

// Of this thread.
double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double passed_seconds() {
  return std::chrono::duration<double>(Steady::now().time_since_epoch()).count();
}

// In a process of its own: publishes the pool at `listen`.
void own(const std::string& listen, const transport::SamplePool& pool, int report) {
  transport::TransportOptions options;
  options.listen = listen;
  const auto opened = transport::open_transport(std::move(options));
  if (!opened) return;
  (*opened)->publish(pool.published());
  TransportEvents events;
  events.readable = [](PeerId, std::uint32_t, std::uint32_t, std::uint64_t) { return true; };
  (*opened)->set_events(std::move(events));
  tell(report, (*opened)->address());
  for (;;)
    ::pause();
}

// In a process of its own: whoever asks on the first connection with two numbers gets as many bytes
// as the first on each of `streams` connections, in sends of as many as the second.
void send_raw(const transport::SamplePool& pool, std::size_t streams, int report) {
  const auto listener = sockets::listen_on(*sockets::resolve("127.0.0.1:0"));
  if (!listener) return;
  tell(report, fmt::format("127.0.0.1:{}", sockets::port_of(*listener)));
  std::vector<Descriptor> sockets;
  while (sockets.size() < streams) {
    pollfd ready{listener->get(), POLLIN, 0};
    ::poll(&ready, 1, -1);
    sockets.emplace_back(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
    sockets::no_delay(sockets.back().get());
  }
  const std::byte* const memory = pool.payload(0).data();
  std::uint64_t wanted[2];
  while (::recv(sockets[0].get(), wanted, sizeof wanted, MSG_WAITALL) == sizeof wanted) {
    std::vector<std::uint64_t> sent(streams);
    std::vector<pollfd> ready(streams);
    for (;;) {
      bool more = false;
      for (std::size_t i = 0; i < streams; ++i) {
        const bool unfinished = sent[i] < wanted[0];
        ready[i] = {unfinished ? sockets[i].get() : -1, POLLOUT, 0};
        more |= unfinished;
      }
      if (!more) break;
      ::poll(ready.data(), streams, -1);
      for (std::size_t i = 0; i < streams; ++i) {
        if ((ready[i].revents & POLLOUT) == 0) continue;
        const std::uint64_t in_slice = sent[i] % wanted[1];
        const ssize_t n = ::send(sockets[i].get(), memory + (i * wanted[0] + sent[i]) % kPoolBytes,
                                 wanted[1] - in_slice, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) sent[i] += static_cast<std::uint64_t>(n);
      }
    }
  }
}

class Raw {
 public:
  static Result<Raw> open(const std::string& address, std::size_t streams) {
    TRY(const sockets::TcpAddress to, sockets::resolve(address));
    Raw raw;
    for (std::size_t i = 0; i < streams; ++i) {
      TRY(Descriptor socket, sockets::start_connecting(to));
      pollfd ready{socket.get(), POLLOUT, 0};
      ::poll(&ready, 1, 10'000);
      raw.sockets_.push_back(std::move(socket));
    }
    return raw;
  }

  double bytes_per_second(std::span<std::byte> to, std::uint64_t slice_bytes) const {
    const std::uint64_t each = to.size() / sockets_.size();
    const auto begin = Steady::now();
    const std::uint64_t wanted[2] = {each, slice_bytes};
    if (::send(sockets_[0].get(), wanted, sizeof wanted, MSG_NOSIGNAL) < 0) return 0;
    std::vector<std::uint64_t> got(sockets_.size());
    std::vector<pollfd> ready(sockets_.size());
    for (;;) {
      bool more = false;
      for (std::size_t i = 0; i < got.size(); ++i) {
        ready[i] = {got[i] < each ? sockets_[i].get() : -1, POLLIN, 0};
        more |= got[i] < each;
      }
      if (!more) break;
      ::poll(ready.data(), ready.size(), -1);
      for (std::size_t i = 0; i < got.size(); ++i) {
        if ((ready[i].revents & POLLIN) == 0) continue;
        const ssize_t n =
            ::recv(sockets_[i].get(), to.data() + i * each + got[i],
                   std::min<std::uint64_t>(each - got[i], kReceiveBytes), MSG_DONTWAIT);
        if (n == 0) return 0;
        if (n > 0) got[i] += static_cast<std::uint64_t>(n);
      }
    }
    return static_cast<double>(to.size()) / seconds_since(begin);
  }

 private:
  std::vector<Descriptor> sockets_;
};

// Reads through a transport, from the thread of the bench.
class Reader {
 public:
  static Result<std::unique_ptr<Reader>> open(const std::vector<std::string>& addresses) {
    std::unique_ptr<Reader> reader(new Reader);
    TRY(reader->transport_, transport::open_transport({}));
    std::promise<void> all;
    std::size_t left = addresses.size();
    TransportEvents events;
    events.opened = [&](PeerId) {
      if (--left == 0) all.set_value();
    };
    reader->transport_->set_events(std::move(events));
    reader->transport_->clock().post([&] {
      for (const std::string& address : addresses)
        reader->peers_.push_back(
            reader->transport_->connect(address, reader->transport_->clock().now() + kDeadline)
                .value_or(PeerId(0)));
    });
    if (all.get_future().wait_for(kDeadline) != std::future_status::ready)
      return fail(ErrorCode::kUnavailable, "a process of the bench did not answer");
    return reader;
  }

  // Reads all slices, in order, `depth` at a time; 0 when one does not arrive.
  double bytes_per_second(std::size_t peer, std::span<const RemoteSlice> slices, std::byte* to,
                          std::size_t depth, double (*clock)()) {
    struct Run {
      std::size_t next = 0;
      std::size_t left = 0;
      bool good = true;
      std::promise<void> done;
    } run;
    run.left = slices.size();
    // On the transport's thread, so that waking it and us is not counted.
    double begin = 0;
    double seconds = 0;
    std::function<void()> start = [&] {
      const RemoteSlice& slice = slices[run.next++];
      std::byte* const into = to + std::size_t{slice.block} * kBlockBytes + slice.offset;
      transport_->read(peers_[peer], slice, into, transport_->clock().now() + kDeadline,
                       [&](ReadEnd end) {
                         run.good &= end == ReadEnd::kDone;
                         if (run.next < slices.size()) start();
                         if (--run.left > 0) return;
                         seconds = clock() - begin;
                         run.done.set_value();
                       });
    };
    transport_->clock().post([&] {
      begin = clock();
      while (run.next < std::min(depth, slices.size()))
        start();
    });
    run.done.get_future().wait();
    return run.good ? static_cast<double>(slices.size()) * slices[0].length / seconds : 0;
  }

 private:
  Reader() = default;
  std::unique_ptr<Transport> transport_;
  std::vector<PeerId> peers_;
};

double copy_bytes_per_second(const transport::SamplePool& pool, std::span<const RemoteSlice> slices,
                             std::byte* to) {
  const double begin = processor_seconds();
  for (const RemoteSlice& slice : slices) {
    std::memcpy(to + std::size_t{slice.block} * kBlockBytes + slice.offset,
                pool.payload(slice.block).data() + slice.offset, slice.length);
  }
  return static_cast<double>(slices.size()) * slices[0].length / (processor_seconds() - begin);
}

std::vector<RemoteSlice> all_slices(const transport::SamplePool& pool, std::uint32_t bytes) {
  std::vector<RemoteSlice> slices;
  for (std::uint32_t block = 0; block < kBlocks; ++block)
    for (std::uint32_t at = 0; at < kBlockBytes; at += bytes)
      slices.push_back(pool.slice(block, at, bytes));
  return slices;
}

std::string size_name(std::uint32_t bytes) {
  return bytes < 1 << 20 ? fmt::format("{} KiB", bytes >> 10) : fmt::format("{} MiB", bytes >> 20);
}

}  // namespace

Result<std::vector<Figure>> run_transfer(const Options& options) {
  const transport::SamplePool pool(kBlocks, kBlockBytes);
  TRY(const TemporaryDirectory folder, TemporaryDirectory::make("penstock-bench-transfer"));
  const std::size_t streams = transport::TransportLimits().tcp_streams;
  // Before this process has threads.
  std::vector<std::unique_ptr<Fork>> owners;
  std::vector<std::string> addresses;
  std::vector<std::string> listen = {"shm:" + folder.path() + "/owner", "tcp:127.0.0.1:0"};
  if (transport::has_ucx()) listen.push_back("ucx:127.0.0.1:0");
  for (const std::string& at : listen) {
    owners.push_back(std::make_unique<Fork>([&](int report) { own(at, pool, report); }));
    addresses.push_back(owners.back()->line());
  }
  const Fork sender([&](int report) { send_raw(pool, streams, report); });
  TRY(const Raw raw, Raw::open(sender.line(), streams));
  TRY(const auto reader, Reader::open(addresses));
  // At a page, as pools are.
  std::vector<std::byte> memory(kPoolBytes + kPageBytes, std::byte{1});
  const std::size_t beyond = reinterpret_cast<std::uintptr_t>(memory.data()) % kPageBytes;
  const auto to = std::span(memory).subspan(kPageBytes - beyond, kPoolBytes);

  std::vector<Figure> figures[3];
  for (const std::uint32_t bytes : kSizes) {
    const std::vector<RemoteSlice> all = all_slices(pool, bytes);
    const std::size_t count = kRoundBytes / bytes;
    const std::size_t depth = std::max<std::size_t>(2, (8 << 20) / bytes);
    std::vector<double> got[3];
    std::vector<double> copied;
    std::vector<double> received;
    for (std::size_t round = 0; round < (options.quick ? 20 : 100); ++round) {
      const auto slices = std::span(all).subspan(round * count % all.size(), count);
      copied.push_back(copy_bytes_per_second(pool, slices, to.data()) / 1e9);
      for (std::size_t i = 0; i < addresses.size(); ++i) {
        if (i == 1) {
          const auto part = to.subspan(round * kRoundBytes % kPoolBytes, kRoundBytes);
          received.push_back(raw.bytes_per_second(part, bytes) / 1e9);
        }
        got[i].push_back(reader->bytes_per_second(i, slices, to.data(), depth,
                                                  i == 0 ? processor_seconds : passed_seconds) /
                         1e9);
        if (got[i].back() == 0)
          return fail(ErrorCode::kDataLoss, "a slice did not arrive over " + addresses[i]);
      }
    }
    const auto name = [&](const char* driver) {
      return fmt::format("{} read of {} by {}, verified", driver, size_name(bytes), depth);
    };
    const std::string streams_name = fmt::format("raw TCP, {} connections", streams);
    figures[0].push_back(
        more_is_better(name("shm"), median(got[0]), "GB/s", "memcpy", median(copied), kAim));
    figures[1].push_back(
        more_is_better(name("tcp"), median(got[1]), "GB/s", streams_name, median(received), kAim));
    figures[2].push_back(
        transport::has_ucx()
            ? more_is_better(name("ucx"), median(got[2]), "GB/s", streams_name, median(received), 0)
            : skipped(name("ucx"), "GB/s", streams_name, 0, "this build has no UCX"));
  }
  std::vector<Figure> all;
  for (const auto& of_driver : figures)
    all.insert(all.end(), of_driver.begin(), of_driver.end());
  return all;
}

}  // namespace penstock::bench
