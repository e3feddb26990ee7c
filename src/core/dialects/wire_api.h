// WireApi: which API a request and its answer speak; engines and gateway name them alike.
// Concurrency: values. Source: facts/engines.md 4.1, 4.7, 4.8.
#pragma once

#include <cstdint>
#include <string_view>

namespace penstock::dialects {

enum class WireApi : std::uint8_t {
  kChat,
  kCompletion,
  kResponses,
  kMessages,
  kCountTokens,
  kEmbeddings,
  kPooling,
  kScore,
  kRerank,
  kTokenize,
  kDetokenize,
  kGenerate,  // vLLM's tokens in, tokens out
};

// The route by which all engines know it; each under its own name where that differs (Dialect).
constexpr std::string_view path_of(WireApi api) {
  switch (api) {
    case WireApi::kChat:
      return "/v1/chat/completions";
    case WireApi::kCompletion:
      return "/v1/completions";
    case WireApi::kResponses:
      return "/v1/responses";
    case WireApi::kMessages:
      return "/v1/messages";
    case WireApi::kCountTokens:
      return "/v1/messages/count_tokens";
    case WireApi::kEmbeddings:
      return "/v1/embeddings";
    case WireApi::kPooling:
      return "/pooling";
    case WireApi::kScore:
      return "/score";
    case WireApi::kRerank:
      return "/v1/rerank";
    case WireApi::kTokenize:
      return "/tokenize";
    case WireApi::kDetokenize:
      return "/detokenize";
    case WireApi::kGenerate:
      return "/inference/v1/generate";
  }
  return {};
}

}  // namespace penstock::dialects
