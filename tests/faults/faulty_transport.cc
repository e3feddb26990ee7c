#include "tests/faults/faulty_transport.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/check.h"

namespace penstock::faults {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(50);

// Of the message's first byte.
std::string_view kind_name(std::string_view message) {
  switch (message.empty() ? 0 : static_cast<unsigned char>(message.front())) {
    case 1:
      return "attach";
    case 2:
      return "renew";
    case 3:
      return "ack";
    case 4:
      return "release";
    case 16:
      return "attached";
    case 17:
      return "renewed";
    case 18:
      return "part";
    case 19:
      return "closed";
    case 20:
      return "ended";
    case 21:
      return "alive";
    default:
      return "unknown";
  }
}

// Kind, version, id, pull, epoch, received and tokens stand before the number of layers.
constexpr std::size_t kAttachLayers = 1 + 2 + 16 + 8 + 8 + 4 + 4;

}  // namespace

void TransportFaults::refresh() {
  std::ifstream file(file_);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str() == text_) return;
  text_ = text.str();
  rows_.clear();
  std::istringstream lines(text_);
  std::string fault;
  Row row;
  while (lines >> fault >> row.per_million >> row.delay_ms)
    rows_[fault] = row;
}

bool TransportFaults::strikes(const std::string& fault) {
  const auto row = rows_.find(fault);
  return row != rows_.end() && rng_.below(1'000'000) < row->second.per_million;
}

Duration TransportFaults::delay(const std::string& fault) {
  const auto row = rows_.find(fault);
  if (row == rows_.end()) return {};
  return std::chrono::milliseconds(1 + rng_.below(row->second.delay_ms + 1));
}

void FaultyTransport::set_events(TransportEvents events) {
  events_ = std::move(events);
  plan_.refresh();
  TransportEvents below;
  below.accepted = [this](PeerId peer) {
    peers_.emplace(peer, Peer{});
    events_.accepted(peer);
  };
  below.opened = [this](PeerId peer) {
    const auto open = [this, peer](Peer& state) {
      if (!state.ended) events_.opened(peer);
    };
    if (plan_.strikes("connect.delay"))
      later(plan_.delay("connect.delay"), peer, open);
    else if (const auto found = peers_.find(peer); found != peers_.end())
      open(found->second);
  };
  below.message = [this](PeerId peer, std::string_view message) {
    if (!peers_.contains(peer)) return;
    if (plan_.strikes("cut.message")) cut(peer);
    events_.message(peer, message);
  };
  below.closed = [this](PeerId peer, const std::string& why) { closed(peer, why); };
  below.readable = [this](PeerId peer, std::uint32_t pool, std::uint32_t block,
                          std::uint64_t generation) {
    return events_.readable(peer, pool, block, generation);
  };
  clock().call_at(clock().now() + kTick, [this] { tick(); });
  inner_->set_events(std::move(below));
}

void FaultyTransport::tick() {
  plan_.refresh();
  for (const auto& [peer, state] : peers_)
    if (plan_.strikes("cut.tick")) cut(peer);
  if (plan_.strikes("stall")) std::this_thread::sleep_for(plan_.delay("stall"));
  clock().call_at(clock().now() + kTick, [this] { tick(); });
}

void FaultyTransport::later(Duration delay, PeerId peer, std::function<void(Peer&)> call) {
  clock().call_at(clock().now() + delay, [this, peer, call = std::move(call)] {
    if (const auto found = peers_.find(peer); found != peers_.end()) call(found->second);
  });
}

Result<PeerId> FaultyTransport::connect(const std::string& address, Instant deadline) {
  const bool fails = plan_.strikes("connect.fail");
  const std::string nobody = address.starts_with("shm:") ? address + ".nobody" : "tcp:127.0.0.1:1";
  Result<PeerId> peer = inner_->connect(fails ? nobody : address, deadline);
  if (peer) peers_[*peer].made = true;
  return peer;
}

Status FaultyTransport::send(PeerId peer, std::string_view message) {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || found->second.ended) return inner_->send(peer, message);
  Peer& state = found->second;
  const std::string kind(kind_name(message));
  if (plan_.strikes(kind + ".drop")) return {};
  std::string bytes(message);
  if (plan_.strikes(kind + ".extra")) bytes.push_back('\0');
  if (kind == "attach" && plan_.strikes("attach.alter")) ++bytes.at(kAttachLayers);
  if (kind == "attach" && plan_.strikes("attach.strange")) {
    std::string strange(message);
    ++strange.at(kAttachLayers);
    later(plan_.delay("attach.strange"), peer, [this, peer, strange](Peer& p) {
      if (!p.ended) static_cast<void>(inner_->send(peer, strange));
    });
  }
  const int times = plan_.strikes(kind + ".twice") ? 2 : 1;
  const bool holds = plan_.strikes(kind + ".hold");
  if (!holds && state.held.empty()) {
    for (int i = 1; i < times; ++i)
      static_cast<void>(inner_->send(peer, bytes));
    return inner_->send(peer, bytes);
  }
  if (state.held.empty())
    later(plan_.delay(kind + ".hold"), peer, [this, peer](Peer& p) { flush(peer, p); });
  for (int i = 0; i < times; ++i)
    state.held.push_back(bytes);
  return {};
}

