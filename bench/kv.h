// The parts of `penstock bench kv`, one per file; kv.cc puts them in a row.
#pragma once

#include <memory>
#include <string>
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

// Cluster tier: transfers against the store without us, metadata.
Result<std::vector<Figure>> kv_cluster_figures(const Options&);

// Time to first token with hits from memory, disk and the cluster store, against cold; only of the
// latter with kv_tier "cluster".
Result<std::vector<Figure>> kv_first_token_figures(const Options&);

// Removes all objects that stand in the store's manifests, and those.
void clear_store(BlockStore& store);

// Where a bench keeps its objects: a name space of its own in the cluster's pools, or a folder of
// its own, removed with this, in the store's folder (in the temporary one when none is named).
class BenchStore {
 public:
  // kIo: no folder can be made.
  static Result<std::unique_ptr<BenchStore>> make(const Options& options);
  ~BenchStore();
  BenchStore(const BenchStore&) = delete;
  BenchStore& operator=(const BenchStore&) = delete;
  const std::string& text() const { return text_; }      // for Options::open_store
  const std::string& folder() const { return folder_; }  // empty: it is RADOS

 private:
  BenchStore() = default;
  std::string text_, folder_;
};

}  // namespace penstock::bench
