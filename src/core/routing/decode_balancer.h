// The default placer of decode: requests and KV tokens both level across ranks.
//
// The ranks of a group step together, so the step takes as long as the rank with most requests or
// most KV. A placement is judged by how much it adds to the sum of squares of both, each relative
// to its mean over ranks:
//
//   requests * (2n + 1) / n_mean^2  +  kv * g (2k + g) / k_mean^2
//
// with n and k what the rank has and g what the request will bring (prompt and expected answer). A
// short request has a small second term, so it goes where requests are few, even beside much KV; a
// long one has a large second term, so it goes where KV is little.
//
// Reservations (ReservedKv) count what is on its way: they are made when prefill starts, not while
// a request queues, and become the rank's own report when decode begins.
//
// Invariants: as of PlacementPolicy; a rank keeps `headroom` of its KV pool free for growth.
// Units: tokens. Concurrency: one thread. Source: design.md section 7; facts: deepseek.md 3.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "core/routing/policy.h"

namespace penstock::routing {

struct DecodeBalancerOptions {
  double request_weight = 1;
  double kv_weight = 1;
  double headroom = 0.05;  // of a rank's KV capacity
};

class DecodeBalancer final : public PlacementPolicy {
 public:
  explicit DecodeBalancer(const DecodeBalancerOptions& options) : options_(options) {}
  std::string_view name() const override { return "decode-balancer"; }
  void place(const PlaceRequest& request, std::span<const RankView> ranks, Rng& rng,
             Decision& out) override;

 private:
  DecodeBalancerOptions options_;
};

// KV promised to requests that are not running on their decode rank yet.
//
// Errors: reserving twice for one request is refused (false). Everything is released once: by
// release(), or with its rank.
class ReservedKv {
 public:
  bool reserve(RequestId request, RankId rank, std::int64_t tokens);
  // What was reserved, or 0.
  std::int64_t release(RequestId request);
  // A rank is gone: forgets what was reserved there; returns the requests that need a new place.
  std::vector<RequestId> drop_rank(RankId rank);

  std::int64_t tokens(RankId rank) const;
  std::int64_t requests(RankId rank) const;
  std::size_t size() const { return by_request_.size(); }
  // Adds what is reserved to a rank's own report.
  void count_in(RankView& rank) const;

 private:
  struct Held {
    std::int64_t tokens = 0;
    std::int64_t requests = 0;
  };
  std::map<RequestId, std::pair<RankId, std::int64_t>> by_request_;
  std::map<RankId, Held> by_rank_;
};

}  // namespace penstock::routing
