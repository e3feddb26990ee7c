// FakeTransport: processes that hand memory to each other on virtual time, with faults to order.
//
// A FakeNetwork is the time and the wire between FakeTransports, one per process. Messages arrive
// in order after `latency`; a read looks at the generation, takes half of the bytes, and after
// another `latency` the rest and the generation again, so a test can change memory between. With
// owner_serves a process takes part in reads of its memory (as over tcp) and asks `readable`;
// without, the reader copies by itself (as over shm), from a dead or stopped owner too.
//
// A stopped process runs nothing: timers, posted calls and events wait, and when it goes on the
// timers that have become due run before what has arrived. A dead one never runs again; its peers
// notice after `death_noticed`. One thread; everything is deterministic.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "port/transport.h"
#include "tests/support/virtual_clock.h"

namespace penstock::testing {

class FakeTransport;

enum class SendFault { kNone, kOverloaded, kDropped };
// kFlip: one bit of the bytes. kStuck: no answer, until the deadline. kCut: the connection ends.
enum class ReadFault { kNone, kFlip, kStale, kRefused, kStuck, kCut };

class FakeNetwork {
 public:
  VirtualClock clock;
  bool owner_serves = true;
  Duration death_noticed = std::chrono::milliseconds(300);
  std::function<Duration()> latency = [] { return std::chrono::microseconds(100); };
  std::function<SendFault(std::string_view)> send_fault = [](std::string_view) {
    return SendFault::kNone;
  };
  std::function<ReadFault(const RemoteSlice&)> read_fault = [](const RemoteSlice&) {
    return ReadFault::kNone;
  };
  std::function<void(const RemoteSlice&)> in_mid_read = [](const RemoteSlice&) {};
  // Before bytes are written into a process's memory.
  std::function<void(FakeTransport&, std::byte*, std::size_t)> on_write =
      [](FakeTransport&, std::byte*, std::size_t) {};
  std::uint64_t messages = 0;
  std::uint64_t reads = 0;

 private:
  friend class FakeTransport;
  std::map<std::string, FakeTransport*> listening_;
  std::uint64_t last_id_ = 0;
};

class FakeTransport final : public Transport {
 public:
  FakeTransport(FakeNetwork& network, std::string address)
      : network_(network), address_(std::move(address)), clock_(*this) {
    network_.listening_[address_] = this;
  }
  ~FakeTransport() override { kill(); }
  FakeTransport(const FakeTransport&) = delete;
  FakeTransport& operator=(const FakeTransport&) = delete;

  // --- Faults
  void stop() { stopped_ = true; }
  void resume() {
    stopped_ = false;
    std::deque<std::function<void()>> timers = std::exchange(held_timers_, {});
    std::deque<std::function<void()>> events = std::exchange(held_events_, {});
    timers.insert(timers.end(), events.begin(), events.end());
    for (auto& call : timers)
      network_.clock.post([this, alive = std::weak_ptr<bool>(alive_), call = std::move(call)] {
        if (!alive.expired()) run(held_events_, call);
      });
  }
  void kill() {
    if (dead_) return;
    dead_ = true;
    alive_.reset();
    held_timers_.clear();
    held_events_.clear();
    reads_.clear();
    const auto found = network_.listening_.find(address_);
    if (found != network_.listening_.end() && found->second == this)
      network_.listening_.erase(found);
    for (auto& [peer, link] : links_) {
      link.wire->end[link.side].transport = nullptr;
      if (FakeTransport* other = link.wire->end[1 - link.side].transport; other != nullptr)
        other->end_later(link.wire, 1 - link.side, network_.death_noticed, "it died");
    }
    links_.clear();
  }
  bool dead() const { return dead_; }
  // Ends every connection with everybody; both sides notice.
  void cut_all() {
    std::vector<PeerId> peers;
    for (const auto& [peer, link] : links_)
      peers.push_back(peer);
    for (const PeerId peer : peers)
      cut(peer);
  }
  void cut(PeerId peer) {
    const auto found = links_.find(peer);
    if (found == links_.end()) return;
    const Link link = found->second;
    for (const int side : {link.side, 1 - link.side})
      if (FakeTransport* at = link.wire->end[side].transport; at != nullptr)
        at->end_later(link.wire, side, network_.latency(), "the connection was cut");
  }
  std::vector<PeerId> peers() const {
    std::vector<PeerId> peers;
    for (const auto& [peer, link] : links_)
      peers.push_back(peer);
    return peers;
  }
  // Is a read of that block under way here?
  bool is_reading(const FakeTransport& owner, std::uint32_t pool, std::uint32_t block,
                  std::uint64_t generation) const {
    for (const auto& [id, read] : reads_) {
      const auto link = links_.find(read.peer);
      if (link != links_.end() && link->second.wire->end[1].transport == &owner &&
          read.slice.pool == pool && read.slice.block == block &&
          read.slice.generation == generation)
        return true;
    }
    return false;
  }
  bool stopped() const { return stopped_; }
  std::size_t connections() const { return links_.size(); }
  std::size_t reads_pending() const { return reads_.size(); }
  // Says something as this process would not.
  void say(PeerId peer, std::string_view bytes) { (void)send(peer, bytes); }
  const TransportEvents& events() const { return events_; }

