// A profile: what an engine type costs and how large its pools are, as a JSON file.
//
// Profiles seed the cost models and describe clusters to the simulator and the planner. Two ship in
// profiles/; `penstock profile` writes one from measurements. Every number has a unit in its key;
// `basis` says whether numbers were measured, are estimates from public figures (with `sources`),
// or are placeholders until somebody measures.
//
// Invariants: a parsed profile satisfies validate(); print_profile() and parse_profile() are
// inverse. Units: seconds, bytes, tokens.
// Errors: kInvalidArgument with the key at fault for unknown or missing keys, wrong types, and
// impossible numbers (negative, not finite, no ranks, more ranks than kRanksMax, ...).
// Concurrency: pure. Source: design.md sections 7, 9.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/routing/cost_model.h"

namespace penstock::routing {

enum class ProfileBasis : std::uint8_t { kPlaceholder, kEstimate, kMeasured };
std::string_view to_string(ProfileBasis basis);

struct PoolProfile {
  std::int64_t ranks = 1;
  std::int64_t group_ranks = 1;   // ranks that step together; divides `ranks`
  std::int64_t host_ranks = 1;    // ranks of one host, which share its links; divides `ranks`
  std::int64_t kv_tokens = 0;     // KV pool of one rank
  std::int64_t requests_max = 1;  // running on one rank
  bool operator==(const PoolProfile&) const = default;
};

struct Profile {
  static constexpr std::int64_t kRanksMax = 65'536;

  std::string name;
  std::string engine;
  ProfileBasis basis = ProfileBasis::kPlaceholder;
  std::vector<std::string> sources;  // one sentence per figure, with where it comes from

  PoolProfile prefill_pool;
  PoolProfile decode_pool;
  CostSeeds costs;
  std::int64_t block_tokens = 64;
  std::int64_t kv_bytes_per_token = 0;
  double chunk_budget_seconds = 0.1;  // of one prefill step
  std::int64_t chunk_tokens_max = 8192;
  std::int64_t context_tokens_max = 0;

  bool operator==(const Profile&) const = default;
};

Status validate(const Profile& profile);
Result<Profile> parse_profile(std::string_view json);
std::string print_profile(const Profile& profile);

}  // namespace penstock::routing
