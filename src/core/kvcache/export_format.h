// The bytes of an export: the file that carries blocks from one KV daemon to another.
//
// A file is a sequence of items, each with its kind, its length and a checksum: first the head
// (version, key check of the secret, names of the TTL classes), then roots and blocks, last the
// totals. A block's payload stands behind its item; the item has the checksum of every slice. The
// totals hold a checksum chained over all items, so that none can be missing or exchanged.
//
// Invariants: a root stands before its blocks, a block before its descendants (the writer's duty;
// an importer treats a block without its parent as the daemon does). Parsing any bytes is safe;
// what parses has whole slices whose checksums match.
// Units and shapes: little-endian; offsets are bytes from the file's start.
// Errors: kDataLoss saying at which byte and what is wrong; kInvalidArgument for a file that is
// none of ours or of another version. Concurrency: pure. Source: docs/protocol/kv-export.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "domain/kv.h"

namespace penstock::kvcache {

inline constexpr std::uint16_t kExportVersion = 1;
inline constexpr std::uint32_t kExportBodyMax = 1U << 20;
inline constexpr std::uint32_t kExportPayloadMax = 1U << 30;

struct ExportHead {
  BlockKey key_check;                // of the secret that named the blocks
  std::vector<std::string> classes;  // BlockInfo::ttl_class is an index into these
};

struct ExportRoot {
  BlockKey root;
  std::string scope;
  std::string build;
  // Without history slices: the daemon did not know it.
  KvLayoutSpec layout;
};

struct ExportBlock {
  BlockInfo info;
  std::span<const std::byte> payload;  // slices one after the other
};

struct ExportTotals {
  std::uint64_t roots = 0;
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;  // of payloads
  bool operator==(const ExportTotals&) const = default;
};

using ExportItem = std::variant<ExportHead, ExportRoot, ExportBlock, ExportTotals>;

// Appends items to `out`, to be written in order. Preconditions: head first, end last; texts and
// slices within the limits; the payload has the sizes of info.slices.
class ExportWriter {
 public:
  void head(const ExportHead& head, std::string& out);
  void root(const ExportRoot& root, std::string& out);
  // The item alone; the payload's bytes follow it.
  void block(const BlockInfo& info, std::string& out);
  void end(std::string& out);
  const ExportTotals& totals() const { return totals_; }

 private:
  void item(std::uint32_t kind, std::string_view body, std::string& out);
  ExportTotals totals_;
  std::uint64_t chain_ = 0;
};

class ExportParser {
 public:
  struct Step {
    std::optional<ExportItem> item;  // nothing: `bytes` of the file are needed from here on
    std::size_t bytes = 0;           // it takes
  };
  // The item at the start of `rest`, the file from offset() on, of which more may follow.
  Result<Step> next(std::span<const std::byte> rest);
  std::uint64_t offset() const { return offset_; }
  bool ended() const { return ended_; }

 private:
  std::uint64_t offset_ = 0;
  bool begun_ = false;
  bool ended_ = false;
  ExportTotals totals_;
  std::uint64_t chain_ = 0;
};

}  // namespace penstock::kvcache