  // --- Transport
  Clock& clock() override { return clock_; }
  void set_events(TransportEvents events) override { events_ = std::move(events); }
  std::uint32_t publish(const PublishedPool& pool) override {
    pools_->push_back(pool);
    return static_cast<std::uint32_t>(pools_->size() - 1);
  }
  std::string address() const override { return address_; }

  Result<PeerId> connect(const std::string& address, Instant deadline) override {
    if (address.empty()) return fail(ErrorCode::kInvalidArgument, "no address");
    const PeerId mine(++network_.last_id_);
    auto wire = std::make_shared<Wire>();
    wire->end[0] = {this, mine, Instant::min()};
    links_.emplace(mine, Link{wire, 0, false});
    const auto found = network_.listening_.find(address);
    if (found == network_.listening_.end()) {
      end_later(wire, 0, network_.latency(), "nobody listens there");
      return mine;
    }
    FakeTransport& other = *found->second;
    const PeerId theirs(++network_.last_id_);
    wire->end[1] = {&other, theirs, Instant::min()};
    wire->pools = other.pools_;
    other.links_.emplace(theirs, Link{wire, 1, false});
    other.event_at(arrival(*wire, 1), [this, wire, theirs] {
      FakeTransport* at = wire->end[1].transport;
      if (at == nullptr || !at->links_.contains(theirs)) return;
      at->links_.at(theirs).open = true;
      at->events_.accepted(theirs);
      if (wire->end[0].transport == nullptr) return;  // and this is no more
      event_at(arrival(*wire, 0), [this, wire] {
        const auto link = links_.find(wire->end[0].peer);
        if (link == links_.end()) return;
        link->second.open = true;
        events_.opened(link->first);
      });
    });
    network_.clock.call_at(deadline, [this, alive = std::weak_ptr<bool>(alive_), wire, mine] {
      if (alive.expired()) return;
      const auto link = links_.find(mine);
      if (link == links_.end() || link->second.open) return;
      if (FakeTransport* at = wire->end[1].transport; at != nullptr)
        at->end_later(wire, 1, network_.latency(), "given up by who connected");
      end_later(wire, 0, Duration::zero(), "no connection in time");
    });
    return mine;
  }

  Status send(PeerId peer, std::string_view message) override {
    const auto found = links_.find(peer);
    if (found == links_.end() || !found->second.open)
      return fail(ErrorCode::kUnavailable, "no such peer");
    ++network_.messages;
    const SendFault fault = network_.send_fault(message);
    if (fault == SendFault::kOverloaded) return fail(ErrorCode::kOverloaded, "queue is full");
    const int side = 1 - found->second.side;
    const std::shared_ptr<Wire> wire = found->second.wire;
    FakeTransport* to = wire->end[side].transport;
    if (to == nullptr || fault == SendFault::kDropped) return {};
    to->event_at(arrival(*wire, side), [to, wire, side, bytes = std::string(message)] {
      const PeerId at = wire->end[side].peer;
      if (to->links_.contains(at)) to->events_.message(at, bytes);
    });
    return {};
  }

  void close(PeerId peer) override {
    const auto found = links_.find(peer);
    if (found == links_.end()) return;
    const Link link = found->second;
    links_.erase(found);
    link.wire->end[link.side].transport = nullptr;
    end_reads(peer, false);
    if (FakeTransport* other = link.wire->end[1 - link.side].transport; other != nullptr)
      other->end_later(link.wire, 1 - link.side, network_.latency(), "its other end was closed");
  }

