// Values -> frames.
#include <algorithm>
#include <functional>
#include <type_traits>

#include <fmt/format.h>

#include "io/kv/kv_codec.h"
#include "kv.pb.h"

namespace penstock::kv {
namespace {

namespace wire = ::penstock::kv::v1;

// Checksums in one Granted frame; 8 bytes each, so that with all else it stays below the limit.
constexpr std::size_t kGrantedChecksumsMax = std::size_t{1} << 20;
constexpr std::size_t kGrantedBlocksMax = std::size_t{1} << 18;

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
  out->reserve(list.size() * sizeof(BlockKey::bytes));
  for (const auto& entry : list)
    out->append(text_of(key(entry)));
}

void set(const KvLayoutSpec& in, wire::Layout& out) {
  out.set_block_tokens(in.block_tokens);
  out.mutable_history_slices()->Add(in.history_slices.begin(), in.history_slices.end());
  out.mutable_window_slices()->Add(in.window_slices.begin(), in.window_slices.end());
  out.set_window_tokens(in.window_tokens);
}

void set(const PinnedBlock& in, wire::Pinned& out) {
  out.add_offsets(in.offset);
  out.add_generations(in.generation);
  out.mutable_tiers()->push_back(static_cast<char>(in.from));
  out.add_slice_counts(static_cast<std::uint32_t>(in.checksums.size()));
  out.mutable_checksums()->Add(in.checksums.begin(), in.checksums.end());
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

void set(const Missed& in, wire::ClientFrame& frame) {
  wire::Missed& all = *frame.mutable_missed();
  for (const MissedRequest& request : in.requests) {
    wire::MissedRequest& out = *all.add_requests();
    out.set_request(request.request);
    set_key(request.root, out.mutable_root());
    out.set_tenant(request.tenant);
    out.set_blocks(request.blocks);
    out.mutable_served()->reserve(request.served.size());
    for (const KvTier tier : request.served)
      out.mutable_served()->push_back(static_cast<char>(tier));
    out.set_at(request.at.value);
  }
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
  out.set_tiers_off(in.tiers_off);
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

}  // namespace penstock::kv
