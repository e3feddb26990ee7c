// The parts of `penstock bench pd`: each measures its figures on its own.
#pragma once

#include "bench.h"

namespace penstock::bench {

// What a stream of long prompts does to running streams; tokens per second without one; what the
// handoff adds to the first two tokens. Prefill and decode workers against mixed ones.
Result<std::vector<Figure>> pd_pool_figures(const Options& options);
// What a frame of tokens costs the gateway.
Result<std::vector<Figure>> pd_gateway_figures(const Options& options);

}  // namespace penstock::bench
