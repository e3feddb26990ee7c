// Frames -> values: what a peer sent is checked.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "io/kv/kv_codec.h"
#include "kv.pb.h"

namespace penstock::kv {
namespace {

namespace wire = ::penstock::kv::v1;

constexpr std::size_t kKeyBytes = sizeof(BlockKey::bytes);
constexpr std::size_t kClassesMax = 256;
constexpr std::uint32_t kTiers = static_cast<std::uint32_t>(KvTier::kCluster) + 1;
constexpr std::uint32_t kErrorCodes = static_cast<std::uint32_t>(ErrorCode::kInternal) + 1;

std::unexpected<Error> broken(std::string_view what) {
  return fail(ErrorCode::kDataLoss, fmt::format("a frame with {}", what));
}

std::optional<BlockKey> to_key(std::string_view bytes) {
  if (bytes.size() != kKeyBytes) return std::nullopt;
  BlockKey key;
  std::memcpy(key.bytes.data(), bytes.data(), kKeyBytes);
  return key;
}

BlockKey key_at(const std::string& column, std::size_t i) {
  BlockKey key;
  std::memcpy(key.bytes.data(), column.data() + i * kKeyBytes, kKeyBytes);
  return key;
}

// One byte an entry, each below `limit`; or no bytes: all are 0.
bool is_column(const std::string& column, std::size_t entries, std::uint32_t limit) {
  return column.empty() || (column.size() == entries && std::ranges::all_of(column, [&](char c) {
                              return static_cast<std::uint8_t>(c) < limit;
                            }));
}

std::uint8_t byte_at(const std::string& column, std::size_t i) {
  return column.empty() ? std::uint8_t{0} : static_cast<std::uint8_t>(column[i]);
}

Result<KvLayoutSpec> layout_of(const wire::Layout& in) {
  KvLayoutSpec out;
  out.block_tokens = in.block_tokens();
  out.history_slices.assign(in.history_slices().begin(), in.history_slices().end());
  out.window_slices.assign(in.window_slices().begin(), in.window_slices().end());
  out.window_tokens = in.window_tokens();
  const auto bad = [](const std::vector<std::uint32_t>& slices) {
    return slices.size() > kLayoutSlicesMax || std::ranges::any_of(slices, [](std::uint32_t n) {
             return n == 0 || n > kSliceBytesMax;
           });
  };
  if (out.block_tokens == 0 || out.block_tokens > kBlockTokensMax || out.history_slices.empty() ||
      bad(out.history_slices) || bad(out.window_slices) ||
      out.window_tokens % out.block_tokens != 0 ||
      out.window_slices.empty() != (out.window_tokens == 0)) {
    return broken("a KV layout out of range");
  }
  return out;
}

std::optional<std::vector<PinnedBlock>> pinned_of(const wire::Pinned& in) {
  const auto n = static_cast<std::size_t>(in.offsets_size());
  if (static_cast<std::size_t>(in.generations_size()) != n || in.tiers().size() != n ||
      static_cast<std::size_t>(in.slice_counts_size()) != n || !is_column(in.tiers(), n, kTiers)) {
    return std::nullopt;
  }
  std::uint64_t slices = 0;
  for (const std::uint32_t count : in.slice_counts())
    slices += count;
  if (slices != static_cast<std::uint64_t>(in.checksums_size())) return std::nullopt;
  std::vector<PinnedBlock> out(n);
  const std::uint64_t* checksum = in.checksums().data();
  for (std::size_t i = 0; i < n; ++i) {
    const int at = static_cast<int>(i);
    out[i].offset = in.offsets(at);
    out[i].generation = in.generations(at);
    out[i].from = static_cast<KvTier>(in.tiers()[i]);
    out[i].checksums.assign(checksum, checksum + in.slice_counts(at));
    checksum += in.slice_counts(at);
  }
  return out;
}

bool whole_keys(const std::string& column) {
  return column.size() % kKeyBytes == 0;
}

Result<ClientMessage> decode(const wire::Hello& in) {
  const std::optional<BlockKey> check = to_key(in.key_check());
  if (!check) return broken("a key check of the wrong size");
  return Hello{in.protocol_version(), in.role(), in.name(), in.process_id(), *check};
}

Result<ClientMessage> decode(const wire::RegisterPool& in) {
  TRY(KvLayoutSpec layout, layout_of(in.layout()));
  return RegisterPool{in.pool(), in.bytes(), std::move(layout)};
}

Result<ClientMessage> decode(const wire::RegisterRoot& in) {
  const std::optional<BlockKey> root = to_key(in.root());
  if (!root) return broken("a root of the wrong size");
  TRY(KvLayoutSpec layout, layout_of(in.layout()));
  return RegisterRoot{*root, in.scope(), in.build(), std::move(layout)};
}

Result<ClientMessage> decode(const wire::Acquire& in) {
  const std::optional<BlockKey> root = to_key(in.root());
  if (!root || !whole_keys(in.keys())) return broken("keys of the wrong size");
  const std::size_t keys = in.keys().size() / kKeyBytes;
  constexpr auto kBudgetMax = std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  if (in.ttl_class() > std::numeric_limits<TtlClass>::max() || in.budget_ns() > kBudgetMax) {
    return broken("a class or budget out of range");
  }
  Acquire out;
  out.lease = in.lease();
  out.root = *root;
  out.keys.resize(keys);
  for (std::size_t i = 0; i < keys; ++i)
    out.keys[i] = key_at(in.keys(), i);
  out.windows.assign(in.windows().begin(), in.windows().end());
  for (std::size_t i = 0; i < out.windows.size(); ++i) {
    if (out.windows[i] >= keys || (i > 0 && out.windows[i] <= out.windows[i - 1])) {
      return broken("window depths that are not ascending or have no key");
    }
  }
  out.content_tag = in.content_tag();
  out.request = in.request();
  out.ttl_class = static_cast<TtlClass>(in.ttl_class());
  out.tenant = in.tenant();
  out.budget = Duration(static_cast<std::int64_t>(in.budget_ns()));
  out.prefill = {in.prefill_base(), in.prefill_per_token(), in.prefill_per_pair()};
  for (const double cost : {out.prefill.base, out.prefill.per_token, out.prefill.per_pair}) {
    if (!(cost >= 0 && cost <= kPrefillSecondsMax)) return broken("an impossible cost of prefill");
  }
  return out;
}

Result<ClientMessage> decode(const wire::Store& in) {
  const std::optional<BlockKey> root = to_key(in.root());
  if (!root || !whole_keys(in.keys())) return broken("keys of the wrong size");
  const std::size_t n = in.keys().size() / kKeyBytes;
  if (in.parents().size() != in.keys().size() || !is_column(in.groups(), n, 2) ||
      static_cast<std::size_t>(in.depths_size()) != n ||
      static_cast<std::size_t>(in.slice_counts_size()) != n ||
      in.ttl_class() > std::numeric_limits<TtlClass>::max()) {
    return broken("store columns that differ");
  }
  std::uint64_t slices = 0;
  for (const std::uint32_t count : in.slice_counts())
    slices += count;
  if (slices != static_cast<std::uint64_t>(in.slices_size())) {
    return broken("store slices that differ from their counts");
  }
  Store out{in.number(), in.pool(),        *root, static_cast<TtlClass>(in.ttl_class()),
            in.tenant(), in.content_tag(), {}};
  out.blocks.resize(n);
  const std::uint64_t* slice = in.slices().data();
  for (std::size_t i = 0; i < n; ++i) {
    const int at = static_cast<int>(i);
    StoreBlock& block = out.blocks[i];
    block.name = {key_at(in.keys(), i), static_cast<KvGroup>(byte_at(in.groups(), i))};
    block.parent = key_at(in.parents(), i);
    block.depth = in.depths(at);
    block.slices.assign(slice, slice + in.slice_counts(at));
    slice += in.slice_counts(at);
  }
  return out;
}

Result<ClientMessage> decode(const wire::Lookup& in) {
  const std::size_t n = in.keys().size() / kKeyBytes;
  if (!whole_keys(in.keys()) || !is_column(in.groups(), n, 2)) {
    return broken("keys of the wrong size");
  }
  Lookup out;
  out.number = in.number();
  out.names.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    out.names[i] = {key_at(in.keys(), i), static_cast<KvGroup>(byte_at(in.groups(), i))};
  }
  return out;
}

Result<ClientMessage> decode(const wire::Report& in) {
  const std::optional<BlockKey> key = to_key(in.key());
  if (!key || in.group() > 1) return broken("a block name out of range");
  return Report{in.lease(), {*key, static_cast<KvGroup>(in.group())}};
}

Result<ClientMessage> decode(const wire::Missed& in) {
  if (static_cast<std::size_t>(in.requests_size()) > kMissedMax) return broken("too many requests");
  Missed out;
  out.requests.reserve(static_cast<std::size_t>(in.requests_size()));
  for (const wire::MissedRequest& entry : in.requests()) {
    const std::optional<BlockKey> root = to_key(entry.root());
    if (!root || entry.served().size() > entry.blocks() ||
        !is_column(entry.served(), entry.served().size(), kTiers)) {
      return broken("a missed request out of range");
    }
    MissedRequest& request = out.requests.emplace_back();
    request.request = entry.request();
    request.root = *root;
    request.tenant = entry.tenant();
    request.blocks = entry.blocks();
    for (const char tier : entry.served())
      request.served.push_back(static_cast<KvTier>(tier));
    request.at = UnixSeconds(entry.at());
  }
  return out;
}

Result<DaemonMessage> decode(const wire::Welcome& in) {
  if (static_cast<std::size_t>(in.classes_size()) > kClassesMax) return broken("too many classes");
  Welcome out{in.protocol_version(), in.epoch(), in.arena_bytes(), {}};
  for (const wire::TtlClass& entry : in.classes()) {
    if (entry.seconds() > std::numeric_limits<std::int32_t>::max()) {
      return broken("a lifetime out of range");
    }
    out.classes.push_back(
        {entry.name(), std::chrono::seconds(static_cast<std::int64_t>(entry.seconds()))});
  }
  return out;
}

Result<DaemonMessage> decode(const wire::Granted& in) {
  auto history = pinned_of(in.history());
  auto windows = pinned_of(in.windows());
  if (!history || !windows ||
      windows->size() != static_cast<std::size_t>(in.window_depths_size()) ||
      in.missing() >= kMissReasons) {
    return broken("grants whose columns differ or are out of range");
  }
  Granted out;
  out.lease = in.lease();
  out.history = std::move(*history);
  out.windows.reserve(windows->size());
  for (std::size_t i = 0; i < windows->size(); ++i) {
    out.windows.emplace_back(in.window_depths(static_cast<int>(i)), std::move((*windows)[i]));
  }
  out.final = in.final();
  out.missing = static_cast<MissReason>(in.missing());
  return out;
}

Result<DaemonMessage> decode(const wire::Stored& in) {
  if (!is_column(in.results(), in.results().size(), kMissReasons)) {
    return broken("store results out of range");
  }
  Stored out{in.number(), {}};
  for (const char result : in.results())
    out.results.push_back(static_cast<MissReason>(result));
  return out;
}

Result<DaemonMessage> decode(const wire::Events& in) {
  const std::size_t n = in.keys().size() / kKeyBytes;
  if (!whole_keys(in.keys()) || !is_column(in.groups(), n, 2) ||
      !is_column(in.tiers(), n, kTiers) || !is_column(in.removals(), n, kMissReasons + 1)) {
    return broken("event columns that differ or are out of range");
  }
  if (in.tiers_off() >= 1U << kTiers) return broken("a tier out of range");
  Events out{in.epoch(), in.first(), in.snapshot(), in.snapshot_end(), {}};
  out.tiers_off = static_cast<std::uint8_t>(in.tiers_off());
  out.events.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    Event& event = out.events[i];
    const std::uint8_t removal = byte_at(in.removals(), i);
    event.name = {key_at(in.keys(), i), static_cast<KvGroup>(byte_at(in.groups(), i))};
    event.tier = static_cast<KvTier>(byte_at(in.tiers(), i));
    event.stored = removal == 0;
    event.reason = static_cast<MissReason>(removal == 0 ? 0 : removal - 1);
  }
  return out;
}

