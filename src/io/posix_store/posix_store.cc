#include "io/posix_store/posix_store.h"

#include <sys/random.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "base/check.h"
#include "io/sockets/unix_socket.h"

namespace penstock::posix_store {
namespace {

constexpr std::size_t kThreadsMax = 256;
constexpr std::size_t kNamesPerCall = 8;  // of one look-up, so that threads share it
constexpr auto kStopMax = std::chrono::seconds(1);

std::string draw_writer() {
  std::uint64_t bits = 0;
  ENSURE(::getrandom(&bits, sizeof bits, 0) == sizeof bits);
  return fmt::format("{:016x}", bits);
}

}  // namespace

struct PosixStore::Shared {
  struct Call {
    std::uint64_t number = 0;
    Work work;
  };

  explicit Shared(PosixStoreOptions options)
      : queue_max(options.queue_max),
        folder(std::move(options.folder), draw_writer(),
               options.data ? std::move(options.data) : std::make_unique<PlainFileData>(),
               options.leftovers_after) {}

  void run();

  const std::size_t queue_max;
  StoreFolder folder;
  sockets::WakeEvent wake;  // something is in `done`
  std::mutex mutex;
  std::condition_variable ready;  // something is queued, or to stop
  std::condition_variable idle;   // a thread has ended
  std::deque<Call> queue;
  std::set<std::uint64_t> under_way;
  std::vector<std::pair<std::uint64_t, MissReason>> done;
  std::size_t threads = 0;
  bool stopping = false;
};

void PosixStore::Shared::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    ready.wait(lock, [&] { return stopping || !queue.empty(); });
    if (stopping) break;
    Call call = std::move(queue.front());
    queue.pop_front();
    under_way.insert(call.number);
    lock.unlock();
    const MissReason reason = call.work(folder);
    call.work = nullptr;  // and with it its buffer
    lock.lock();
    under_way.erase(call.number);
    done.emplace_back(call.number, reason);
    wake.wake();
  }
  --threads;
  idle.notify_all();
}

Result<std::unique_ptr<PosixStore>> PosixStore::open(PosixStoreOptions options) {
  if (options.folder.empty() || options.folder[0] != '/')
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" is no absolute path of a folder, such as /mnt/kv/store",
                            options.folder));
  if (options.threads == 0 || options.threads > kThreadsMax)
    return fail(ErrorCode::kInvalidArgument, "1 to 256 threads are possible for a posix store");
  return std::unique_ptr<PosixStore>(new PosixStore(std::move(options)));
}

PosixStore::PosixStore(PosixStoreOptions options) {
  const std::size_t threads = options.threads;
  shared_ = std::make_shared<Shared>(std::move(options));
  shared_->threads = threads;
  for (std::size_t i = 0; i < threads; ++i)
    std::thread([shared = shared_] { shared->run(); }).detach();  // see the destructor
}

PosixStore::~PosixStore() {
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->queue.clear();
  shared_->ready.notify_all();
  // A call on a mount that hangs may never return; nothing of ours but `shared_` is used by it.
  shared_->idle.wait_for(lock, kStopMax, [&] { return shared_->threads == 0; });
}

void PosixStore::submit(Instant deadline, std::uint64_t bytes, Work work, Done done) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->queue.size() >= shared_->queue_max) {
    ended_.emplace_back(std::move(done), MissReason::kTooSlow);
    shared_->wake.wake();
    return;
  }
  const std::uint64_t number = ++last_number_;
  pending_.emplace(number, Pending{deadline, bytes, std::move(done)});
  deadlines_.emplace(deadline, number);
  shared_->queue.push_back({number, std::move(work)});
  shared_->ready.notify_one();
}

void PosixStore::put(StorePut put) {
  ++stats_.puts;
  if (!is_sound_name(put.name.name)) {
    ended_.emplace_back(std::move(put.done), MissReason::kIoError);
    return shared_->wake.wake();
  }
  const std::uint64_t bytes = put.payload.bytes.size();
  submit(
      put.deadline, bytes,
      [name = std::move(put.name), payload = std::move(put.payload),
       slice = put.slice](StoreFolder& folder) { return folder.put(name, payload.bytes, slice); },
      [this, bytes, done = std::move(put.done)](MissReason reason) {
        if (reason == MissReason::kNone) stats_.put_bytes += bytes;
        done(reason);
      });
}

