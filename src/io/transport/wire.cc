#include "io/transport/wire.h"

#include <sys/random.h>

#include <algorithm>
#include <concepts>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"

namespace penstock::transport {
namespace {

constexpr std::string_view kMagic = "PSTKV001";

struct Lengths {
  std::size_t least = 0;
  std::size_t most = 0;
};

// Of bodies, by kind.
Lengths lengths(Kind kind) {
  switch (kind) {
    case Kind::kHello:
      return {10, 10 + kDetailsBytesMax};
    case Kind::kWelcome:
      return {26, 26 + kDetailsBytesMax};
    case Kind::kJoin:
      return {16, 16};
    case Kind::kMessage:
      return {0, kMessageBytesMax};
    case Kind::kPing:
      return {0, 0};
    case Kind::kPool:
      return {32, 32};
    case Kind::kGoodbye:
      return {0, kReasonBytesMax};
    case Kind::kRead:
      return {32, 32};
    case Kind::kCancel:
      return {8, 8};
    case Kind::kBytes:
      return {12, 12};
    case Kind::kVerdict:
      return {9, 9};
  }
  return {1, 0};  // no kind of ours
}

class Writer {
 public:
  explicit Writer(Kind kind) : out_(kHeadBytes, '\0') { out_[4] = static_cast<char>(kind); }
  template <std::unsigned_integral T>
  Writer& add(T value) {
    for (std::size_t i = 0; i < sizeof value; ++i)
      out_.push_back(static_cast<char>(value >> 8 * i));
    return *this;
  }
  Writer& add(std::string_view bytes) {
    out_ += bytes;
    return *this;
  }
  Writer& add(const Token& token) {
    return add(std::string_view(reinterpret_cast<const char*>(token.data()), token.size()));
  }
  std::string finish() {
    const std::size_t length = out_.size() - kHeadBytes;
    for (std::size_t i = 0; i < 4; ++i)
      out_[i] = static_cast<char>(length >> 8 * i);
    return std::move(out_);
  }

