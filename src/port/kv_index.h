// KvIndex: what a gateway shard knows, from events, of the KV that daemons hold for a prompt.
//
// A hint for placement and for people: no process is asked. The worker that prefills acquires the
// blocks for real, and a block that has gone since is computed.
//
// Units and shapes: tokens of the prompt, whole blocks. Errors: none; unknown is a match of 0.
// Concurrency: shard thread only. Source: design.md section 5, step 3.
#pragma once

#include <cstdint>
#include <span>

#include "base/units.h"
#include "domain/engine.h"
#include "domain/tokens.h"

namespace penstock {

// Of the host that serves most. What is in neither of its memory and its disk is in the cluster
// store, as far as that host knows of it: an estimate.
struct KvIndexMatch {
  Tokens resumable;  // up to the best exact point to resume at, one token left to compute
  Tokens host;       // of all that is held: in host memory
  Tokens disk;       // on disk
  Tokens cluster;    // in the cluster store
};

class KvIndex {
 public:
  virtual ~KvIndex() = default;
  virtual KvIndexMatch match(const KvIdentity& identity, const CacheHints& hints,
                             std::span<const TokenId> prompt) = 0;
};

}  // namespace penstock
