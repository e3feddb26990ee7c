#include "io/zmq/kv_event_feed.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/hash.h"
#include "core/dialects/kv_events.h"

namespace penstock::zmq {
namespace {

using Steady = std::chrono::steady_clock;
using Do = kvcache::EventStream::Do;

constexpr long kTickMs = 100;                // replays and silence are looked at this often
constexpr std::size_t kMessagesAtOnce = 64;  // of one publisher, before the others' turn
constexpr std::size_t kChangesAtOnce = 256;  // under the lock: some 20 us

}  // namespace

// What threads share of a source; the feed's mutex guards it.
struct KvEventFeed::Known {
  KvEventSource source;
  KvEventReport report;
  bool heard = false;                            // a message, since the last connection
  std::optional<Steady::time_point> unanswered;  // the first prompt that was sent meanwhile
  bool failed = false;                           // the thread's: it can't be followed
};

// The thread's side of a source.
class KvEventFeed::Follower {
 public:
  Follower(KvEventFeed& feed, std::shared_ptr<Known> known)
      : feed_(feed),
        known_(std::move(known)),
        stream_(!known_->source.replay.empty()),
        holdings_(feed.chain_) {
    const std::unique_lock lock(feed_.index_mutex_);
    id_ = feed_.index_.add(known_->source.rank);
  }
  ~Follower() {
    feed_.holdings_bytes_ -= bytes_;
    const std::unique_lock lock(feed_.index_mutex_);
    feed_.index_.remove(id_);
  }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  Status open(std::size_t number) {
    TRY(subscriber_, ZmqSocket::subscriber(feed_.context_.get(), known_->source.topic));
    TRY(monitor_,
        ZmqSocket::monitor(feed_.context_.get(), subscriber_, fmt::format("kv-events-{}", number)));
    return subscriber_.connect(known_->source.events);
  }

  const std::shared_ptr<Known>& known() const { return known_; }
  void add_to(std::vector<zmq_pollitem_t>& items) const {
    for (const ZmqSocket* socket : {&monitor_, &subscriber_, &dealer_}) {
      if (*socket) items.push_back({socket->get(), 0, ZMQ_POLLIN, 0});
    }
  }

  void work(Steady::time_point now) {
    while (monitor_.receive(frames_))
      connected();
    for (std::size_t i = 0; dealer_ && i < kMessagesAtOnce && dealer_.receive(frames_); ++i)
      take_replayed(now);
    for (std::size_t i = 0; i < kMessagesAtOnce && subscriber_.receive(frames_); ++i)
      take_live();
    if (dealer_ && now > replay_ends_) {
      feed_.log(
          fmt::format("KV events of {}: no answer from {} within {:.0f} s; what it holds is "
                      "learned anew (is that the engine's replay_endpoint?)",
                      known_->source.name, known_->source.replay,
                      std::chrono::duration<double>(feed_.options_.replay_time_max).count()));
      end_replay(now);
      if (stream_.replay_failed()) purge();
    }
    if (!dealer_ && now >= next_replay_) ask_replay(now);
    tell(now);
  }

 private:
  void connected() {
    ++report_.connections;
    heard_ = false;
    if (stream_.connected()) purge();
  }

  void ask_replay(Steady::time_point now) {
    const auto from = stream_.wanted_replay();
    if (!from) return;
    stream_.replay_asked();
    ++report_.replays;
    replay_ends_ = now + feed_.options_.replay_time_max;
    const auto start = dialects::sequence_frame(*from);
    auto asked = [&]() -> Status {
      TRY(dealer_, ZmqSocket::dealer(feed_.context_.get()));
      TRY_STATUS(dealer_.connect(known_->source.replay));
      return dealer_.send({"", {start.data(), start.size()}});
    }();
    if (asked) return;
    feed_.log(fmt::format("KV events of {}: {}", known_->source.name, asked.error().message));
    end_replay(now);
    if (stream_.replay_failed()) purge();
  }

  void end_replay(Steady::time_point now) {
    dealer_.close();
    next_replay_ = now + feed_.options_.replay_pause;
  }

