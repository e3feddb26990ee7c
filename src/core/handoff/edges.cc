#include "core/handoff/edges.h"

#include <fmt/format.h>

#include "base/check.h"

namespace penstock::handoff {
namespace {

using enum State;
using enum Event;
constexpr Fault kOk = Fault::kNo;
constexpr Fault kBad = Fault::kYes;

constexpr std::array<std::string_view, kStates> kStateNames = {
    "none",      "announced", "open",    "complete", "quarantine", "gone",   "connecting",
    "attaching", "waiting",   "pulling", "closing",  "done",       "failed", "stopped"};

constexpr std::array<std::string_view, kEvents> kEventNames = {"announce",
                                                               "refuse_announce",
                                                               "publish",
                                                               "close",
                                                               "withdraw",
                                                               "withdraw_held",
                                                               "attach",
                                                               "replace",
                                                               "refuse_attach",
                                                               "renew",
                                                               "release",
                                                               "release_held",
                                                               "reader_lost",
                                                               "expire_held",
                                                               "expire_unclaimed",
                                                               "holder_released",
                                                               "holder_lost",
                                                               "last_released",
                                                               "last_lost",
                                                               "over",
                                                               "pull",
                                                               "refuse_pull",
                                                               "opened",
                                                               "unreachable",
                                                               "attached",
                                                               "attached_pulling",
                                                               "attached_closing",
                                                               "ended",
                                                               "part",
                                                               "drained",
                                                               "all_read",
                                                               "finish",
                                                               "closed",
                                                               "lost_once",
                                                               "lost",
                                                               "silent",
                                                               "lease",
                                                               "deadline",
                                                               "stop",
                                                               "retry",
                                                               "corrupt",
                                                               "stale",
                                                               "forbidden",
                                                               "slow_read",
                                                               "protocol"};

constexpr Edge kEdges[] = {
    {kNone, kAnnounce, kAnnounced, kOk},
    {kNone, kRefuseAnnounce, kGone, kBad},

    {kAnnounced, kPublish, kOpen, kOk},
    {kAnnounced, kAttach, kAnnounced, kOk},
    {kAnnounced, kReplace, kAnnounced, kBad},
    {kAnnounced, kRefuseAttach, kAnnounced, kBad},
    {kAnnounced, kRenew, kAnnounced, kOk},
    {kAnnounced, kReaderLost, kAnnounced, kBad},
    {kAnnounced, kRelease, kGone, kBad},
    {kAnnounced, kReleaseHeld, kQuarantine, kBad},
    {kAnnounced, kWithdraw, kGone, kBad},
    {kAnnounced, kWithdrawHeld, kQuarantine, kBad},
    {kAnnounced, kExpireHeld, kQuarantine, kBad},

    {kOpen, kPublish, kOpen, kOk},
    {kOpen, kClose, kComplete, kOk},
    {kOpen, kAttach, kOpen, kOk},
    {kOpen, kReplace, kOpen, kBad},
    {kOpen, kRefuseAttach, kOpen, kBad},
    {kOpen, kRenew, kOpen, kOk},
    {kOpen, kReaderLost, kOpen, kBad},
    {kOpen, kRelease, kGone, kBad},
    {kOpen, kReleaseHeld, kQuarantine, kBad},
    {kOpen, kWithdraw, kGone, kBad},
    {kOpen, kWithdrawHeld, kQuarantine, kBad},
    {kOpen, kExpireHeld, kQuarantine, kBad},

    {kComplete, kAttach, kComplete, kOk},
    {kComplete, kReplace, kComplete, kBad},
    {kComplete, kRefuseAttach, kComplete, kBad},
    {kComplete, kRenew, kComplete, kOk},
    {kComplete, kReaderLost, kComplete, kBad},
    {kComplete, kRelease, kGone, kOk},
    {kComplete, kReleaseHeld, kQuarantine, kBad},
    {kComplete, kWithdraw, kGone, kBad},
    {kComplete, kWithdrawHeld, kQuarantine, kBad},
    {kComplete, kExpireHeld, kQuarantine, kBad},
    {kComplete, kExpireUnclaimed, kGone, kBad},

    {kQuarantine, kHolderReleased, kQuarantine, kBad},
    {kQuarantine, kHolderLost, kQuarantine, kBad},
    {kQuarantine, kLastReleased, kGone, kBad},
    {kQuarantine, kLastLost, kGone, kBad},
    {kQuarantine, kOver, kGone, kBad},

    {kNone, kPull, kConnecting, kOk},
    {kNone, kRefusePull, kFailed, kBad},

    {kConnecting, kOpened, kAttaching, kOk},
    {kConnecting, kUnreachable, kFailed, kBad},
    {kConnecting, kDeadline, kFailed, kBad},
    {kConnecting, kStop, kStopped, kBad},

    {kAttaching, kAttached, kWaiting, kOk},
    {kAttaching, kAttachedPulling, kPulling, kBad},
    {kAttaching, kAttachedClosing, kClosing, kBad},
    {kAttaching, kEnded, kFailed, kBad},
    {kAttaching, kLostOnce, kConnecting, kBad},
    {kAttaching, kLost, kFailed, kBad},
    {kAttaching, kSilent, kFailed, kBad},
    {kAttaching, kDeadline, kFailed, kBad},
    {kAttaching, kStop, kStopped, kBad},
    {kAttaching, kProtocol, kFailed, kBad},

    {kWaiting, kPart, kPulling, kOk},
    {kWaiting, kEnded, kFailed, kBad},
    {kWaiting, kLostOnce, kConnecting, kBad},
    {kWaiting, kLost, kFailed, kBad},
    {kWaiting, kSilent, kFailed, kBad},
    {kWaiting, kLease, kFailed, kBad},
    {kWaiting, kDeadline, kFailed, kBad},
    {kWaiting, kStop, kStopped, kBad},
    {kWaiting, kProtocol, kFailed, kBad},

    {kPulling, kPart, kPulling, kOk},
    {kPulling, kDrained, kWaiting, kOk},
    {kPulling, kAllRead, kClosing, kOk},
    {kPulling, kFinish, kDone, kOk},
    {kPulling, kRetry, kPulling, kBad},
    {kPulling, kCorrupt, kFailed, kBad},
    {kPulling, kStale, kFailed, kBad},
    {kPulling, kForbidden, kFailed, kBad},
    {kPulling, kSlowRead, kFailed, kBad},
    {kPulling, kEnded, kFailed, kBad},
    {kPulling, kLostOnce, kConnecting, kBad},
    {kPulling, kLost, kFailed, kBad},
    {kPulling, kSilent, kFailed, kBad},
    {kPulling, kLease, kFailed, kBad},
    {kPulling, kDeadline, kFailed, kBad},
    {kPulling, kStop, kStopped, kBad},
    {kPulling, kProtocol, kFailed, kBad},

    {kClosing, kClosed, kDone, kOk},
    {kClosing, kEnded, kFailed, kBad},
    {kClosing, kLostOnce, kConnecting, kBad},
    {kClosing, kLost, kFailed, kBad},
    {kClosing, kSilent, kFailed, kBad},
    {kClosing, kLease, kFailed, kBad},
    {kClosing, kDeadline, kFailed, kBad},
    {kClosing, kStop, kStopped, kBad},
    {kClosing, kProtocol, kFailed, kBad},
};
static_assert(std::size(kEdges) <= Hits::kEdgesMax);

constexpr std::uint8_t kNoEdge = 0xFF;
using Index = std::array<std::array<std::uint8_t, kEvents>, kStates>;
// Compiles only when no (state, event) stands twice in the table.
constexpr Index kIndex = [] {
  Index index{};
  for (auto& row : index)
    row.fill(kNoEdge);
  for (std::size_t i = 0; i < std::size(kEdges); ++i) {
    std::uint8_t& place =
        index[static_cast<std::size_t>(kEdges[i].from)][static_cast<std::size_t>(kEdges[i].event)];
    if (place != kNoEdge) throw "two edges for one event";
    place = static_cast<std::uint8_t>(i);
  }
  return index;
}();

std::uint8_t index_of(State from, Event event) {
  return kIndex[static_cast<std::size_t>(from)][static_cast<std::size_t>(event)];
}

}  // namespace

std::span<const Edge> edges() {
  return kEdges;
}
std::string_view name(State state) {
  return kStateNames[static_cast<std::size_t>(state)];
}
std::string_view name(Event event) {
  return kEventNames[static_cast<std::size_t>(event)];
}
Side side(Event event) {
  return event < Event::kPull ? Side::kOwner : Side::kReader;
}

std::string name(const Edge& edge) {
  return fmt::format("{}.{}.{}", side(edge.event) == Side::kOwner ? "owner" : "reader",
                     name(edge.from), name(edge.event));
}

State Hits::take(State from, Event event) {
  const std::uint8_t edge = index_of(from, event);
  ENSURE(edge != kNoEdge);
  ++counts_[edge];
  return kEdges[edge].to;
}

std::uint64_t Hits::of(State from, Event event) const {
  const std::uint8_t edge = index_of(from, event);
  return edge == kNoEdge ? 0 : counts_[edge];
}

}  // namespace penstock::handoff