void PosixStore::get(StoreGet get) {
  ++stats_.gets;
  const auto read = std::make_shared<std::size_t>(0);
  const std::uint64_t bytes = get.destination.bytes.size();
  submit(
      get.deadline, bytes,
      [name = std::move(get.name), offset = get.offset, to = std::move(get.destination),
       read](StoreFolder& folder) { return folder.get(name, offset, to.bytes, *read); },
      [this, read, done = std::move(get.done)](MissReason reason) {
        const std::size_t got = reason == MissReason::kNone ? *read : 0;
        stats_.get_bytes += got;
        done(reason, got);
      });
}

void PosixStore::look_up(StoreLookUp look_up) {
  ++stats_.look_ups;
  struct Asked {
    std::vector<StoreName> names;
    std::vector<StoreFound> found;
    std::size_t parts = 0;  // not yet answered
    MissReason reason = MissReason::kNone;
    std::function<void(MissReason, std::vector<StoreFound>)> done;
  };
  const auto asked = std::make_shared<Asked>();
  asked->names = std::move(look_up.names);
  asked->done = std::move(look_up.done);
  const std::size_t count = asked->names.size();
  // A part that is given up may still write while the others are answered: each has its own.
  asked->found.resize(count);
  asked->parts = std::max<std::size_t>((count + kNamesPerCall - 1) / kNamesPerCall, 1);
  for (std::size_t first = 0, part = 0; part < asked->parts; ++part, first += kNamesPerCall) {
    const std::size_t size = std::min(kNamesPerCall, count - first);
    const auto mine = std::make_shared<std::vector<StoreFound>>(size);
    submit(
        look_up.deadline, 0,
        [asked, mine, first, size](StoreFolder& folder) {
          return folder.look_up(std::span(asked->names).subspan(first, size), *mine);
        },
        [asked, mine, first](MissReason reason) {
          if (reason == MissReason::kNone) {
            std::ranges::copy(*mine, asked->found.begin() + static_cast<std::ptrdiff_t>(first));
          } else {
            asked->reason = reason;
          }
          if (--asked->parts > 0) return;
          if (asked->reason != MissReason::kNone) asked->found.clear();
          asked->done(asked->reason, std::move(asked->found));
        });
  }
}

void PosixStore::touch(StoreName name, TimeSlice slice, Instant deadline, Done done) {
  submit(
      deadline, 0,
      [name = std::move(name), slice](StoreFolder& folder) { return folder.touch(name, slice); },
      std::move(done));
}

void PosixStore::remove(StoreName name, TimeSlice slice_max, Instant deadline,
                        std::function<void(MissReason, bool, std::uint64_t)> done) {
  ++stats_.removes;
  const auto result = std::make_shared<std::pair<bool, std::uint64_t>>();
  submit(
      deadline, 0,
      [name = std::move(name), slice_max, result](StoreFolder& folder) {
        return folder.remove(name, slice_max, result->first, result->second);
      },
      [result, done = std::move(done)](MissReason reason) {
        const bool is_known = reason == MissReason::kNone;
        done(reason, is_known && result->first, is_known ? result->second : 0);
      });
}

void PosixStore::add_to_manifest(ManifestId id, std::vector<StoreName> names, Instant deadline,
                                 Done done) {
  submit(
      deadline, 0,
      [id, names = std::move(names)](StoreFolder& folder) {
        return folder.add_to_manifest(id, names);
      },
      std::move(done));
}

void PosixStore::read_manifest(ManifestId id, std::string from, std::size_t names_max,
                               Instant deadline,
                               std::function<void(MissReason, ManifestPage)> done) {
  const auto page = std::make_shared<ManifestPage>();
  submit(
      deadline, 0,
      [id, from = std::move(from), names_max, page](StoreFolder& folder) {
        return folder.read_manifest(id, from, names_max, *page);
      },
      [page, done = std::move(done)](MissReason reason) {
        done(reason, reason == MissReason::kNone ? std::move(*page) : ManifestPage{});
      });
}

