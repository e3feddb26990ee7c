#include "core/dialects/dialect.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace penstock::dialects {
namespace {

using enum WireApi;

constexpr std::array kVllmApis = {kChat,        kCompletion, kResponses,  kMessages,
                                  kCountTokens, kEmbeddings, kPooling,    kScore,
                                  kRerank,      kTokenize,   kDetokenize, kGenerate};
constexpr std::array kSglangApis = {kChat,       kCompletion, kResponses, kMessages, kCountTokens,
                                    kEmbeddings, kScore,      kRerank,    kTokenize, kDetokenize};
constexpr std::array kLlamaCppApis = {kChat,     kCompletion,  kResponses,
                                      kMessages, kCountTokens, kEmbeddings,
                                      kRerank,   kTokenize,    kDetokenize};

// vLLM's server closes after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE), SGLang's after as long,
// llama.cpp's after 5 s too: half of it leaves room for a request on its way.
constexpr Duration kIdleMax = std::chrono::milliseconds(2500);

constexpr std::array kDialects = {
    Dialect{.kind = EngineKind::kVllm,
            .name = "vllm",
            .pd = PdProtocol::kSerial,
            .ranks = RankPin::kHeader,
            .kv_events = true,
            .load = LoadSource::kMetrics,
            .abort = AbortBy::kClose,
            .cached_tokens = true,
            .tokens_in = true,
            .structured_output = true,
            .idle_max = kIdleMax,
            .apis = kVllmApis},
    Dialect{.kind = EngineKind::kSglang,
            .name = "sglang",
            .pd = PdProtocol::kConcurrent,
            .ranks = RankPin::kHeader,
            .kv_events = true,
            .load = LoadSource::kLoadsThenMetrics,
            .abort = AbortBy::kCloseAndRequest,
            .cached_tokens = true,
            .tokens_in = true,
            .structured_output = true,
            .idle_max = kIdleMax,
            .apis = kSglangApis},
    Dialect{.kind = EngineKind::kLlamaCpp,
            .name = "llamacpp",
            .pd = PdProtocol::kNone,
            .ranks = RankPin::kNone,
            .kv_events = false,
            .load = LoadSource::kSlots,
            .abort = AbortBy::kClose,
            .cached_tokens = true,
            .tokens_in = true,
            .structured_output = true,
            .idle_max = kIdleMax,
            .apis = kLlamaCppApis},
};

consteval bool table_is_in_order() {
  for (std::size_t i = 0; i < kDialects.size(); ++i) {
    if (static_cast<std::size_t>(kDialects[i].kind) != i) return false;
  }
  return true;
}
static_assert(table_is_in_order(), "dialect() indexes the table by the kind");

}  // namespace

const Dialect& dialect(EngineKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  ENSURE(index < kDialects.size());
  return kDialects[index];
}

std::span<const Dialect> dialects() {
  return kDialects;
}

std::optional<EngineKind> engine_kind(std::string_view name) {
  const auto found = std::ranges::find(kDialects, name, &Dialect::name);
  return found == kDialects.end() ? std::nullopt : std::optional(found->kind);
}

bool speaks(const Dialect& dialect, WireApi api) {
  return std::ranges::find(dialect.apis, api) != dialect.apis.end();
}

bool pins_rank(const Dialect& dialect, WireApi api) {
  if (dialect.ranks == RankPin::kNone) return false;
  return api == kChat || api == kCompletion || api == kGenerate ||
         (dialect.kind == EngineKind::kSglang && api == kMessages);
}

bool splits(PdProtocol protocol, WireApi api) {
  if (protocol == PdProtocol::kNone) return false;
  return api == kChat || api == kCompletion || api == kGenerate ||
         (api == kResponses && protocol == PdProtocol::kSerial);
}

std::string_view render_path(const Dialect& dialect, WireApi api) {
  if (dialect.kind == EngineKind::kSglang)
    return api == kChat || api == kCompletion ? path_of(kTokenize) : "";
  if (dialect.kind != EngineKind::kVllm) return {};
  if (api == kChat) return "/v1/chat/completions/render";
  return api == kCompletion ? "/v1/completions/render" : "";
}

}  // namespace penstock::dialects
