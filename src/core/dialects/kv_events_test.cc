#include "core/dialects/kv_events.h"

#include <algorithm>
#include <string>

#include "base/rng.h"
#include "core/dialects/msgpack_writer.h"

#include <doctest/doctest.h>

namespace penstock::dialects {
namespace {

using Kind = EngineKvEvent::Kind;
using Attention = EngineKvEvent::Attention;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Bytes as they stand in a capture: "93 cb 40 00 ...".
std::string from_hex(std::string_view hex) {
  std::string out;
  int high = -1;
  for (const char c : hex) {
    if (c == ' ') continue;
    const int digit = c <= '9' ? c - '0' : c - 'a' + 10;
    if (high < 0) {
      high = digit;
    } else {
      out += static_cast<char>(high * 16 + digit);
      high = -1;
    }
  }
  return out;
}

EngineKvBatch decoded(std::string_view payload) {
  EngineKvBatch batch;
  const Status status = decode_kv_events(bytes_of(payload), batch);
  REQUIRE_MESSAGE(status.has_value(), status.error().message);
  return batch;
}

// One event in a message.
template <typename Write>
EngineKvBatch with_event(const Write& write) {
  MsgpackWriter out;
  out.array(3).real(1.5).array(1);
  write(out);
  out.number(2);
  return decoded(out.bytes());
}

TEST_CASE("a message by position, as vLLM sent it first") {
  // [1.0, [["BlockStored", [-2, 2^63 + 1], nil, [1, 300, 70000, 4], 2, nil, "GPU"],
  //        ["BlockRemoved", [7], "CPU"], ["AllBlocksCleared"]], 3]
  const EngineKvBatch batch =
      decoded(from_hex("93 cb 3f f0 00 00 00 00 00 00 93"
                       "97 ab 42 6c 6f 63 6b 53 74 6f 72 65 64 92 fe cf 80 00 00 00 00 00 00 01 c0"
                       "94 01 cd 01 2c ce 00 01 11 70 04 02 c0 a3 47 50 55"
                       "93 ac 42 6c 6f 63 6b 52 65 6d 6f 76 65 64 91 07 a3 43 50 55"
                       "91 b0 41 6c 6c 42 6c 6f 63 6b 73 43 6c 65 61 72 65 64"
                       "03"));
  CHECK(batch.timestamp == 1.0);
  CHECK(batch.rank == 3);
  REQUIRE(batch.events.size() == 3);
  CHECK(batch.hashes == std::vector<std::uint64_t>{static_cast<std::uint64_t>(-2),
                                                   (std::uint64_t{1} << 63) + 1, 7});
  CHECK(batch.tokens == std::vector<TokenId>{1, 300, 70'000, 4});
  const EngineKvEvent& stored = batch.events[0];
  CHECK(stored.kind == Kind::kStored);
  CHECK(stored.tier == KvTier::kDevice);
  CHECK(stored.hashes.count == 2);
  CHECK(stored.tokens.count == 4);
  CHECK(stored.block_tokens == 2);
  CHECK_FALSE(stored.parent.has_value());
  CHECK_FALSE(stored.group.has_value());
  CHECK(stored.context == 0);
  CHECK(batch.events[1].kind == Kind::kRemoved);
  CHECK(batch.events[1].tier == KvTier::kHost);
  CHECK(batch.events[1].hashes.first == 2);
  CHECK(batch.events[2].kind == Kind::kCleared);
  CHECK(batch.unknown_events + batch.unknown_fields + batch.bad_events == 0);
}

TEST_CASE("a message of maps, hashes as bytes, the name of the event last") {
  // [2, [{"block_hashes": [bin 10 bytes], "parent_block_hash": bin 00..05, "token_ids": [9],
  //       "block_size": 1, "medium": nil, "later": {1: [2]}, "type": "BlockStored"}], nil]
  const EngineKvBatch batch = decoded(
      from_hex("93 02 91 87"
               "ac 62 6c 6f 63 6b 5f 68 61 73 68 65 73 91 c4 0a ff ee 01 02 03 04 05 06 07 08"
               "b1 70 61 72 65 6e 74 5f 62 6c 6f 63 6b 5f 68 61 73 68 c4 02 01 05"
               "a9 74 6f 6b 65 6e 5f 69 64 73 91 09"
               "aa 62 6c 6f 63 6b 5f 73 69 7a 65 01"
               "a6 6d 65 64 69 75 6d c0"
               "a5 6c 61 74 65 72 81 01 91 02"
               "a4 74 79 70 65 ab 42 6c 6f 63 6b 53 74 6f 72 65 64"
               "c0"));
  REQUIRE(batch.events.size() == 1);
  CHECK(batch.hashes[0] == 0x0102030405060708);
  CHECK(batch.events[0].parent == 0x0105);
  CHECK(batch.events[0].block_tokens == 1);
  CHECK(batch.unknown_fields == 1);
  CHECK_FALSE(batch.rank.has_value());
}

TEST_CASE("an event that can't be used is left out, and the others are not") {
  MsgpackWriter out;
  out.array(2).real(1).array(6);
  out.array(3).text("BlockSwapped").array(1).number(1).nil();              // not known
  out.array(2).text("BlockRemoved").array(2).number(1).text("two");        // a hash of letters
  out.array(3).text("BlockStored").array(1).number(5).map(1).nil().nil();  // a parent that's none
  out.number(17);                                                          // not an event
  out.array(5).text("BlockStored").array(1).number(5).nil().array(1).negative(-4).number(1);
  out.array(2).text("BlockRemoved").array(1).number(6);
  const EngineKvBatch batch = decoded(out.bytes());
  REQUIRE(batch.events.size() == 1);
  CHECK(batch.events[0].kind == Kind::kRemoved);
  CHECK(batch.hashes == std::vector<std::uint64_t>{6});
  CHECK(batch.tokens.empty());
  CHECK(batch.bad_events == 3);
  CHECK(batch.unknown_events == 2);
}

TEST_CASE("groups and media") {
  const auto stored = [](std::string_view kind, bool window, std::string_view medium,
                         std::string_view locality) {
    return with_event([&](MsgpackWriter& out) {
      out.map(7).text("type").text("BlockStored").text("block_hashes").array(1).number(1);
      out.text("kv_cache_spec_kind").text(kind).text("kv_cache_spec_sliding_window");
      window ? out.number(128) : out.nil();
      out.text("medium").text(medium).text("locality").text(locality).text("group_idx").number(4);
    });
  };
  const EngineKvBatch full = stored("full_attention", false, "GPU", "LOCAL");
  CHECK(full.rank == 2);
  CHECK(full.events[0].group == 4);
  CHECK(full.events[0].attention == Attention::kFull);
  CHECK(full.events[0].tier == KvTier::kDevice);
  CHECK(stored("mla_attention", false, "cpu", "").events[0].attention == Attention::kFull);
  CHECK(stored("mla_attention", false, "cpu", "").events[0].tier == KvTier::kHost);
  CHECK(stored("sliding_window", true, "SSD", "").events[0].attention == Attention::kOther);
  CHECK(stored("sliding_window_mla", false, "SSD", "").events[0].tier == KvTier::kDisk);
  CHECK(stored("full_attention", true, "x", "").events[0].attention == Attention::kOther);
  CHECK(stored("full_attention", true, "x", "").events[0].tier == KvTier::kCluster);
  CHECK(stored("mamba", false, "GPU", "REMOTE").events[0].attention == Attention::kOther);
  CHECK(stored("mamba", false, "GPU", "REMOTE").events[0].tier == KvTier::kCluster);
}

// A stored event of two blocks of four tokens with these extra keys.
template <typename Write>
EngineKvBatch with_extra(std::string_view lora, bool has_parent, const Write& write) {
  return with_event([&](MsgpackWriter& out) {
    out.array(9).text("BlockStored").array(2).number(1).number(2);
    has_parent ? out.number(9) : out.nil();
    out.array(8);
    for (std::uint64_t token = 0; token < 8; ++token)
      out.number(token);
    out.number(4).nil().nil();
    lora.empty() ? out.nil() : out.text(lora);
    write(out);
  });
}

TEST_CASE("adapter, salt and media out of keys without tags") {
  const auto none = with_extra("", false, [](auto& out) { out.nil(); });
  CHECK(none.events[0].context == 0);
  const auto lora = with_extra(
      "sql", false, [](auto& out) { out.array(2).array(1).text("sql").array(1).text("sql"); });
  CHECK(lora.events[0].context == kv_context("sql", ""));
  CHECK(lora.media.empty());
  const auto salt =
      with_extra("", false, [](auto& out) { out.array(2).array(1).text("sql").nil(); });
  CHECK(salt.events[0].context == kv_context("", "sql"));
  CHECK(salt.events[0].context != lora.events[0].context);
  const auto both = with_extra("sql", false, [](auto& out) {
    out.array(1).array(3).text("sql").array(2).text("cat").number(1).text("pepper");
  });
  CHECK(both.events[0].context == kv_context("sql", "pepper"));
  REQUIRE(both.media.size() == 1);
  CHECK(both.media[0].token == 1);
  CHECK(both.media[0].digest == kv_media("cat"));

  // It begins in the second block; what began before the event counts elsewhere.
  const auto image = with_extra("", true, [](auto& out) {
    out.array(2).array(1).array(2).text("dog").negative(-2);
    out.array(1).array(2).text("cat").number(3);
  });
  REQUIRE(image.media.size() == 1);
  CHECK(image.media[0].token == 7);
  // Keys that nobody can place make the block one that no prompt has.
  const auto odd =
      with_extra("", true, [](auto& out) { out.array(1).array(2).text("cat").map(0); });
  REQUIRE(odd.media.size() == 2);
  CHECK(odd.media[0].digest != kv_media("cat"));
  CHECK(odd.unknown_fields == 1);
  CHECK(with_extra("", true, [](auto& out) { out.number(1); }).bad_events == 1);
}

TEST_CASE("SGLang's own field for the salt; an adapter that has a number only") {
  const auto sglang = with_event([](MsgpackWriter& out) {
    out.map(5).text("type").text("BlockStored").text("block_hashes").array(1).number(1);
    out.text("cache_salt").text("pepper").text("session_id").text("s").text("lora_id").nil();
  });
  CHECK(sglang.events[0].context == kv_context("", "pepper"));
  CHECK(sglang.unknown_fields == 0);
  const auto number = with_event([](MsgpackWriter& out) {
    out.map(3).text("type").text("BlockStored").text("block_hashes").array(1).number(1);
    out.text("lora_id").number(3);
  });
  CHECK(number.events[0].context == kv_context("#3", ""));
}

TEST_CASE("a payload of another shape fails whole, wherever it is cut") {
  MsgpackWriter out;
  out.array(3).real(1).array(2);
  out.array(4).text("BlockStored").array(2).number(1).negative(-7).binary("12345678").array(0);
  out.map(2).text("type").text("BlockRemoved").text("block_hashes").array(1).number(1 << 20);
  out.number(0);
  EngineKvBatch batch;
  REQUIRE(decode_kv_events(out.span(), batch).has_value());
  for (std::size_t size = 0; size < out.bytes().size(); ++size) {
    CHECK_FALSE(decode_kv_events(out.span().first(size), batch).has_value());
    CHECK(batch.events.empty());
  }
  for (const std::string_view bad : {"", "hello", "\x91\x01", "\x80", "\xc1", "\x93\x01\x90\x01x"})
    CHECK_FALSE(decode_kv_events(bytes_of(bad), batch).has_value());
  // A header that promises 2^32 - 1 items of nothing.
  CHECK_FALSE(decode_kv_events(bytes_of("\x92\x01\xdd\xff\xff\xff\xff"), batch).has_value());
  // Nested deep.
  CHECK_FALSE(
      decode_kv_events(bytes_of("\x92\x01\x91" + std::string(1 << 20, '\x91')), batch).has_value());
}

TEST_CASE("any bytes changed: an answer, never more") {
  Rng rng(1);
  MsgpackWriter out;
  out.array(3).real(1).array(2);
  out.array(6).text("BlockStored").array(1).number(1).nil().array(2).number(1).number(2).number(2);
  out.nil();
  out.map(2).text("type").text("BlockRemoved").text("block_hashes").array(1).number(1 << 20);
  out.number(0);
  EngineKvBatch batch;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = out.bytes();
    for (std::uint64_t n = 1 + rng.below(4); n > 0; --n)
      bytes[rng.below(bytes.size())] = static_cast<char>(rng.below(256));
    if (!decode_kv_events(bytes_of(bytes), batch)) continue;
    for (const EngineKvEvent& event : batch.events) {
      REQUIRE(event.hashes.first + event.hashes.count <= batch.hashes.size());
      REQUIRE(event.tokens.first + event.tokens.count <= batch.tokens.size());
      REQUIRE(event.media.first + event.media.count <= batch.media.size());
    }
  }
}

TEST_CASE("sequence numbers are big-endian frames of eight bytes") {
  const auto frame = sequence_frame(0x0102030405060708);
  CHECK(std::string_view(frame.data(), 8) == "\x01\x02\x03\x04\x05\x06\x07\x08");
  CHECK(read_sequence({frame.data(), 8}) == 0x0102030405060708);
  CHECK(read_sequence("\xff\xff\xff\xff\xff\xff\xff\xff") == kReplayEnd);
  CHECK_FALSE(read_sequence("1234567").has_value());
}

}  // namespace
}  // namespace penstock::dialects