void PosixStore::list_manifests(Instant deadline,
                                std::function<void(MissReason, std::vector<ManifestId>)> done) {
  const auto ids = std::make_shared<std::vector<ManifestId>>();
  submit(
      deadline, 0, [ids](StoreFolder& folder) { return folder.list_manifests(*ids); },
      [ids, done = std::move(done)](MissReason reason) {
        done(reason, reason == MissReason::kNone ? std::move(*ids) : std::vector<ManifestId>{});
      });
}

void PosixStore::drop_manifest(ManifestId id, Instant deadline, Done done) {
  submit(
      deadline, 0, [id](StoreFolder& folder) { return folder.drop_manifest(id); }, std::move(done));
}

void PosixStore::take_lease(std::string what, std::string owner, Duration duration,
                            Instant deadline, std::function<void(MissReason, bool)> done) {
  const auto taken = std::make_shared<bool>(false);
  submit(
      deadline, 0,
      [what = std::move(what), owner = std::move(owner), duration, taken](StoreFolder& folder) {
        return folder.take_lease(what, owner, duration, *taken);
      },
      [taken, done = std::move(done)](MissReason reason) {
        done(reason, reason == MissReason::kNone && *taken);
      });
}

void PosixStore::give_back_lease(std::string what, std::string owner, Instant deadline, Done done) {
  submit(
      deadline, 0,
      [what = std::move(what), owner = std::move(owner)](StoreFolder& folder) {
        return folder.give_back_lease(what, owner);
      },
      std::move(done));
}

void PosixStore::use(Instant deadline, std::function<void(MissReason, StoreUse)> done) {
  const auto use = std::make_shared<StoreUse>();
  submit(
      deadline, 0, [use](StoreFolder& folder) { return folder.use(*use); },
      [use, done = std::move(done)](MissReason reason) {
        done(reason, reason == MissReason::kNone ? *use : StoreUse{});
      });
}

void PosixStore::end(std::uint64_t number, MissReason reason) {
  const auto found = pending_.find(number);
  deadlines_.erase({found->second.deadline, number});
  const Done done = std::move(found->second.done);
  pending_.erase(found);
  if (reason == MissReason::kTooSlow) ++stats_.timeouts;
  if (reason == MissReason::kIoError) ++stats_.io_errors;
  done(reason);
}

void PosixStore::poll(Instant now) {
  shared_->wake.clear();
  std::vector<std::pair<std::uint64_t, MissReason>> finished;
  std::set<std::uint64_t> late;
  {
    const std::lock_guard lock(shared_->mutex);
    finished.swap(shared_->done);
    for (auto it = deadlines_.begin(); it != deadlines_.end() && it->first <= now; ++it)
      late.insert(it->second);
    for (const auto& [number, reason] : finished) {
      stranded_.erase(number);
      late.erase(number);
    }
    for (const std::uint64_t number : late)
      if (shared_->under_way.contains(number)) stranded_.emplace(number, pending_.at(number).bytes);
    if (!late.empty())
      std::erase_if(shared_->queue,
                    [&](const Shared::Call& call) { return late.contains(call.number); });
  }
  for (const auto& [number, reason] : finished)
    if (pending_.contains(number)) end(number, reason);
  for (const std::uint64_t number : late)
    end(number, MissReason::kTooSlow);
  for (const auto& [done, reason] : std::exchange(ended_, {}))
    done(reason);
}

int PosixStore::event_fd() const {
  return shared_->wake.fd();
}

StoreStats PosixStore::stats() const {
  StoreStats stats = stats_;
  for (const auto& [number, bytes] : stranded_)
    stats.stranded_bytes += bytes;
  const std::string trouble = shared_->folder.trouble();
  if (!stranded_.empty()) {
    stats.state = fmt::format("{} calls hang; see whether the mount answers", stranded_.size());
  } else {
    stats.state = trouble.empty() ? "ok" : trouble;
  }
  return stats;
}

}  // namespace penstock::posix_store
