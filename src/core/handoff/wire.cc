#include "core/handoff/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <concepts>
#include <type_traits>

#include "base/check.h"

namespace penstock::handoff {
namespace {

enum class Kind : std::uint8_t {
  kAttach = 1,
  kRenew = 2,
  kAck = 3,
  kRelease = 4,
  kAttached = 16,
  kRenewed = 17,
  kPart = 18,
  kClosed = 19,
  kEnded = 20,
  kAlive = 21,
};

// Both codecs walk a message with the same function, fields(): a writer appends, a parser fills in.
class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}
  template <std::unsigned_integral T>
  void number(const T& value) {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      out_.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
  }
  void text(const std::string& text) {
    const std::string_view cut = std::string_view(text).substr(0, kTextMax);
    number(static_cast<std::uint16_t>(cut.size()));
    out_ += cut;
  }
  template <typename T>
  std::size_t count(const std::vector<T>& items, std::size_t max, std::size_t) {
    ENSURE(items.size() <= max);
    number(static_cast<std::uint32_t>(items.size()));
    return items.size();
  }
  bool present(bool value) {
    number(static_cast<std::uint8_t>(value));
    return value;
  }
  void require(bool holds) { ENSURE(holds); }

 private:
  std::string& out_;
};

class Parser {
 public:
  explicit Parser(std::string_view bytes) : rest_(bytes) {}
  template <std::unsigned_integral T>
  void number(T& value) {
    value = 0;
    if (!have(sizeof(T))) return;
    for (std::size_t i = 0; i < sizeof(T); ++i)
      value |= static_cast<T>(static_cast<T>(static_cast<std::uint8_t>(rest_[i])) << (8 * i));
    rest_.remove_prefix(sizeof(T));
  }
  void text(std::string& text) {
    std::uint16_t size = 0;
    number(size);
    require(size <= kTextMax);
    if (!have(size)) return;
    text.assign(rest_.substr(0, size));
    rest_.remove_prefix(size);
  }
  // `least`: bytes that an item has at least, so that a count never reserves more than was sent.
  template <typename T>
  std::size_t count(std::vector<T>& items, std::size_t max, std::size_t least) {
    std::uint32_t size = 0;
    number(size);
    require(size <= max && size <= rest_.size() / least);
    items.resize(ok_ ? size : 0);
    return items.size();
  }
  bool present(bool) {
    std::uint8_t value = 0;
    number(value);
    require(value <= 1);
    return ok_ && value == 1;
  }
  void require(bool holds) { ok_ = ok_ && holds; }
  bool done() const { return ok_ && rest_.empty(); }

 private:
  bool have(std::size_t bytes) {
    require(rest_.size() >= bytes);
    return ok_;
  }
  std::string_view rest_;
  bool ok_ = true;
};

// A field that is no unsigned integer travels as one.
template <typename Codec, typename T>
void real(Codec& codec, T& value) {
  if constexpr (std::is_same_v<Codec, Writer>) {
    codec.number(std::bit_cast<std::uint32_t>(value));
  } else {
    std::uint32_t wire = 0;
    codec.number(wire);
    value = std::bit_cast<float>(wire);
  }
}

