// SegmentReader: reads the segments of a store from the side, for export.
//
// The daemon that uses them may go on writing: nothing is locked or changed. What a segment holds
// is known by the epoch in its header and records; every block is read again when it is wanted and
// verified then (header, cipher's tag, each slice), so that a segment that was used anew meanwhile
// gives a miss. It also finds records that the daemon has dropped from its index: who wants only
// what it holds asks it (Lookup).
//
// Errors: open() fails with kNotFound (no store there), kIo, and as RecordCipher::read_key_file().
// Segments that are none, of another store or encrypted with another key are passed over and
// counted. Concurrency: one thread; blocks. Source: docs/protocol/kv-segments.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/kvcache/segment_format.h"
#include "io/disk/record_cipher.h"

namespace penstock::disk {

struct StoredRecord {
  BlockInfo info;  // without slices, as its header says
  std::uint64_t epoch = 0;
  std::uint32_t segment = 0;  // number of its file
  std::uint32_t unit = 0;     // where it begins
  std::uint32_t units = 0;
};

class SegmentReader {
 public:
  // `key_file` may be empty.
  static Result<std::unique_ptr<SegmentReader>> open(std::string folder,
                                                     const std::string& key_file);

  // Calls `visit` for each record, in the order of their segments. Reads headers only.
  void for_each(const std::function<void(const StoredRecord&)>& visit);
  // The block's bytes; `info` gets its slices. kCorrupt when it is not, or no more, what it was.
  MissReason read(const StoredRecord& record, BlockInfo& info, std::vector<std::byte>& payload);

  std::uint32_t segments() const { return static_cast<std::uint32_t>(numbers_.size()); }
  // Segments that can't be read with the key given; after for_each().
  std::uint32_t other_key() const { return other_key_; }

 private:
  SegmentReader(std::string folder, Hash128 store) : folder_(std::move(folder)), store_(store) {}
  std::string path_of(std::uint32_t segment) const;
  void records_of(std::uint32_t segment, const std::function<void(const StoredRecord&)>& visit);

  std::string folder_;
  Hash128 store_;
  std::optional<RecordCipher> cipher_;
  std::vector<std::uint32_t> numbers_;
  std::uint32_t other_key_ = 0;
};

}  // namespace penstock::disk
