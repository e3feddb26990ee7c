#include "core/kvcache/export_format.h"

#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/hash.h"

namespace penstock::kvcache {
namespace {

static_assert(std::endian::native == std::endian::little, "fields are copied as they are");

constexpr std::uint32_t kHead = 0x31584B50;   // "PKX1"
constexpr std::uint32_t kRoot = 0x544F4F52;   // "ROOT"
constexpr std::uint32_t kBlock = 0x4B4F4C42;  // "BLOK"
constexpr std::uint32_t kEnd = 0x53444E45;    // "ENDS"
constexpr std::size_t kFrameBytes = 8;        // kind, length
constexpr std::size_t kSumBytes = 8;
constexpr std::size_t kTextMax = 1024;
constexpr std::size_t kSlicesMax = 1U << 16;
constexpr std::size_t kClassesMax = 256;

template <typename T>
void put(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& out, const std::string& text) {
  ENSURE(text.size() <= kTextMax);
  put(out, static_cast<std::uint16_t>(text.size()));
  out += text;
}

// Takes fields off the front; what is not there makes it fail for good.
class Fields {
 public:
  explicit Fields(std::span<const std::byte> body) : rest_(body) {}

  template <typename T>
  T get() {
    T value{};
    if (rest_.size() < sizeof value) {
      failed_ = true;
    } else {
      std::memcpy(&value, rest_.data(), sizeof value);
      rest_ = rest_.subspan(sizeof value);
    }
    return value;
  }
  std::string text() {
    const std::size_t size = get<std::uint16_t>();
    if (size > kTextMax || size > rest_.size()) {
      failed_ = true;
      return {};
    }
    const auto* const data = reinterpret_cast<const char*>(rest_.data());
    rest_ = rest_.subspan(size);
    return {data, size};
  }
  // A count of things of at least `each` bytes; 0 when they can't all be there.
  std::size_t count(std::size_t most, std::size_t each) {
    const std::size_t n = get<std::uint32_t>();
    if (n > most || n * each > rest_.size()) failed_ = true;
    return failed_ ? 0 : n;
  }
  bool good() const { return !failed_ && rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  bool failed_ = false;
};

std::optional<ExportHead> parse_head(Fields fields) {
  ExportHead head;
  head.key_check = fields.get<BlockKey>();
  const std::size_t classes = fields.count(kClassesMax, 2);
  for (std::size_t i = 0; i < classes; ++i)
    head.classes.push_back(fields.text());
  if (!fields.good()) return std::nullopt;
  return head;
}

std::optional<ExportRoot> parse_root(Fields fields) {
  ExportRoot root;
  root.root = fields.get<BlockKey>();
  root.scope = fields.text();
  root.build = fields.text();
  root.layout.block_tokens = fields.get<std::uint32_t>();
  root.layout.window_tokens = fields.get<std::uint32_t>();
  for (auto* const slices : {&root.layout.history_slices, &root.layout.window_slices}) {
    const std::size_t n = fields.count(kSlicesMax, 4);
    for (std::size_t i = 0; i < n; ++i)
      slices->push_back(fields.get<std::uint32_t>());
  }
  if (!fields.good()) return std::nullopt;
  return root;
}

std::optional<BlockInfo> parse_block(Fields fields) {
  BlockInfo info;
  info.name.key = fields.get<BlockKey>();
  info.parent = fields.get<BlockKey>();
  info.root = fields.get<BlockKey>();
  info.tenant = fields.get<std::uint64_t>();
  info.depth = fields.get<std::uint32_t>();
  const auto group = fields.get<std::uint8_t>();
  info.name.group = group == 0 ? KvGroup::kHistory : KvGroup::kWindow;
  info.ttl_class = fields.get<std::uint8_t>();
  const auto zero = fields.get<std::uint16_t>();
  const std::size_t slices = fields.count(kSlicesMax, 12);
  info.slices.reserve(slices);
  bool sound = group <= 1 && zero == 0 && slices > 0;
  for (std::size_t i = 0; i < slices; ++i) {
    const auto bytes = fields.get<std::uint32_t>();
    info.slices.push_back({bytes, fields.get<std::uint64_t>()});
    sound = sound && bytes > 0;
  }
  if (!fields.good() || !sound || info.bytes() > kExportPayloadMax) return std::nullopt;
  return info;
}

std::uint64_t chained(std::uint64_t chain, std::uint64_t sum) {
  const std::uint64_t words[] = {chain, sum};
  return checksum64(std::as_bytes(std::span(words)));
}

bool matches(const BlockInfo& info, std::span<const std::byte> payload) {
  for (const SliceSum& slice : info.slices) {
    if (checksum64(payload.first(slice.bytes)) != slice.checksum) return false;
    payload = payload.subspan(slice.bytes);
  }
  return true;
}

}  // namespace

void ExportWriter::item(std::uint32_t kind, std::string_view body, std::string& out) {
  ENSURE(body.size() <= kExportBodyMax);
  const std::size_t begin = out.size();
  put(out, kind);
  put(out, static_cast<std::uint32_t>(body.size()));
  out += body;
  const std::uint64_t sum = checksum64(std::string_view(out).substr(begin));
  put(out, sum);
  chain_ = chained(chain_, sum);
}

void ExportWriter::head(const ExportHead& head, std::string& out) {
  std::string body;
  put(body, kExportVersion);
  put(body, std::uint16_t{0});
  put(body, head.key_check);
  ENSURE(head.classes.size() <= kClassesMax);
  put(body, static_cast<std::uint32_t>(head.classes.size()));
  for (const std::string& name : head.classes)
    put_text(body, name);
  item(kHead, body, out);
}

void ExportWriter::root(const ExportRoot& root, std::string& out) {
  std::string body;
  put(body, root.root);
  put_text(body, root.scope);
  put_text(body, root.build);
  put(body, root.layout.block_tokens);
  put(body, root.layout.window_tokens);
  for (const auto* const slices : {&root.layout.history_slices, &root.layout.window_slices}) {
    put(body, static_cast<std::uint32_t>(slices->size()));
    for (const std::uint32_t bytes : *slices)
      put(body, bytes);
  }
  ++totals_.roots;
  item(kRoot, body, out);
}

void ExportWriter::block(const BlockInfo& info, std::string& out) {
  std::string body;
  put(body, info.name.key);
  put(body, info.parent);
  put(body, info.root);
  put(body, info.tenant);
  put(body, info.depth);
  put(body, static_cast<std::uint8_t>(info.name.group));
  put(body, info.ttl_class);
  put(body, std::uint16_t{0});
  put(body, static_cast<std::uint32_t>(info.slices.size()));
  for (const SliceSum& slice : info.slices) {
    put(body, slice.bytes);
    put(body, slice.checksum);
  }
  ++totals_.blocks;
  totals_.bytes += info.bytes();
  item(kBlock, body, out);
}

void ExportWriter::end(std::string& out) {
  std::string body;
  put(body, totals_.roots);
  put(body, totals_.blocks);
  put(body, totals_.bytes);
  put(body, chain_);
  item(kEnd, body, out);
}

Result<ExportParser::Step> ExportParser::next(std::span<const std::byte> rest) {
  ENSURE(!ended_);
  const auto broken = [&](std::string_view what) {
    return fail(ErrorCode::kDataLoss, fmt::format("damaged at byte {}: {}", offset_, what));
  };
  if (rest.size() < kFrameBytes) return Step{std::nullopt, kFrameBytes};
  Fields frame(rest.first(kFrameBytes));
  const auto kind = frame.get<std::uint32_t>();
  const auto body_bytes = frame.get<std::uint32_t>();
  if (!begun_ && kind != kHead) {
    return fail(ErrorCode::kInvalidArgument, "is no export of a KV cache");
  }
  if (body_bytes > kExportBodyMax) return broken("an item is longer than any can be");
  const std::size_t bytes = kFrameBytes + body_bytes + kSumBytes;
  if (rest.size() < bytes) return Step{std::nullopt, bytes};
  const std::uint64_t sum = checksum64(rest.first(kFrameBytes + body_bytes));
  if (Fields(rest.subspan(kFrameBytes + body_bytes, kSumBytes)).get<std::uint64_t>() != sum) {
    return broken("an item does not match its checksum");
  }
  auto body = rest.subspan(kFrameBytes, body_bytes);
  Step step{std::nullopt, bytes};
  if (kind == kHead && !begun_) {
    if (body.size() < 4) return broken("the head is too short");
    Fields start(body);
    const auto version = start.get<std::uint16_t>();
    if (version != kExportVersion || start.get<std::uint16_t>() != 0) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("is an export of format version {}, this build reads {}", version,
                              kExportVersion));
    }
    if (auto head = parse_head(Fields(body.subspan(4)))) step.item = std::move(*head);
  } else if (kind == kRoot) {
    if (auto root = parse_root(Fields(body))) step.item = std::move(*root);
    ++totals_.roots;
  } else if (kind == kBlock) {
    auto info = parse_block(Fields(body));
    if (!info) return broken("a block makes no sense");
    const std::uint64_t payload_bytes = info->bytes();
    if (rest.size() < bytes + payload_bytes) return Step{std::nullopt, bytes + payload_bytes};
    const auto payload = rest.subspan(bytes, payload_bytes);
    if (!matches(*info, payload)) return broken("a block does not match its checksums");
    ++totals_.blocks;
    totals_.bytes += payload_bytes;
    step.bytes += payload_bytes;
    step.item = ExportBlock{std::move(*info), payload};
  } else if (kind == kEnd) {
    Fields fields(body);
    ExportTotals totals;
    totals.roots = fields.get<std::uint64_t>();
    totals.blocks = fields.get<std::uint64_t>();
    totals.bytes = fields.get<std::uint64_t>();
    const auto chain = fields.get<std::uint64_t>();
    if (!fields.good() || totals != totals_ || chain != chain_) {
      return broken("what the file says to hold is not what it holds");
    }
    step.item = totals;
    ended_ = true;
  }
  if (!step.item) return broken("an item makes no sense");
  begun_ = true;
  chain_ = chained(chain_, sum);
  offset_ += step.bytes;
  return step;
}

}  // namespace penstock::kvcache