template <typename Codec, typename T>
void duration(Codec& codec, T& value) {
  if constexpr (std::is_same_v<Codec, Writer>) {
    codec.number(static_cast<std::uint64_t>(value.count()));
  } else {
    std::uint64_t wire = 0;
    codec.number(wire);
    // A lease of more than a day is nonsense, and must not overflow what it is added to.
    codec.require(wire <= std::uint64_t{86400} * 1'000'000'000);
    value = Duration(static_cast<std::int64_t>(wire));
  }
}

template <typename Codec, typename T>
void reason(Codec& codec, T& value) {
  std::uint8_t wire = static_cast<std::uint8_t>(value);
  codec.number(wire);
  codec.require(wire < kReasons);
  if constexpr (!std::is_same_v<Codec, Writer>)
    value = static_cast<Reason>(wire < kReasons ? wire : 0);
}

template <typename Codec, typename T>
void identity(Codec& codec, T& id) {
  codec.number(id.high);
  codec.number(id.low);
}

template <typename Codec, typename T>
void output_fields(Codec& codec, T& output) {
  codec.number(output.request.value);
  codec.number(output.choice);
  codec.number(output.index);
  codec.number(output.cached_tokens);
  const std::size_t tokens = codec.count(output.tokens, kOutputTokensMax, 12);
  for (std::size_t i = 0; i < tokens; ++i) {
    auto& token = output.tokens[i];
    codec.number(token.token);
    real(codec, token.logprob);
    const std::size_t top = codec.count(token.top, kTopMax, 8);
    for (std::size_t j = 0; j < top; ++j) {
      codec.number(token.top[j].token);
      real(codec, token.top[j].logprob);
    }
  }
  if (codec.present(output.finish.has_value())) {
    if constexpr (!std::is_same_v<Codec, Writer>) output.finish.emplace();
    std::uint8_t finish = static_cast<std::uint8_t>(*output.finish);
    codec.number(finish);
    codec.require(finish <= static_cast<std::uint8_t>(FinishReason::kError));
    if constexpr (!std::is_same_v<Codec, Writer>) output.finish = static_cast<FinishReason>(finish);
  }
  if (codec.present(output.error.has_value())) {
    if constexpr (!std::is_same_v<Codec, Writer>) output.error.emplace();
    std::uint8_t code = static_cast<std::uint8_t>(output.error->code);
    codec.number(code);
    codec.require(code <= static_cast<std::uint8_t>(ErrorCode::kInternal));
    if constexpr (!std::is_same_v<Codec, Writer>) output.error->code = static_cast<ErrorCode>(code);
    codec.text(output.error->message);
    codec.text(output.error->field);
    codec.text(output.error->openai_code);
  }
}

template <typename Codec, typename T>
void fields(Codec& codec, T& message) {
  using M = std::remove_const_t<T>;
  if constexpr (std::is_same_v<M, Attach>) {
    codec.number(message.version);
    identity(codec, message.id);
    codec.number(message.pull);
    codec.number(message.epoch.value);
    codec.number(message.received);
    codec.number(message.tokens);
    codec.number(message.layout.layers);
    codec.number(message.layout.block_tokens);
    codec.number(message.layout.slice_bytes);
    codec.text(message.layout.format);
    codec.text(message.model);
  } else if constexpr (std::is_same_v<M, Renew>) {
    identity(codec, message.id);
    codec.number(message.pull);
    codec.number(message.sequence);
  } else if constexpr (std::is_same_v<M, Ack>) {
    identity(codec, message.id);
    codec.number(message.pull);
    codec.number(message.received);
  } else if constexpr (std::is_same_v<M, Release>) {
    identity(codec, message.id);
    codec.number(message.pull);
    reason(codec, message.reason);
  } else if constexpr (std::is_same_v<M, Attached>) {
    codec.number(message.pull);
    codec.number(message.pool);
    duration(codec, message.lease);
  } else if constexpr (std::is_same_v<M, Renewed>) {
    codec.number(message.pull);
    codec.number(message.sequence);
    duration(codec, message.lease);
  } else if constexpr (std::is_same_v<M, Part>) {
    codec.number(message.pull);
    codec.number(message.first);
    codec.number(message.tokens);
    codec.number(message.layers);
    codec.require(message.layers >= 1 && message.layers <= kLayersMax);
    const std::size_t blocks = codec.count(message.blocks, kPartBlocksMax,
                                           part_block_bytes(std::min(message.layers, kLayersMax)));
    for (std::size_t i = 0; i < blocks; ++i) {
      auto& block = message.blocks[i];
      codec.number(block.block);
      codec.number(block.generation);
      if constexpr (!std::is_same_v<Codec, Writer>) block.checksums.resize(message.layers);
      ENSURE(block.checksums.size() == message.layers);
      for (auto& checksum : block.checksums)
        codec.number(checksum);
    }
  } else if constexpr (std::is_same_v<M, Closed>) {
    codec.number(message.pull);
    codec.number(message.tokens);
    if (codec.present(message.output.has_value())) {
      if constexpr (!std::is_same_v<Codec, Writer>) message.output.emplace();
      output_fields(codec, *message.output);
    }
  } else if constexpr (std::is_same_v<M, Ended>) {
    codec.number(message.pull);
    reason(codec, message.reason);
    codec.text(message.why);
  }
}

constexpr Kind kind_of(const Attach&) {
  return Kind::kAttach;
}
constexpr Kind kind_of(const Renew&) {
  return Kind::kRenew;
}
constexpr Kind kind_of(const Ack&) {
  return Kind::kAck;
}
constexpr Kind kind_of(const Release&) {
  return Kind::kRelease;
}
constexpr Kind kind_of(const Attached&) {
  return Kind::kAttached;
}
constexpr Kind kind_of(const Renewed&) {
  return Kind::kRenewed;
}
constexpr Kind kind_of(const Part&) {
  return Kind::kPart;
}
constexpr Kind kind_of(const Closed&) {
  return Kind::kClosed;
}
constexpr Kind kind_of(const Ended&) {
  return Kind::kEnded;
}
constexpr Kind kind_of(const Alive&) {
  return Kind::kAlive;
}

template <typename M>
Result<Message> parse(std::string_view bytes) {
  Parser parser(bytes);
  M message;
  fields(parser, message);
  if (!parser.done())
    return fail(ErrorCode::kDataLoss,
                fmt::format("handoff message of {} bytes does not parse", bytes.size() + 1));
  return Message(std::move(message));
}

bool equal(const EngineOutput& a, const EngineOutput& b) {
  std::string once, again;
  Writer first(once), second(again);
  output_fields(first, a);
  output_fields(second, b);
  return once == again;
}

}  // namespace