  ReadId read(PeerId peer, const RemoteSlice& slice, std::byte* into, Instant deadline,
              ReadDone done) override {
    const ReadId id(++network_.last_id_);
    ++network_.reads;
    reads_.emplace(id, Read{peer, slice, into, std::move(done), {}});
    const auto link = links_.find(peer);
    if (link == links_.end()) {
      finish_later(id, ReadEnd::kGone);
      return id;
    }
    network_.clock.call_at(deadline, [this, alive = std::weak_ptr<bool>(alive_), id] {
      if (!alive.expired() && reads_.contains(id)) finish_later(id, ReadEnd::kDeadline);
    });
    const ReadFault fault = network_.read_fault(slice);
    if (fault == ReadFault::kStuck) return id;
    if (fault == ReadFault::kCut) {
      cut(peer);
      return id;
    }
    const std::shared_ptr<Wire> wire = link->second.wire;
    at_server(*wire, network_.latency(), [this, id, wire, fault] { look(id, wire, fault); });
    return id;
  }
  void cancel(ReadId read) override { reads_.erase(read); }

 private:
  struct End {
    FakeTransport* transport = nullptr;  // null: gone
    PeerId peer;                         // as this end calls the connection
    Instant last;                        // when the latest event of this end arrives
  };
  using Pools = std::shared_ptr<std::vector<PublishedPool>>;
  struct Wire {
    End end[2];   // who connected, who accepted
    Pools pools;  // of who accepted; mapped, so that they stay when it dies
  };
  struct Link {
    std::shared_ptr<Wire> wire;
    int side = 0;
    bool open = false;
  };
  struct Read {
    PeerId peer;
    RemoteSlice slice;
    std::byte* into = nullptr;
    ReadDone done;
    std::vector<std::byte> bytes;
  };

  class ProcessClock final : public Clock {
   public:
    explicit ProcessClock(FakeTransport& process) : process_(process) {}
    Instant now() const override { return process_.network_.clock.now(); }
    TimerId call_at(Instant when, std::function<void()> call) override {
      const TimerId id = ++last_;
      calls_.emplace(id, std::move(call));
      process_.network_.clock.call_at(when,
                                      [this, alive = std::weak_ptr<bool>(process_.alive_), id] {
                                        if (alive.expired()) return;
                                        process_.run(process_.held_timers_, [this, id] {
                                          auto node = calls_.extract(id);
                                          if (!node.empty()) node.mapped()();
                                        });
                                      });
      return id;
    }
    void cancel(TimerId timer) override { calls_.erase(timer); }
    void post(std::function<void()> call) override {
      process_.network_.clock.post(
          [this, alive = std::weak_ptr<bool>(process_.alive_), call = std::move(call)] {
            if (!alive.expired()) process_.run(process_.held_events_, call);
          });
    }

   private:
    FakeTransport& process_;
    TimerId last_ = 0;
    std::map<TimerId, std::function<void()>> calls_;
  };

  void run(std::deque<std::function<void()>>& held, const std::function<void()>& call) {
    if (dead_) return;
    if (stopped_)
      held.push_back(call);
    else
      call();
  }
  // On this process, unless it is dead by then; later when it is stopped.
  void event_at(Instant when, std::function<void()> call) {
    network_.clock.call_at(when,
                           [this, alive = std::weak_ptr<bool>(alive_), call = std::move(call)] {
                             if (!alive.expired()) run(held_events_, call);
                           });
  }
  Instant arrival(Wire& wire, int side) {
    Instant& last = wire.end[side].last;
    last = std::max(last, network_.clock.now() + network_.latency());
    return last;
  }
  // The connection has ended, as this end learns after `delay`.
  void end_later(const std::shared_ptr<Wire>& wire, int side, Duration delay, std::string why) {
    Instant& last = wire->end[side].last;
    last = std::max(last, network_.clock.now() + delay);
    event_at(last, [this, wire, side, why = std::move(why)] {
      const PeerId peer = wire->end[side].peer;
      if (links_.erase(peer) == 0) return;
      wire->end[side].transport = nullptr;
      end_reads(peer, true);
      events_.closed(peer, why);
    });
  }
  void end_reads(PeerId peer, bool now) {
    std::vector<ReadId> ended;
    for (const auto& [id, read] : reads_)
      if (read.peer == peer) ended.push_back(id);
    for (const ReadId id : ended)
      now ? finish(id, ReadEnd::kGone) : finish_later(id, ReadEnd::kGone);
  }
  void finish(ReadId id, ReadEnd end) {
    auto node = reads_.extract(id);
    if (!node.empty()) node.mapped().done(end);
  }
  void finish_later(ReadId id, ReadEnd end) {
    event_at(network_.clock.now(), [this, id, end] { finish(id, end); });
  }

