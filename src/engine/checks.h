// What the engine refuses: options that cannot work, requests that cannot be served.
//
// Errors: each names the option or request field at fault. Concurrency: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "engine/config.h"
#include "engine/engine.h"

namespace penstock::engine {

// Fills in the defaults that depend on machine and model, and checks every option.
Status complete_options(EngineOptions& options, const ModelConfig& config);
// Refuses activations beyond half of this machine's memory: a config may imply far more than its
// checkpoint has bytes.
Status check_memory(const EngineOptions& options, const ModelConfig& config);
// The size of the KV pool in blocks.
Result<std::uint32_t> pool_blocks(const EngineOptions& options, const KvLayout& layout);

struct RequestLimits {
  std::string model_name;
  std::uint32_t vocab_size = 0;
  std::uint32_t context_length = 0;
  std::uint32_t kv_blocks = 0;  // of the whole pool
};
// Everything about a request that does not depend on other requests.
Status check_request(const EngineRequest& request, const RequestLimits& limits);
Status check_prefix(const EngineRequest& request, const PrefixLoad& prefix);

}  // namespace penstock::engine
