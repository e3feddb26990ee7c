// Export and import: the blocks of a KV daemon as one file, and back.
//
// Export waits until the daemon has written what it accepted (flush), then writes the blocks that
// only memory has, chain by chain through leases, then those that its disk has, out of the segment
// files; the daemon goes on meanwhile. Every block is verified as it is copied. Import verifies the
// whole file first, then offers its blocks as a worker offers those that it has computed.
//
// Invariants: FILE is there only when it is whole; nothing is overwritten. A block that can't be
// exported or imported is counted under its reason, never dropped in silence.
// Errors: kConflict (FILE exists; other secret), kDataLoss (damage, with the byte), kIo,
// kUnavailable (the daemon went away). Concurrency: one thread; blocks for long.
// Source: docs/protocol/kv-export.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "app/options.h"
#include "base/result.h"
#include "core/kvcache/export_format.h"
#include "io/disk/segment_reader.h"
#include "io/kv/kv_session.h"

namespace penstock {

struct KvTransferResult {
  std::uint64_t roots = 0;
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;                       // of payloads
  std::map<std::string, std::uint64_t> skipped;  // blocks, by reason
};

using KvTransferProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

struct KvExportOptions {
  std::string file;
  std::string scope_filter;  // only scopes that contain it; empty: all
  BlockKey key_check;
  disk::SegmentReader* segments = nullptr;  // null: the daemon has no disk
  KvTransferProgress progress;              // blocks
};
Result<KvTransferResult> export_kv(kv::KvSession& session, const KvExportOptions& options);

struct KvImportOptions {
  std::string file;
  BlockKey key_check;
  std::uint64_t batch_bytes = std::uint64_t{16} << 20;
  KvTransferProgress progress;  // bytes of the file
};
Result<KvTransferResult> import_kv(kv::KvSession& session, const KvImportOptions& options);

// `penstock kv export FILE`, `penstock kv import FILE`.
Result<int> run_kv_transfer(const Options& options);

}  // namespace penstock
