#include "service/kvd/cluster_known.h"

#include <algorithm>

namespace penstock::service {
namespace {

constexpr std::size_t kPartPlaces = 4096;
constexpr std::size_t kLooksAtOnce = 64;

}  // namespace

void ClusterKnown::there(const BlockName& name, std::uint32_t bytes, Instant until) {
  if (const auto known = places_.find(name); known != places_.end()) {
    Place& place = ring_[known->second];
    place.until = std::max(place.until, until);
    return;
  }
  if (names_max_ == 0) return;
  if (ring_.size() < names_max_) {
    places_[name] = ring_.size();
    ring_.push_back({name, bytes, true, until});
  } else {
    if (ring_[next_].is_used) gone(ring_[next_].name);
    places_[name] = next_;
    ring_[next_] = {name, bytes, true, until};
    next_ = (next_ + 1) % names_max_;
  }
  news_.push_back({name, true});
}

void ClusterKnown::gone(const BlockName& name) {
  const auto known = places_.find(name);
  if (known == places_.end()) return;
  news_.push_back({known->first, false});
  ring_[known->second].is_used = false;
  places_.erase(known);
}

void ClusterKnown::expire(Instant now) {
  for (std::size_t i = 0; i < std::min(kLooksAtOnce, ring_.size()); ++i) {
    looked_at_ = (looked_at_ + 1) % ring_.size();
    const Place place = ring_[looked_at_];
    if (place.is_used && place.until <= now) gone(place.name);
  }
}

std::size_t ClusterKnown::parts() const {
  return (ring_.size() + kPartPlaces - 1) / kPartPlaces;
}

void ClusterKnown::for_each_in(
    std::size_t part, const std::function<bool(const BlockName&, std::uint32_t)>& visit) const {
  const std::size_t end = std::min(ring_.size(), (part + 1) * kPartPlaces);
  for (std::size_t at = part * kPartPlaces; at < end; ++at)
    if (ring_[at].is_used && !visit(ring_[at].name, ring_[at].bytes)) return;
}

}  // namespace penstock::service