  // [empty][number][payload]
  void take_replayed(Steady::time_point now) {
    if (!frames_.empty() && frames_.front().empty()) frames_.erase(frames_.begin());
    const auto sequence = frames_.empty() ? std::nullopt : dialects::read_sequence(frames_[0]);
    if (!sequence || frames_.size() != 2) return unreadable("its replay has other frames");
    replay_ends_ = now + feed_.options_.replay_time_max;
    if (*sequence == dialects::kReplayEnd) {
      end_replay(now);
      if (stream_.replay_ended()) purge();
      return;
    }
    take(frames_[1], stream_.replayed(*sequence, checksum64(frames_[1])));
  }

  // [topic][number][payload]
  void take_live() {
    const auto sequence = frames_.size() == 3 ? dialects::read_sequence(frames_[1]) : std::nullopt;
    if (!sequence) return unreadable("its messages have other frames than topic, number, payload");
    take(frames_[2], stream_.live(*sequence, checksum64(frames_[2])));
  }

  void take(std::string_view payload, Do what) {
    heard_ = true;
    ++report_.messages;
    if (what == Do::kPurge || what == Do::kPurgeAndSkip) purge();
    if (what != Do::kApply && what != Do::kPurge) return;
    if (auto status = dialects::decode_kv_events(std::as_bytes(std::span(payload)), batch_);
        !status)
      return unreadable(status.error().message);
    report_.unknown_events += batch_.unknown_events;
    report_.unknown_fields += batch_.unknown_fields;
    report_.bad_events += batch_.bad_events;
    const std::size_t all = feed_.memory_bytes();
    const std::size_t room = feed_.options_.bytes_max - std::min(feed_.options_.bytes_max, all);
    holdings_.apply(batch_, bytes_ + room, outcome_);
    count_bytes();
    commit();
  }

  void commit() {
    const auto locked = [&](const auto& change) {
      const std::unique_lock lock(feed_.index_mutex_);
      change(feed_.index_);
    };
    if (outcome_.cleared) locked([&](auto& index) { index.purge(id_); });
    const std::span<const kvcache::HoldingChange> changes(outcome_.changes);
    for (std::size_t at = 0; at < changes.size(); at += kChangesAtOnce) {
      const auto some = changes.subspan(at, std::min(kChangesAtOnce, changes.size() - at));
      locked([&](auto& index) { index.apply(id_, some); });
    }
    if (holdings_.stride() == stride_) return;
    stride_ = holdings_.stride();
    locked([&](auto& index) { index.set_stride(id_, stride_); });
  }

  void purge() {
    holdings_.purge();
    count_bytes();
    const std::unique_lock lock(feed_.index_mutex_);
    feed_.index_.purge(id_);
  }

  // What was lost with the message is not known, so nothing is.
  void unreadable(std::string_view why) {
    if (report_.unreadable++ == 0)
      feed_.log(fmt::format("KV events of {}: {}", known_->source.name, why));
    stream_.lost();
    purge();
  }

  void count_bytes() {
    feed_.holdings_bytes_ += holdings_.memory_bytes() - bytes_;
    bytes_ = holdings_.memory_bytes();
  }

  void tell(Steady::time_point now) {
    report_.blocks = holdings_.blocks();
    report_.bytes = bytes_;
    report_.stream = stream_.counts();
    report_.holdings = holdings_.counts();
    std::unique_lock lock(feed_.mutex_);
    if (heard_) known_->unanswered.reset();
    known_->heard = heard_;
    const bool was_silent = known_->report.silent;
    const bool is_silent =
        known_->unanswered && now - *known_->unanswered > feed_.options_.silent_after;
    report_.silent = is_silent;
    report_.rank = known_->source.rank;
    report_.name = known_->source.name;
    known_->report = report_;
    lock.unlock();
    if (was_silent || !is_silent) return;
    feed_.log(fmt::format(
        "KV events of {}: none came from {}, though it was sent prompts; its cache looks empty to "
        "routing. Start the engine with --kv-events-config "
        "'{{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://"
        "*:PORT\"}}', "
        "with PORT + rank for each rank, and check address, topic and firewall",
        known_->source.name, known_->source.events));
  }

