#include "service/kvd/cluster_gc.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hash.h"

namespace penstock::service {
namespace {

constexpr std::size_t kUnderWayMax = 16;
constexpr std::size_t kCursorMax = 512;
constexpr std::size_t kSeenMax = std::size_t{1} << 22;
constexpr Duration kLease = std::chrono::minutes(2);
constexpr TimeSlice kAnySlice = ~TimeSlice{0} >> 1;

StoreBuffer buffer_of(std::size_t bytes) {
  StoreBuffer buffer{std::make_shared<std::byte[]>(bytes), {}};
  buffer.bytes = {buffer.owner.get(), bytes};
  return buffer;
}

}  // namespace

ClusterGc::ClusterGc(BlockStore& store, ClusterGcOptions options)
    : store_(store), options_(std::move(options)) {}

template <typename... Rest, typename Then>
auto ClusterGc::answer(Then then) {
  return [this, alive = std::weak_ptr(alive_), then](MissReason reason, Rest... rest) {
    if (alive.expired()) return;
    if (reason != MissReason::kNone && reason != MissReason::kNeverStored) return fail();
    then(reason, std::move(rest)...);
  };
}

TimeSlice ClusterGc::lifetime(TtlClass ttl_class) const {
  if (ttl_class >= options_.classes.size()) return 1;
  const auto slice = options_.slice.count();
  return static_cast<TimeSlice>((options_.classes[ttl_class].ttl.count() + slice - 1) / slice);
}

TimeSlice ClusterGc::current() const {
  return static_cast<TimeSlice>(std::max<std::int64_t>(now_.wall.value, 0) /
                                options_.slice.count());
}

std::string ClusterGc::name_of(ManifestId id) const {
  return "sweep-" + std::to_string(id.ttl_class) + "-" + std::to_string(id.slice);
}

void ClusterGc::fail() {
  ++numbers_.failures;
  end_run();
}

void ClusterGc::end_run() {
  // Answers that are still to come are of a run that is over.
  alive_ = std::make_shared<bool>(true);
  under_way_ = 0;
  to_remove_.clear();
  kept_.clear();
  due_.clear();
  young_.clear();
  seen_.clear();
  step_ = Step::kIdle;
  next_run_ = now_.now + options_.interval;
  ++numbers_.runs;
}

void ClusterGc::poll(TierNow now) {
  now_ = now;
  if (step_ == Step::kIdle && now.now >= next_run_) list();
  if (step_ == Step::kNext) next();
  if (step_ == Step::kSweeping) work();
}

void ClusterGc::list() {
  step_ = Step::kWaiting;
  allowed_at_ = now_.now;
  removed_before_ = numbers_.removed_bytes;
  store_.list_manifests(now_.now + options_.limit,
                        answer<std::vector<ManifestId>>(
                            [this](MissReason, std::vector<ManifestId> ids) { listed(ids); }));
}

void ClusterGc::listed(std::vector<ManifestId> ids) {
  numbers_.manifests = ids.size();
  std::ranges::sort(ids, {},
                    [](const ManifestId& id) { return std::pair(id.slice, id.ttl_class); });
  for (const ManifestId& id : ids) {
    const TimeSlice last = id.slice + lifetime(id.ttl_class);
    if (last < current()) {
      due_.push_back({id, current() - 1, true});
    } else if (id.slice < current()) {
      young_.push_back({id, last, false});
    }
  }
  ask_use();
}

// Whether there is room decides whether the young are swept, too.
void ClusterGc::ask_use() {
  if (!due_.empty()) {
    step_ = Step::kNext;
    return;
  }
  if (young_.empty()) return end_run();
  step_ = Step::kWaiting;
  store_.use(now_.now + options_.limit, answer<StoreUse>([this](MissReason, const StoreUse& use) {
               const std::uint64_t gone = numbers_.removed_bytes - removed_before_;
               const bool is_full = use.full && gone == 0;
               const bool is_over =
                   options_.bytes_max > 0 && use.bytes_used > options_.bytes_max + gone;
               if (!is_full && !is_over) return end_run();
               due_.push_back(young_.front());
               young_.pop_front();
               step_ = Step::kNext;
             }));
}

void ClusterGc::next() {
  if (due_.empty()) return ask_use();
  step_ = Step::kWaiting;
  const Sweep sweep = due_.front();
  due_.pop_front();
  if (options_.dry_run) return begin(sweep);
  store_.take_lease(name_of(sweep.id), options_.owner, kLease, now_.now + options_.limit,
                    answer<bool>([this, sweep](MissReason, bool taken) {
                      if (taken) {
                        begin(sweep);
                      } else {
                        step_ = Step::kNext;
                      }
                    }));
}

void ClusterGc::begin(const Sweep& sweep) {
  sweep_ = sweep;
  at_.clear();
  if (options_.dry_run) return read_page();
  const StoreBuffer cursor = buffer_of(kCursorMax);
  store_.get({{StorePool::kSmall, name_of(sweep.id)},
              0,
              cursor,
              now_.now + options_.limit,
              answer<std::size_t>([this, cursor](MissReason, std::size_t bytes) {
                at_.assign(reinterpret_cast<const char*>(cursor.bytes.data()), bytes);
                read_page();
              })});
}

void ClusterGc::read_page() {
  step_ = Step::kWaiting;
  store_.read_manifest(sweep_.id, at_, options_.names_per_page, now_.now + options_.limit,
                       answer<ManifestPage>([this](MissReason, ManifestPage page) {
                         page_end_ = std::move(page.next);
                         numbers_.names += page.names.size();
                         if (options_.dry_run) return look(std::move(page.names));
                         to_remove_.assign(page.names.begin(), page.names.end());
                         step_ = Step::kSweeping;
                       }));
}

void ClusterGc::look(std::vector<StoreName> names) {
  if (names.empty()) return end_page();
  // A name may stand in several manifests; it goes with the first.
  std::vector<std::uint64_t> hashes;
  for (const StoreName& name : names)
    hashes.push_back(checksum64(name.name));
  store_.look_up(
      {std::move(names), now_.now + options_.limit,
       answer<std::vector<StoreFound>>(
           [this, hashes = std::move(hashes)](MissReason, const std::vector<StoreFound>& found) {
             for (std::size_t i = 0; i < found.size(); ++i) {
               if (found[i].bytes == 0 || seen_.contains(hashes[i])) continue;
               const bool goes = found[i].slice <= sweep_.slice_max;
               ++(goes ? numbers_.removed : numbers_.kept);
               if (!goes) continue;
               numbers_.removed_bytes += found[i].bytes;
               if (seen_.size() < kSeenMax) seen_.insert(hashes[i]);
             }
             end_page();
           })});
}

void ClusterGc::work() {
  const double seconds = std::chrono::duration<double>(now_.now - allowed_at_).count();
  allowed_at_ = now_.now;
  const auto rate = static_cast<double>(options_.names_per_second);
  allowance_ = std::min(allowance_ + seconds * rate, std::max(rate / 10, 1.0));
  while (!to_remove_.empty() && allowance_ >= 1 && under_way_ < kUnderWayMax) {
    --allowance_;
    ++under_way_;
    const StoreName name = to_remove_.front();
    to_remove_.pop_front();
    store_.remove(name, sweep_.slice_max, now_.now + options_.limit,
                  answer<bool, std::uint64_t>(
                      [this, name](MissReason reason, bool removed, std::uint64_t bytes) {
                        if (reason == MissReason::kNone && !removed) kept_.push_back(name);
                        if (reason == MissReason::kNone)
                          ++(removed ? numbers_.removed : numbers_.kept);
                        if (removed) numbers_.removed_bytes += bytes;
                        one_done();
                      }));
  }
  if (to_remove_.empty() && under_way_ == 0) end_page();
}

void ClusterGc::one_done() {
  --under_way_;
  if (to_remove_.empty() && under_way_ == 0) end_page();
}

void ClusterGc::end_page() {
  step_ = Step::kWaiting;
  if (kept_.empty()) return save_place();
  store_.add_to_manifest({sweep_.id.ttl_class, current()}, std::exchange(kept_, {}),
                         now_.now + options_.limit, answer<>([this](MissReason) { save_place(); }));
}

void ClusterGc::save_place() {
  if (page_end_.empty()) return end_sweep();
  at_ = page_end_;
  if (options_.dry_run) return read_page();
  const StoreBuffer cursor = buffer_of(std::min(at_.size(), kCursorMax));
  std::memcpy(cursor.bytes.data(), at_.data(), cursor.bytes.size());
  store_.put({{StorePool::kSmall, name_of(sweep_.id)},
              cursor,
              sweep_.id.slice,
              now_.now + options_.limit,
              answer<>([this](MissReason) {
                store_.take_lease(name_of(sweep_.id), options_.owner, kLease,
                                  now_.now + options_.limit,
                                  answer<bool>([this](MissReason, bool taken) {
                                    if (taken) return read_page();
                                    step_ = Step::kNext;  // it took too long: another goes on
                                  }));
              })});
}

void ClusterGc::end_sweep() {
  ++numbers_.swept;
  if (options_.dry_run) {
    step_ = Step::kNext;
    return;
  }
  step_ = Step::kWaiting;
  const ManifestId id = sweep_.id;
  store_.drop_manifest(
      id, now_.now + options_.limit, answer<>([this, id](MissReason) {
        store_.remove({StorePool::kSmall, name_of(id)}, kAnySlice, now_.now + options_.limit,
                      answer<bool, std::uint64_t>([this, id](MissReason, bool, std::uint64_t) {
                        store_.give_back_lease(
                            name_of(id), options_.owner, now_.now + options_.limit,
                            answer<>([this](MissReason) { step_ = Step::kNext; }));
                      }));
      }));
}

}  // namespace penstock::service
