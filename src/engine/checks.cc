#include "engine/checks.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include <fmt/format.h>

#include "engine/model.h"
#include "engine/sampler.h"

namespace penstock::engine {
namespace {

constexpr std::uint32_t kThreadsMax = 256;
constexpr std::uint32_t kBatchTokensMax = 1U << 16;
constexpr std::uint32_t kSequencesMax = 1U << 13;
// Default pool: this many full contexts, unless that takes more than the bytes below. Pages of the
// pool that were never used take no memory.
constexpr std::uint64_t kDefaultContexts = 32;
constexpr std::uint64_t kDefaultPoolBytes = 2ULL << 30;

std::uint32_t blocks_for(std::uint64_t tokens) {
  return static_cast<std::uint32_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

Status check_limit(const char* name, std::uint32_t value, std::uint32_t high) {
  if (value >= 1 && value <= high) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} must lie in [1, {}], it is {}", name, high, value), name);
}

}  // namespace

Status complete_options(EngineOptions& o, const ModelConfig& config) {
  if (o.threads == 0) o.threads = std::clamp(std::thread::hardware_concurrency(), 1U, 64U);
  TRY_STATUS(check_limit("threads", o.threads, kThreadsMax));
  TRY_STATUS(check_limit("max_batch_tokens", o.max_batch_tokens, kBatchTokensMax));
  TRY_STATUS(check_limit("max_sequences", o.max_sequences, kSequencesMax));
  if (o.context_length == 0) o.context_length = config.context_length;
  TRY_STATUS(check_limit("context_length", o.context_length, config.context_length));
  if (!o.instruction_set) o.instruction_set = best_instruction_set();
  if (!supported(*o.instruction_set)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("this CPU cannot run {}", to_string(*o.instruction_set)),
                "instruction_set");
  }
  if (o.model_name.empty()) {
    o.model_name = std::filesystem::path(o.checkpoint_dir).lexically_normal().filename().string();
  }
  return {};
}

Status check_memory(const EngineOptions& o, const ModelConfig& config) {
  const std::uint64_t bytes = Model::activation_bytes(
      config, o.max_batch_tokens, std::min(o.max_batch_tokens, o.max_sequences));
  const std::uint64_t memory = physical_memory();
  if (bytes <= memory / 2) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("activations of {} rows need {} MiB, this machine has {}; lower "
                          "max_batch_tokens",
                          o.max_batch_tokens, bytes >> 20, memory >> 20),
              "max_batch_tokens");
}

Result<std::uint32_t> pool_blocks(const EngineOptions& o, const KvLayout& layout) {
  if (o.kv_blocks != 0) return o.kv_blocks;
  const std::uint64_t block_bytes = layout.block_bytes();
  if (o.kv_bytes.value != 0) {
    const std::uint64_t blocks =
        o.kv_bytes.value < 0 ? 0 : static_cast<std::uint64_t>(o.kv_bytes.value) / block_bytes;
    if (blocks == 0 || blocks > UINT32_MAX) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("kv_bytes = {} gives {} blocks of {} bytes", o.kv_bytes.value, blocks,
                              block_bytes),
                  "kv_bytes");
    }
    return static_cast<std::uint32_t>(blocks);
  }
  const std::uint64_t context = blocks_for(o.context_length);
  const std::uint64_t affordable = kDefaultPoolBytes / block_bytes;
  return static_cast<std::uint32_t>(
      std::max(context, std::min(kDefaultContexts * context, affordable)));
}

Status check_request(const EngineRequest& r, const RequestLimits& limits) {
  if (!r.model.empty() && r.model != limits.model_name) {
    return fail(ErrorCode::kModelNotFound,
                fmt::format("this engine serves \"{}\", not \"{}\"", limits.model_name,
                            std::string_view(r.model).substr(0, 100)),
                "model");
  }
  if (r.prompt == nullptr || r.prompt->empty()) {
    return fail(ErrorCode::kInvalidArgument, "the prompt has no tokens", "prompt");
  }
  TRY_STATUS(check_sampling(r.sampling, limits.vocab_size));
  const std::uint64_t length = r.prompt->size() + r.emitted.size();
  const std::uint64_t context = limits.context_length;
  if (r.prompt->size() >= context || length > context) {
    return fail(
        ErrorCode::kContextLengthExceeded,
        fmt::format("the prompt has {} tokens{}; the context of {} tokens must also hold "
                    "at least one token of the answer",
                    r.prompt->size(), r.emitted.empty() ? "" : " beside those emitted", context),
        "prompt");
  }
  const std::uint64_t longest = std::min(context, r.prompt->size() + r.sampling.max_tokens);
  if (blocks_for(longest) > limits.kv_blocks) {
    return fail(ErrorCode::kContextLengthExceeded,
                fmt::format("prompt and answer of up to {} tokens need {} KV blocks, the pool has "
                            "{}; lower max_tokens or give the engine more KV memory",
                            longest, blocks_for(longest), limits.kv_blocks),
                "max_tokens");
  }
  for (const std::span<const TokenId> tokens :
       {std::span<const TokenId>(*r.prompt), std::span<const TokenId>(r.emitted)}) {
    const auto wrong =
        std::ranges::find_if(tokens, [&](TokenId t) { return t >= limits.vocab_size; });
    if (wrong != tokens.end()) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("token {} lies outside the vocabulary of {}", *wrong, limits.vocab_size),
          tokens.data() == r.emitted.data() ? "emitted" : "prompt");
    }
  }
  if (!r.emitted.empty() && r.sampling.choices != 1) {
    return fail(ErrorCode::kInvalidArgument, "a continued stream has one choice", "emitted");
  }
  return {};
}

Status check_prefix(const EngineRequest& r, const PrefixLoad& prefix) {
  const std::uint64_t tokens = std::uint64_t{prefix.blocks()} * kBlockTokens;
  if (tokens >= r.prompt->size() + r.emitted.size()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a loaded prefix of {} tokens leaves nothing to compute of {} tokens",
                            tokens, r.prompt->size() + r.emitted.size()));
  }
  return {};
}

}  // namespace penstock::engine
