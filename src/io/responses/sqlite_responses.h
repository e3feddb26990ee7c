// SqliteResponses: a ResponseStore in one SQLite file.
//
// Two tables, responses and their events; the write-ahead log keeps what was committed over a crash
// of the process (a power failure may lose the last moments). What is deleted is overwritten. The
// file is readable by its owner only: it holds conversations.
//
// Errors: open() kIo, or kDataLoss for a file of another version or no database; the rest as the
// port. Concurrency: one thread at a time. Source: sqlite.org/c3ref; port/response_store.h.
#pragma once

#include <memory>
#include <string>

#include "base/units.h"
#include "port/response_store.h"

namespace penstock {

struct SqliteResponsesOptions {
  std::string path;
  std::int64_t retention_seconds = std::int64_t{30} * 24 * 3600;  // from creation
  Bytes bytes_max{
      std::int64_t{1} << 30};    // of the file; the oldest responses go before it is reached
  std::size_t chain_max = 1000;  // responses of a conversation that are followed
};

Result<std::unique_ptr<ResponseStore>> open_sqlite_responses(SqliteResponsesOptions options);

}  // namespace penstock
