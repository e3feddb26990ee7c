// FaultyTransport: a Transport that breaks what its owner asks of another, to a plan.
//
// What it does to reads goes through the code that a real fault would take: a corrupt read asks
// for another checksum, a stale one for another generation, a refused one for a pool that is not
// there, a late one has no time. A cut ends a connection for both sides, its reads before it.
// Messages are never altered in a way that a reader could take for sense: the streams below are
// reliable, so there is no checksum over them; they are lost, late (with all that come after, per
// connection), sent twice, made too long, or (attach only) ask for another layout.
//
// The plan is a file with lines `FAULT CHANCE MS`: a chance in a million for each occasion, and the
// longest delay. It is read again when it changes. Faults:
//   read.{corrupt,ruin,stale,refuse,late,delay}   ruin: corrupt the second time, too
//   connect.{fail,delay}, cut.{tick,message,read}, lost.hold (the end of an accepted one is told
//   late) stall: this thread sleeps, so nothing is read, renewed or answered (looked at every 50
//   ms) KIND.{drop,hold,twice,extra}, attach.alter    KIND: a message's name in
//   docs/protocol/handoff.md; attach.strange: one more comes later, which asks for another layout
//
// Errors and concurrency: as Transport. The plan's choices are a function of the seed and of the
// order of calls.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/rng.h"
#include "port/transport.h"

namespace penstock::faults {

class TransportFaults {
 public:
  TransportFaults(std::string file, std::uint64_t seed) : file_(std::move(file)), rng_(seed) {}

  // Reads the file if it has changed.
  void refresh();
  bool strikes(const std::string& fault);
  // A delay for a fault that strikes.
  Duration delay(const std::string& fault);

 private:
  struct Row {
    std::uint64_t per_million = 0;
    std::uint64_t delay_ms = 0;
  };
  std::string file_;
  std::string text_;
  std::map<std::string, Row> rows_;
  Rng rng_;
};

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, TransportFaults plan)
      : plan_(std::move(plan)), inner_(std::move(inner)) {}

  Clock& clock() override { return inner_->clock(); }
  void set_events(TransportEvents events) override;
  std::uint32_t publish(const PublishedPool& pool) override { return inner_->publish(pool); }
  std::string address() const override { return inner_->address(); }
  Result<PeerId> connect(const std::string& address, Instant deadline) override;
  Status send(PeerId peer, std::string_view message) override;
  void close(PeerId peer) override;
  ReadId read(PeerId peer, const RemoteSlice& slice, std::byte* into, Instant deadline,
              ReadDone done) override;
  void cancel(ReadId read) override;

 private:
  struct Peer {
    bool made = false;   // by connect()
    bool ended = false;  // below; `closed` is still held
    std::deque<std::string> held;
  };
  struct Read {
    PeerId peer;
    ReadId inner;
    Clock::TimerId timer = 0;  // of a delayed one
    ReadDone done;
  };
  void tick();
  void later(Duration delay, PeerId peer, std::function<void(Peer&)> call);
  void start(ReadId id, const RemoteSlice& slice, std::byte* into, Instant deadline);
  void end_reads(PeerId peer);
  void closed(PeerId peer, const std::string& why);
  void cut(PeerId peer);
  void flush(PeerId peer, Peer& state);

  TransportFaults plan_;
  TransportEvents events_;
  std::map<PeerId, Peer> peers_;
  std::map<ReadId, Read> reads_;
  std::uint64_t last_read_ = 0;
  std::map<std::pair<std::uint64_t, std::uint64_t>, int> ruined_;  // slices, times to go
  std::unique_ptr<Transport> inner_;  // the first to go: its thread uses the rest
};

}  // namespace penstock::faults
