#include "domain/kv.h"

namespace penstock {

std::string_view to_string(MissReason reason) {
  switch (reason) {
    case MissReason::kNone:
      return "none";
    case MissReason::kNeverStored:
      return "never_stored";
    case MissReason::kNotAdmitted:
      return "not_admitted";
    case MissReason::kExpired:
      return "expired";
    case MissReason::kEvictedHost:
      return "evicted_host";
    case MissReason::kEvictedDisk:
      return "evicted_disk";
    case MissReason::kEvictedShare:
      return "evicted_share";
    case MissReason::kParentGone:
      return "parent_gone";
    case MissReason::kOtherScope:
      return "other_scope";
    case MissReason::kOtherBuild:
      return "other_build";
    case MissReason::kTooSlow:
      return "too_slow";
    case MissReason::kRecomputeFaster:
      return "recompute_faster";
    case MissReason::kCorrupt:
      return "corrupt";
    case MissReason::kIoError:
      return "io_error";
    case MissReason::kTierOff:
      return "tier_off";
    case MissReason::kNoDaemon:
      return "no_daemon";
    case MissReason::kRemoved:
      return "removed";
  }
  return "unknown";
}

std::string_view to_string(KvTier tier) {
  switch (tier) {
    case KvTier::kDevice:
      return "device";
    case KvTier::kHost:
      return "host";
    case KvTier::kDisk:
      return "disk";
    case KvTier::kPeer:
      return "peer";
    case KvTier::kCluster:
      return "cluster";
  }
  return "unknown";
}

}  // namespace penstock
