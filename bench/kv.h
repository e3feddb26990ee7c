// The parts of `penstock bench kv`, one per file; kv.cc puts them in a row.
#pragma once

#include <vector>

#include "bench.h"

namespace penstock::bench {

// Keys of a long prompt and its match against a large index; no I/O.
Result<std::vector<Figure>> kv_match_figures(const Options&);

// Host memory and the socket of a daemon in another process.
Result<std::vector<Figure>> kv_host_figures(const Options&);

// Other hosts: a daemon in another process over TCP loopback, against a raw stream.
Result<std::vector<Figure>> kv_peer_figures(const Options&);

// Disk tier: transfers against a raw ring and fio, recovery, index memory.
Result<std::vector<Figure>> kv_disk_figures(const Options&);

// Time to first token with hits from memory and disk, against cold.
Result<std::vector<Figure>> kv_first_token_figures(const Options&);

}  // namespace penstock::bench
