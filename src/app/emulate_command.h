// `penstock emulate`: beside commands.h, whose includers are all other commands.
#pragma once

#include "app/options.h"
#include "base/result.h"

namespace penstock {

// Serves until a stop signal; words are the dialect and settings.
Result<int> run_emulate(const Options& options);

}  // namespace penstock