 private:
  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  template <std::unsigned_integral T>
  T take() {
    T value = 0;
    if (!has(sizeof value)) return value;
    for (std::size_t i = 0; i < sizeof value; ++i)
      value = static_cast<T>(value | T{static_cast<std::uint8_t>(rest_[i])} << 8 * i);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  std::string_view take(std::size_t bytes) {
    if (!has(bytes)) return {};
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  Token token() {
    Token token{};
    const std::string_view bytes = take(token.size());
    std::copy(bytes.begin(), bytes.end(), token.begin());
    return token;
  }
  std::string_view rest() { return std::exchange(rest_, {}); }
  bool good() const { return good_ && rest_.empty(); }

 private:
  bool has(std::size_t bytes) {
    good_ = good_ && rest_.size() >= bytes;
    return good_;
  }
  std::string_view rest_;
  bool good_ = true;
};

std::unexpected<Error> bad(std::string_view what) {
  return fail(ErrorCode::kDataLoss, fmt::format("it sent {}", what));
}

bool is_driver(std::uint8_t value) {
  return value >= static_cast<std::uint8_t>(Driver::kShm) &&
         value <= static_cast<std::uint8_t>(Driver::kUcx);
}

}  // namespace

std::string frame(Kind kind, std::string_view body) {
  return Writer(kind).add(body).finish();
}

std::string encode(const Hello& hello) {
  return Writer(Kind::kHello)
      .add(kMagic)
      .add(static_cast<std::uint8_t>(hello.driver))
      .add(hello.streams)
      .add(hello.details)
      .finish();
}

std::string encode(const Welcome& welcome) {
  return Writer(Kind::kWelcome)
      .add(kMagic)
      .add(static_cast<std::uint8_t>(welcome.driver))
      .add(welcome.streams)
      .add(welcome.token)
      .add(welcome.details)
      .finish();
}

std::string encode(const Join& join) {
  return Writer(Kind::kJoin).add(join.token).finish();
}

std::string encode(const PoolNotice& notice) {
  return Writer(Kind::kPool)
      .add(notice.number)
      .add(notice.blocks)
      .add(notice.bytes)
      .add(notice.payload_offset)
      .add(notice.block_bytes)
      .finish();
}

std::string encode(const ReadRequest& request) {
  return Writer(Kind::kRead)
      .add(request.id)
      .add(request.slice.generation)
      .add(request.slice.pool)
      .add(request.slice.block)
      .add(request.slice.offset)
      .add(request.slice.length)
      .finish();
}

std::string encode(const BytesHead& head) {
  return Writer(Kind::kBytes).add(head.id).add(head.length).finish();
}

std::string encode(const Verdict& verdict) {
  return Writer(Kind::kVerdict)
      .add(verdict.id)
      .add(static_cast<std::uint8_t>(verdict.end))
      .finish();
}

std::string encode_cancel(std::uint64_t id) {
  return Writer(Kind::kCancel).add(id).finish();
}

Result<std::optional<Head>> decode_head(std::string_view bytes) {
  if (bytes.size() < kHeadBytes) return std::nullopt;
  Reader in(bytes.substr(0, kHeadBytes));
  const auto length = in.take<std::uint32_t>();
  const auto kind = in.take<std::uint8_t>();
  const auto reserved = in.take(3);
  const Lengths allowed = lengths(static_cast<Kind>(kind));
  if (allowed.least > allowed.most || std::ranges::any_of(reserved, [](char c) { return c != 0; }))
    return bad(fmt::format("a frame of the unknown kind {}", kind));
  if (length < allowed.least || length > allowed.most)
    return bad(fmt::format("a frame of kind {} with {} bytes", kind, length));
  return Head{length, static_cast<Kind>(kind)};
}

Result<Hello> decode_hello(std::string_view body) {
  Reader in(body);
  const bool ours = in.take(kMagic.size()) == kMagic;
  const auto driver = in.take<std::uint8_t>();
  Hello hello;
  hello.streams = in.take<std::uint8_t>();
  hello.details = in.rest();
  if (!ours) return bad("no greeting of a Penstock transport of this version");
  if (!in.good() || !is_driver(driver) || hello.streams > kStreamsMax ||
      hello.details.size() > kDetailsBytesMax)
    return bad("a malformed greeting");
  hello.driver = static_cast<Driver>(driver);
  return hello;
}

Result<Welcome> decode_welcome(std::string_view body) {
  Reader in(body);
  const bool ours = in.take(kMagic.size()) == kMagic;
  const auto driver = in.take<std::uint8_t>();
  Welcome welcome;
  welcome.streams = in.take<std::uint8_t>();
  welcome.token = in.token();
  welcome.details = in.rest();
  if (!ours) return bad("no greeting of a Penstock transport of this version");
  if (!in.good() || !is_driver(driver) || welcome.streams > kStreamsMax ||
      welcome.details.size() > kDetailsBytesMax)
    return bad("a malformed greeting");
  welcome.driver = static_cast<Driver>(driver);
  return welcome;
}

Result<Join> decode_join(std::string_view body) {
  Reader in(body);
  const Join join{in.token()};
  if (!in.good()) return bad("a malformed joining");
  return join;
}

Result<PoolNotice> decode_pool(std::string_view body) {
  Reader in(body);
  PoolNotice notice;
  notice.number = in.take<std::uint32_t>();
  notice.blocks = in.take<std::uint32_t>();
  notice.bytes = in.take<std::uint64_t>();
  notice.payload_offset = in.take<std::uint64_t>();
  notice.block_bytes = in.take<std::uint64_t>();
  if (!in.good()) return bad("a malformed pool");
  return notice;
}

Result<ReadRequest> decode_read(std::string_view body) {
  Reader in(body);
  ReadRequest request;
  request.id = in.take<std::uint64_t>();
  request.slice.generation = in.take<std::uint64_t>();
  request.slice.pool = in.take<std::uint32_t>();
  request.slice.block = in.take<std::uint32_t>();
  request.slice.offset = in.take<std::uint32_t>();
  request.slice.length = in.take<std::uint32_t>();
  if (!in.good() || request.id == 0) return bad("a malformed read");
  return request;
}

Result<BytesHead> decode_bytes(std::string_view body) {
  Reader in(body);
  BytesHead head;
  head.id = in.take<std::uint64_t>();
  head.length = in.take<std::uint32_t>();
  if (!in.good() || head.id == 0 || head.length == 0) return bad("malformed bytes");
  return head;
}

Result<Verdict> decode_verdict(std::string_view body) {
  Reader in(body);
  Verdict verdict;
  verdict.id = in.take<std::uint64_t>();
  verdict.end = static_cast<ReadEnd>(in.take<std::uint8_t>());
  const bool known = verdict.end == ReadEnd::kDone || verdict.end == ReadEnd::kStale ||
                     verdict.end == ReadEnd::kRefused;
  if (!in.good() || verdict.id == 0 || !known) return bad("a malformed verdict");
  return verdict;
}

Result<std::uint64_t> decode_cancel(std::string_view body) {
  Reader in(body);
  const auto id = in.take<std::uint64_t>();
  if (!in.good() || id == 0) return bad("a malformed cancellation");
  return id;
}

Token random_token() {
  Token token;
  ENSURE(::getrandom(token.data(), token.size(), 0) == static_cast<ssize_t>(token.size()));
  return token;
}

}  // namespace penstock::transport