Result<DaemonMessage> decode(const wire::AdminAnswer& in) {
  if (in.error_code() >= kErrorCodes) return broken("an error code out of range");
  AdminAnswer out;
  out.number = in.number();
  if (in.failed()) {
    out.error = Error{static_cast<ErrorCode>(in.error_code()), in.error(), in.error_field(), {}};
  }
  out.json = in.json();
  out.final = !in.more();
  return out;
}

}  // namespace

Result<ClientMessage> decode_client(std::string_view bytes) {
  wire::ClientFrame frame;
  if (bytes.size() > kFrameBytesMax ||
      !frame.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return broken("bytes that are no message");
  }
  switch (frame.message_case()) {
    case wire::ClientFrame::kHello:
      return decode(frame.hello());
    case wire::ClientFrame::kRegisterPool:
      return decode(frame.register_pool());
    case wire::ClientFrame::kRegisterRoot:
      return decode(frame.register_root());
    case wire::ClientFrame::kAcquire:
      return decode(frame.acquire());
    case wire::ClientFrame::kRelease:
      return Release{frame.release()};
    case wire::ClientFrame::kStore:
      return decode(frame.store());
    case wire::ClientFrame::kLookup:
      return decode(frame.lookup());
    case wire::ClientFrame::kSubscribe:
      return Subscribe{frame.subscribe().epoch(), frame.subscribe().after()};
    case wire::ClientFrame::kAdmin:
      return Admin{frame.admin().number(), frame.admin().command(), frame.admin().arguments()};
    case wire::ClientFrame::kAlive:
      return Alive{};
    case wire::ClientFrame::kReport:
      return decode(frame.report());
    case wire::ClientFrame::kMissed:
      return decode(frame.missed());
    case wire::ClientFrame::MESSAGE_NOT_SET:
      break;
  }
  return broken("no message that this version knows");
}

Result<DaemonMessage> decode_daemon(std::string_view bytes) {
  wire::DaemonFrame frame;
  if (bytes.size() > kFrameBytesMax ||
      !frame.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return broken("bytes that are no message");
  }
  switch (frame.message_case()) {
    case wire::DaemonFrame::kWelcome:
      return decode(frame.welcome());
    case wire::DaemonFrame::kGranted:
      return decode(frame.granted());
    case wire::DaemonFrame::kStored:
      return decode(frame.stored());
    case wire::DaemonFrame::kLookupAnswer: {
      const std::string& tiers = frame.lookup_answer().tiers();
      return LookupAnswer{frame.lookup_answer().number(), {tiers.begin(), tiers.end()}};
    }
    case wire::DaemonFrame::kEvents:
      return decode(frame.events());
    case wire::DaemonFrame::kAdminAnswer:
      return decode(frame.admin_answer());
    case wire::DaemonFrame::kGoodbye:
      return Goodbye{frame.goodbye()};
    case wire::DaemonFrame::MESSAGE_NOT_SET:
      break;
  }
  return broken("no message that this version knows");
}

}  // namespace penstock::kv
