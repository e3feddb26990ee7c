// FaultyTransport: a Transport that does wrong on demand, for tests of what is built upon one.
//
// Operations (connects, sends, reads) are counted from 1; a plan says what becomes of the nth. All
// else goes to the transport behind it. A corrupted read is one whose bytes have arrived, one of
// them changed: it ends with kCorrupt, as it would.
//
// Concurrency: as the transport behind it, whose events it passes on. Source: port/transport.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "port/transport.h"

namespace penstock::transport {

class FaultyTransport final : public Transport {
 public:
  struct Fault {
    enum class Kind : std::uint8_t {
      kFail,     // connect and send: an error; read: ends with `end`, into is not touched
      kCorrupt,  // read: a byte is changed
      kDelay,    // read: ends `delay` later than it would
      kClose,    // the peer's connection breaks first, as if the peer had gone
    };
    Kind kind = Kind::kFail;
    ReadEnd end = ReadEnd::kRefused;
    Duration delay{};
  };

  explicit FaultyTransport(Transport& behind) : behind_(behind) {}

  // What becomes of the nth operation from the start. On the transport's thread, or before it runs.
  void plan(std::uint64_t nth, Fault fault) { plan_[nth] = fault; }
  std::uint64_t operations() const { return operations_; }

  Clock& clock() override { return behind_.clock(); }
  void set_events(TransportEvents events) override {
    closed_ = events.closed;
    behind_.set_events(std::move(events));
  }
  std::uint32_t publish(const PublishedPool& pool) override { return behind_.publish(pool); }
  std::string address() const override { return behind_.address(); }

  Result<PeerId> connect(const std::string& address, Instant deadline) override {
    if (const Fault* fault = next(); fault != nullptr && fault->kind == Fault::Kind::kFail)
      return fail(ErrorCode::kIo, "a planned fault: cannot connect to " + address);
    return behind_.connect(address, deadline);
  }
  Status send(PeerId peer, std::string_view message) override {
    if (const Fault* fault = next()) {
      if (fault->kind == Fault::Kind::kFail)
        return fail(ErrorCode::kOverloaded, "a planned fault: too much waits to be sent");
      if (fault->kind == Fault::Kind::kClose) {
        break_off(peer);
        return fail(ErrorCode::kUnavailable, "a planned fault: the peer is not connected");
      }
    }
    return behind_.send(peer, message);
  }
  void close(PeerId peer) override { behind_.close(peer); }

  ReadId read(PeerId peer, const RemoteSlice& slice, std::byte* into, Instant deadline,
              ReadDone done) override {
    const Fault* planned = next();
    if (planned == nullptr) return behind_.read(peer, slice, into, deadline, std::move(done));
    const Fault fault = *planned;
    if (fault.kind == Fault::Kind::kClose) break_off(peer);
    if (fault.kind == Fault::Kind::kClose)
      return behind_.read(peer, slice, into, deadline, std::move(done));
    // Reads with faults are ended here, unless they are cancelled before.
    const auto id = std::make_shared<std::uint64_t>(0);
    const auto end_later = [this, id](Duration after, ReadEnd end, const ReadDone& call) {
      const Clock::TimerId timer = clock().call_at(clock().now() + after, [this, id, end, call] {
        ending_.erase(*id);
        call(end);
      });
      ending_[*id] = timer;
    };
    RemoteSlice asked = slice;
    if (fault.kind == Fault::Kind::kFail) asked.length = 0;  // refused, without touching `into`
    const ReadId read = behind_.read(
        peer, asked, into, deadline, [fault, end_later, into, done = std::move(done)](ReadEnd end) {
          if (fault.kind == Fault::Kind::kDelay) return end_later(fault.delay, end, done);
          if (fault.kind == Fault::Kind::kCorrupt && end == ReadEnd::kDone) {
            into[0] ^= std::byte{1};
            end = ReadEnd::kCorrupt;
          }
          done(fault.kind == Fault::Kind::kFail ? fault.end : end);
        });
    *id = read.value;
    return read;
  }
  void cancel(ReadId read) override {
    if (const auto at = ending_.find(read.value); at != ending_.end()) {
      clock().cancel(at->second);
      ending_.erase(at);
    }
    behind_.cancel(read);
  }

 private:
  const Fault* next() {
    const auto at = plan_.find(++operations_);
    return at == plan_.end() ? nullptr : &at->second;
  }
  // As a peer that goes: its reads end, then `closed` is said.
  void break_off(PeerId peer) {
    behind_.close(peer);
    clock().call_at(clock().now(), [this, peer] {
      if (closed_) closed_(peer, "a planned fault: the peer has ended");
    });
  }

  Transport& behind_;
  std::map<std::uint64_t, Fault> plan_;
  std::uint64_t operations_ = 0;
  std::map<std::uint64_t, Clock::TimerId> ending_;  // reads whose end is held back
  std::function<void(PeerId, const std::string&)> closed_;
};

}  // namespace penstock::transport
