// ResponseKeeping: what the gateway process keeps of the Responses API: the store in the data
// folder, its thread, and the seal for what clients carry.
//
// Invariants: what ran when the process before ended has failed before the first request comes. One
// gateway at a time keeps the responses of a data folder; another one keeps none, and says so.
// Errors: start() as open_sqlite_responses and read_or_create_kv_secret. Concurrency: start() on
// the main thread; the store on the pool's only thread; the seal anywhere.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "app/options.h"
#include "base/result.h"
#include "core/protocol/seal.h"
#include "io/files/files.h"
#include "io/responses/text_seal.h"
#include "io/threads/thread_pool.h"
#include "port/response_store.h"

namespace penstock {

class ResponseKeeping {
 public:
  static Result<std::unique_ptr<ResponseKeeping>> start(const Options& options);

  ResponseStore* store() { return store_.get(); }  // null when nothing is kept
  ComputePool& pool() { return pool_; }
  protocol::Seal seal_for(std::string_view owner) const;
  // Has what is past its time removed, on the pool.
  void expire(std::int64_t now);

 private:
  explicit ResponseKeeping(const TextSeal& seal);
  Status open(const Options& options);

  TextSeal seal_;
  std::optional<FileLock> lock_;
  std::unique_ptr<ResponseStore> store_;
  ThreadPool pool_;  // ends before the store does
};

}  // namespace penstock
