// What the commands of `penstock kv` share.
// Concurrency: one thread.
#pragma once

#include <memory>

#include "app/options.h"
#include "base/result.h"
#include "io/kv/kv_session.h"

namespace penstock {

// A session with the daemon that asks questions and gets no blocks. Fails as KvSession::connect,
// or when the secret is there and can't be read.
Result<std::unique_ptr<kv::KvSession>> open_kv_tool(const Options& options);

// kv warm FILE [--wait]: computes a prompt through the API, so that it is kept.
Result<int> run_kv_warm(const Options& options);

}  // namespace penstock