  // Where a read's bytes are taken: at the owner, or at the reader.
  void at_server(Wire& wire, Duration delay, std::function<void()> step) {
    FakeTransport* server = network_.owner_serves ? wire.end[1].transport : this;
    if (server == nullptr) return;  // the end of the connection will end the read
    server->event_at(network_.clock.now() + delay,
                     [alive = std::weak_ptr<bool>(alive_), step = std::move(step)] {
                       if (!alive.expired()) step();
                     });
  }
  static std::uint64_t generation(const PublishedPool& pool, std::uint32_t block) {
    std::uint64_t word = 0;
    std::memcpy(&word, pool.base + std::size_t{block} * 8, 8);
    return word;
  }
  void look(ReadId id, const std::shared_ptr<Wire>& wire, ReadFault fault) {
    const auto found = reads_.find(id);
    if (found == reads_.end()) return;
    const RemoteSlice& slice = found->second.slice;
    FakeTransport* owner = wire->end[1].transport;
    if (network_.owner_serves && owner == nullptr) return;
    if (slice.pool >= wire->pools->size() || fault == ReadFault::kRefused)
      return finish_later(id, ReadEnd::kRefused);
    const PublishedPool& pool = (*wire->pools)[slice.pool];
    if (slice.block >= pool.blocks || std::uint64_t{slice.offset} + slice.length > pool.block_bytes)
      return finish_later(id, ReadEnd::kRefused);
    if (network_.owner_serves &&
        !owner->events_.readable(wire->end[1].peer, slice.pool, slice.block, slice.generation))
      return finish_later(id, ReadEnd::kRefused);
    if (generation(pool, slice.block) != slice.generation || fault == ReadFault::kStale)
      return finish_later(id, ReadEnd::kStale);
    const std::byte* from =
        pool.base + pool.payload_offset + slice.block * pool.block_bytes + slice.offset;
    const std::size_t half = slice.length / 2;
    found->second.bytes.assign(from, from + half);
    if (!network_.owner_serves) write(found->second, 0);
    network_.in_mid_read(slice);
    at_server(*wire, network_.latency(), [this, id, pool, from, half, fault] {
      const auto read = reads_.find(id);
      if (read == reads_.end()) return;
      const RemoteSlice& asked = read->second.slice;
      std::vector<std::byte>& bytes = read->second.bytes;
      bytes.insert(bytes.end(), from + half, from + asked.length);
      if (fault == ReadFault::kFlip) bytes[bytes.size() / 3] ^= std::byte{4};
      if (generation(pool, asked.block) != asked.generation)
        return finish_later(id, ReadEnd::kStale);
      if (!network_.owner_serves) return arrive(id);
      event_at(network_.clock.now() + network_.latency(), [this, id] { arrive(id); });
    });
  }
  void arrive(ReadId id) {
    const auto read = reads_.find(id);
    if (read == reads_.end()) return;
    write(read->second, 0);
    finish(id, checksum64(read->second.bytes) == read->second.slice.checksum ? ReadEnd::kDone
                                                                             : ReadEnd::kCorrupt);
  }
  void write(const Read& read, std::size_t from) {
    network_.on_write(*this, read.into + from, read.bytes.size() - from);
    std::memcpy(read.into + from, read.bytes.data() + from, read.bytes.size() - from);
  }

  FakeNetwork& network_;
  std::string address_;
  ProcessClock clock_;
  TransportEvents events_;
  Pools pools_ = std::make_shared<std::vector<PublishedPool>>();
  std::map<PeerId, Link> links_;
  std::map<ReadId, Read> reads_;
  bool stopped_ = false;
  bool dead_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::deque<std::function<void()>> held_timers_;
  std::deque<std::function<void()>> held_events_;
};

}  // namespace penstock::testing
