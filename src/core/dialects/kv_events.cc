#include "core/dialects/kv_events.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "core/dialects/msgpack.h"

namespace penstock::dialects {
namespace {

enum class Field : std::uint8_t {
  kType,
  kHashes,
  kParent,
  kTokens,
  kBlockSize,
  kLoraId,
  kMedium,
  kLoraName,
  kExtraKeys,
  kGroup,
  kSpecKind,
  kSlidingWindow,
  kLocality,
  kSalt,
  kIgnored,  // known, and of no use here
  kUnknown,
};

constexpr std::pair<std::string_view, Field> kNames[] = {
    {"type", Field::kType},
    {"block_hashes", Field::kHashes},
    {"parent_block_hash", Field::kParent},
    {"token_ids", Field::kTokens},
    {"block_size", Field::kBlockSize},
    {"lora_id", Field::kLoraId},
    {"medium", Field::kMedium},
    {"lora_name", Field::kLoraName},
    {"extra_keys", Field::kExtraKeys},
    {"group_idx", Field::kGroup},
    {"kv_cache_spec_kind", Field::kSpecKind},
    {"kv_cache_spec_sliding_window", Field::kSlidingWindow},
    {"locality", Field::kLocality},
    {"cache_salt", Field::kSalt},
    {"ownership", Field::kIgnored},
    {"session_id", Field::kIgnored},
};
constexpr Field kStoredOrder[] = {
    Field::kHashes,        Field::kParent,   Field::kTokens,    Field::kBlockSize, Field::kLoraId,
    Field::kMedium,        Field::kLoraName, Field::kExtraKeys, Field::kGroup,     Field::kSpecKind,
    Field::kSlidingWindow, Field::kLocality, Field::kIgnored,   Field::kIgnored};
constexpr Field kRemovedOrder[] = {Field::kHashes, Field::kMedium, Field::kGroup, Field::kLocality,
                                   Field::kIgnored};

// A key that no prompt has.
constexpr std::string_view kNotUnderstood = "\x01?";

Field field_of(std::string_view name) {
  const auto* const found =
      std::ranges::find(kNames, name, &std::pair<std::string_view, Field>::first);
  return found == std::end(kNames) ? Field::kUnknown : found->second;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

KvTier tier_of(std::string_view medium, bool remote) {
  const std::string name = lower(medium);
  if (remote) return KvTier::kCluster;
  if (name.empty() || name == "gpu" || name == "device" || name == "hbm") return KvTier::kDevice;
  if (name == "cpu" || name == "host" || name == "cpu_pinned") return KvTier::kHost;
  if (name == "disk" || name == "ssd" || name == "fs" || name == "storage") return KvTier::kDisk;
  return KvTier::kCluster;  // whatever it is, nothing is slower
}

// Reads one event; what its fields refer to goes into the batch.
class EventReader {
 public:
  EventReader(MsgpackReader& in, EngineKvBatch& out) : in_(in), out_(out) {}

  // Takes the event whatever it is. An event that can't be used is counted and leaves no trace.
  void read() {
    const std::size_t hashes = out_.hashes.size();
    const std::size_t tokens = out_.tokens.size();
    const std::size_t media = out_.media.size();
    if (read_fields() && finish()) return;
    out_.hashes.resize(hashes);
    out_.tokens.resize(tokens);
    out_.media.resize(media);
    if (in_.ok()) ++(is_known_type() ? out_.bad_events : out_.unknown_events);
  }

 private:
  bool is_known_type() const {
    return type_ == "BlockStored" || type_ == "BlockRemoved" || type_ == "AllBlocksCleared";
  }

  bool read_fields() {
    if (const auto count = in_.read_array()) {
      if (*count > 0) take(Field::kType);
      const auto order = type_ == "BlockStored"    ? std::span<const Field>(kStoredOrder)
                         : type_ == "BlockRemoved" ? std::span<const Field>(kRemovedOrder)
                                                   : std::span<const Field>();
      for (std::uint32_t i = 1; i < *count && in_.ok(); ++i)
        take(i <= order.size() ? order[i - 1] : Field::kUnknown);
    } else if (const auto pairs = in_.read_map()) {
      for (std::uint32_t i = 0; i < *pairs && in_.ok(); ++i) {
        const auto name = in_.read_text();
        if (!name && !in_.skip()) break;
        take(name ? field_of(*name) : Field::kUnknown);
      }
    } else {
      in_.skip();
      good_ = false;
    }
    return in_.ok() && good_ && is_known_type();
  }

  // Takes a field's value; nil is as good as missing.
  void take(Field field) {
    if (field == Field::kUnknown) ++out_.unknown_fields;
    if (field == Field::kUnknown || field == Field::kIgnored) {
      in_.skip();
    } else if (field == Field::kExtraKeys) {
      extra_keys_ = in_;  // what it means depends on other fields
      in_.skip();
    } else if (!in_.read_nil()) {
      const MsgpackReader before = in_;
      if (take_value(field)) return;
      good_ = false;
      if (!in_.ok()) return;
      in_ = before;
      in_.skip();
    }
  }

  bool take_value(Field field) {
    switch (field) {
      case Field::kType:
        return assign(type_, in_.read_text());
      case Field::kHashes:
        return take_hashes();
      case Field::kParent:
        event_.parent = read_hash();
        return event_.parent.has_value();
      case Field::kTokens:
        return take_tokens();
      case Field::kBlockSize:
        return take_u32(event_.block_tokens);
      case Field::kLoraId:
        lora_id_ = in_.read_signed();
        return lora_id_.has_value();
      case Field::kMedium:
        return assign(medium_, in_.read_text());
      case Field::kLoraName:
        return assign(lora_, in_.read_text());
      case Field::kGroup: {
        std::uint32_t group = 0;
        if (!take_u32(group)) return false;
        event_.group = group;
        return true;
      }
      case Field::kSpecKind:
        return assign(spec_kind_, in_.read_text());
      case Field::kSlidingWindow:
        has_window_ = true;
        return in_.skip();
      case Field::kLocality:
        return assign(locality_, in_.read_text());
      case Field::kSalt:
        return assign(salt_, in_.read_text());
      case Field::kExtraKeys:
      case Field::kIgnored:
      case Field::kUnknown:
        break;
    }
    return false;
  }

  static bool assign(std::string_view& to, std::optional<std::string_view> text) {
    if (text) to = *text;
    return text.has_value();
  }

  bool take_u32(std::uint32_t& to) {
    const auto value = in_.read_unsigned();
    if (!value || *value > std::numeric_limits<std::uint32_t>::max()) return false;
    to = static_cast<std::uint32_t>(*value);
    return true;
  }

  // An integer of either sign, or bytes, of which the last eight count.
  std::optional<std::uint64_t> read_hash() {
    if (const auto number = in_.read_unsigned()) return number;
    if (const auto number = in_.read_signed()) return static_cast<std::uint64_t>(*number);
    const auto bytes = in_.read_bytes();
    if (!bytes) return std::nullopt;
    std::uint64_t value = 0;
    for (const char byte : bytes->substr(bytes->size() - std::min<std::size_t>(bytes->size(), 8)))
      value = value << 8 | static_cast<std::uint8_t>(byte);
    return value;
  }

  bool take_hashes() {
    const auto count = in_.read_array();
    if (!count) return false;
    event_.hashes = {static_cast<std::uint32_t>(out_.hashes.size()), *count};
    for (std::uint32_t i = 0; i < *count; ++i) {
      const auto hash = read_hash();
      if (!hash) return false;
      out_.hashes.push_back(*hash);
    }
    return true;
  }

  bool take_tokens() {
    const std::size_t first = out_.tokens.size();
    if (!in_.read_u32_array(out_.tokens)) return false;
    event_.tokens = {static_cast<std::uint32_t>(first),
                     static_cast<std::uint32_t>(out_.tokens.size() - first)};
    return true;
  }

  bool finish() {
    if (type_ == "AllBlocksCleared") {
      event_.kind = EngineKvEvent::Kind::kCleared;
    } else if (type_ == "BlockRemoved") {
      event_.kind = EngineKvEvent::Kind::kRemoved;
    }
    event_.tier = tier_of(medium_, locality_ == "REMOTE");
    if (!spec_kind_.empty() || has_window_) {
      const bool full = !has_window_ && spec_kind_.find("sliding") == std::string_view::npos &&
                        (spec_kind_.find("full") != std::string_view::npos ||
                         spec_kind_.find("mla") != std::string_view::npos);
      event_.attention = full ? EngineKvEvent::Attention::kFull : EngineKvEvent::Attention::kOther;
    }
    if (event_.kind == EngineKvEvent::Kind::kStored && !finish_context()) return false;
    out_.events.push_back(event_);
    return true;
  }

  bool finish_context() {
    std::string lora(lora_);
    if (lora.empty() && lora_id_) lora = '#' + std::to_string(*lora_id_);
    event_.media.first = static_cast<std::uint32_t>(out_.media.size());
    if (extra_keys_ && !extra_keys_->read_nil() && !read_extra_keys(lora)) return false;
    event_.media.count = static_cast<std::uint32_t>(out_.media.size()) - event_.media.first;
    std::ranges::sort(std::span(out_.media).subspan(event_.media.first), {}, &EngineKvMedia::token);
    if (!event_.parent) event_.context = kv_context(lora, salt_);
    return true;
  }

  bool read_extra_keys(std::string_view lora) {
    const auto blocks = extra_keys_->read_array();
    if (!blocks || *blocks > event_.hashes.count) return false;
    for (std::uint32_t block = 0; block < *blocks; ++block) {
      if (extra_keys_->read_nil()) continue;
      const auto count = extra_keys_->read_array();
      if (!count) return false;
      const bool begins_prompt = block == 0 && !event_.parent;
      for (std::uint32_t i = 0; i < *count; ++i)
        read_extra_key(block, lora, begins_prompt && i + 1 == *count);
    }
    return true;
  }

  void read_extra_key(std::uint32_t block, std::string_view lora, bool may_be_salt) {
    MsgpackReader& in = *extra_keys_;
    if (const auto text = in.read_text()) {
      if (*text == lora || *text == salt_) return;
      if (may_be_salt && salt_.empty()) {
        salt_ = *text;
      } else {
        add_media(block, 0, kNotUnderstood);
      }
      return;
    }
    MsgpackReader pair = in;
    if (pair.read_array() == 2) {
      const auto hash = pair.read_text();
      const auto offset = pair.read_signed();
      if (hash && offset) {
        in = pair;
        // An item that began in an earlier block counts there.
        if (*offset >= 0 && *offset < event_.block_tokens)
          add_media(block, static_cast<std::uint32_t>(*offset), *hash);
        return;
      }
    }
    in.skip();
    ++out_.unknown_fields;
    add_media(block, 0, kNotUnderstood);
  }

  void add_media(std::uint32_t block, std::uint32_t offset, std::string_view hash) {
    const std::uint64_t token = std::uint64_t{block} * event_.block_tokens + offset;
    if (token >= event_.tokens.count) return;
    out_.media.push_back({static_cast<std::uint32_t>(token), kv_media(hash)});
  }

  MsgpackReader& in_;
  EngineKvBatch& out_;
  EngineKvEvent event_;
  std::string_view type_;
  std::string_view medium_;
  std::string_view locality_;
  std::string_view lora_;
  std::string_view salt_;
  std::string_view spec_kind_;
  std::optional<std::int64_t> lora_id_;
  std::optional<MsgpackReader> extra_keys_;
  bool has_window_ = false;
  bool good_ = true;
};

bool read_events(MsgpackReader& in, EngineKvBatch& out) {
  const auto count = in.read_array();
  if (!count) return false;
  for (std::uint32_t i = 0; i < *count && in.ok(); ++i)
    EventReader(in, out).read();
  return in.ok();
}

void read_rank(MsgpackReader& in, EngineKvBatch& out) {
  const auto rank = in.read_unsigned();
  if (rank && *rank <= std::numeric_limits<std::uint32_t>::max())
    out.rank = static_cast<std::uint32_t>(*rank);
  if (!rank) in.skip();
}

bool read_batch(MsgpackReader& in, EngineKvBatch& out) {
  bool has_events = false;
  if (const auto count = in.read_array()) {
    for (std::uint32_t i = 0; i < *count && in.ok(); ++i) {
      if (i == 0) {
        const auto time = in.read_number();
        out.timestamp = time.value_or(0);
        if (!time) in.skip();
      } else if (i == 1) {
        has_events = read_events(in, out);
        if (!has_events) return false;
      } else if (i == 2) {
        read_rank(in, out);
      } else {
        ++out.unknown_fields;
        in.skip();
      }
    }
  } else if (const auto pairs = in.read_map()) {
    for (std::uint32_t i = 0; i < *pairs && in.ok(); ++i) {
      const auto name = in.read_text();
      if (!name) return false;
      if (*name == "events") {
        has_events = read_events(in, out);
        if (!has_events) return false;
      } else if (*name == "ts") {
        out.timestamp = in.read_number().value_or(0);
      } else if (name->ends_with("rank")) {
        read_rank(in, out);
      } else {
        ++out.unknown_fields;
        in.skip();
      }
    }
  }
  return has_events && in.ok() && in.at_end();
}

}  // namespace

Status decode_kv_events(std::span<const std::byte> payload, EngineKvBatch& out) {
  out.clear();
  MsgpackReader in(payload);
  if (read_batch(in, out)) return {};
  out.clear();
  return fail(ErrorCode::kInvalidArgument,
              "a message of KV events is not MessagePack of [timestamp, [events], rank]; is the "
              "endpoint that of the engine's KV events, and is its version supported?");
}

std::optional<std::uint64_t> read_sequence(std::string_view frame) {
  if (frame.size() != 8) return std::nullopt;
  std::uint64_t value = 0;
  for (const char byte : frame)
    value = value << 8 | static_cast<std::uint8_t>(byte);
  return value;
}

std::array<char, 8> sequence_frame(std::uint64_t sequence) {
  std::array<char, 8> out{};
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<char>(sequence >> (56 - 8 * i));
  return out;
}

}  // namespace penstock::dialects