  KvEventFeed& feed_;
  std::shared_ptr<Known> known_;
  kvcache::EngineIndex::SourceId id_ = 0;
  kvcache::EventStream stream_;
  kvcache::EngineHoldings holdings_;
  kvcache::EngineHoldings::Outcome outcome_;
  EngineKvBatch batch_;
  std::size_t bytes_ = 0;
  std::uint32_t stride_ = 0;
  ZmqSocket subscriber_;
  ZmqSocket monitor_;
  ZmqSocket dealer_;  // open while a replay is under way
  Steady::time_point replay_ends_;
  Steady::time_point next_replay_;
  bool heard_ = false;
  KvEventReport report_;
  std::vector<std::string> frames_;
};

KvEventFeed::KvEventFeed(KvEventFeedOptions options)
    : options_(std::move(options)), chain_(options_.seed), index_(options_.bytes_max) {
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  ENSURE(wake_ >= 0);
  thread_ = std::thread([this] { run(); });
}

KvEventFeed::~KvEventFeed() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
  ::close(wake_);
}

void KvEventFeed::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
}

void KvEventFeed::log(std::string_view text) const {
  if (options_.log) options_.log(text);
}

Status KvEventFeed::add(KvEventSource source) {
  TRY_STATUS(check_endpoint(source.events));
  if (!source.replay.empty()) TRY_STATUS(check_endpoint(source.replay));
  auto known = std::make_shared<Known>();
  known->report.rank = source.rank;
  known->report.name = source.name;
  known->source = std::move(source);
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(wanted_,
                  [&](const auto& other) { return other->source.rank == known->source.rank; });
    wanted_.push_back(std::move(known));
  }
  wake();
  return {};
}

void KvEventFeed::remove(kvcache::RankOfWorker rank) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(wanted_, [&](const auto& known) { return known->source.rank == rank; });
  }
  wake();
}

void KvEventFeed::sent_prompt(kvcache::RankOfWorker rank) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find_if(wanted_, [&](const auto& known) { return known->source.rank == rank; });
  if (found != wanted_.end() && !(*found)->heard && !(*found)->unanswered)
    (*found)->unanswered = Steady::now();
}

void KvEventFeed::take_orders() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto taken = ::read(wake_, &count, sizeof count);
  std::vector<std::shared_ptr<Known>> wanted;
  {
    const std::lock_guard lock(mutex_);
    wanted = wanted_;
  }
  std::erase_if(followers_, [&](const auto& follower) {
    return std::ranges::find(wanted, follower->known()) == wanted.end();
  });
  for (auto& known : wanted) {
    const bool is_followed = std::ranges::any_of(
        followers_, [&](const auto& follower) { return follower->known() == known; });
    if (is_followed || known->failed) continue;
    auto follower = std::make_unique<Follower>(*this, known);
    if (const Status opened = follower->open(next_number_++); !opened) {
      known->failed = true;
      log(fmt::format("KV events of {}: {}; they are not followed", known->source.name,
                      opened.error().message));
      continue;
    }
    followers_.push_back(std::move(follower));
  }
}

void KvEventFeed::run() {
  std::vector<zmq_pollitem_t> items;
  while (true) {
    take_orders();
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) break;
    }
    items.assign(1, zmq_pollitem_t{nullptr, wake_, ZMQ_POLLIN, 0});
    for (const auto& follower : followers_)
      follower->add_to(items);
    zmq_poll(items.data(), static_cast<int>(items.size()), kTickMs);
    const auto now = Steady::now();
    for (const auto& follower : followers_)
      follower->work(now);
  }
  followers_.clear();
}

std::span<const kvcache::RankMatch> KvEventFeed::match(
    std::span<const kvcache::RoutingKey> keys, kvcache::EngineIndex::Scratch& scratch) const {
  const std::shared_lock lock(index_mutex_);
  return index_.match(keys, scratch);
}

std::vector<KvEventReport> KvEventFeed::report() const {
  const std::lock_guard lock(mutex_);
  std::vector<KvEventReport> out;
  for (const auto& known : wanted_)
    out.push_back(known->report);
  return out;
}

std::size_t KvEventFeed::blocks() const {
  const std::shared_lock lock(index_mutex_);
  return index_.blocks();
}

std::size_t KvEventFeed::memory_bytes() const {
  const std::shared_lock lock(index_mutex_);
  return index_.memory_bytes() + holdings_bytes_;
}

}  // namespace penstock::zmq
