// Access log: one JSON line per request, written by a thread of its own.
//
// write() formats the line and puts it into a bounded buffer; the writer thread takes all that is
// there and writes it in one call. A shard therefore never waits for a disk or a terminal: when the
// buffer is full the line is dropped and counted. Lines hold who, what and how long; never content,
// never a key.
//
// Line: {"ts":"2026-01-02T03:04:05.678Z","request_id":"...","peer":"127.0.0.1","key":"ci","method":
// "POST","route":"/v1/chat/completions","model":"nano","alias":null,"stream":true,"status":200,
// "outcome":"stop","prompt_tokens":12,"cached_tokens":0,"completion_tokens":5,"queue_ms":0.1,
// "ttft_ms":8.2,"total_ms":31.0,"moves":0,"placement":"worker-0: 2 in flight, fewest of 1"}
// Values that do not apply are null; strings longer than 256 bytes are cut.
//
// Invariants: a line is whole or absent; the destructor writes what is buffered.
// Errors: open() fails with kIo; later write errors count as drops. Concurrency: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "domain/request_record.h"

namespace penstock {

// The line without its newline; `unix_milliseconds` is the wall clock's time of the end.
std::string format_access_line(const RequestRecord& record, std::int64_t unix_milliseconds);

class AccessLog {
 public:
  struct Options {
    std::string path;  // empty = stderr
    Bytes buffer_max{std::int64_t{4} << 20};
  };
  static Result<std::unique_ptr<AccessLog>> open(Options options);
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  void write(const RequestRecord& record);
  // Lines lost so far, because the buffer was full or the file failed.
  std::uint64_t dropped() const;
  // Opens the path again, for log rotation; keeps the old file when that fails.
  Status reopen();
  // Waits until everything written so far is in the file or dropped.
  void flush();

 private:
  struct State;
  explicit AccessLog(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock
