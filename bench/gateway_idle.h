// `penstock bench gateway-idle`: the memory of a gateway that nobody asks anything, watched for ten
// minutes (three seconds with --quick).
#pragma once

#include "bench.h"

namespace penstock::bench {

Result<std::vector<Figure>> run_gateway_idle(const Options& options);

}  // namespace penstock::bench
