// The model as the papers write it, in double precision, slowly: the yardstick for the fast one.
//
// Attention is not absorbed (keys and values are expanded per head), nothing is cached, batched or
// rounded, except the KV row when the cache's rounding is asked for. It shares no arithmetic
// with the engine, only the reading of files.
//
// Units and shapes: logits [positions][vocab].
// Errors: those of loading. Concurrency: none shared.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "engine/config.h"
#include "engine/kv_pool.h"

namespace penstock::engine {

// Logits at every position of the sequence.
Result<std::vector<std::vector<double>>> reference_logits(const std::string& checkpoint_dir,
                                                          const std::vector<TokenId>& tokens,
                                                          KvDtype kv_dtype);

}  // namespace penstock::engine
