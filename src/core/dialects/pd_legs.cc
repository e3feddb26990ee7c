#include "core/dialects/pd_legs.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "base/check.h"
#include "core/dialects/json_values.h"

namespace penstock::dialects {
namespace {

using namespace std::string_view_literals;

constexpr std::array kKeys = {"stream"sv,
                              "stream_options"sv,
                              "max_tokens"sv,
                              "max_completion_tokens"sv,
                              "max_output_tokens"sv,
                              "min_tokens"sv,
                              "sampling_params"sv,
                              "kv_transfer_params"sv,
                              "bootstrap_host"sv,
                              "bootstrap_port"sv,
                              "bootstrap_room"sv};

constexpr std::string_view kNixlPrefill =
    R"({"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,)"
    R"("remote_block_ids":null,"remote_host":null,"remote_port":null})";

constexpr std::uint64_t kRoomMax = std::uint64_t{1} << 63;

}  // namespace

std::span<const std::string_view> leg_keys() {
  return kKeys;
}

std::vector<Edit> one_token_edits(const JsonBody& body, WireApi api) {
  std::vector<Edit> edits = {
      {"stream", "false"}, {"stream_options", std::nullopt}, {"min_tokens", std::nullopt}};
  if (api == WireApi::kGenerate) {
    // Its limits are in an object of their own.
    constexpr std::array kInner = {"max_tokens"sv, "min_tokens"sv};
    const std::array inner = {Edit{"max_tokens", "1"}, Edit{"min_tokens", std::nullopt}};
    const auto given = JsonBody::read(body.value("sampling_params").value_or("{}"), kInner);
    // One that is no object the engine refuses, in its own words.
    if (given) edits.push_back({"sampling_params", given->edited(inner)});
    return edits;
  }
  if (api == WireApi::kResponses) {
    edits.push_back({"max_output_tokens", "1"});
    return edits;
  }
  edits.push_back({"max_tokens", "1"});
  // Chat has a newer name for the same; completions have not, and refuse what they don't know.
  if (api == WireApi::kChat || body.has("max_completion_tokens"))
    edits.push_back({"max_completion_tokens", "1"});
  return edits;
}

std::vector<Edit> nixl_prefill_edits(const JsonBody& body, WireApi api) {
  auto edits = one_token_edits(body, api);
  edits.push_back({"kv_transfer_params", std::string(kNixlPrefill)});
  return edits;
}

Edit nixl_decode_edit(std::string_view params) {
  return {"kv_transfer_params", std::string(params)};
}

PrefillReply read_prefill_reply(std::string_view body) {
  PrefillReply reply;
  const auto params = value_at(body, {"kv_transfer_params"});
  if (params && params->starts_with('{')) {
    reply.params = std::string(*params);
    reply.expires_at = number_at(*params, {"remote_blocks_expiry_time"});
  }
  const auto cached = integer_at(body, {"usage", "prompt_tokens_details", "cached_tokens"});
  if (const auto all = integer_at(body, {"usage", "prompt_tokens"}); all && *all > 0)
    reply.prompt_tokens = static_cast<std::uint64_t>(*all);
  reply.cached_told = cached.has_value();
  if (cached && *cached > 0) reply.cached_tokens = static_cast<std::uint64_t>(*cached);
  return reply;
}

std::vector<MooncakeEngine> parse_mooncake_query(std::string_view json) {
  // Its keys are ranks; none is known before, so they are asked for one after the other.
  constexpr std::uint32_t kRanksMax = 1024;
  std::vector<MooncakeEngine> engines;
  for (std::uint32_t rank = 0; rank < kRanksMax; ++rank) {
    const std::string key = fmt::to_string(rank);
    auto id = string_at(json, {key, "engine_id"});
    if (!id || id->empty()) break;
    engines.push_back({rank, std::move(*id)});
  }
  return engines;
}

std::vector<Edit> mooncake_prefill_edits(const JsonBody& body, WireApi api,
                                         std::string_view transfer_id) {
  auto edits = one_token_edits(body, api);
  edits.push_back(
      {"kv_transfer_params",
       fmt::format(R"({{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":{}}})",
                   quoted(transfer_id))});
  return edits;
}

Edit mooncake_decode_edit(const MooncakePeer& peer) {
  return {"kv_transfer_params",
          fmt::format(R"({{"do_remote_prefill":true,"do_remote_decode":false,"transfer_id":{},)"
                      R"("remote_bootstrap_addr":{},"remote_engine_id":{}}})",
                      quoted(peer.transfer_id), quoted(peer.bootstrap_address),
                      quoted(peer.engine_id))};
}

std::uint64_t bootstrap_room(std::uint64_t draw, std::uint32_t ranks, std::uint32_t rank) {
  ENSURE(ranks > 0 && rank < ranks);
  // The highest multiple is left out, so that the rank added never leaves 63 bits.
  const std::uint64_t multiples = kRoomMax / ranks - 1;
  return draw % multiples * ranks + rank;
}

std::vector<Edit> bootstrap_edits(const Bootstrap& bootstrap, std::size_t prompts,
                                  std::uint32_t ranks) {
  const std::string host = quoted(bootstrap.host);
  if (prompts == 1)
    return {{"bootstrap_host", host},
            {"bootstrap_port", fmt::to_string(bootstrap.port)},
            {"bootstrap_room", fmt::to_string(bootstrap.room)}};
  std::string hosts;
  std::string ports;
  std::string rooms;
  for (std::size_t i = 0; i < prompts; ++i) {
    const std::string_view comma = i == 0 ? "" : ",";
    hosts += fmt::format("{}{}", comma, host);
    ports += fmt::format("{}{}", comma, bootstrap.port);
    rooms += fmt::format("{}{}", comma, (bootstrap.room + i * ranks) % kRoomMax);
  }
  return {{"bootstrap_host", fmt::format("[{}]", hosts)},
          {"bootstrap_port", fmt::format("[{}]", ports)},
          {"bootstrap_room", fmt::format("[{}]", rooms)}};
}

}  // namespace penstock::dialects
