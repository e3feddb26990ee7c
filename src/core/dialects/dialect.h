// Dialect: what one kind of engine speaks and can do, as one table row.
//
// A capability is what the driver may rely on; one that a deployment asks for and the engine lacks
// is refused when the engine is registered, never silently done without.
//
// Invariants: every EngineKind has a row. Concurrency: the table is constant.
// Source: facts/engines.md 4.1 to 4.3, 4.7, 4.8; docs/engines.md shows it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/units.h"
#include "core/dialects/wire_api.h"

namespace penstock::dialects {

enum class EngineKind : std::uint8_t { kVllm, kSglang, kLlamaCpp };

enum class PdProtocol : std::uint8_t {
  kNone,
  kSerial,      // prefill first, its reply's params go into the decode body (vLLM with NIXL)
  kConcurrent,  // both legs at once, paired by a room or a transfer id (SGLang; vLLM with Mooncake)
};
enum class RankPin : std::uint8_t { kNone, kHeader };
enum class LoadSource : std::uint8_t { kMetrics, kLoadsThenMetrics, kSlots };
enum class AbortBy : std::uint8_t { kClose, kCloseAndRequest };

struct Dialect {
  EngineKind kind;
  std::string_view name;  // as in --engine NAME=URL
  PdProtocol pd;
  RankPin ranks;
  bool kv_events;
  LoadSource load;
  AbortBy abort;
  bool cached_tokens;  // in usage, always or by an option of the engine
  bool tokens_in;
  bool structured_output;
  // Connections idle longer may be closed by the server under the next request.
  Duration idle_max;
  std::span<const WireApi> apis;
};

const Dialect& dialect(EngineKind kind);
// All, in the order of EngineKind.
std::span<const Dialect> dialects();
std::optional<EngineKind> engine_kind(std::string_view name);
bool speaks(const Dialect& dialect, WireApi api);
// Whether a request on this route goes to the data parallel rank that its header names; where not,
// the engine chooses, whatever the request says (SGLang's Responses).
bool pins_rank(const Dialect& dialect, WireApi api);
// Whether a request on this route goes to two engines where they share the work: the others go
// whole to the decode engine, which computes the prompt itself.
bool splits(PdProtocol protocol, WireApi api);
// The route that turns such a request into the token ids the engine would compute, from the same
// body: vLLM's render routes, SGLang's /tokenize, which takes messages in its newer versions and
// passes over what else a chat has. Empty when there is none.
std::string_view render_path(const Dialect& dialect, WireApi api);

}  // namespace penstock::dialects
