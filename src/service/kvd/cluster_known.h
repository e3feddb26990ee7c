// ClusterKnown: blocks that this host knows to be in the cluster store, for the gateways' index.
//
// A block becomes known when it was written, or found by a look-up; it is told as gone when its
// object is found to be damaged or missing, when the time is over that the object was noted to
// live, or when `names_max` newer ones are known. It is an estimate: others may use the object, and
// it then lives longer; and a chain can only use the blocks of whole extents of its own.
//
// Invariants: what was told as there and not as gone is what for_each_in() visits; a block keeps
// its part while it is known. Memory: about 100 bytes a name. Concurrency: one thread.
// Source: docs/design/0013-cluster-tier.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/units.h"
#include "domain/kv.h"

namespace penstock::service {

class ClusterKnown {
 public:
  struct News {
    BlockName name;
    bool is_there = false;
  };

  explicit ClusterKnown(std::size_t names_max) : names_max_(names_max) {}

  void there(const BlockName& name, std::uint32_t bytes, Instant until);
  void gone(const BlockName& name);
  bool contains(const BlockName& name) const { return places_.contains(name); }
  // Looks at some; all in turn.
  void expire(Instant now);
  // What has changed since the last call, in order.
  std::vector<News> take_news() { return std::exchange(news_, {}); }
  std::size_t size() const { return places_.size(); }

  // As BlockTier's.
  std::size_t parts() const;
  void for_each_in(std::size_t part,
                   const std::function<bool(const BlockName&, std::uint32_t)>& visit) const;

 private:
  struct Place {
    BlockName name;
    std::uint32_t bytes = 0;
    bool is_used = false;
    Instant until;
  };

  const std::size_t names_max_;
  std::vector<Place> ring_;  // in the order they became known, round and round
  std::size_t next_ = 0;     // place to be taken next, when it is full
  std::size_t looked_at_ = 0;
  std::unordered_map<BlockName, std::size_t> places_;
  std::vector<News> news_;
};

}  // namespace penstock::service
