// Reason: why a handoff or a pull ended, or was refused. One table for the wire, logs and metrics.
//
// Invariants: the numbers are on the wire and never change; a name is a metric label.
// Concurrency: values. Source: docs/protocol/handoff.md.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace penstock::handoff {

enum class Reason : std::uint8_t {
  kDone = 0,         // all of it was pulled
  kStopped = 1,      // the reader's engine wanted its blocks back
  kUnreachable = 2,  // no connection to the owner
  kUnknown = 3,      // the owner knows no handoff of that id
  kRestarted = 4,    // the owner is another run of its process
  kMismatch = 5,     // model, layout or length differ
  kVersion = 6,      // the protocol's
  kLimit = 7,        // of handoffs, pulls, blocks or messages
  kWithdrawn = 8,    // the prefill leg ended otherwise
  kExpired = 9,      // the owner's lease ended, or nobody came
  kReleased = 10,    // a reader has had it
  kReplaced = 11,    // by another reader with the id
  kSilent = 12,      // a connected owner says nothing: stopped, or unreachable
  kLost = 13,        // the connection ended
  kLease = 14,       // the lease was not renewed in time
  kDeadline = 15,    // the whole pull took too long
  kCorrupt = 16,     // bytes didn't match their checksum, twice
  kStale = 17,       // a block had another generation
  kForbidden = 18,   // the owner did not let a read happen
  kSlowRead = 19,    // a read had no answer in time
  kProtocol = 20,    // the peer said what can't be
};

inline constexpr std::array<std::string_view, 21> kReasonNames = {
    "done",  "stopped",   "unreachable", "unknown",  "restarted", "mismatch",  "version",
    "limit", "withdrawn", "expired",     "released", "replaced",  "silent",    "lost",
    "lease", "deadline",  "corrupt",     "stale",    "forbidden", "slow_read", "protocol"};
inline constexpr std::size_t kReasons = kReasonNames.size();

constexpr std::string_view name(Reason reason) {
  return kReasonNames[static_cast<std::size_t>(reason)];
}

}  // namespace penstock::handoff