void FaultyTransport::flush(PeerId peer, Peer& state) {
  for (; !state.held.empty() && !state.ended; state.held.pop_front()) {
    if (!inner_->send(peer, state.held.front())) return cut(peer);
  }
}

void FaultyTransport::closed(PeerId peer, const std::string& why) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  end_reads(peer);
  if (!found->second.made && plan_.strikes("lost.hold")) {
    found->second.ended = true;
    later(plan_.delay("lost.hold"), peer, [this, peer, why](Peer&) {
      peers_.erase(peer);
      events_.closed(peer, why);
    });
    return;
  }
  peers_.erase(found);
  events_.closed(peer, why);
}

// The service must not hear of it within a call of its own.
void FaultyTransport::cut(PeerId peer) {
  clock().post([this, peer] {
    const auto found = peers_.find(peer);
    if (found == peers_.end() || found->second.ended) return;
    for (auto& [id, read] : reads_)
      if (read.peer == peer && read.timer == 0) inner_->cancel(read.inner);
    inner_->close(peer);
    closed(peer, "cut by the plan of faults");
  });
}

void FaultyTransport::close(PeerId peer) {
  const auto found = peers_.find(peer);
  const bool ended = found != peers_.end() && found->second.ended;
  if (found != peers_.end()) peers_.erase(found);
  if (!ended) inner_->close(peer);
  end_reads(peer);
}

void FaultyTransport::end_reads(PeerId peer) {
  while (true) {
    const auto found =
        std::ranges::find_if(reads_, [&](const auto& row) { return row.second.peer == peer; });
    if (found == reads_.end()) return;
    if (found->second.timer != 0) clock().cancel(found->second.timer);
    const ReadDone done = std::move(found->second.done);
    reads_.erase(found);
    done(ReadEnd::kGone);
  }
}

ReadId FaultyTransport::read(PeerId peer, const RemoteSlice& wanted, std::byte* into,
                             Instant deadline, ReadDone done) {
  RemoteSlice slice = wanted;
  const std::pair key{std::uint64_t{slice.pool} << 32 | slice.block,
                      slice.generation << 32 | slice.offset};
  if (plan_.strikes("read.ruin")) ruined_[key] = 2;
  const auto ruined = ruined_.find(key);
  if (ruined != ruined_.end() && --ruined->second == 0) ruined_.erase(ruined);
  if (ruined != ruined_.end() || plan_.strikes("read.corrupt")) slice.checksum ^= 1;
  if (plan_.strikes("read.stale")) ++slice.generation;
  if (plan_.strikes("read.refuse")) slice.pool = 255;
  if (plan_.strikes("read.late")) deadline = clock().now();
  const ReadId id(++last_read_);
  reads_.emplace(id, Read{peer, ReadId{}, 0, std::move(done)});
  if (!peers_.contains(peer)) {
    clock().post([this, peer] { end_reads(peer); });
    return id;
  }
  if (plan_.strikes("cut.read")) cut(peer);
  if (plan_.strikes("read.delay")) {
    reads_.at(id).timer = clock().call_at(clock().now() + plan_.delay("read.delay"),
                                          [this, id, slice, into, deadline] {
                                            reads_.at(id).timer = 0;
                                            start(id, slice, into, deadline);
                                          });
  } else {
    start(id, slice, into, deadline);
  }
  return id;
}

void FaultyTransport::start(ReadId id, const RemoteSlice& slice, std::byte* into,
                            Instant deadline) {
  Read& read = reads_.at(id);
  read.inner = inner_->read(read.peer, slice, into, deadline, [this, id](ReadEnd end) {
    const auto found = reads_.find(id);
    ENSURE(found != reads_.end());
    const ReadDone done = std::move(found->second.done);
    reads_.erase(found);
    done(end);
  });
}

void FaultyTransport::cancel(ReadId id) {
  const auto found = reads_.find(id);
  if (found == reads_.end()) return;
  if (found->second.timer != 0)
    clock().cancel(found->second.timer);
  else
    inner_->cancel(found->second.inner);
  reads_.erase(found);
}

}  // namespace penstock::faults
