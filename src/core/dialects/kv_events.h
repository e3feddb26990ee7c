// KV events of vLLM and SGLang: the payload of a message, decoded. And its framing.
//
// A publisher's message has three frames: topic, sequence number (8 bytes, big-endian), payload.
// The payload is MessagePack: [timestamp, [events], rank or nil], and an event either an array of
// fields by position with its name first (trailing ones may be missing) or a map with the name
// under "type". All that engines have sent so far is understood: hashes as signed or unsigned
// integers or as bytes (the low 64 bits count), either form, fields that are missing or new.
//
// What else KV depends on comes as `lora_name`, `cache_salt` and `extra_keys`: per block, strings
// and pairs without tags. A pair is a media item and its offset in the block. A string that equals
// the adapter's name is that; one more in a prompt's first block is the salt. Anything else is
// folded into the block's key, which then matches no request: a lost hit, never a false one.
//
// Errors: a payload that isn't MessagePack of that shape fails as a whole (something was lost);
// an event that makes no sense, or of an unknown kind, is left out and counted.
// Concurrency: pure. Source: docs/kv-events.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/result.h"
#include "domain/engine_kv_events.h"

namespace penstock::dialects {

// `out` is overwritten, its memory reused.
Status decode_kv_events(std::span<const std::byte> payload, EngineKvBatch& out);

// Sequence numbers as frames; the last one ends a replay.
inline constexpr std::uint64_t kReplayEnd = ~std::uint64_t{0};
std::optional<std::uint64_t> read_sequence(std::string_view frame);
std::array<char, 8> sequence_frame(std::uint64_t sequence);

}  // namespace penstock::dialects
