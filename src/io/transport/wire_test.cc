#include "io/transport/wire.h"

#include <doctest/doctest.h>

#include <functional>

namespace penstock::transport {
namespace {

std::string_view body_of(const std::string& frame) {
  return std::string_view(frame).substr(kHeadBytes);
}

RemoteSlice sample_slice() {
  return {1, 2, 0x1122334455667788, 4, 5, 0};
}

}  // namespace

TEST_CASE("frames are what they were before, and no prefix or extension of one is another") {
  const Hello hello{Driver::kUcx, 3, "where"};
  const Welcome welcome{Driver::kTcp, 2, Token{1, 2, 3}, "there"};
  const PoolNotice pool{7, 8, 1 << 20, 4096, 64};
  CHECK(*decode_hello(body_of(encode(hello))) == hello);
  CHECK(*decode_welcome(body_of(encode(welcome))) == welcome);
  CHECK(*decode_join(body_of(encode(Join{Token{9}}))) == Join{Token{9}});
  CHECK(*decode_pool(body_of(encode(pool))) == pool);
  CHECK(*decode_bytes(body_of(encode(BytesHead{5, 6}))) == BytesHead{5, 6});
  for (const ReadEnd end : {ReadEnd::kDone, ReadEnd::kStale, ReadEnd::kRefused})
    CHECK(*decode_verdict(body_of(encode(Verdict{5, end}))) == Verdict{5, end});
  CHECK(!decode_verdict(body_of(encode(Verdict{5, ReadEnd::kDeadline}))));
  CHECK(*decode_cancel(body_of(encode_cancel(12))) == 12);
  const ReadRequest read = *decode_read(body_of(encode(ReadRequest{9, sample_slice()})));
  CHECK(read.id == 9);
  CHECK(read.slice.pool == 1);
  CHECK(read.slice.block == 2);
  CHECK(read.slice.generation == 0x1122334455667788);
  CHECK(read.slice.offset == 4);
  CHECK(read.slice.length == 5);

  const auto exact = [](const std::string& frame, const std::function<bool(std::string_view)>& ok) {
    const std::string body(body_of(frame));
    for (std::size_t n = 0; n < body.size(); ++n)
      CHECK(!ok(std::string_view(body).substr(0, n)));
    CHECK(!ok(body + '\0'));
  };
  exact(encode(Join{}), [](auto b) { return decode_join(b).has_value(); });
  exact(encode(pool), [](auto b) { return decode_pool(b).has_value(); });
  exact(encode(BytesHead{5, 6}), [](auto b) { return decode_bytes(b).has_value(); });
  exact(encode(Verdict{5, ReadEnd::kDone}), [](auto b) { return decode_verdict(b).has_value(); });
  exact(encode_cancel(1), [](auto b) { return decode_cancel(b).has_value(); });
  exact(encode(ReadRequest{9, sample_slice()}), [](auto b) { return decode_read(b).has_value(); });
}

TEST_CASE("heads of unknown kinds and impossible lengths are refused before anything follows") {
  const std::string good = frame(Kind::kMessage, "text");
  CHECK(**decode_head(good) == Head{4, Kind::kMessage});
  for (std::size_t n = 0; n < kHeadBytes; ++n)
    CHECK(!decode_head(good.substr(0, n))->has_value());
  const auto head = [](std::uint32_t length, std::uint8_t kind, char reserved = 0) {
    std::string bytes(kHeadBytes, '\0');
    for (std::size_t i = 0; i < 4; ++i)
      bytes[i] = static_cast<char>(length >> 8 * i);
    bytes[4] = static_cast<char>(kind);
    bytes[7] = reserved;
    return decode_head(bytes);
  };
  CHECK(head(0, 4));
  CHECK(head(kMessageBytesMax, 4));
  CHECK(!head(kMessageBytesMax + 1, 4));
  CHECK(!head(0xffffffff, 4));
  CHECK(!head(1, 5));  // a ping has nothing in it
  CHECK(!head(0, 0));
  CHECK(!head(0, static_cast<std::uint8_t>(kKindLast) + 1));
  CHECK(!head(0, 5, 1));
}

TEST_CASE("tokens are drawn anew") {
  CHECK(random_token() != random_token());
}

}  // namespace penstock::transport
