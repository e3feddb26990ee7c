#include "io/kv/kv_codec.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "kv.pb.h"

namespace penstock::kv {
namespace {

namespace wire = ::penstock::kv::v1;

constexpr std::size_t kKeyBytes = sizeof(BlockKey::bytes);
constexpr std::size_t kClassesMax = 256;
constexpr std::uint32_t kTiers = static_cast<std::uint32_t>(KvTier::kCluster) + 1;
constexpr std::uint32_t kErrorCodes = static_cast<std::uint32_t>(ErrorCode::kInternal) + 1;
// Checksums in one Granted frame; 8 bytes each, so that with all else it stays below the limit.
constexpr std::size_t kGrantedChecksumsMax = std::size_t{1} << 20;
constexpr std::size_t kGrantedBlocksMax = std::size_t{1} << 18;

std::unexpected<Error> broken(std::string_view what) {
  return fail(ErrorCode::kDataLoss, fmt::format("a frame with {}", what));
}

std::string_view text_of(const BlockKey& key) {
  return {reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size()};
}

void set_key(const BlockKey& key, std::string* out) {
  out->assign(text_of(key));
}

// Columns of single bytes: empty when all are 0.
template <typename List, typename Value>
std::string byte_column(const List& list, Value value) {
  std::string out;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto byte = static_cast<char>(value(list[i]));
    if (byte == 0 && out.empty()) continue;
    if (out.empty()) out.assign(list.size(), '\0');
    out[i] = byte;
  }
  return out;
}

template <typename List, typename Key>
void key_column(const List& list, Key key, std::string* out) {
  out->reserve(list.size() * kKeyBytes);
  for (const auto& entry : list)
    out->append(text_of(key(entry)));
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

void set(const KvLayoutSpec& in, wire::Layout& out) {
  out.set_block_tokens(in.block_tokens);
  out.mutable_history_slices()->Add(in.history_slices.begin(), in.history_slices.end());
  out.mutable_window_slices()->Add(in.window_slices.begin(), in.window_slices.end());
  out.set_window_tokens(in.window_tokens);
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

void set(const PinnedBlock& in, wire::Pinned& out) {
  out.add_offsets(in.offset);
  out.add_generations(in.generation);
  out.mutable_tiers()->push_back(static_cast<char>(in.from));
  out.add_slice_counts(static_cast<std::uint32_t>(in.checksums.size()));
  out.mutable_checksums()->Add(in.checksums.begin(), in.checksums.end());
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

void set(const Hello& in, wire::ClientFrame& frame) {
  wire::Hello& out = *frame.mutable_hello();
  out.set_protocol_version(in.protocol_version);
  out.set_role(in.role);
  out.set_name(in.name);
  out.set_process_id(in.process_id);
  set_key(in.key_check, out.mutable_key_check());
}

void set(const RegisterPool& in, wire::ClientFrame& frame) {
  wire::RegisterPool& out = *frame.mutable_register_pool();
  out.set_pool(in.pool);
  out.set_bytes(in.bytes);
  set(in.layout, *out.mutable_layout());
}

void set(const RegisterRoot& in, wire::ClientFrame& frame) {
  wire::RegisterRoot& out = *frame.mutable_register_root();
  set_key(in.root, out.mutable_root());
  out.set_scope(in.scope);
  out.set_build(in.build);
  set(in.layout, *out.mutable_layout());
}

void set(const Acquire& in, wire::ClientFrame& frame) {
  wire::Acquire& out = *frame.mutable_acquire();
  out.set_lease(in.lease);
  set_key(in.root, out.mutable_root());
  key_column(in.keys, std::identity(), out.mutable_keys());
  out.mutable_windows()->Add(in.windows.begin(), in.windows.end());
  out.set_content_tag(in.content_tag);
  out.set_request(in.request);
  out.set_ttl_class(in.ttl_class);
  out.set_tenant(in.tenant);
  out.set_budget_ns(static_cast<std::uint64_t>(std::max<std::int64_t>(0, in.budget.count())));
  out.set_prefill_base(in.prefill.base);
  out.set_prefill_per_token(in.prefill.per_token);
  out.set_prefill_per_pair(in.prefill.per_pair);
}

void set(const Release& in, wire::ClientFrame& frame) {
  frame.set_release(in.lease);
}

void set(const Store& in, wire::ClientFrame& frame) {
  wire::Store& out = *frame.mutable_store();
  out.set_number(in.number);
  out.set_pool(in.pool);
  set_key(in.root, out.mutable_root());
  out.set_ttl_class(in.ttl_class);
  out.set_tenant(in.tenant);
  out.set_content_tag(in.content_tag);
  key_column(in.blocks, [](const StoreBlock& b) { return b.name.key; }, out.mutable_keys());
  out.set_groups(byte_column(in.blocks, [](const StoreBlock& b) { return b.name.group; }));
  key_column(in.blocks, [](const StoreBlock& b) { return b.parent; }, out.mutable_parents());
  for (const StoreBlock& block : in.blocks) {
    out.add_depths(block.depth);
    out.add_slice_counts(static_cast<std::uint32_t>(block.slices.size()));
    out.mutable_slices()->Add(block.slices.begin(), block.slices.end());
  }
}

void set(const Lookup& in, wire::ClientFrame& frame) {
  wire::Lookup& out = *frame.mutable_lookup();
  out.set_number(in.number);
  key_column(in.names, [](const BlockName& name) { return name.key; }, out.mutable_keys());
  out.set_groups(byte_column(in.names, [](const BlockName& name) { return name.group; }));
}

void set(const Subscribe& in, wire::ClientFrame& frame) {
  frame.mutable_subscribe()->set_epoch(in.epoch);
  frame.mutable_subscribe()->set_after(in.after);
}

void set(const Admin& in, wire::ClientFrame& frame) {
  frame.mutable_admin()->set_number(in.number);
  frame.mutable_admin()->set_command(in.command);
  frame.mutable_admin()->set_arguments(in.arguments);
}

void set(const Alive&, wire::ClientFrame& frame) {
  frame.set_alive(true);
}

void set(const Report& in, wire::ClientFrame& frame) {
  frame.mutable_report()->set_lease(in.lease);
  set_key(in.name.key, frame.mutable_report()->mutable_key());
  frame.mutable_report()->set_group(static_cast<std::uint32_t>(in.name.group));
}

void set(const Welcome& in, wire::DaemonFrame& frame) {
  wire::Welcome& out = *frame.mutable_welcome();
  out.set_protocol_version(in.protocol_version);
  out.set_epoch(in.epoch);
  out.set_arena_bytes(in.arena_bytes);
  for (const TtlClassSpec& spec : in.classes) {
    wire::TtlClass& entry = *out.add_classes();
    entry.set_name(spec.name);
    entry.set_seconds(static_cast<std::uint64_t>(spec.ttl.count()));
  }
}

void set(const Stored& in, wire::DaemonFrame& frame) {
  wire::Stored& out = *frame.mutable_stored();
  out.set_number(in.number);
  out.mutable_results()->reserve(in.results.size());
  for (const MissReason reason : in.results)
    out.mutable_results()->push_back(static_cast<char>(reason));
}

void set(const LookupAnswer& in, wire::DaemonFrame& frame) {
  frame.mutable_lookup_answer()->set_number(in.number);
  frame.mutable_lookup_answer()->set_tiers(in.tiers.data(), in.tiers.size());
}

void set(const Events& in, wire::DaemonFrame& frame) {
  wire::Events& out = *frame.mutable_events();
  out.set_epoch(in.epoch);
  out.set_first(in.first);
  out.set_snapshot(in.snapshot);
  out.set_snapshot_end(in.snapshot_end);
  key_column(in.events, [](const Event& e) { return e.name.key; }, out.mutable_keys());
  out.set_groups(byte_column(in.events, [](const Event& e) { return e.name.group; }));
  out.set_tiers(byte_column(in.events, [](const Event& e) { return e.tier; }));
  out.set_removals(byte_column(
      in.events, [](const Event& e) { return e.stored ? 0 : 1 + static_cast<int>(e.reason); }));
}

void set(const AdminAnswer& in, wire::DaemonFrame& frame) {
  wire::AdminAnswer& out = *frame.mutable_admin_answer();
  out.set_number(in.number);
  if (in.error) {
    out.set_failed(true);
    out.set_error_code(static_cast<std::uint32_t>(in.error->code));
    out.set_error(in.error->message);
    out.set_error_field(in.error->field);
  }
  out.set_json(in.json);
  out.set_more(!in.final);
}

void set(const Goodbye& in, wire::DaemonFrame& frame) {
  frame.set_goodbye(in.reason);
}

Status append(const google::protobuf::MessageLite& frame, std::string& out) {
  const std::size_t size = frame.ByteSizeLong();
  if (size > kFrameBytesMax) {
    return fail(ErrorCode::kPayloadTooLarge,
                fmt::format("a KV message of {} bytes, more than {}", size, kFrameBytesMax));
  }
  const std::size_t begin = out.size();
  out.resize(begin + 4 + size);
  auto* bytes = reinterpret_cast<std::uint8_t*>(out.data() + begin);
  for (std::size_t i = 0; i < 4; ++i)
    bytes[i] = static_cast<std::uint8_t>(size >> (8 * i));
  frame.SerializeWithCachedSizesToArray(bytes + 4);
  return {};
}

Status append_granted(const Granted& in, std::string& out) {
  const std::size_t begin = out.size();
  auto history = in.history.begin();
  auto window = in.windows.begin();
  bool done = false;
  while (!done) {
    wire::DaemonFrame frame;
    wire::Granted& part = *frame.mutable_granted();
    part.set_lease(in.lease);
    std::size_t checksums = 0;
    std::size_t blocks = 0;
    const auto fits = [&](const PinnedBlock& block) {
      if (blocks == kGrantedBlocksMax ||
          (blocks > 0 && checksums + block.checksums.size() > kGrantedChecksumsMax)) {
        return false;
      }
      ++blocks;
      checksums += block.checksums.size();
      return true;
    };
    for (; history != in.history.end() && fits(*history); ++history)
      set(*history, *part.mutable_history());
    for (; history == in.history.end() && window != in.windows.end() && fits(window->second);
         ++window) {
      part.add_window_depths(window->first);
      set(window->second, *part.mutable_windows());
    }
    done = history == in.history.end() && window == in.windows.end();
    if (done) {
      part.set_final(in.final);
      part.set_missing(static_cast<std::uint32_t>(in.missing));
    }
    if (Status appended = append(frame, out); !appended) {
      out.resize(begin);
      return appended;
    }
  }
  return {};
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
  Events out{in.epoch(), in.first(), in.snapshot(), in.snapshot_end(), {}};
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

Status append_frame(const ClientMessage& message, std::string& out) {
  wire::ClientFrame frame;
  std::visit([&](const auto& m) { set(m, frame); }, message);
  return append(frame, out);
}

Status append_frame(const DaemonMessage& message, std::string& out) {
  if (const auto* granted = std::get_if<Granted>(&message)) return append_granted(*granted, out);
  wire::DaemonFrame frame;
  std::visit(
      [&](const auto& m) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(m)>, Granted>) set(m, frame);
      },
      message);
  return append(frame, out);
}

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

char* FrameBuffer::reserve(std::size_t bytes) {
  if (begin_ == end_) {
    begin_ = end_ = 0;
    // After a long frame the memory is given back.
    if (bytes_.size() > (std::size_t{4} << 20)) bytes_ = std::string();
  } else if (begin_ > 0 && bytes_.size() - end_ < bytes) {
    std::memmove(bytes_.data(), bytes_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (bytes_.size() - end_ < bytes) bytes_.resize(std::max(2 * bytes_.size(), end_ + bytes));
  return bytes_.data() + end_;
}

Result<std::optional<std::string_view>> FrameBuffer::next() {
  if (end_ - begin_ < 4) return std::nullopt;
  std::uint8_t head[4];
  std::memcpy(head, bytes_.data() + begin_, sizeof head);
  const std::size_t size = std::size_t{head[0]} | std::size_t{head[1]} << 8 |
                           std::size_t{head[2]} << 16 | std::size_t{head[3]} << 24;
  if (size > kFrameBytesMax) {
    return fail(ErrorCode::kDataLoss,
                fmt::format("a frame of {} bytes, more than {}", size, kFrameBytesMax));
  }
  if (end_ - begin_ - 4 < size) return std::nullopt;
  const std::string_view frame(bytes_.data() + begin_ + 4, size);
  begin_ += 4 + size;
  return frame;
}

}  // namespace penstock::kv
