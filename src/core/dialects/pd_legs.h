// The bodies of the two legs of a disaggregated request, as engines expect them.
//
// Both legs carry the client's body in its own bytes (json_body.h); what differs is a handful of
// keys. vLLM with NIXL goes one after the other: the prefill leg computes one token and its reply
// names the blocks; that object goes verbatim into the decode leg. vLLM with Mooncake and SGLang go
// at the same time, paired by a transfer id, or by host, port and room.
//
// Invariants: the params of a reply are opaque: no byte of them changes. A prefill leg never
// streams, computes one token, and has no min_tokens (which the engine would refuse beside a limit
// of one). Errors: kInvalidArgument where the client's own value is no object. Concurrency: pure.
// Source: facts/engines.md 4.2, 4.3, 4.7.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/dialects/json_body.h"
#include "core/dialects/wire_api.h"

namespace penstock::dialects {

// The keys that the functions below set or remove; a body they are given controls them.
std::span<const std::string_view> leg_keys();

// What of a prefill leg is the same with every connector: one token, no stream.
std::vector<Edit> one_token_edits(const JsonBody& body, WireApi api);

// vLLM, NIXL.
std::vector<Edit> nixl_prefill_edits(const JsonBody& body, WireApi api);
// `params`: as in the prefill's reply.
Edit nixl_decode_edit(std::string_view params);

// What a prefill leg replied.
struct PrefillReply {
  std::optional<std::string> params;  // nothing: decode goes plain and computes again
  std::optional<double> expires_at;   // unix seconds, by the engine's clock
  std::uint64_t cached_tokens = 0;    // the prefill's own, which is what is billed
  bool cached_told = false;           // it said so, be it none
  std::uint64_t prompt_tokens = 0;
};
PrefillReply read_prefill_reply(std::string_view body);

// vLLM, Mooncake.
struct MooncakeEngine {
  std::uint32_t rank = 0;
  std::string engine_id;
};
// GET /query of the bootstrap server: by rank, ascending; empty when it can't be read.
std::vector<MooncakeEngine> parse_mooncake_query(std::string_view json);
std::vector<Edit> mooncake_prefill_edits(const JsonBody& body, WireApi api,
                                         std::string_view transfer_id);
struct MooncakePeer {
  std::string_view transfer_id;
  std::string_view bootstrap_address;  // "http://P:8998"
  std::string_view engine_id;
};
Edit mooncake_decode_edit(const MooncakePeer& peer);

// SGLang.
struct Bootstrap {
  std::string host;
  std::uint16_t port = 8998;
  std::uint64_t room = 0;
};
// A room of 63 bits, unique as its draw, that names the prefill's rank: room modulo ranks is the
// rank, which load_balance_method follow_bootstrap_room reads. Precondition: rank < ranks.
std::uint64_t bootstrap_room(std::uint64_t draw, std::uint32_t ranks, std::uint32_t rank);
// For both legs alike. `prompts`: how many the body has (a batched completion has several); then
// there are lists, with rooms that follow one another by `ranks`.
std::vector<Edit> bootstrap_edits(const Bootstrap& bootstrap, std::size_t prompts,
                                  std::uint32_t ranks);

}  // namespace penstock::dialects