bool Layout::sound() const {
  return layers >= 1 && layers <= kLayersMax && block_tokens >= 1 && slice_bytes >= block_tokens &&
         slice_bytes % block_tokens == 0 && slice_bytes <= UINT32_MAX / layers;
}

std::string to_string(const Layout& layout) {
  return fmt::format("{} layers of {} bytes, {} tokens a block, {}", layout.layers,
                     layout.slice_bytes, layout.block_tokens, layout.format);
}

bool operator==(const Closed& a, const Closed& b) {
  return a.pull == b.pull && a.tokens == b.tokens && a.output.has_value() == b.output.has_value() &&
         (!a.output || equal(*a.output, *b.output));
}

std::size_t part_block_bytes(std::uint32_t layers) {
  return 12 + std::size_t{layers} * 8;
}

bool fits(const EngineOutput& output) {
  if (output.tokens.size() > kOutputTokensMax) return false;
  for (const OutputToken& token : output.tokens)
    if (token.top.size() > kTopMax) return false;
  return true;
}

std::string encode(const Message& message) {
  std::string out;
  std::visit(
      [&](const auto& m) {
        out.push_back(static_cast<char>(kind_of(m)));
        Writer writer(out);
        fields(writer, m);
      },
      message);
  ENSURE(out.size() <= kMessageMax);
  return out;
}

Result<Message> decode(std::string_view bytes) {
  if (bytes.empty() || bytes.size() > kMessageMax)
    return fail(ErrorCode::kDataLoss, fmt::format("handoff message of {} bytes", bytes.size()));
  const std::string_view body = bytes.substr(1);
  switch (static_cast<Kind>(bytes[0])) {
    case Kind::kAttach:
      return parse<Attach>(body);
    case Kind::kRenew:
      return parse<Renew>(body);
    case Kind::kAck:
      return parse<Ack>(body);
    case Kind::kRelease:
      return parse<Release>(body);
    case Kind::kAttached:
      return parse<Attached>(body);
    case Kind::kRenewed:
      return parse<Renewed>(body);
    case Kind::kPart:
      return parse<Part>(body);
    case Kind::kClosed:
      return parse<Closed>(body);
    case Kind::kEnded:
      return parse<Ended>(body);
    case Kind::kAlive:
      return parse<Alive>(body);
  }
  return fail(ErrorCode::kDataLoss, fmt::format("handoff message of unknown kind {}",
                                                static_cast<std::uint8_t>(bytes[0])));
}

}  // namespace penstock::handoff
